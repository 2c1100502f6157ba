// What sort and segment_sort share: from tensors to Args, and values along a permutation.
#pragma once
#include "sort/sort.h"
#include "torch/keys.h"

namespace tp {

// The order that is asked for, checked.
sort::Args sort_args(const char* op, const Tensor& keys, bool descending, int64_t begin_bit,
                     std::optional<int64_t> end_bit);
// Values as many as keys, on their device.
void check_pairs(const char* op, const Tensor& keys, const Tensor& values);

// Contiguous, and of bool the bytes 0 and 1, whatever byte stood for true.
Tensor raw_keys(const Tensor& x);
void give_keys(sort::Args& args, const Tensor& keys, Tensor& out);
void give_values(sort::Args& args, const Tensor& values, Tensor& out);

// take(x, indices)[i] = x[indices[i]] along `dim`, indices being a permutation, and its inverse,
// put(x, indices)[indices[i]] = x[i]. Each is the derivative of the other. Both give new tensors; an undefined one of
// an undefined one.
Tensor take(const Tensor& x, const Tensor& indices, int64_t dim);
Tensor put(const Tensor& x, const Tensor& indices, int64_t dim);

}  // namespace tp
