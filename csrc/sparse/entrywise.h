// The elementwise sum, difference and product of two sparse matrices (beyond the book).
//
// The rows of A and B are merged as sorted sequences are (chapter 12), except that equal columns become one entry. A
// sum has an entry where either matrix has one, a product where both have one. There are two passes: the first counts
// the entries of C, the second fills them in. On the host, these are passes over shares of rows, on all threads; on
// the device, over equal shares of the entries, however they are distributed over rows (entrywise_tiles.cu). In checked
// mode, the host runs the device's kernels.
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
  // Copies numbers from the device's memory, and waits for it.
  std::function<void(const int64_t* numbers, int64_t n, int64_t* to)> read;
  std::function<void()> explain;  // for the device: raises the error that says which index is wrong
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

// The same two functions by the device's kernels.
void entrywise_in_tiles(Entrywise op, const EntrywiseArgs& args, void* ptrs, const std::function<Room(int64_t)>& room,
                        Context& context);
void look_up_values(const EntrywiseArgs& args, void* out, Context& context);

}  // namespace tp::sparse
