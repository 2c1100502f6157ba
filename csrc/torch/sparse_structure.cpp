// The conditions for a valid structure in any format: always on the lengths of its tensors, and with `validate` on
// their contents.
#include "torch/sparse_checks.h"

namespace tp {

Format format_of(const char* op, Str name) {
  const auto& formats = all_formats();
  for (size_t i = 0; i < formats.size(); ++i) {
    if (name == formats[i].name) return Format(i);
  }
  std::string names = formats[0].name;
  for (size_t i = 1; i < formats.size(); ++i) names += std::string(", ") + formats[i].name;
  TORCH_CHECK_VALUE(false, op, ": unknown format '", std::string(name), "'; choose from: ", names);
}

const Tensor& Structure::beside_values(size_t i) const {
  const size_t values = info_of(format).values[i];
  return index[values - 1 - i];  // of the fields before it, i are values
}

SymInt Structure::entries() const {
  SymInt n = 0;
  for (size_t i = 0; i < info_of(format).values.size(); ++i) n += beside_values(i).sym_numel();
  return n;
}

Structure Structure::contiguous() const {
  Structure s = *this;
  for (Tensor& t : s.index) t = t.contiguous();
  return s;
}

void check_structure(const char* op, const Structure& s) {
  const FormatInfo& info = info_of(s.format);
  TORCH_CHECK_VALUE(s.index.size() == info.index.size(), op, ": structure of ", s.index.size(),
                    " tensors is not that of ", info.name);
  const char* const first = info.index_name(0);
  const auto dtype = s[0].scalar_type();
  for (size_t i = 0; i < s.index.size(); ++i) {
    const Field& field = info.fields[info.index[i]];
    const auto type = s[i].scalar_type();
    if (field.kind == FieldKind::short_index) {
      TORCH_CHECK_TYPE(type == at::kShort, op, ": ", field.name, " must be int16, got ", type);
    } else {
      check_index_type(op, {field.name, s[i]});
      TORCH_CHECK_TYPE(type == dtype, op, ": ", first, " is ", dtype, ", ", field.name, " is ", type);
    }
    const bool padded = field.kind == FieldKind::padded_index;
    TORCH_CHECK_VALUE(s[i].dim() == (padded ? 2 : 1), op, ": ", field.name, " must have ",
                      padded ? "the shape [width, rows]" : "one dimension", ", got shape ", s[i].sym_sizes());
    check_same_device(op, {{first, &s[0]}, {field.name, &s[i]}});
  }
  for (const SymInt* size : {&s.rows, &s.cols}) {
    const auto n = size->maybe_as_int();
    TORCH_CHECK_VALUE(!n || *n >= 0, op, ": rows and cols must not be negative, got ", s.rows, " and ", s.cols);
    TORCH_CHECK_VALUE(!n || dtype == at::kLong || *n <= std::numeric_limits<int32_t>::max(), op,
                      ": indices of int32 do not reach all of ", s.rows, " rows and ", s.cols, " columns");
  }
  info.check_lengths(Lengths(op, s), s);
}

void check_csr(const char* op, const Structure& s, const Tensor& a_row_ptrs) {
  check_structure(op, s);
  TORCH_CHECK_TYPE(s[0].scalar_type() == a_row_ptrs.scalar_type(), op, ": indices are ", s[0].scalar_type(),
                   ", those of A ", a_row_ptrs.scalar_type());
  check_same_device(op, {{"A", &a_row_ptrs}, {"row_ptrs", &s[0]}});
}

void check_index_values(const char* op, const Structure& given) {
  const std::string what = std::string(op) + ": validate=True";
  refuse_capture(what.c_str(), given[0]);
  Findings all(op);
  info_of(given.format).check_contents(all, given.contiguous());
  all.report();
}

}  // namespace tp
