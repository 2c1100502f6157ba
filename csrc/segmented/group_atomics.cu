// Reduction of rows by an index per row on CUDA, without a sort, by operators whose result does not depend on the order
// of the rows.
//
// A cell is a group and a column, and has a word in global memory, into which atomics combine its operands. If shared
// memory holds all cells, every block has words of its own for them, and combines them into the global ones at the end.
// If not, a block has words for those cells that it meets first, so that the atomics of a group with very many rows are
// not all on one global word; the operands of other cells go to global memory at once.
//
// An operand that would not change a word is dropped. For operators whose words move one way only, as a maximum does, a
// plain read finds that out, and may read an older word. So few atomics are left where groups have many rows.
//
// Extrema are maxima of integers that compare as the values do (see Extremum). Of equal values, such as -0.0 and 0.0 or
// two NaN, the first row must win, but their integers are equal. So if there are values that an integer does not give
// back bit for bit, a second pass over the rows finds the first row of each such result.
#include "core/division.h"
#include "segmented/elements.h"
#include "segmented/group_atomics.h"
#ifdef __CUDACC__
#include "block/launch.cuh"

namespace tp::segmented {
namespace {

constexpr int threads = 512, warps = threads / 32, items = 4, blocks_per_multiprocessor = 3;
constexpr int tile = threads * items;
constexpr int cached_bits = 11;  // a block has words for 2^11 cells if there are too many for it
constexpr unsigned vacant = ~0u;

// ---- operands as words: encode() makes one of a value, and decode() a result of a word

template <class Word>
constexpr Word greatest = std::numeric_limits<Word>::max();

// Integers that compare as the values do: for floats, their bits, of which those other than the sign are flipped if the
// sign is set; for a minimum, all bits are flipped. NaN is the greatest in any case.
template <class T>
struct Extremum {
  using Input = T;
  using Output = T;
  using Word = std::conditional_t<sizeof(T) == 8, int64_t, int>;
  using Op = Max<Word>;
  static constexpr bool one_way = true, decodes = true, ties = is_floating<T>;
  Word flip;

  explicit Extremum(OpId op) : flip(op == OpId::min ? Word(-1) : Word(0)) {}
  TP_DEVICE Word identity() const { return encode(T(flip ? detail::highest<A>() : detail::lowest<A>())); }
  TP_DEVICE Word encode(T x) const {
    const A value = A(x);
    if constexpr (ties) {
      if (value != value) return greatest<Word>;
      if (value == A(0)) return flip;
      const Word bits = bits_of(value);
      return (bits < 0 ? bits ^ greatest<Word> : bits) ^ flip;
    } else {
      return Word(value) ^ flip;
    }
  }
  TP_DEVICE T decode(Word word) const {
    if constexpr (ties) {
      if (word == greatest<Word>) return T(std::numeric_limits<A>::quiet_NaN());
      word ^= flip;
      if (word < 0) word ^= greatest<Word>;
      A value;
      memcpy(&value, &word, sizeof value);
      return T(value);
    } else {
      return T(A(word ^ flip));
    }
  }
  // Whether other values, with other bits, are equal to this one.
  TP_DEVICE static bool can_tie(T x) { return A(x) == A(0) || A(x) != A(x); }
  // Whether decode() does not give this value back.
  TP_DEVICE static bool is_lost(T x) {
    const A value = A(x);
    return value != value ? bits_of(value) != bits_of(std::numeric_limits<A>::quiet_NaN())
                          : value == A(0) && bits_of(value) != 0;
  }

 private:
  using A = acc_t<T>;
  TP_DEVICE static Word bits_of(A value) {
    Word bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
  }
};

// Sums and products of integers, modulo 2^64.
template <class T, template <class> class M>
struct Wrapping {
  using Input = T;
  using Output = int64_t;
  using Word = int64_t;
  using Op = M<Word>;
  static constexpr bool one_way = false, decodes = false, ties = false;

  TP_DEVICE Word identity() const { return Op::identity(); }
  TP_DEVICE Word encode(T x) const { return Word(acc_t<T>(x)); }
};

template <class T, template <class> class M>
struct Bits {
  using Input = T;
  using Output = T;
  using Word = std::conditional_t<sizeof(T) == 8, int64_t, int>;
  using Op = M<Word>;
  static constexpr bool one_way = Op::id != OpId::bitwise_xor, decodes = sizeof(T) < sizeof(Word), ties = false;

  TP_DEVICE Word identity() const { return Op::identity(); }
  TP_DEVICE Word encode(T x) const { return Word(x); }
  TP_DEVICE T decode(Word word) const { return T(word); }
};

// ---- kernels

template <class E>
struct Problem {
  using Word = typename E::Word;
  E e;
  const typename E::Input* in;
  typename E::Output* out;
  const void* index;
  bool long_index;
  int64_t n, groups, width;
  Word* words;  // one per cell; `out` itself if a result has the size of a word
  // If there can be ties: whether a value is lost, and per cell n minus the first row of a tie, or 0.
  int* any_lost;
  int64_t* ties;

  TP_DEVICE int64_t cells() const { return groups * width; }
  TP_DEVICE int64_t elements() const { return n * width; }
  TP_DEVICE int64_t row_of(int64_t i) const { return width == 1 ? i : quotient(i, width); }
  // The cell of element i, which is in the given row; -1 if the row's index is not a group.
  template <class I>
  TP_DEVICE int64_t cell_of(const I* indices, int64_t i, int64_t row) const {
    const int64_t group = indices[row];
    return uint64_t(group) < uint64_t(groups) ? group * width + i - row * width : -1;
  }
};

// The elements of a tile that this thread handles; `cell` is -1 if there is none.
template <class E>
struct Taken {
  int64_t cell[items];
  typename E::Input x[items];

  TP_DEVICE Taken(const Problem<E>& p, int64_t first) {
    p.long_index ? load(p, first, static_cast<const int64_t*>(p.index))
                 : load(p, first, static_cast<const int32_t*>(p.index));
  }

 private:
  template <class I>
  TP_DEVICE void load(const Problem<E>& p, int64_t first, const I* indices) {
#pragma unroll
    for (int j = 0; j < items; ++j) {
      const int64_t i = first + j * threads + int(threadIdx.x);
      cell[j] = -1;
      if (i >= p.elements()) continue;
      x[j] = p.in[i];
      cell[j] = p.cell_of(indices, i, p.row_of(i));
    }
  }
};

template <class E>
__global__ __launch_bounds__(threads) void start_kernel(const Problem<E> p) {
  const int64_t id = int64_t(blockIdx.x) * threads + threadIdx.x, step = int64_t(gridDim.x) * threads;
  if (E::ties && id == 0) *p.any_lost = 0;
  for (int64_t cell = id; cell < p.cells(); cell += step) {
    p.words[cell] = p.e.identity();
    if (E::ties) p.ties[cell] = 0;
  }
}

// Whether combining `operand` into a word that is, or was, `seen` may change it.
template <class E>
TP_DEVICE bool changes(const E& e, typename E::Word seen, typename E::Word operand) {
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

// `whole`: every cell has a word in shared memory, in each of `copies` copies over which the warps are distributed.
// Otherwise there is one copy of 2^cached_bits words; a tag per word holds the high bits of its cell, or `vacant`.
template <bool whole, class E>
__global__ __launch_bounds__(threads, blocks_per_multiprocessor) void reduce_kernel(const Problem<E> p, int slots,
                                                                                    int copies) {
  using Word = typename E::Word;
  using Op = typename E::Op;
  extern __shared__ __align__(8) unsigned char pool[];
  Word* const words = reinterpret_cast<Word*>(pool);
  unsigned* const tags = reinterpret_cast<unsigned*>(words + slots);
  for (int i = int(threadIdx.x); i < slots * copies; i += threads) words[i] = p.e.identity();
  for (int i = int(threadIdx.x); !whole && i < slots; i += threads) tags[i] = vacant;
  __syncthreads();
  Word* const mine = words + int(threadIdx.x) / 32 % copies * slots;
  const auto slot_of = [&](int64_t cell) { return whole ? int(cell) : int(cell & (slots - 1)); };
  bool lost = false;
  for (int64_t first = int64_t(blockIdx.x) * tile; first < p.elements(); first += int64_t(gridDim.x) * tile) {
    const Taken<E> taken(p, first);
    bool cached[items];
    Word seen[items];
#pragma unroll
    for (int j = 0; j < items; ++j) {
      cached[j] = whole;
      if (whole || taken.cell[j] < 0) continue;
      const unsigned tag = unsigned(taken.cell[j] >> cached_bits);
      unsigned* const at = tags + slot_of(taken.cell[j]);
      unsigned found = *static_cast<volatile unsigned*>(at);
      if (found == vacant) {
        found = atomicCAS(at, vacant, tag);
        if (found == vacant) found = tag;
      }
      cached[j] = found == tag;
    }
#pragma unroll
    for (int j = 0; j < items; ++j) {
      if (!E::one_way || taken.cell[j] < 0) continue;
      seen[j] = cached[j] ? mine[slot_of(taken.cell[j])] : p.words[taken.cell[j]];
    }
#pragma unroll
    for (int j = 0; j < items; ++j) {
      const int64_t cell = taken.cell[j];
      if (cell < 0) continue;
      if constexpr (E::ties) lost |= E::is_lost(taken.x[j]);
      const Word operand = p.e.encode(taken.x[j]);
      if (!changes(p.e, E::one_way ? seen[j] : Word(0), operand)) continue;
      if (cached[j]) {
        combine_shared<Op>(mine + slot_of(cell), operand);
      } else {
        atomic_combine<Op>(p.words + cell, operand);
      }
    }
  }
  if constexpr (E::ties) {
    if (lost) *p.any_lost = 1;
  }
  __syncthreads();
  for (int i = int(threadIdx.x); i < slots; i += threads) {
    if (!whole && tags[i] == vacant) continue;
    Word found = words[i];
    for (int c = 1; c < copies; ++c) found = Op::combine(found, words[c * slots + i]);
    Word* const to = p.words + (whole ? int64_t(i) : int64_t(tags[i]) << cached_bits | i);
    if (changes(p.e, E::one_way ? *to : Word(0), found)) atomic_combine<Op>(to, found);
  }
}

template <class E>
__global__ __launch_bounds__(threads) void find_ties_kernel(const Problem<E> p) {
  if (*p.any_lost == 0) return;
  for (int64_t first = int64_t(blockIdx.x) * tile; first < p.elements(); first += int64_t(gridDim.x) * tile) {
    const Taken<E> taken(p, first);
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
  const int64_t step = int64_t(gridDim.x) * threads;
  for (int64_t cell = int64_t(blockIdx.x) * threads + threadIdx.x; cell < p.cells(); cell += step) {
    typename E::Output found = p.e.decode(p.words[cell]);
    if constexpr (E::ties) {
      const int64_t tie = p.ties[cell];
      if (tie > 0) found = acc_t<typename E::Input>(p.in[(p.n - tie) * p.width + cell % p.width]);
    }
    p.out[cell] = found;
  }
}

template <class E>
void reduce(const E& e, const Groups& g, Context& context) {
  using Word = typename E::Word;
  const Args& x = g.args;
  const int64_t cells = g.groups * x.width, elements = x.n * x.width;
  if (cells == 0) return;
  require(cells >> cached_bits < int64_t(vacant), "group_reduce: ", cells, " results are too many for one launch");
  Problem<E> p{e,
               static_cast<const typename E::Input*>(x.in),
               static_cast<typename E::Output*>(x.out),
               g.index,
               g.long_index,
               x.n,
               g.groups,
               x.width,
               nullptr,
               nullptr,
               nullptr};
  p.words = sizeof(typename E::Output) == sizeof(Word) ? static_cast<Word*>(x.out) : context.workspace<Word>(cells);
  if (E::ties) {
    p.ties = context.workspace<int64_t>(cells + 1);
    p.any_lost = reinterpret_cast<int*>(p.ties + cells);
  }
  const auto stream = cudaStream_t(context.stream);
  const int64_t most = blocks_per_multiprocessor * block::device_attribute<cudaDevAttrMultiProcessorCount>();
  const auto blocks_of = [&](int64_t blocks) { return unsigned(tp::max(tp::min(blocks, most), int64_t(1))); };
  const unsigned by_cell = blocks_of(ceil_div(cells, int64_t(threads)));
  const unsigned by_element = blocks_of(ceil_div(elements, int64_t(tile)));
  start_kernel<<<by_cell, threads, 0, stream>>>(p);
  // A block's own words must be worth the time that it takes to set them up and to combine them into the global ones.
  constexpr int64_t rows_per_word = 4, most_bytes = 96 << 10;  // two blocks per multiprocessor
  const int64_t copies = tp::max(tp::min(1024 / cells, int64_t(warps)), int64_t(1));
  const int64_t bytes = cells * copies * int64_t(sizeof(Word));
  const int64_t room = tp::min(int64_t(block::device_attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>()), most_bytes);
  if (bytes <= room && cells * rows_per_word <= elements) {
    const unsigned blocks = tp::min(by_element, blocks_of(elements / (cells * rows_per_word)));
    const auto kernel = reduce_kernel<true, E>;
    if (bytes > simt::max_shared_bytes) {
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes));
    }
    kernel<<<blocks, threads, size_t(bytes), stream>>>(p, int(cells), int(copies));
  } else if (elements > 0) {
    constexpr int slots = 1 << cached_bits;
    reduce_kernel<false><<<by_element, threads, (sizeof(Word) + sizeof(unsigned)) * slots, stream>>>(p, slots, 1);
  }
  if constexpr (E::ties) find_ties_kernel<<<by_element, threads, 0, stream>>>(p);
  if constexpr (E::decodes) finish_kernel<<<by_cell, threads, 0, stream>>>(p);
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
      return wrapping(MonoidOf<Sum>{});
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
