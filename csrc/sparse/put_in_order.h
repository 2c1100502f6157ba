// A matrix in CSR with sorted, distinct columns in each row, on the device: the product of the identity and the matrix.
// Duplicates are added up.
#pragma once
#include "core/for_each.h"
#include "sparse/spgemm.h"

namespace tp::sparse {

// The identity: entry i is 1, in row and column i.
template <class T, class I>
struct Identity {
  I* numbers;  // [rows + 1]: both the row pointers and the columns
  T* ones;
  int64_t rows;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto to = block.global("numbers", numbers, rows + 1);
    const auto values = block.global("ones", ones, rows);
    simt::for_each(block, "identity", rows + 1, [&](int64_t i) {
      to[i] = I(i);
      if (i < rows) values[i] = T(1);
    });
  }
};

template <class T, class I>
struct InOrder {
  const I *ptrs, *idx;
  const T* values;
  int64_t entries;
};

// Of a product's arguments, B is the matrix; A and the result are not used. Waits for the device.
template <class T, class I>
InOrder<T, I> put_in_order(SpgemmArgs product, Context& context) {
  const int64_t rows = product.inner;
  I* const numbers = context.workspace<I>(rows + 1);
  T* const ones = context.workspace<T>(rows);
  simt::launch_for_each(context, "put_in_order", rows + 1, Identity<T, I>{numbers, ones, rows});
  product.wanted = Wanted::product;
  product.a_ptrs = product.a_idx = numbers, product.a = ones;
  product.a_entries = product.rows = rows;
  product.ptrs = context.workspace<int64_t>(rows + 1);
  InOrder<T, I> found{};
  product.room = [&](int64_t n) {
    I* const idx = context.workspace<I>(n);
    T* const values = context.workspace<T>(n);
    found = {nullptr, idx, values, n};
    return SpgemmArgs::Room{idx, values};
  };
  spgemm::expand_sort_compress(product, context);
  I* const ptrs = context.workspace<I>(rows + 1);
  simt::launch_for_each(context, "put_in_order", rows + 1, simt::Convert<int64_t, I>{product.ptrs, ptrs, rows + 1});
  found.ptrs = ptrs;
  return found;
}

}  // namespace tp::sparse
