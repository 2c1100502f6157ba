// The sum, the difference and the product of two sparse matrices by place, on the host (beyond the book).
//
// The rows of A and B are merged, as sorted sequences are (chapter 12), but what both have is taken once: a sum has an
// entry where either matrix has one, a product where both have. Two passes over shares of rows on all threads: the
// first counts the entries of every row, the second fills them in.
//
// Rows are in order if their columns increase strictly. If those of a matrix are not, duplicates are added up first, in
// a sorted copy. So the operators are C = S_A a + S_B b, and C = (S_A a) * (S_B b), where S, which is 1 where an entry
// of the operand and one of C have the same place, brings values from one structure to another: values_at. Its
// transpose is values_at with the structures exchanged, and all derivatives of all orders are made of it.
#pragma once
#include <functional>

#include "core/context.h"

namespace tp::sparse {

// A matrix in CSR. If an index is wrong, the error names the matrix.
struct Operand {
  const char* name;
  const void *ptrs, *idx, *values;
  int64_t entries;
};

struct EntrywiseArgs {
  const char* op;
  Operand a, b;
  int64_t rows, cols;
  DType dtype;      // of all values
  bool long_index;  // all indices and pointers are int64, else int32
};

enum class Entrywise : int8_t { add, subtract, multiply };

struct Room {
  void *col_idx, *values;
};

// C = A op B. Writes the row pointers of C [rows + 1]; `room` is called with its number of entries and gives the memory
// for them. The columns of each row come out in order.
void entrywise(Entrywise op, const EntrywiseArgs& args, void* ptrs, const std::function<Room(int64_t)>& room,
               Context& context);

// For each entry of B, the value of A at its place: the sum of duplicates, 0 where A has no entry. B has no values.
void values_at(const EntrywiseArgs& args, void* out, Context& context);

}  // namespace tp::sparse
