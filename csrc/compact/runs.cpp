#include "compact/runs.h"

#include "block/on_vectors.h"

namespace tp::compact {
namespace {

constexpr int64_t chunk = 1 << 14, word = 64;

int64_t first_bit(uint64_t bits) {
#ifdef __GNUC__
  return __builtin_ctzll(bits);
#else
  int64_t i = 0;
  while (!(bits >> i & 1)) ++i;
  return i;
#endif
}
int64_t count_bits(uint64_t bits) {
#ifdef __GNUC__
  return __builtin_popcountll(bits);
#else
  int64_t n = 0;
  for (; bits; bits &= bits - 1) ++n;
  return n;
#endif
}

// Which of elements begin to end - 1, at most `word` of them, are heads. -0.0 equals 0.0, and no two NaN are equal.
template <class T>
uint64_t heads_among(const T* x, int64_t begin, int64_t end) {
  uint8_t is_head[word] = {};
  if (end - begin == word && begin > 0) {  // a constant length, so the loop is vectorized
    for (int64_t i = 0; i < word; ++i) is_head[i] = acc_t<T>(x[begin + i]) != acc_t<T>(x[begin + i - 1]);
  } else {
    for (int64_t i = begin; i < end; ++i) is_head[i - begin] = i == 0 || acc_t<T>(x[i]) != acc_t<T>(x[i - 1]);
  }
  uint64_t bits = 0;
  for (int64_t i = 0; i < word; i += 8) {
    uint64_t bytes = 0;  // each 0 or 1, the first one lowest: a product gathers them in the highest byte
    for (int64_t j = 0; j < 8; ++j) bytes |= uint64_t(is_head[i + j]) << (8 * j);
    bits |= (bytes * 0x0102040810204080u) >> 56 << i;
  }
  return bits;
}

template <class T>
T value_of(T x) {
  return x;
}
boolean value_of(boolean x) { return bool(x); }  // 0 or 1, whatever nonzero byte it was made of

// Calls f(x) with x as a pointer of its element type.
template <class F>
void with_line(const Runs& r, F f) {
  dispatch(AllTypes{}, r.dtype, "runs", [&](auto type) { f(static_cast<const typename decltype(type)::type*>(r.x)); });
}

// Calls f(chunk, begin, end) for every chunk.
template <class F>
void each_chunk(const Runs& r, Context& context, F f) {
  context.parallel_for(ceil_div(r.n, chunk), 1, [&](int64_t first, int64_t last) {
    for (int64_t c = first; c < last; ++c) f(c, c * chunk, tp::min(r.n, (c + 1) * chunk));
  });
}

// The first head from `begin` on, where begin is a multiple of `word`; n if there is none.
int64_t next_head(const Runs& r, int64_t begin) {
  for (int64_t i = begin; i < r.n; i += word) {
    if (r.heads[i / word]) return i + first_bit(r.heads[i / word]);
  }
  return r.n;
}

}  // namespace

Runs::Runs(const void* x, int64_t n, DType dtype, Context& context) : x(x), n(n), dtype(dtype) {
  const int64_t chunks = ceil_div(n, chunk);
  uint64_t* const bits = context.workspace<uint64_t>(ceil_div(n, word));
  int64_t* const counts = context.workspace<int64_t>(chunks + 1);
  counts[0] = 0;
  with_line(*this, [&](const auto* line) {
    each_chunk(*this, context, [&](int64_t c, int64_t begin, int64_t end) {
      on_vectors([=] {
        int64_t count = 0;
        for (int64_t i = begin; i < end; i += word) {
          const uint64_t found = heads_among(line, i, tp::min(i + word, end));
          bits[i / word] = found;
          count += count_bits(found);
        }
        counts[c + 1] = count;
      });
    });
  });
  for (int64_t c = 0; c < chunks; ++c) counts[c + 1] += counts[c];
  heads = bits;
  before = counts;
}

int64_t Runs::count() const { return before[ceil_div(n, chunk)]; }

void Runs::list(void* values, int64_t* begins, int64_t* lengths, Context& context) const {
  with_line(*this, [&](const auto* line) {
    using T = std::remove_const_t<std::remove_pointer_t<decltype(line)>>;
    each_chunk(*this, context, [&](int64_t c, int64_t begin, int64_t end) {
      T* to = static_cast<T*>(values);
      int64_t k = before[c], last = begin;
      for (int64_t first = begin; first < end; first += word) {
        for (uint64_t bits = heads[first / word]; bits; bits &= bits - 1) {
          const int64_t i = first + first_bit(bits);
          to[k] = value_of(line[i]);
          if (begins) begins[k] = i;
          if (lengths && k > before[c]) lengths[k - 1] = i - last;
          last = i;
          ++k;
        }
      }
      if (lengths && k > before[c]) lengths[k - 1] = next_head(*this, end) - last;
    });
  });
  if (begins) begins[count()] = n;
}

void Runs::number(const int64_t* order, int64_t* numbers, Context& context) const {
  each_chunk(*this, context, [&](int64_t c, int64_t begin, int64_t end) {
    int64_t k = before[c] - 1;
    for (int64_t i = begin; i < end; ++i) {
      k += int64_t(heads[i / word] >> (i % word) & 1);
      numbers[order[i]] = k;
    }
  });
}

}  // namespace tp::compact
