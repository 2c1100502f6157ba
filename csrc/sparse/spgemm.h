// Sparse matrix times sparse matrix: C = A B (SpGEMM; beyond the book).
//
// Every entry (i, k) of A meets the entries (k, j) of row k of B, and their product belongs to C[i, j]. How many
// products there are is soon known, but not how many places of C they share, so the structure of C has to be found
// first. Gustavson's algorithm (1978) goes by rows: it adds up the products of a row of A in an array as long as B is
// wide, and remembers which of its elements it has used. `threaded` takes equal shares of the products, and finds the
// columns of a row in order by setting bits. Expansion, sorting and compression (Bell, Dalton and Olson, 2012) balances
// the work whatever the lengths of the rows: all products are written out, sorted by place and added up by segments.
//
// The sum of a[i, k] b[k, j] c[i, j] over all products is linear in the values of each matrix. Its derivative by those
// of C are the values of the product, the others are the gradients, so the same ladder has all three, for a structure
// of C that is known and has a place for every product.
//
// Every rung gives the same bits in every run, on any number of threads: on the host, what lies at one place of C is
// added up in the order of the entries of A.
#pragma once
#include <functional>

#include "core/ladder.h"

namespace tp::sparse {

// What to compute: the whole product, or the values of one matrix from those of the two others.
enum class Wanted : int8_t { product, a, b, c };

struct SpgemmArgs {
  struct Room {
    void *col_idx, *values;
  };
  const char* op;
  Wanted wanted;
  const void *a_ptrs, *a_idx;  // A [rows, inner]
  const void *b_ptrs, *b_idx;  // B [inner, cols]
  const void *c_ptrs, *c_idx;  // C [rows, cols], unless it is wanted: the columns of each row distinct and in order
  const void *a, *b, *c;       // values, null where they are wanted
  void* out;                   // [entries of the wanted matrix]
  int64_t a_entries, b_entries, c_entries;
  int64_t rows, inner, cols;
  DType dtype;      // of all values
  bool long_index;  // all indices and pointers are int64, else int32
  // For the product: its row pointers [rows + 1]; and a function to call once they are written, which gives memory for
  // so many entries.
  int64_t* ptrs;
  std::function<Room(int64_t)> room;
  std::function<int64_t(const int64_t*)> read;  // a number in the memory of the device (waits for it)
};

}  // namespace tp::sparse

namespace tp::spgemm {

using Args = sparse::SpgemmArgs;

#define TP_RUNGS "sparse/spgemm/rungs.def"
#include "core/ladder.inc"

// The rung that "auto" means.
const char* choose(const Args&, const Device&);

}  // namespace tp::spgemm
