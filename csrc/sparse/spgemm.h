// Sparse matrix times sparse matrix: C = A B (SpGEMM; beyond the book).
//
// Every entry (i, k) of A meets the entries (k, j) of row k of B, and each such product belongs to C[i, j]. The number
// of products is cheap to compute, but the number of distinct positions (i, j) is not, so the structure of C has to be
// found first. Gustavson's algorithm (1978) works by rows: it adds up the products of a row of A in an array as long as
// a row of C, and remembers which elements it has used. `threaded` divides the products into equal shares, and finds
// the columns of a row in order by setting bits. Expansion, sorting and compression (Bell, Dalton and Olson, 2012)
// balances the work whatever the lengths of the rows: it writes out all products, sorts them by position, and adds them
// up by a segmented reduction. A block per row does all this in shared memory, for rows of B that are in order, where a
// hash table finds the distinct columns (hash_per_row; Nagasaka, Nukada and Matsuoka, 2017). Several blocks do it for a
// long row, and mark the columns as bits; many short rows share a block.
//
// The sum of a[i, k] b[k, j] c[i, j] over all products is linear in the values of each matrix. Its derivative with
// respect to C's values is the product A B; the other two derivatives are the gradients. So the same ladder computes
// all three, for a known structure of C that has an entry for every product.
//
// Every rung gives the same bits in every run, on any number of threads. On the host, the products of one position of C
// are added up in the order of the entries of A.
#pragma once
#include <functional>

#include "core/ladder.h"

namespace tp::sparse {

// What to compute: the whole product, or the values of one matrix from the values of the other two.
enum class Wanted : int8_t { product, a, b, c };

struct SpgemmArgs {
  struct Room {
    void *col_idx, *values;
  };
  const char* op;
  Wanted wanted;
  const void *a_ptrs, *a_idx;  // A [rows, inner]
  const void *b_ptrs, *b_idx;  // B [inner, cols]
  // C [rows, cols], unless it is to be computed. The columns of each row are distinct and sorted.
  const void *c_ptrs, *c_idx;
  const void *a, *b, *c;  // values; null for the wanted matrix
  void* out;              // [entries of the wanted matrix]
  int64_t a_entries, b_entries, c_entries;
  int64_t rows, inner, cols;
  DType dtype;      // of all values
  bool long_index;  // all indices and pointers are int64, else int32
  // For the whole product: its row pointers [rows + 1], and a function to call once they are written; it returns memory
  // for the given number of entries.
  int64_t* ptrs;
  std::function<Room(int64_t)> room;
  // For the whole product: whether so many products may be computed in one call; null if any number may be. If not, the
  // rung returns without calling `room`.
  std::function<bool(int64_t products)> admits;
  // Copies numbers from the device's memory, and waits for it.
  std::function<void(const int64_t* numbers, int64_t n, int64_t* to)> read;
  // Raises the error that says which pointer or index is wrong. The kernels of rungs for the device only find out
  // whether one is. Null if the caller has checked them.
  std::function<void()> explain;

  bool refuses(int64_t products) const { return admits && !admits(products); }
  // Raises an error if a kernel has found a pointer or an index that is wrong.
  void require_valid(bool valid) const {
    if (valid) return;
    if (explain) explain();
    fail(ErrorKind::index, op, ": an index is out of range");
  }
  int64_t read_one(const int64_t* number) const {
    int64_t value;
    read(number, 1, &value);
    return value;
  }
};

}  // namespace tp::sparse

namespace tp::spgemm {

using Args = sparse::SpgemmArgs;

#define TP_RUNGS "sparse/spgemm/rungs.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

}  // namespace tp::spgemm
