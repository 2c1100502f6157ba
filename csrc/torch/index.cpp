#include "torch/index.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <atomic>

namespace tp {
namespace {

template <class I>
void check_values(const char* op, const char* name, const I* offsets, int64_t parts, int64_t rows) {
  std::atomic<bool> wrong{offsets[0] != 0 || offsets[parts] != rows};
  at::parallel_for(0, parts, 1 << 16, [&](int64_t begin, int64_t end) {
    bool decreases = false;
    for (int64_t i = begin; i < end; ++i) decreases |= offsets[i + 1] < offsets[i];
    if (decreases) wrong = true;
  });
  if (!wrong) return;
  for (int64_t i = 0; i <= parts; ++i) {
    const int64_t offset = offsets[i];
    TORCH_CHECK_INDEX(0 <= offset && offset <= rows, op, ": ", name, "[", i, "] is ", offset,
                      ", which is out of range: expected 0 to ", rows);
    TORCH_CHECK_VALUE(i > 0 || offset == 0, op, ": ", name, "[0] is ", offset, ", must be 0");
    TORCH_CHECK_VALUE(i == 0 || offset >= offsets[i - 1], op, ": ", name, "[", i, "] is ", offset, ", less than ", name,
                      "[", i - 1, "], which is ", offsets[i - 1], "; they must not decrease");
  }
  TORCH_CHECK_VALUE(false, op, ": ", name, "[", parts, "], the last, is ", offsets[parts], ", must be ", rows);
}

}  // namespace

void check_offsets(const char* op, const Named& offsets, const Named& beside) {
  check_index_type(op, offsets);
  TORCH_CHECK_VALUE(offsets.tensor.dim() == 1 && offsets.tensor.sym_size(0) > 0, op, ": ", offsets.name,
                    " must have one dimension and one element at least, got shape ", offsets.tensor.sym_sizes());
  check_same_device(op, {{beside.name, &beside.tensor}, {offsets.name, &offsets.tensor}});
}

void check_offset_values(const char* op, const Named& offsets, const SymInt& number, bool validate) {
  if (offsets.tensor.is_meta() || (offsets.tensor.is_cuda() && !validate)) return;
  Tensor o = offsets.tensor.contiguous();
  const int64_t parts = o.size(0) - 1, rows = number.expect_int();
  if (o.is_cuda()) {
    refuse_capture((std::string(op) + ": validate=True").c_str(), o);
    const Tensor decreases = at::lt(o.narrow(0, 1, parts), o.narrow(0, 0, parts)).any();
    const Tensor ends = at::logical_or(o.select(0, 0).ne(0), o.select(0, parts).to(at::kLong).ne(rows));
    if (!at::logical_or(decreases, ends).item<bool>()) return;
    o = o.cpu();
  }
  if (o.scalar_type() == at::kLong) {
    check_values(op, offsets.name, o.const_data_ptr<int64_t>(), parts, rows);
  } else {
    check_values(op, offsets.name, o.const_data_ptr<int32_t>(), parts, rows);
  }
}

[[noreturn]] void fail_at_first(const char* op, const Named& positions, int64_t count) {
  const Tensor all = positions.tensor.cpu().to(at::kLong);
  const int64_t at = at::logical_or(all.lt(0), all.ge(count)).to(at::kByte).argmax().item<int64_t>();
  TORCH_CHECK_INDEX(false, op, ": ", positions.name, "[", at, "] is ", all[at].item<int64_t>(),
                    ", which is out of range: expected 0 to ", count - 1);
}

}  // namespace tp
