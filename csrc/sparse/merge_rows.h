// Merges two rows with sorted, distinct columns, on the host: counts the columns that they have in common, and computes
// the entries of a sum, a difference or a product. The callers run these functions by on_vectors (block/on_vectors.h).
#pragma once
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "block/convert.h"
#include "core/dtype.h"

namespace tp::sparse::merged_rows {

// Returns x or 0 without a branch, because no processor can predict which of two columns is less.
template <class T>
T if_taken(T x, bool taken) {
  using Word = Bits<sizeof(T)>;
  Word bits;
  std::memcpy(&bits, &x, sizeof x);
  bits &= Word(Word(0) - Word(taken));
  std::memcpy(static_cast<void*>(&x), &bits, sizeof x);
  return x;
}

struct Add {
  template <class T>
  static T combine(T x, T y) {
    return T(acc_t<T>(acc_t<T>(x) + acc_t<T>(y)));
  }
};
struct Subtract {
  template <class T>
  static T combine(T x, T y) {
    return T(acc_t<T>(acc_t<T>(x) - acc_t<T>(y)));
  }
};
struct Multiply {
  template <class T>
  static T combine(T x, T y) {
    return T(acc_t<T>(acc_t<T>(x) * acc_t<T>(y)));
  }
};

// Returns how many columns two rows in order have in common. Eight columns of one row are compared with eight of the
// other; then the group with the lesser last column is left behind. `readable`, at least nb, is how many elements may
// be read from b on.
#ifdef __GNUC__
template <class I>
int64_t count_common(const I* a, int64_t na, const I* b, int64_t nb, int64_t readable) {
  constexpr int64_t lanes = 8;
  typedef I V __attribute__((vector_size(lanes * sizeof(I))));
  const V lane = {0, 1, 2, 3, 4, 5, 6, 7};
  V common = {};
  for (int64_t i = 0, j = 0; i < na && j < nb;) {
    const int64_t m = tp::min(na - i, lanes), n = tp::min(nb - j, lanes);
    V block = {}, hits = {};
    if (j + lanes <= readable) {
      std::memcpy(&block, b + j, sizeof block);
    } else {
      for (int64_t u = 0; u < n; ++u) block[u] = b[j + u];
    }
    if (m == lanes) {
      for (int64_t t = 0; t < lanes; ++t) hits -= V(block == a[i + t]);
    } else {
      for (int64_t t = 0; t < m; ++t) hits -= V(block == a[i + t]);
    }
    common += hits & V(lane < I(n));
    const I last_a = a[i + m - 1], last_b = b[j + n - 1];
    i += last_a <= last_b ? m : 0;
    j += last_b <= last_a ? n : 0;
  }
  int64_t count = 0;
  for (int64_t u = 0; u < lanes; ++u) count += int64_t(common[u]);
  return count;
}
#else
template <class I>
int64_t count_common(const I* a, int64_t na, const I* b, int64_t nb, int64_t) {
  int64_t count = 0;
  for (int64_t i = 0, j = 0; i < na && j < nb;) {
    const I c = a[i], d = b[j];
    count += c == d, i += c <= d, j += d <= c;
  }
  return count;
}
#endif

// Whether the n columns of a row are those of another row moved by `shift`.
template <class I>
bool repeats(const I* row, const I* other, int64_t n, I shift) {
  if (row[n - 1] - other[n - 1] != shift) return false;  // most rows that do not repeat end here
  I differ = 0;
  for (int64_t k = 0; k < n; ++k) differ |= I(row[k] - other[k]) ^ shift;
  return differ == 0;
}

// Returns how often a merge of two rows changes between columns of a, of b, and of both.
template <class I>
int64_t changes(const I* a, int64_t na, const I* b, int64_t nb) {
  int64_t n = 0, last = 0;
  for (int64_t i = 0, j = 0; i < na && j < nb;) {
    const I c = a[i], d = b[j];
    const int64_t now = int64_t(c < d) - int64_t(d < c);
    n += now != last, last = now;
    i += c <= d, j += d <= c;
  }
  return n;
}

// The next two functions are for rows whose merge the processor predicts, because they repeat the row before them or
// change rarely. It then does not wait for the comparisons. Entries 0 to p - 1 of a, with values x, and 0 to q - 1 of
// b, with values y, are merged.

// Writes the entries of a row of a sum or difference.
template <class Op, class T, class I>
void fill_union_by_branches(const I* a, const T* x, int64_t p, const I* b, const T* y, int64_t q, I* idx, T* values) {
  int64_t i = 0, j = 0, k = 0;
  for (; i < p && j < q; ++k) {
    const I c = a[i], d = b[j];
    if (c == d) {
      idx[k] = c, values[k] = Op::combine(x[i++], y[j++]);
    } else if (c < d) {
      idx[k] = c, values[k] = Op::combine(x[i++], T(0));
    } else {
      idx[k] = d, values[k] = Op::combine(T(0), y[j++]);
    }
  }
  for (; i < p; ++i, ++k) idx[k] = a[i], values[k] = Op::combine(x[i], T(0));
  for (; j < q; ++j, ++k) idx[k] = b[j], values[k] = Op::combine(T(0), y[j]);
}

// Writes the n entries of a row of a product; n is the number of columns that are in both rows.
template <class Op, class T, class I>
void fill_common_by_branches(const I* a, const T* x, const I* b, const T* y, I* idx, T* values, int64_t n) {
  for (int64_t i = 0, j = 0, k = 0; k < n;) {
    const I c = a[i], d = b[j];
    if (c == d) {
      idx[k] = c, values[k] = Op::combine(x[i++], y[j++]), ++k;
    } else if (c < d) {
      ++i;
    } else {
      ++j;
    }
  }
}

// The functions below merge two rows from both ends at once, because a step depends on the step before it, but not on
// the steps at the other end. Entries i to p - 1 of a, with values x, and j to q - 1 of b, with values y, remain to be
// merged.

// Writes the n entries of a row of a sum or difference.
template <class Op, class T, class I>
void fill_union(const I* a, const T* x, int64_t p, const I* b, const T* y, int64_t q, I* idx, T* values, int64_t n) {
  int64_t i = 0, j = 0, k = 0;
  while (p - i >= 2 && q - j >= 2) {  // so the first position is not the last
    {
      const I c = a[i], d = b[j];
      const bool of_a = c <= d, of_b = d <= c;
      idx[k] = of_a ? c : d;
      values[k] = Op::combine(if_taken(x[i], of_a), if_taken(y[j], of_b));
      i += of_a, j += of_b, ++k;
    }
    {
      const I c = a[p - 1], d = b[q - 1];
      const bool of_a = c >= d, of_b = d >= c;
      --n;
      idx[n] = of_a ? c : d;
      values[n] = Op::combine(if_taken(x[p - 1], of_a), if_taken(y[q - 1], of_b));
      p -= of_a, q -= of_b;
    }
  }
  while (i < p && j < q) {
    const I c = a[i], d = b[j];
    const bool of_a = c <= d, of_b = d <= c;
    idx[k] = of_a ? c : d;
    values[k] = Op::combine(if_taken(x[i], of_a), if_taken(y[j], of_b));
    i += of_a, j += of_b, ++k;
  }
  for (; i < p; ++i, ++k) idx[k] = a[i], values[k] = Op::combine(x[i], T(0));
  for (; j < q; ++j, ++k) idx[k] = b[j], values[k] = Op::combine(T(0), y[j]);
}

// Writes the n entries of a row of a product; n is the number of columns that are in both rows.
template <class Op, class T, class I>
void fill_common(const I* a, const T* x, int64_t p, const I* b, const T* y, int64_t q, I* idx, T* values, int64_t n) {
  int64_t i = 0, j = 0, k = 0;
  while (n - k >= 2) {
    {
      const I c = a[i], d = b[j];
      idx[k] = c;
      values[k] = Op::combine(x[i], y[j]);
      k += c == d, i += c <= d, j += d <= c;
    }
    {
      const I c = a[p - 1], d = b[q - 1];
      idx[n - 1] = c;
      values[n - 1] = Op::combine(x[p - 1], y[q - 1]);
      n -= c == d, p -= c >= d, q -= d >= c;
    }
  }
  while (k < n) {
    const I c = a[i], d = b[j];
    idx[k] = c;
    values[k] = Op::combine(x[i], y[j]);
    k += c == d, i += c <= d, j += d <= c;
  }
}

// Writes the values of a at the columns of b, which are in order.
template <class T, class I>
void fill_at(const I* a, const T* x, int64_t p, const I* b, int64_t q, T* out) {
  int64_t i = 0, j = 0;
  while (p - i >= 2 && q - j >= 2) {
    {
      const I c = a[i], d = b[j];
      out[j] = if_taken(x[i], c == d);
      i += c <= d, j += d <= c;
    }
    {
      const I c = a[p - 1], d = b[q - 1];
      out[q - 1] = if_taken(x[p - 1], c == d);
      p -= c >= d, q -= d >= c;
    }
  }
  while (i < p && j < q) {
    const I c = a[i], d = b[j];
    out[j] = if_taken(x[i], c == d);
    i += c <= d, j += d <= c;
  }
  for (; j < q; ++j) out[j] = T(0);
}

// Writes the values of a at the columns of b, which are in any order.
template <class T, class I>
void find_each(const I* a, const T* x, int64_t p, const I* b, int64_t q, T* out) {
  for (int64_t j = 0; j < q; ++j) {
    const I* const at = std::lower_bound(a, a + p, b[j]);
    out[j] = at < a + p && *at == b[j] ? x[at - a] : T(0);
  }
}

}  // namespace tp::sparse::merged_rows
