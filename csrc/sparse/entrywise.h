// The elementwise sum, difference and product of two sparse matrices, on the host (beyond the book).
//
// The rows of A and B are merged as sorted sequences are (chapter 12), except that equal columns become one entry. A
// sum has an entry where either matrix has one, a product where both have one. There are two passes over shares of
// rows, on all threads: the first counts the entries of every row, the second fills them in.
//
// Rows are in order if their columns increase strictly. Rows that are not in order are copied and sorted first, and
// their duplicates are added up.
//
// values_at() brings values from one structure to another: with S(i, j) = 1 where entry j of the operand and entry i of
// C have the same position, the operators are C = S_A a + S_B b and C = (S_A a) * (S_B b). The transpose of S is
// values_at() with the structures exchanged, so derivatives of every order consist of calls of it.
#pragma once
#include <functional>

#include "core/context.h"

namespace tp::sparse {

// A matrix in CSR. Errors about its indices contain its name.
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

// C = A op B. Writes the row pointers of C [rows + 1]. `room` is called with the number of entries of C and returns the
// memory for them. The columns of each row of C are in order.
void entrywise(Entrywise op, const EntrywiseArgs& args, void* ptrs, const std::function<Room(int64_t)>& room,
               Context& context);

// Writes, for each entry of B, the value of A at the same position: the sum of duplicates, or 0 if A has no entry
// there. B has no values.
void values_at(const EntrywiseArgs& args, void* out, Context& context);

}  // namespace tp::sparse
