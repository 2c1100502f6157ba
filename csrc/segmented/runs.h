// Reductions and softmax of runs of consecutive elements on the vectors of the host. A run is a segment of one column,
// or the part of it that lies in a share. Runs are listed by their borders, so one vectorized loop serves short runs,
// too.
//
// Lane j of a vector combines the elements of a run whose index is j modulo `lanes`; then halves of the lanes are
// combined until one is left. So the bits depend on the length of the run only, not on the processor's vectors.
#pragma once
#include <cstring>

#include "block/on_vectors.h"
#include "segmented/combine.h"
#include "segmented/elements.h"

namespace tp::segmented {

constexpr int lanes = 8;

template <class A, int count>
struct VectorOf {
  typedef A type __attribute__((vector_size(count * sizeof(A))));
};
template <class A, int count = lanes>
using Vector = typename VectorOf<std::conditional_t<std::is_same<A, bool>::value, uint8_t, A>, count>::type;

template <class A, class T>
Vector<A> load_lanes(const T* x) {
  Vector<A> v;
  if constexpr (sizeof(A) == sizeof(T)) {
    memcpy(&v, x, sizeof(v));
  } else {
    A values[lanes];
    for (int j = 0; j < lanes; ++j) values[j] = A(x[j]);
    memcpy(&v, values, sizeof(v));
  }
  return v;
}

// M::combine of every lane of two vectors.
template <class M, class V>
V combine_vectors(V earlier, V later) {
  if constexpr (M::id == OpId::max || M::id == OpId::min) {
    const auto keeps = (M::id == OpId::max ? earlier >= later : earlier <= later) | (earlier != earlier);
    return keeps ? earlier : later;
  } else if constexpr (M::id == OpId::prod) {
    return earlier * later;
  } else if constexpr (M::id == OpId::bitwise_and) {
    return earlier & later;
  } else if constexpr (M::id == OpId::bitwise_or) {
    return earlier | later;
  } else if constexpr (M::id == OpId::bitwise_xor) {
    return earlier ^ later;
  } else {
    static_assert(M::id == OpId::sum);
    return earlier + later;
  }
}

template <class M, int count = lanes>
typename M::Acc combine_halves(Vector<typename M::Acc, count> v) {
  using A = typename M::Acc;
  if constexpr (count == 1) {
    return A(v[0]);
  } else {
    Vector<A, count / 2> low, high;
    memcpy(&low, &v, sizeof(low));
    memcpy(&high, reinterpret_cast<const char*>(&v) + sizeof(low), sizeof(high));
    return combine_halves<M, count / 2>(combine_vectors<M>(low, high));
  }
}

// The vector of x[0] to x[n - 1], n < lanes, and of identities in the other lanes. If `readable` elements allow it, the
// elements after them are read, too: a loop of unpredictable length costs more.
template <class M, class T>
Vector<typename M::Acc> load_last(const T* x, int64_t n, int64_t readable) {
  using A = typename M::Acc;
  Vector<A> v = M::identity() - Vector<A>{};
  if (readable >= lanes) {
    const decltype(v == v) index = {0, 1, 2, 3, 4, 5, 6, 7};
    return index < std::decay_t<decltype(index[0])>(n) ? load_lanes<A>(x) : v;
  }
  for (int64_t j = 0; j < n; ++j) v[j] = A(x[j]);
  return v;
}

// Combines the n elements of a run; `readable`, at least n, is how many elements may be read from x on.
template <class M, class T>
typename M::Acc combine_lanes(const T* x, int64_t n, int64_t readable) {
  using A = typename M::Acc;
  if (n < lanes) return combine_halves<M>(load_last<M>(x, n, readable));
  Vector<A> running = load_lanes<A>(x);
  int64_t i = lanes;
  for (; i + lanes <= n; i += lanes) running = combine_vectors<M>(running, load_lanes<A>(x + i));
  if (i < n) running = combine_vectors<M>(running, load_last<M>(x + i, n - i, readable - i));
  return combine_halves<M>(running);
}

constexpr int64_t chunk = 64 * lanes;

// Floats are added in float32 within a chunk, and the chunks in double, so the error does not grow with the length.
template <class M, class T>
typename M::Acc combine_run(const T* x, int64_t n, int64_t readable) {
  using Acc = typename M::Acc;
  if constexpr (M::id == OpId::sum && is_floating<T>) {
    Acc sum = Acc(combine_lanes<Sum<acc_t<T>>>(x, tp::min(n, chunk), readable));
    for (int64_t i = chunk; i < n; i += chunk)
      sum += Acc(combine_lanes<Sum<acc_t<T>>>(x + i, tp::min(n - i, chunk), readable - i));
    return sum;
  } else {
    return combine_lanes<M>(x, n, readable);
  }
}

// Finds the extremum of a run that begins at row `begin`, and then the first row that has it.
template <class M, class T>
typename M::Acc find_in_run(const T* x, int64_t begin, int64_t n, int64_t readable) {
  using A = decltype(M::Acc::value);
  using Extremum = std::conditional_t<M::id == OpId::argmax, Max<A>, Min<A>>;
  if (n == 0) return M::identity();
  const A most = combine_run<Extremum>(x, n, readable);
  int64_t k = 0;
  while (!(A(x[k]) == most || (most != most && A(x[k]) != A(x[k])))) ++k;
  return {most, begin + k};
}

// The maximum of a run, and the sum of the exponentials of the distances from it, which is computed as other sums are.
// An infinite maximum has a distance of 0 from itself.
template <class M, class T>
typename M::Acc exponentiate_run(const T* x, int64_t n, int64_t readable) {
  using A = acc_t<T>;
  using Wide = decltype(M::Acc::sum);
  if (n == 0) return M::identity();
  const A most = combine_run<Max<A>>(x, n, readable);
  Wide sum = 0;
  if (std::isinf(most)) {
    for (int64_t k = 0; k < n; ++k) sum += A(x[k]) == most;
    return {Wide(most), sum};
  }
  A part[chunk];
  for (int64_t i = 0; i < n; i += chunk) {
    const int64_t count = tp::min(chunk, n - i);
    for (int64_t k = 0; k < count; ++k) part[k] = block::exponential(A(x[i + k]) - most);
    sum += Wide(combine_lanes<Sum<A>>(part, count, chunk));
  }
  return {Wide(most), sum};
}

// Reduces `count` runs, of which run i is x[borders[i]] to x[borders[i + 1] - 1]. n elements are readable; x[0] is in
// row `first`.
template <class M, class T>
void reduce_runs(const T* x, int64_t n, int64_t first, const int64_t* borders, int64_t count,
                 typename M::Acc* results) {
  on_vectors([=] {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t begin = borders[i], length = borders[i + 1] - begin, readable = n - begin;
      if constexpr (M::id == OpId::argmax || M::id == OpId::argmin) {
        results[i] = find_in_run<M>(x + begin, first + begin, length, readable);
      } else if constexpr (M::id == OpId::logsumexp) {
        results[i] = exponentiate_run<M>(x + begin, length, readable);
      } else {
        results[i] = combine_run<M>(x + begin, length, readable);
      }
    }
  });
}

// Computes the softmax of `count` runs, each with its own maximum and sum of exponentials.
template <class T, class V>
void normalize_runs(const T* x, const int64_t* borders, int64_t count, const V* values, bool logarithm, T* out) {
  on_vectors([=] {
    for (int64_t i = 0; i < count; ++i) {
      const V value = values[i];
      TP_INDEPENDENT
      for (int64_t k = borders[i]; k < borders[i + 1]; ++k) out[k] = softmax_of(x[k], value, logarithm);
    }
  });
}

}  // namespace tp::segmented
