// Shared by merge, sort and segment_sort: the conversion of tensors to Args, and permutations of values.
#pragma once
#include "sort/sort.h"
#include "torch/checks.h"
#include "torch/keys.h"

namespace tp {

// The requested order, checked.
sort::Args sort_args(const char* op, const Tensor& keys, bool descending, int64_t begin_bit,
                     std::optional<int64_t> end_bit);
// Checks that there are as many values as keys, on their device.
void check_pairs(const char* op, const Named& keys, const Named& values);

// Sorts move `values` to `out` along with the keys or, if they are undefined, the indices of the keys before the sort.
void give_values(sort::Args& args, const Tensor& values, Tensor& out);

// take(x, indices)[i] = x[indices[i]] along `dim`, where indices is a permutation; put is its inverse: put(x,
// indices)[indices[i]] = x[i]. Each is the derivative of the other. Both return new tensors, and an undefined tensor
// for an undefined one.
Tensor take(const Tensor& x, const Tensor& indices, int64_t dim);
Tensor put(const Tensor& x, const Tensor& indices, int64_t dim);

}  // namespace tp
