// Reduction of rows by an index per row on CUDA, without a sort, by operators whose result does not depend on the order
// of the rows.
//
// A cell is a group and a column, and has a word in global memory, into which atomics combine its operands. If shared
// memory holds all cells, every block has words of its own for them, and combines them into the global ones at the end.
// If not, a block has words for those cells that it meets first, so that the atomics of a group with very many rows are
// not all on one global word; the operands of other cells go to global memory at once.
//
// A sum of floats has one word per bin of exponents (segmented/exact_sum.h). A pass over the values finds which bins
// there are; only their words are cleared, added to and read. The words of all cells in the same bin are neighbours, so
// that usual values, nearly all of which are in the first bin, need few of the words. No address depends on the number
// of bins, so the host need not know it.
//
// An operand that would not change a word is dropped. For operators whose words move one way only, as a maximum does, a
// plain read finds that out, and may read an older word. So few atomics are left where groups have many rows.
//
// Extrema are maxima of integers that compare as the values do (see Extremum). Of equal values, such as -0.0 and 0.0 or
// two NaN, the first row must win, but their integers are equal. So if there are values that an integer does not give
// back bit for bit, a second pass over the rows finds the first row of each such result.
#include "core/division.h"
#include "segmented/group_atomics.h"
#ifdef __CUDACC__
#include "block/launch.cuh"
#include "segmented/group_operands.cuh"

namespace tp::segmented {
namespace {

// The shapes of a launch that combines rows. A block of the second has most of the shared memory of a multiprocessor.
// `bytes` are for words that need no tags; words with tags are 2^cached_bits.
struct ManyBlocks {
  static constexpr int threads = 512, per_multiprocessor = 3, cached_bits = 11, bytes = 72 << 10;
};
struct LargeBlocks {
  static constexpr int threads = 1024, per_multiprocessor = 1, cached_bits = 14, bytes = 224 << 10;
};
constexpr int threads = 512, items = 4, extent_items = 8;
constexpr unsigned vacant = ~0u;

// Loads data that is read only once, without displacing the words from the caches.
template <class T>
TP_DEVICE T read_once(const T* p) {
  using Word = std::conditional_t<
      sizeof(T) == 8, unsigned long long,
      std::conditional_t<sizeof(T) == 4, unsigned, std::conditional_t<sizeof(T) == 2, unsigned short, unsigned char>>>;
  const Word word = __ldcs(reinterpret_cast<const Word*>(p));
  T value;
  memcpy(&value, &word, sizeof value);
  return value;
}

template <class E>
struct Problem {
  using Word = typename E::Word;
  E e;
  const typename E::Input* in;
  typename E::Output* out;
  const void* index;
  bool long_index;
  int64_t n, groups, width;
  Word* words;  // [words per cell, cells]; `out` itself if a cell has one word of the size of a result
  // If there can be ties: whether a value is lost, and per cell n minus the first row of a tie, or 0.
  int* any_lost;
  int64_t* ties;

  TP_HD int64_t cells() const { return groups * width; }
  TP_HD int64_t elements() const { return n * width; }
  TP_DEVICE int64_t row_of(int64_t i) const { return width == 1 ? i : quotient(i, width); }
};

// The elements of a tile that this thread handles; `cell` is -1 if there is none.
template <class E, int threads>
struct Taken {
  int64_t cell[items];
  typename E::Input x[items];

  TP_DEVICE Taken(const Problem<E>& p, int64_t first) {
    p.long_index ? load(p, first, static_cast<const int64_t*>(p.index))
                 : load(p, first, static_cast<const int32_t*>(p.index));
  }
  // The word into which element j is combined; -1 if it is in no cell.
  template <class R>
  TP_DEVICE int64_t word(const Problem<E>& p, const R& e, int j) const {
    return E::binned && cell[j] >= 0 ? cell[j] + e.word_of(x[j]) * p.cells() : cell[j];
  }

 private:
  template <class I>
  TP_DEVICE void load(const Problem<E>& p, int64_t first, const I* indices) {
    first += int(threadIdx.x);
    const int64_t left = p.elements() - first;
    const auto groups = uint64_t(p.groups);
    if (p.width == 1 && left > (items - 1) * threads) {  // the usual case needs no conditions, so loads do not wait
      I group[items];
#pragma unroll
      for (int j = 0; j < items; ++j) {
        x[j] = read_once(p.in + first + j * threads);
        group[j] = read_once(indices + first + j * threads);
      }
#pragma unroll
      for (int j = 0; j < items; ++j) cell[j] = uint64_t(int64_t(group[j])) < groups ? int64_t(group[j]) : -1;
      return;
    }
#pragma unroll
    for (int j = 0; j < items; ++j) {
      cell[j] = -1;
      if (j * threads >= left) continue;
      const int64_t i = first + j * threads, row = p.row_of(i), group = indices[row];
      x[j] = p.in[i];
      if (uint64_t(group) < groups) cell[j] = group * p.width + i - row * p.width;
    }
  }
};

template <class E>
__global__ __launch_bounds__(threads) void start_kernel(const Problem<E> p) {
  const auto e = ready(p.e);
  const int64_t id = int64_t(blockIdx.x) * threads + threadIdx.x, step = int64_t(gridDim.x) * threads;
  if (E::ties && id == 0) *p.any_lost = 0;
  for (int64_t i = id; i < p.cells() * e.words(); i += step) {
    p.words[i] = e.identity();
    if (E::ties) p.ties[i] = 0;
  }
}

// Whether combining `operand` into a word that is, or was, `seen` may change it.
template <class E, class R>
TP_DEVICE bool changes(const R& e, typename E::Word seen, typename E::Word operand) {
  return E::one_way ? E::Op::combine(seen, operand) != seen : operand != e.identity();
}

// An atomic on shared memory. There is no addition of 64 bits there, so the two halves are added, with the carry.
template <class Op, class Word>
TP_DEVICE void combine_shared(Word* word, Word operand) {
  if constexpr (Op::id == OpId::sum) {
    auto* const halves = reinterpret_cast<unsigned*>(word);
    const unsigned low = unsigned(operand), before = atomicAdd(halves, low);
    const unsigned high = unsigned(uint64_t(operand) >> 32) + (before + low < low);
    if (high != 0) atomicAdd(halves + 1, high);
  } else {
    atomic_combine<Op>(word, operand);
  }
}

// An atomic on global memory. The words of sums, which every operand must reach, are kept in the L2 cache in preference
// to other data.
template <class Op, class Word>
TP_DEVICE void combine_global(Word* word, Word operand) {
#if __CUDA_ARCH__ >= 800
  if constexpr (Op::id == OpId::sum) {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("red.relaxed.gpu.global.add.L2::cache_hint.u64 [%0], %1, %2;" ::"l"(word), "l"(operand), "l"(policy)
                 : "memory");
    return;
  }
#endif
  atomic_combine<Op>(word, operand);
}

constexpr int64_t shared_words = 1024;  // a block that needs fewer has several copies of them

// Whether a slot belongs to the words with this tag; they take it if it is vacant.
TP_DEVICE __forceinline__ bool takes_slot(unsigned* slot, unsigned tag) {
  unsigned found = *static_cast<volatile unsigned*>(slot);
  if (found == vacant) {
    found = atomicCAS(slot, vacant, tag);
    if (found == vacant) found = tag;
  }
  return found == tag;
}

// Combines the copies of a word, which are `slots` words apart in shared memory, and then combines them with `to`.
template <class E, class Ready, class Word>
TP_DEVICE __forceinline__ void flush_word(const Ready& e, const Word* from, int slots, int copies, Word* to) {
  using Op = typename E::Op;
  Word found = *from;
  for (int c = 1; c < copies; ++c) found = Op::combine(found, from[c * slots]);
  if (changes<E>(e, E::one_way ? *to : Word(0), found)) atomic_combine<Op>(to, found);
}

// `direct`: the first `room` words of p.words, of which each cell has at least one, are in shared memory, and in
// several copies if they are few, over which the warps are distributed. Otherwise there is one copy of 2^cached_bits
// words; a tag per word holds the high bits of its index in p.words, or `vacant`.
template <bool direct, class Shape, class E>
__global__ __launch_bounds__(Shape::threads, Shape::per_multiprocessor) void reduce_kernel(const Problem<E> p,
                                                                                           int room) {
  constexpr int threads = Shape::threads, tile = threads * items, cached_bits = Shape::cached_bits;
  using Word = typename E::Word;
  using Op = typename E::Op;
  extern __shared__ __align__(8) unsigned char pool[];
  const auto e = ready(p.e);
  const int slots = direct ? int(tp::min(p.cells() * e.words(), int64_t(room))) : room;
  if (slots == 0) return;  // all values are 0, so they need no words
  const int copies = direct ? tp::max(tp::min(int(shared_words) / slots, threads / 32), 1) : 1;
  Word* const words = reinterpret_cast<Word*>(pool);
  unsigned* const tags = reinterpret_cast<unsigned*>(words + slots);
  for (int i = int(threadIdx.x); i < slots * copies; i += threads) words[i] = e.identity();
  for (int i = int(threadIdx.x); !direct && i < slots; i += threads) tags[i] = vacant;
  __syncthreads();
  Word* const mine = words + int(threadIdx.x) / 32 % copies * slots;
  const auto slot_of = [&](int64_t at) { return direct ? int(at) : int(at & (slots - 1)); };
  bool lost = false;
  for (int64_t first = int64_t(blockIdx.x) * tile; first < p.elements(); first += int64_t(gridDim.x) * tile) {
    const Taken<E, threads> taken(p, first);
    int64_t word[items];
    bool cached[items];
    Word seen[items];
#pragma unroll
    for (int j = 0; j < items; ++j) {
      word[j] = taken.word(p, e, j);
      cached[j] = direct && (!E::binned || word[j] < slots);
      if (direct || word[j] < 0) continue;
      cached[j] = takes_slot(tags + slot_of(word[j]), unsigned(word[j] >> cached_bits));
    }
#pragma unroll
    for (int j = 0; j < items; ++j) {
      if (!E::one_way || word[j] < 0) continue;
      seen[j] = cached[j] ? mine[slot_of(word[j])] : p.words[word[j]];
    }
#pragma unroll
    for (int j = 0; j < items; ++j) {
      if (word[j] < 0) continue;
      if constexpr (E::ties) lost |= E::is_lost(taken.x[j]);
      const Word operand = e.encode(taken.x[j]);
      if (!changes<E>(e, E::one_way ? seen[j] : Word(0), operand)) continue;
      if (cached[j]) {
        combine_shared<Op>(mine + slot_of(word[j]), operand);
      } else {
        combine_global<Op>(p.words + word[j], operand);
      }
    }
  }
  if constexpr (E::ties) {
    if (lost) *p.any_lost = 1;
  }
  __syncthreads();
  for (int i = int(threadIdx.x); i < slots; i += threads) {
    if (!direct && tags[i] == vacant) continue;
    Word* const to = p.words + (direct ? int64_t(i) : int64_t(tags[i]) << cached_bits | i);
    flush_word<E>(e, words + i, slots, copies, to);
  }
}

template <class E>
__global__ __launch_bounds__(threads) void find_ties_kernel(const Problem<E> p) {
  constexpr int tile = threads * items;
  if (*p.any_lost == 0) return;
  for (int64_t first = int64_t(blockIdx.x) * tile; first < p.elements(); first += int64_t(gridDim.x) * tile) {
    const Taken<E, threads> taken(p, first);
#pragma unroll
    for (int j = 0; j < items; ++j) {
      const int64_t cell = taken.cell[j], row = p.row_of(first + j * threads + int(threadIdx.x));
      if (cell < 0 || !E::can_tie(taken.x[j]) || p.words[cell] != p.e.encode(taken.x[j])) continue;
      if (p.ties[cell] < p.n - row) atomic_combine<Max<int64_t>>(p.ties + cell, p.n - row);
    }
  }
}

template <class E>
__global__ __launch_bounds__(threads) void finish_kernel(const Problem<E> p) {
  const auto e = ready(p.e);
  const int64_t step = int64_t(gridDim.x) * threads;
  for (int64_t cell = int64_t(blockIdx.x) * threads + threadIdx.x; cell < p.cells(); cell += step) {
    typename E::Output found;
    if constexpr (E::binned) {
      found = e.sum([&](int i) { return p.words[i * p.cells() + cell]; });
    } else {
      found = e.decode(p.words[cell]);
    }
    if constexpr (E::ties) {
      const int64_t tie = p.ties[cell];
      if (tie > 0) found = acc_t<typename E::Input>(p.in[(p.n - tie) * p.width + cell % p.width]);
    }
    p.out[cell] = found;
  }
}

// Finds the extent of all values, which was set to 0.
template <class T>
__global__ __launch_bounds__(threads) void extent_kernel(const T* in, int64_t n, Extent* all) {
  constexpr int values = threads * extent_items;
  __shared__ Extent of_block;
  if (threadIdx.x == 0) of_block = {};
  __syncthreads();
  Extent mine{};
  for (int64_t first = int64_t(blockIdx.x) * values; first < n; first += int64_t(gridDim.x) * values) {
    T x[extent_items];
#pragma unroll
    for (int j = 0; j < extent_items; ++j) {
      const int64_t i = first + j * threads + int(threadIdx.x);
      x[j] = i < n ? in[i] : T(0.0f);
    }
#pragma unroll
    for (int j = 0; j < extent_items; ++j) Bins<T>::extend(mine, x[j]);
  }
  const auto extend = [](Extent* to, const Extent& by) {
    if (by.most > 0) atomicMax(&to->most, by.most);
    if (by.least > 0) atomicMax(&to->least, by.least);
    if (by.special > 0) atomicMax(&to->special, by.special);
  };
  extend(&of_block, mine);
  __syncthreads();
  if (threadIdx.x == 0) extend(all, of_block);
}

template <class... Parameters>
void launch(Context& context, void (*kernel)(Parameters...), int64_t blocks, int64_t most_per_multiprocessor,
            int threads, int64_t shared_bytes, std::common_type_t<Parameters>... arguments) {
  if (shared_bytes > simt::max_shared_bytes) {
    block::allow_shared_memory(kernel, int(shared_bytes));
  }
  const int64_t most = most_per_multiprocessor * block::device_attribute<cudaDevAttrMultiProcessorCount>();
  const auto grid = unsigned(tp::max(tp::min(blocks, most), int64_t(1)));
  kernel<<<grid, threads, size_t(shared_bytes), cudaStream_t(context.stream)>>>(arguments...);
}

// Launches a kernel that strides over n items, several per thread.
template <class... Parameters>
void launch_for(Context& context, void (*kernel)(Parameters...), int64_t n, int items_per_thread,
                std::common_type_t<Parameters>... arguments) {
  launch(context, kernel, ceil_div(n, int64_t(threads) * items_per_thread), 2048 / threads, threads, 0, arguments...);
}

// Combines all rows into the words of their cells.
template <class E>
void combine_rows(const Problem<E>& p, int64_t most_words, Context& context) {
  constexpr int64_t word_bytes = sizeof(typename E::Word);
  const int64_t cells = p.cells(), shared = block::device_attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>();
  // A block's own words must be worth the time that it takes to set them up and to combine them into the global ones.
  constexpr int64_t rows_per_word = 4;
  const auto fits = [&](auto shape) {
    return cells * rows_per_word <= p.elements() && cells * word_bytes <= tp::min(shared, int64_t(shape.bytes));
  };
  const auto combine = [&](auto shape, auto direct) {
    using Shape = decltype(shape);
    constexpr int64_t tile = Shape::threads * items;
    int64_t room = int64_t(1) << Shape::cached_bits, bytes = room * (word_bytes + int64_t(sizeof(unsigned)));
    int64_t blocks = ceil_div(p.elements(), tile);
    if (direct) {
      room = tp::min(tp::max(most_words, shared_words), tp::min(shared, int64_t(Shape::bytes)) / word_bytes);
      bytes = room * word_bytes;
      blocks = tp::min(blocks, p.elements() / (cells * rows_per_word));
    }
    launch(context, reduce_kernel<decltype(direct)::value, Shape, E>, blocks, Shape::per_multiprocessor, Shape::threads,
           bytes, p, int(room));
  };
  constexpr std::true_type direct;
  constexpr std::false_type tagged;
  if (fits(ManyBlocks{})) return combine(ManyBlocks{}, direct);
  if (fits(LargeBlocks{})) return combine(LargeBlocks{}, direct);
  // Every operand of a sum costs an atomic. Those on neighbouring words are cheap; others should be on shared memory if
  // it holds a good part of the cells.
  const bool large = !E::one_way && p.width == 1 && cells <= 8 << LargeBlocks::cached_bits;
  large&& shared >= LargeBlocks::bytes ? combine(LargeBlocks{}, tagged) : combine(ManyBlocks{}, tagged);
}

template <class E>
void reduce(const E& e, const Groups& g, Context& context) {
  using T = typename E::Input;
  using Word = typename E::Word;
  const Args& x = g.args;
  Problem<E> p{e,
               static_cast<const T*>(x.in),
               static_cast<typename E::Output*>(x.out),
               g.index,
               g.long_index,
               x.n,
               g.groups,
               x.width,
               nullptr,
               nullptr,
               nullptr};
  const int64_t cells = p.cells(), elements = p.elements();
  if (cells == 0) return;
  int64_t most_words = cells;
  if constexpr (E::binned) {
    most_words *= Bins<T>::most_words(e.width);
    p.e.extent = context.workspace<Extent>(1);
    context.clear(p.e.extent, sizeof(Extent));
    launch_for(context, extent_kernel<T>, elements, extent_items, p.in, elements, p.e.extent);
  }
  require(most_words >> ManyBlocks::cached_bits < int64_t(vacant), "group_reduce: ", cells,
          " results are too many for one launch");
  const bool in_result = !E::binned && sizeof(typename E::Output) == sizeof(Word);
  p.words = in_result ? static_cast<Word*>(x.out) : context.workspace<Word>(most_words);
  if (E::ties) {
    p.ties = context.workspace<int64_t>(cells + 1);
    p.any_lost = reinterpret_cast<int*>(p.ties + cells);
  }
  launch_for(context, start_kernel<E>, cells, 1, p);
  if (elements > 0) combine_rows(p, most_words, context);
  if constexpr (E::ties) launch_for(context, find_ties_kernel<E>, elements, items, p);
  if constexpr (E::decodes) launch_for(context, finish_kernel<E>, cells, 1, p);
  check_launch("group_reduce");
}

}  // namespace

void reduce_groups_by_atomics(const Groups& g, Context& context) {
  const OpId op = g.args.op;
  const auto each = [&](auto types, auto f) { dispatch(types, g.args.dtype, "group_reduce", f); };
  const auto wrapping = [&](auto monoid) {
    each(AllTypes{}, [&](auto type) {
      using T = typename decltype(type)::type;
      if constexpr (!is_floating<T>) reduce(Wrapping<T, decltype(monoid)::template of>{}, g, context);
    });
  };
  const auto bits = [&](auto monoid) {
    each(BitTypes{},
         [&](auto type) { reduce(Bits<typename decltype(type)::type, decltype(monoid)::template of>{}, g, context); });
  };
  switch (op) {
    case OpId::max:
    case OpId::min:
      return each(AllTypes{}, [&](auto type) { reduce(Extremum<typename decltype(type)::type>(op), g, context); });
    case OpId::sum:
      if (g.args.dtype < DType::float16) return wrapping(MonoidOf<Sum>{});
      return each(FloatTypes{}, [&](auto type) {
        using T = typename decltype(type)::type;
        if constexpr (sizeof(T) < 8) reduce(Exact<T>{Bins<T>::width_for(g.args.n), nullptr}, g, context);
      });
    case OpId::prod:
      return wrapping(MonoidOf<Prod>{});
    case OpId::bitwise_and:
      return bits(MonoidOf<BitAnd>{});
    case OpId::bitwise_or:
      return bits(MonoidOf<BitOr>{});
    default:
      return bits(MonoidOf<BitXor>{});
  }
}

}  // namespace tp::segmented
#endif
