// The formats, and the conditions for a valid structure: on its tensors always, on their contents with `validate`.
#include <functional>

#include "torch/sparse.h"

namespace tp {
namespace {

const FormatInfo formats[] = {
    {"coo", {"row_idx", "col_idx", "values"}, {2}, false},
    {"csr", {"row_ptrs", "col_idx", "values"}, {2}, true},
    {"csc", {"col_ptrs", "row_idx", "values"}, {2}, false},
    {"ell", {"row_nnz", "col_idx", "values"}, {2}, true},
    {"hyb", {"ell_row_nnz", "ell_col_idx", "ell_values", "coo_row_idx", "coo_col_idx", "coo_values"}, {2, 5}, true},
    {"jds", {"row_perm", "diag_ptrs", "col_idx", "values"}, {3}, true},
    {"sell", {"row_perm", "row_nnz", "section_ptrs", "col_idx", "values"}, {4}, true},
    {"blocked", {"row_ptrs", "block_ptrs", "bin_ptrs", "octet_idx", "col_idx", "entry_idx", "values"}, {6}, true},
};

const char* index_name(Format format, size_t i) {
  const auto& info = info_of(format);
  for (size_t field = 0;; ++field) {
    if (!info.is_value(field) && i-- == 0) return info.fields[field];
  }
}

void check_size(const char* op, const char* name, const SymInt& size, const SymInt& expected, const char* of) {
  TORCH_CHECK_VALUE(size == expected, op, ": ", name, " has ", size, " elements, expected ", expected, ", ", of);
}

}  // namespace

const FormatInfo& info_of(Format format) { return formats[int(format)]; }

Format format_of(const char* op, Str name) {
  for (int i = 0; i < format_count; ++i) {
    if (name == formats[i].name) return Format(i);
  }
  TORCH_CHECK_VALUE(false, op, ": unknown format '", std::string(name),
                    "'; choose from: coo, csr, csc, ell, hyb, jds, sell, blocked");
}

const Tensor& Structure::columns() const {
  constexpr size_t field[format_count] = {1, 1, 1, 1, 1, 2, 3, 4};
  return index[field[int(format)]];
}

SymInt Structure::entries() const {
  const SymInt n = columns().sym_numel();
  return format == Format::hyb ? n + index[2].sym_size(0) : n;
}

Structure Structure::contiguous() const {
  Structure s = *this;
  for (Tensor& t : s.index) t = t.contiguous();
  return s;
}

void check_structure(const char* op, const Structure& s) {
  const auto name = [&](size_t i) { return index_name(s.format, i); };
  TORCH_CHECK_VALUE(s.index.size() == info_of(s.format).fields.size() - info_of(s.format).values.size(), op,
                    ": structure of ", s.index.size(), " tensors is not that of ", info_of(s.format).name);
  const auto dtype = s[0].scalar_type();
  for (size_t i = 0; i < s.index.size(); ++i) {
    const bool padded = i == 1 && (s.format == Format::ell || s.format == Format::hyb);
    const auto type = s[i].scalar_type();
    if (s.format == Format::blocked && i >= 4) {
      TORCH_CHECK_TYPE(type == at::kShort, op, ": ", name(i), " must be int16, got ", type);
    } else {
      TORCH_CHECK_TYPE(type == at::kInt || type == at::kLong, op, ": ", name(i), " must be int32 or int64, got ", type);
      TORCH_CHECK_TYPE(type == dtype, op, ": ", name(0), " is ", dtype, ", ", name(i), " is ", type);
    }
    TORCH_CHECK_VALUE(s[i].dim() == (padded ? 2 : 1), op, ": ", name(i), " must have ",
                      padded ? "the shape [width, rows]" : "one dimension", ", got shape ", s[i].sym_sizes());
    check_same_device(op, {{name(0), &s[0]}, {name(i), &s[i]}});
  }
  for (const SymInt* size : {&s.rows, &s.cols}) {
    const auto n = size->maybe_as_int();
    TORCH_CHECK_VALUE(!n || *n >= 0, op, ": rows and cols must not be negative, got ", s.rows, " and ", s.cols);
    TORCH_CHECK_VALUE(!n || dtype == at::kLong || *n <= std::numeric_limits<int32_t>::max(), op,
                      ": indices of int32 do not reach all of ", s.rows, " rows and ", s.cols, " columns");
  }
  switch (s.format) {
    case Format::coo:
      return check_size(op, name(1), s[1].sym_size(0), s[0].sym_size(0), "as row_idx");
    case Format::csr:
      return check_size(op, name(0), s[0].sym_size(0), s.rows + 1, "one more than rows");
    case Format::csc:
      return check_size(op, name(0), s[0].sym_size(0), s.cols + 1, "one more than columns, which are the rows of x");
    case Format::hyb:
      check_size(op, name(3), s[3].sym_size(0), s[2].sym_size(0), "as coo_row_idx");
      [[fallthrough]];
    case Format::ell:
      check_size(op, name(0), s[0].sym_size(0), s.rows, "as there are rows");
      return check_size(op, "a row of col_idx", s[1].sym_size(1), s.rows, "as there are rows");
    case Format::jds:
      check_size(op, name(0), s[0].sym_size(0), s.rows, "as there are rows");
      TORCH_CHECK_VALUE(s[1].sym_size(0) > 0, op, ": diag_ptrs has no element");
      return;
    case Format::sell:
      TORCH_CHECK_VALUE(s.section_rows > 0, op, ": section_rows must be positive, got ", s.section_rows);
      check_size(op, name(0), s[0].sym_size(0), s.rows, "as there are rows");
      check_size(op, name(1), s[1].sym_size(0), s.rows, "as there are rows");
      return check_size(op, name(2), s[2].sym_size(0), (s.rows + s.section_rows - 1) / s.section_rows + 1,
                        "one more than sections");
    case Format::blocked:
      check_size(op, name(0), s[0].sym_size(0), s.rows + 1, "one more than rows");
      check_size(op, name(1), s[1].sym_size(0), (s.cols + sparse::block_columns - 1) / sparse::block_columns + 1,
                 "one more than blocks of columns");
      TORCH_CHECK_VALUE(s[2].sym_size(0) > 0, op, ": bin_ptrs has no element");
      check_size(op, name(4), s[4].sym_size(0), s[3].sym_size(0) * sparse::octet, "8 times as many as octet_idx");
      return check_size(op, name(5), s[5].sym_size(0), s[4].sym_size(0), "as col_idx");
  }
}

namespace {

// Collects errors and their positions on the device, and waits for it once.
class Findings {
 public:
  explicit Findings(const char* op) : op_(op) {}

  void add(const std::string& name, const Tensor& x, const Tensor& bad, bool out_of_range, const std::string& why) {
    if (x.numel() > 0) all_.push_back({name, x, bad, out_of_range, why});
  }
  void range(const std::string& name, const Tensor& x, int64_t n, const Tensor& where = {}, int64_t least = 0) {
    const Tensor outside = at::logical_or(x.lt(least), x.ge(n));
    add(name, x, where.defined() ? at::logical_and(outside, where) : outside, true,
        "which is out of range: expected " + std::to_string(least) + " to " + std::to_string(n - 1));
  }
  // Pointers to whole octets.
  void octets(const std::string& name, const Tensor& x, int64_t places) {
    pointers(name, x, places);
    add(name, x, x.remainder(sparse::octet).ne(0), false, "not a multiple of 8");
  }
  // Pointers into so many entries.
  void pointers(const std::string& name, const Tensor& x, int64_t entries) {
    range(name, x, entries + 1);
    const int64_t last = x.size(0) - 1;
    const Tensor at_ends = at::zeros_like(x, at::kBool);
    Tensor first = at_ends.clone(), end = at_ends.clone(), decreases = at_ends.clone();
    first.select(0, 0).copy_(x.select(0, 0).ne(0));
    end.select(0, last).copy_(x.select(0, last).ne(entries));
    decreases.narrow(0, 1, last).copy_(at::lt(x.narrow(0, 1, last), x.narrow(0, 0, last)));
    add(name, x, first, false, "must be 0");
    add(name, x, decreases, false, "less than the one before; they must not decrease");
    add(name, x, end, false, "the last, must be " + std::to_string(entries));
  }
  void permutation(const std::string& name, const Tensor& x, int64_t n) {
    range(name, x, n);
    if (n == 0) return;
    const Tensor safe = x.clamp(0, n - 1).to(at::kLong);
    const Tensor counts = at::zeros({n}, safe.options()).scatter_add(0, safe, at::ones_like(safe));
    add(name, x, counts.index_select(0, safe).gt(1), false, "and so is another; it must be a permutation");
  }
  // Columns of entries, which `valid` tells from padding.
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
  };
  void tell(const One& one) const {
    const Tensor place = one.bad.nonzero()[0].cpu();
    Tensor value = one.x;
    std::string at;
    for (int64_t d = 0; d < place.size(0); ++d) {
      value = value.select(0, place[d].item<int64_t>());
      at += (d ? ", " : "") + std::to_string(place[d].item<int64_t>());
    }
    const auto v = value.item<int64_t>();
    TORCH_CHECK_INDEX(!one.out_of_range, op_, ": ", one.name, "[", at, "] is ", v, ", ", one.why);
    TORCH_CHECK_VALUE(one.out_of_range, op_, ": ", one.name, "[", at, "] is ", v, ", ", one.why);
  }

  const char* op_;
  std::vector<One> all_;
};

void check_padded_rows(Findings& all, const Structure& s, const std::string& prefix) {
  const Tensor &lengths = s[0], &columns = s[1];
  const int64_t width = columns.size(0);
  all.range(prefix + "row_nnz", lengths, width + 1);
  all.padded(prefix + "col_idx", columns, s.cols.expect_int(), places(lengths, width).unsqueeze(1).lt(lengths));
}

void check_diagonals(Findings& all, const Structure& s) {
  const Tensor& ptrs = s[1];
  all.permutation("row_perm", s[0], s[0].size(0));
  all.pointers("diag_ptrs", ptrs, s[2].size(0));
  const int64_t width = ptrs.size(0) - 1;
  if (width == 0) return;
  const Tensor lengths = ptrs.narrow(0, 1, width) - ptrs.narrow(0, 0, width);
  const Tensor most = at::cat({at::full({1}, s[0].size(0), lengths.options()), lengths.narrow(0, 0, width - 1)});
  Tensor bad = at::zeros_like(ptrs, at::kBool);
  bad.narrow(0, 1, width).copy_(lengths.gt(most));
  all.add("diag_ptrs", ptrs, bad, false,
          "which makes this diagonal longer than the one before, or than there are rows");
}

void check_sections(Findings& all, const Structure& s) {
  const Tensor &lengths = s[1], &ptrs = s[2], &columns = s[3];
  const int64_t rows = s[0].size(0), sections = ptrs.size(0) - 1, step = s.section_rows.expect_int();
  all.permutation("row_perm", s[0], rows);
  all.pointers("section_ptrs", ptrs, columns.size(0));
  if (rows == 0) return;
  const Tensor section = places(ptrs, sections);
  const Tensor heights = (rows - section * step).clamp_max(step);
  const Tensor sizes = ptrs.narrow(0, 1, sections) - ptrs.narrow(0, 0, sections);
  Tensor ragged = at::zeros_like(ptrs, at::kBool);
  ragged.narrow(0, 1, sections).copy_(sizes.remainder(heights).ne(0));
  all.add("section_ptrs", ptrs, ragged, false, "which leaves no rectangle of this section's rows");
  const Tensor widths = at::div(sizes, heights, "floor").index_select(0, at::div(places(ptrs, rows), step, "floor"));
  all.add("row_nnz", lengths, at::logical_or(lengths.lt(0), lengths.gt(widths)), true,
          "which is out of range: expected 0 to the width of its section");
}

void check_runs(Findings& all, const Structure& s) {
  const Tensor &local = s[4], &entry_idx = s[5];
  const int64_t n = local.size(0), cols = s.cols.expect_int();
  all.octets("block_ptrs", s[1], n);
  all.octets("bin_ptrs", s[2], n);
  all.permutation("octet_idx", s[3], s[3].size(0));
  all.range("col_idx", local, sparse::block_columns, {}, -1);
  all.range("entry_idx", entry_idx, sparse::bin_entries, {}, -1);
  all.report();  // the rest is meaningful only if this holds
  const Tensor valid = local.ge(0), stored = entry_idx.ge(0);
  const auto nnz = valid.sum().item<int64_t>();
  all.pointers("row_ptrs", s[0], nnz);
  if (n == 0) return;
  all.add("col_idx", local, at::logical_and(valid, (local + segments(s[1], n) * sparse::block_columns).ge(cols)), true,
          "which is out of range: the matrix has " + std::to_string(cols) + " columns");
  const Tensor wanted = at::zeros_like(stored).index_copy(0, places_by_bins(s[3]).to(at::kLong), valid);
  all.add("entry_idx", entry_idx, at::logical_and(stored, wanted.logical_not()), false,
          "must be -1 where there is padding");
  all.add("entry_idx", entry_idx, at::logical_and(wanted, stored.logical_not()), false, "but there is no padding");
  const Tensor entry = (segments(s[2], n) * sparse::bin_entries + entry_idx.clamp_min(0)).to(at::kLong);
  all.add("entry_idx", entry_idx, at::logical_and(stored, entry.ge(nnz)), true,
          "which is out of range: the last bin has fewer entries");
  const Tensor safe = entry.clamp(0, std::max(nnz - 1, int64_t(0)));
  const Tensor counts = at::zeros({nnz + 1}, safe.options()).scatter_add(0, safe, stored.to(at::kLong));
  all.add("entry_idx", entry_idx, at::logical_and(stored, counts.index_select(0, safe).gt(1)), false,
          "and so is another of its bin");
}

}  // namespace

void check_index_values(const char* op, const Structure& given) {
  const std::string what = std::string(op) + ": validate=True";
  refuse_capture(what.c_str(), given[0]);
  const Structure s = given.contiguous();
  const int64_t rows = s.rows.expect_int(), cols = s.cols.expect_int();
  Findings all(op);
  switch (s.format) {
    case Format::coo:
      all.range("row_idx", s[0], rows);
      all.range("col_idx", s[1], cols);
      break;
    case Format::csr:
    case Format::csc:
      all.pointers(index_name(s.format, 0), s[0], s[1].size(0));
      all.range(index_name(s.format, 1), s[1], s.format == Format::csr ? cols : rows);
      break;
    case Format::ell:
      check_padded_rows(all, s, "");
      break;
    case Format::hyb:
      check_padded_rows(all, s, "ell_");
      all.range("coo_row_idx", s[2], rows);
      all.range("coo_col_idx", s[3], cols);
      break;
    case Format::jds:
      check_diagonals(all, s);
      all.range("col_idx", s[2], cols);
      break;
    case Format::sell: {
      check_sections(all, s);
      all.report();  // the position of the padding is meaningful only if this holds
      Structure anywhere = s;
      anywhere.index[3] = at::zeros_like(s[3]);  // so that columns do not matter
      all.padded("col_idx", s[3], cols, coordinates(anywhere).first.ge(0));
      break;
    }
    case Format::blocked:
      check_runs(all, s);
      break;
  }
  all.report();
}

}  // namespace tp
