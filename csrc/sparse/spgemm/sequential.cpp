// Works row by row (Gustavson, 1978): each entry of a row of A scales a row of B, and an array adds them all up.
#include <algorithm>

#include "sparse/spgemm/rows.h"

namespace tp {
namespace {

using namespace sparse;

// Calls f(entry of A, entry of B) for all products of row i of C.
template <class S, class F>
void each_product(const S& s, int64_t i, F f) {
  for (int64_t e = s.a_ptrs[i]; e < s.a_ptrs[i + 1]; ++e) {
    const int64_t k = s.a_idx[e];
    for (int64_t g = s.b_ptrs[k]; g < s.b_ptrs[k + 1]; ++g) f(e, g);
  }
}

// The number of products.
template <class S>
int64_t count_products(const S& s) {
  int64_t n = 0;
  for (int64_t e = 0; e < s.args.a_entries; ++e) n += int64_t(s.b_ptrs[s.a_idx[e] + 1]) - int64_t(s.b_ptrs[s.a_idx[e]]);
  return n;
}

// Finds the columns of C: first their number, then the columns themselves.
template <class S>
SpgemmArgs::Room find_columns(const S& s, Context& context) {
  using I = typename S::I;
  int64_t *ptrs = s.args.ptrs, *seen = context.workspace<int64_t>(s.args.cols);
  std::fill(seen, seen + s.args.cols, int64_t(-1));  // of each column, the last row that has a product in it
  ptrs[0] = 0;
  for (int64_t i = 0; i < s.args.rows; ++i) {
    ptrs[i + 1] = ptrs[i];
    each_product(s, i, [&](int64_t, int64_t g) {
      if (seen[s.b_idx[g]] != i) ++ptrs[i + 1];
      seen[s.b_idx[g]] = i;
    });
  }
  const auto room = s.args.room(ptrs[s.args.rows]);
  I* const idx = static_cast<I*>(room.col_idx);
  std::fill(seen, seen + s.args.cols, int64_t(-1));
  for (int64_t i = 0; i < s.args.rows; ++i) {
    I* end = idx + ptrs[i];
    each_product(s, i, [&](int64_t, int64_t g) {
      const I j = s.b_idx[g];
      if (seen[j] != i) *end++ = j;
      seen[j] = i;
    });
    std::sort(idx + ptrs[i], end);
  }
  return room;
}

// Computes the values of one matrix, given C's structure. `row` holds the values of a row of C.
template <class S, class Ptrs>
void find_values(const S& s, Wanted wanted, const Ptrs* c_ptrs, Context& context) {
  using T = typename S::T;
  using Acc = typename S::Acc;
  Acc *row = context.workspace<Acc>(s.args.cols), *sums = context.workspace<Acc>(s.args.b_entries);
  std::fill(row, row + s.args.cols, Acc(0));
  std::fill(sums, sums + s.args.b_entries, Acc(0));
  for (int64_t i = 0; i < s.args.rows; ++i) {
    const int64_t begin = c_ptrs[i], end = c_ptrs[i + 1];
    if (wanted == Wanted::c) {
      each_product(s, i, [&](int64_t e, int64_t g) { row[s.b_idx[g]] += Acc(s.a[e]) * Acc(s.b[g]); });
      for (int64_t h = begin; h < end; ++h) s.out[h] = T(row[s.c_idx[h]]);
      each_product(s, i, [&](int64_t, int64_t g) { row[s.b_idx[g]] = Acc(0); });
      continue;
    }
    for (int64_t h = begin; h < end; ++h) row[s.c_idx[h]] += Acc(s.c[h]);
    if (wanted == Wanted::a) {
      for (int64_t e = s.a_ptrs[i]; e < s.a_ptrs[i + 1]; ++e) {
        const int64_t k = s.a_idx[e];
        Acc sum(0);
        for (int64_t g = s.b_ptrs[k]; g < s.b_ptrs[k + 1]; ++g) sum += Acc(s.b[g]) * row[s.b_idx[g]];
        s.out[e] = T(sum);
      }
    } else {
      each_product(s, i, [&](int64_t e, int64_t g) { sums[g] += Acc(s.a[e]) * row[s.b_idx[g]]; });
    }
    for (int64_t h = begin; h < end; ++h) row[s.c_idx[h]] = Acc(0);
  }
  for (int64_t g = 0; wanted == Wanted::b && g < s.args.b_entries; ++g) s.out[g] = T(sums[g]);
}

}  // namespace

void spgemm::sequential(const Args& args, Context& context) {
  with_spgemm(args, [&](const auto& s) {
    check_on_host(s, context);
    if (args.wanted != Wanted::product) return find_values(s, args.wanted, s.c_ptrs, context);
    if (args.refuses(count_products(s))) return;
    auto found = s;
    found.take(find_columns(s, context));
    find_values(found, Wanted::c, args.ptrs, context);
  });
}

}  // namespace tp
