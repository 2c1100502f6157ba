// The checks of a matrix's structure: always the lengths of its tensors, and their contents with `validate`.
#pragma once
#include "torch/sparse.h"

namespace tp {

// Checks the lengths of index tensors.
class Lengths {
 public:
  Lengths(const char* op, const Structure& s) : op(op), s_(s) {}
  const char* const op;
  void check(const char* name, const SymInt& size, const SymInt& expected, const char* of) const {
    TORCH_CHECK_VALUE(size == expected, op, ": ", name, " has ", size, " elements, expected ", expected, ", ", of);
  }
  void check(size_t i, const SymInt& expected, const char* of) const {
    check(info_of(s_.format).index_name(i), s_[i].sym_size(0), expected, of);
  }
  void check_not_empty(size_t i) const {
    TORCH_CHECK_VALUE(s_[i].sym_size(0) > 0, op, ": ", info_of(s_.format).index_name(i), " has no element");
  }

 private:
  const Structure& s_;
};

// Collects errors and their positions on the device, and waits for it once.
class Findings {
 public:
  explicit Findings(const char* op) : op_(op) {}

  // `bad` tells which elements of x are wrong, from element `first` on.
  void add(const std::string& name, const Tensor& x, const Tensor& bad, bool out_of_range, const std::string& why,
           int64_t first = 0) {
    if (bad.numel() > 0) all_.push_back({name, x, bad, out_of_range, why, first});
  }
  void range(const std::string& name, const Tensor& x, int64_t n, const Tensor& where = {}, int64_t least = 0) {
    const Tensor outside = at::logical_or(x.lt(least), x.ge(n));
    add(name, x, where.defined() ? at::logical_and(outside, where) : outside, true,
        "which is out of range: expected " + std::to_string(least) + " to " + std::to_string(n - 1));
  }
  // Pointers to whole octets.
  void octets(const std::string& name, const Tensor& x, int64_t slots) {
    pointers(name, x, slots);
    add(name, x, x.remainder(sparse::octet).ne(0), false, "not a multiple of 8");
  }
  // Pointers into the given number of entries.
  void pointers(const std::string& name, const Tensor& x, int64_t entries) {
    range(name, x, entries + 1);
    const int64_t last = x.size(0) - 1;
    const auto from = [&](int64_t first) { return x.narrow(0, first, last); };
    add(name, x, x.narrow(0, 0, 1).ne(0), false, "must be 0");
    add(name, x, at::lt(from(1), from(0)), false, "less than the one before; they must not decrease", 1);
    add(name, x, x.narrow(0, last, 1).ne(entries), false, "the last, must be " + std::to_string(entries), last);
  }
  void permutation(const std::string& name, const Tensor& x, int64_t n) {
    range(name, x, n);
    if (n == 0) return;
    const Tensor safe = x.clamp(0, n - 1).to(at::kLong);
    const Tensor counts = at::zeros({n}, safe.options()).scatter_add(0, safe, at::ones_like(safe));
    add(name, x, counts.index_select(0, safe).gt(1), false, "and so is another; it must be a permutation");
  }
  // Columns of entries; `valid` distinguishes entries from padding.
  void padded(const std::string& name, const Tensor& x, int64_t cols, const Tensor& valid) {
    range(name, x, cols, valid);
    add(name, x, at::logical_and(x.ne(-1), valid.logical_not()), false, "must be -1 where there is padding");
  }
  void report() const {
    std::vector<Tensor> flags;
    for (const One& one : all_) flags.push_back(one.bad.any());
    if (flags.empty()) return;
    const Tensor found = at::stack(flags).cpu();
    for (size_t i = 0; i < all_.size(); ++i) {
      if (found[int64_t(i)].item<bool>()) tell(all_[i]);
    }
  }

 private:
  struct One {
    std::string name;
    Tensor x, bad;
    bool out_of_range;
    std::string why;
    int64_t first;
  };
  void tell(const One& one) const {
    const Tensor index = one.bad.nonzero()[0].cpu();
    Tensor value = one.x;
    std::string at;
    for (int64_t d = 0; d < index.size(0); ++d) {
      const int64_t i = index[d].item<int64_t>() + (d == 0 ? one.first : 0);
      value = value.select(0, i);
      at += (d ? ", " : "") + std::to_string(i);
    }
    const auto v = value.item<int64_t>();
    TORCH_CHECK_INDEX(!one.out_of_range, op_, ": ", one.name, "[", at, "] is ", v, ", ", one.why);
    TORCH_CHECK_VALUE(one.out_of_range, op_, ": ", one.name, "[", at, "] is ", v, ", ", one.why);
  }

  const char* op_;
  std::vector<One> all_;
};

}  // namespace tp
