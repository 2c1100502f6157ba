// What operators do with a matrix of each format: check it, find the rows and columns of its entries, and pass it to a
// product. Each format has one section, in the order of formats.def.
#include "torch/sparse_checks.h"

namespace tp {

template <Format format>
struct FormatRules;

namespace {

// For formats that have no simpler way to find the rows of their entries.
struct ByCoordinates {
  static std::vector<Part> parts(const Structure& s) {
    const auto [row_idx, col_idx] = coordinates(s);
    return {{row_idx, col_idx, {}, {}}};
  }
};

Coordinates where_valid(const Tensor& valid, const Tensor& rows, const Tensor& cols) {
  const Tensor no = at::full({}, -1, cols.options());
  return {at::where(valid, rows, no).flatten(), at::where(valid, cols, no).flatten()};
}

Coordinates padded_coordinates(const Tensor& lengths, const Tensor& cols) {
  const Tensor valid = at::logical_and(arange_like(lengths, cols.size(0)).unsqueeze(1).lt(lengths), cols.ge(0));
  return where_valid(valid, arange_like(lengths, lengths.size(0)).unsqueeze(0), cols);
}

void check_padded_rows(Findings& all, const Structure& s, const std::string& prefix) {
  const Tensor &lengths = s[0], &columns = s[1];
  const int64_t width = columns.size(0);
  all.range(prefix + "row_nnz", lengths, width + 1);
  all.padded(prefix + "col_idx", columns, s.cols.expect_int(), arange_like(lengths, width).unsqueeze(1).lt(lengths));
}

// The position of each entry in the order of bins.
Tensor positions_by_bins(const Tensor& octet_idx) {
  return (octet_idx.unsqueeze(1) * sparse::octet + arange_like(octet_idx, sparse::octet)).flatten();
}

}  // namespace

// ---- COO

template <>
struct FormatRules<Format::coo> : ByCoordinates {
  static void check_lengths(const Lengths& lengths, const Structure& s) {
    lengths.check(1, s[0].sym_size(0), "as row_idx");
  }
  static void check_contents(Findings& all, const Structure& s) {
    all.range("row_idx", s[0], s.rows.expect_int());
    all.range("col_idx", s[1], s.cols.expect_int());
  }
  static Coordinates coordinates(const Structure& s) { return {s[0], s[1]}; }
  static void give(sparse::CooArgs& args, const Stored& s) {
    args.row_idx = data_or_null(s[0]);
    args.col_idx = data_or_null(s[1]);
    args.perm = data_or_null(s.perm);
    args.row_sorted = s.row_sorted;
  }
};

// ---- CSR

template <>
struct FormatRules<Format::csr> {
  static void check_lengths(const Lengths& lengths, const Structure& s) {
    lengths.check(0, s.rows + 1, "one more than rows");
  }
  static void check_contents(Findings& all, const Structure& s) {
    all.pointers("row_ptrs", s[0], s[1].size(0));
    all.range("col_idx", s[1], s.cols.expect_int());
  }
  static Coordinates coordinates(const Structure& s) { return {segments(s[0], s[1].size(0)), s[1]}; }
  static std::vector<Part> parts(const Structure& s) { return {{{}, s[1], s[0], {}}}; }
  static void give(sparse::CsrArgs& args, const Stored& s) {
    args.ptrs = data_or_null(s[0]);
    args.col_idx = data_or_null(s[1]);
  }
};

// ---- CSC

template <>
struct FormatRules<Format::csc> {
  static void check_lengths(const Lengths& lengths, const Structure& s) {
    lengths.check(0, s.cols + 1, "one more than columns, which are the rows of x");
  }
  static void check_contents(Findings& all, const Structure& s) {
    all.pointers("col_ptrs", s[0], s[1].size(0));
    all.range("row_idx", s[1], s.rows.expect_int());
  }
  static Coordinates coordinates(const Structure& s) { return {s[1], segments(s[0], s[1].size(0))}; }
  static std::vector<Part> parts(const Structure& s) { return {{{}, s[1], s[0], {}, /*transposed=*/true}}; }
  static void give(sparse::CscArgs& args, const Stored& s) {
    args.ptrs = data_or_null(s[0]);
    args.row_idx = data_or_null(s[1]);
  }
};

// ---- ELL

template <>
struct FormatRules<Format::ell> {
  static void check_lengths(const Lengths& lengths, const Structure& s) {
    lengths.check(0, s.rows, "as there are rows");
    lengths.check("a row of col_idx", s[1].sym_size(1), s.rows, "as there are rows");
  }
  static void check_contents(Findings& all, const Structure& s) { check_padded_rows(all, s, ""); }
  static Coordinates coordinates(const Structure& s) { return padded_coordinates(s[0], s[1]); }
  static std::vector<Part> parts(const Structure& s) { return {{{}, s[1], {}, s[0]}}; }
  static void give(sparse::EllArgs& args, const Stored& s) {
    args.row_nnz = data_or_null(s[0]);
    args.col_idx = data_or_null(s[1]);
    args.width = s[1].size(0);
  }
};

// ---- HYB

template <>
struct FormatRules<Format::hyb> {
  using Padded = FormatRules<Format::ell>;
  static void check_lengths(const Lengths& lengths, const Structure& s) {
    lengths.check(3, s[2].sym_size(0), "as coo_row_idx");
    Padded::check_lengths(lengths, s);
  }
  static void check_contents(Findings& all, const Structure& s) {
    check_padded_rows(all, s, "ell_");
    all.range("coo_row_idx", s[2], s.rows.expect_int());
    all.range("coo_col_idx", s[3], s.cols.expect_int());
  }
  static Coordinates coordinates(const Structure& s) {
    const auto [rows, cols] = Padded::coordinates(s);
    return {at::cat({rows, s[2]}), at::cat({cols, s[3]})};
  }
  static std::vector<Part> parts(const Structure& s) { return {{{}, s[1], {}, s[0]}, {s[2], s[3], {}, {}}}; }
  static void give(sparse::HybArgs& args, const Stored& s) {
    Padded::give(args, s);
    args.tail_row_idx = data_or_null(s[2]);
    args.tail_col_idx = data_or_null(s[3]);
    args.tail_values = data_or_null(s.values[1]);
    args.tail_entries = s[2].size(0);
    args.row_sorted = s.row_sorted;
  }
};

// ---- JDS

template <>
struct FormatRules<Format::jds> : ByCoordinates {
  static void check_lengths(const Lengths& lengths, const Structure& s) {
    lengths.check(0, s.rows, "as there are rows");
    lengths.check_not_empty(1);
  }
  static void check_contents(Findings& all, const Structure& s) {
    check_diagonals(all, s);
    all.range("col_idx", s[2], s.cols.expect_int());
  }
  static void check_diagonals(Findings& all, const Structure& s) {
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
  static Coordinates coordinates(const Structure& s) {
    const Tensor &perm = s[0], &ptrs = s[1], &cols = s[2];
    const int64_t n = cols.size(0), rows = perm.size(0);
    if (n == 0 || rows == 0 || ptrs.size(0) == 1) return {at::full_like(cols, -1), at::full_like(cols, -1)};
    const Tensor position = arange_like(ptrs, n) - ptrs.index_select(0, segments(ptrs, n));
    return where_valid(at::logical_and(position.ge(0), position.lt(rows)),
                       perm.index_select(0, position.clamp(0, rows - 1)), cols);
  }
  static void give(sparse::JdsArgs& args, const Stored& s) {
    args.row_perm = data_or_null(s[0]);
    args.ptrs = data_or_null(s[1]);
    args.col_idx = data_or_null(s[2]);
    args.width = s[1].size(0) - 1;
  }
};

// ---- SELL

template <>
struct FormatRules<Format::sell> : ByCoordinates {
  static void check_lengths(const Lengths& lengths, const Structure& s) {
    TORCH_CHECK_VALUE(s.section_rows > 0, lengths.op, ": section_rows must be positive, got ", s.section_rows);
    lengths.check(0, s.rows, "as there are rows");
    lengths.check(1, s.rows, "as there are rows");
    lengths.check(2, s.rows / s.section_rows + (s.rows % s.section_rows).min(1) + 1, "one more than sections");
  }
  static void check_contents(Findings& all, const Structure& s) {
    check_sections(all, s);
    all.report();  // the position of the padding is meaningful only if this holds
    Structure anywhere = s;
    anywhere.index[3] = at::zeros_like(s[3]);  // columns do not matter here
    all.padded("col_idx", s[3], s.cols.expect_int(), coordinates(anywhere).first.ge(0));
  }
  static void check_sections(Findings& all, const Structure& s) {
    const Tensor &lengths = s[1], &ptrs = s[2], &columns = s[3];
    const int64_t rows = s[0].size(0), sections = ptrs.size(0) - 1, step = s.section_rows.expect_int();
    all.permutation("row_perm", s[0], rows);
    all.pointers("section_ptrs", ptrs, columns.size(0));
    if (rows == 0) return;
    const Tensor section = arange_like(ptrs, sections);
    const Tensor heights = (rows - section * step).clamp_max(step);
    const Tensor sizes = ptrs.narrow(0, 1, sections) - ptrs.narrow(0, 0, sections);
    Tensor ragged = at::zeros_like(ptrs, at::kBool);
    ragged.narrow(0, 1, sections).copy_(sizes.remainder(heights).ne(0));
    all.add("section_ptrs", ptrs, ragged, false, "which leaves no rectangle of this section's rows");
    const Tensor widths =
        at::div(sizes, heights, "floor").index_select(0, at::div(arange_like(ptrs, rows), step, "floor"));
    all.add("row_nnz", lengths, at::logical_or(lengths.lt(0), lengths.gt(widths)), true,
            "which is out of range: expected 0 to the width of its section");
  }
  static Coordinates coordinates(const Structure& s) {
    const Tensor &perm = s[0], &lengths = s[1], &ptrs = s[2], &cols = s[3];
    const int64_t n = cols.size(0), rows = perm.size(0), step = s.section_rows.expect_int();
    if (n == 0 || rows == 0) return {at::full_like(cols, -1), at::full_like(cols, -1)};
    const Tensor section = segments(ptrs, n), start = section * step;
    const Tensor heights = (rows - start).clamp_max(step), local = arange_like(ptrs, n) - ptrs.index_select(0, section);
    const Tensor position = (start + local.remainder(heights)).clamp(0, rows - 1);
    const Tensor valid =
        at::logical_and(at::div(local, heights, "floor").lt(lengths.index_select(0, position)), cols.ge(0));
    return where_valid(valid, perm.index_select(0, position), cols);
  }
  static void give(sparse::SellArgs& args, const Stored& s) {
    args.row_perm = data_or_null(s[0]);
    args.row_nnz = data_or_null(s[1]);
    args.ptrs = data_or_null(s[2]);
    args.col_idx = data_or_null(s[3]);
    // At most the matrix's own number of rows, so that no work is done for rows beyond it.
    const int64_t rows = tp::max(int64_t(1), s.structure.rows.expect_int());
    args.section_rows = tp::min(rows, s.structure.section_rows.expect_int());
  }
};

// ---- BLOCKED

template <>
struct FormatRules<Format::blocked> : ByCoordinates {
  static void check_lengths(const Lengths& lengths, const Structure& s) {
    lengths.check(0, s.rows + 1, "one more than rows");
    lengths.check(1, (s.cols + sparse::block_columns - 1) / sparse::block_columns + 1,
                  "one more than blocks of columns");
    lengths.check_not_empty(2);
    lengths.check(4, s[3].sym_size(0) * sparse::octet, "8 times as many as octet_idx");
    lengths.check(5, s[4].sym_size(0), "as col_idx");
  }
  static void check_contents(Findings& all, const Structure& s) {
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
    all.add("col_idx", local, at::logical_and(valid, (local + segments(s[1], n) * sparse::block_columns).ge(cols)),
            true, "which is out of range: the matrix has " + std::to_string(cols) + " columns");
    const Tensor wanted = at::zeros_like(stored).index_copy(0, positions_by_bins(s[3]).to(at::kLong), valid);
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
  static Coordinates coordinates(const Structure& s) {
    const Tensor& ptrs = s[0];
    const int64_t n = s[4].size(0), rows = ptrs.size(0) - 1, most = (s[2].size(0) - 1) * sparse::bin_entries;
    const auto index = ptrs.options();
    if (n == 0 || most == 0) return {at::full({n}, -1, index), at::full({n}, -1, index)};
    const Tensor at = positions_by_bins(s[3]).clamp(0, n - 1);
    const Tensor entry = s[5].index_select(0, at).to(index.dtype()), bin = segments(s[2], n).index_select(0, at);
    const Tensor col = s[4].to(index.dtype()), block = segments(s[1], n);
    // The entries of all rows are followed by a segment that belongs to no row.
    const Tensor row_of = segments(at::cat({ptrs, at::full({1}, most, index)}), most);
    const Tensor row = row_of.index_select(0, (bin * sparse::bin_entries + entry).clamp(0, most - 1));
    const Tensor valid = at::logical_and(at::logical_and(entry.ge(0), col.ge(0)), row.lt(rows));
    return where_valid(valid, row, block * sparse::block_columns + col);
  }
  static void give(sparse::BlockedArgs& args, const Stored& s) {
    args.ptrs = data_or_null(s[0]);
    args.block_ptrs = data_or_null(s[1]);
    args.bin_ptrs = data_or_null(s[2]);
    args.octet_idx = data_or_null(s[3]);
    args.local_col = s[4].const_data_ptr<int16_t>();
    args.entry_idx = s[5].const_data_ptr<int16_t>();
    args.blocks = s[1].size(0) - 1;
    args.bins = s[2].size(0) - 1;
  }
};

// ---- the table

namespace {

constexpr Field pointers(const char* name) { return {name, FieldKind::pointers}; }
constexpr Field index(const char* name) { return {name, FieldKind::index}; }
constexpr Field padded_index(const char* name) { return {name, FieldKind::padded_index}; }
constexpr Field short_index(const char* name) { return {name, FieldKind::short_index}; }
constexpr Field values(const char* name) { return {name, FieldKind::values}; }

template <Format format>
FormatInfo describe(const char* name, unsigned traits, std::vector<Field> fields) {
  using R = FormatRules<format>;
  FormatInfo info{name, traits, std::move(fields), R::check_lengths, R::check_contents, R::coordinates, R::parts};
  for (size_t i = 0; i < info.fields.size(); ++i) (info.is_value(i) ? info.values : info.index).push_back(i);
  return info;
}

std::vector<FormatInfo> list_formats() {
  constexpr auto gives_rows = FormatInfo::gives_rows, has_coordinates = FormatInfo::has_coordinates;
  constexpr auto may_lack_entries = FormatInfo::may_lack_entries, padded = FormatInfo::padded;
  constexpr auto in_sections = FormatInfo::in_sections;
  return {
#define FORMAT(name, cuda, traits, ...) describe<Format::name>(#name, traits, {__VA_ARGS__}),
#include "sparse/formats.def"
#undef FORMAT
  };
}

}  // namespace

#define FORMAT(name, ...) \
  void give_structure(spmv_##name::Args& args, const Stored& s) { FormatRules<Format::name>::give(args, s); }
#include "sparse/formats.def"
#undef FORMAT

const std::vector<FormatInfo>& all_formats() {
  static const std::vector<FormatInfo> formats = list_formats();
  return formats;
}

}  // namespace tp
