// The inner loop of the threaded rung: a matrix product whose left factor is addressed through two tables, so that an
// unrolled or transposed image need not be stored.
#pragma once
#include <cstdint>

namespace tp::conv {

// For every i in 0..rows:  c[to[i] + lane] += sum over k in 0..depth of a[from[i] + off[k]] * b[k * lanes + lane]
// If `start` is given, c is not read, and its column counts as start[lane]. Each sum adds its terms in the order of k,
// on every machine. The rows of c are distinct.
template <class A>
struct Accumulate {
  int64_t tile, lanes;  // how many rows and columns it processes at once
  double rate;          // of products, relative to the fastest kernel
  void (*run)(int64_t rows, const A* a, const int64_t* from, int64_t depth, const int64_t* off, const A* b,
              const A* start, A* c, const int64_t* to);
};

// The widest kernel of this processor that pays for `columns` columns of b.
template <class A>
Accumulate<A> accumulate_for(int64_t columns);

// The kernel that suits `rows` rows of a, with the table on the other side: it adds a[from[i] + k] * b[off[k] + lane],
// and row i counts as start[i].
template <class A>
Accumulate<A> shifted_for(int64_t rows);

// For every i in 0..rows and k in 0..shifts, sums[(i * shifts + k) * lanes + lane] += the sum over j in steps of
// `lanes` of a[i * length + j + lane] * b[off[k] + j + lane]. `length` is a multiple of `lanes`.
template <class A>
struct Correlate {
  int64_t tile, tile_shifts, lanes;
  double rate;  // as in Accumulate
  void (*run)(int64_t rows, const A* a, int64_t length, int64_t shifts, const int64_t* off, const A* b, A* sums);
};

// The kernel that suits `rows` rows of a.
template <class A>
Correlate<A> correlate_for(int64_t rows);

}  // namespace tp::conv
