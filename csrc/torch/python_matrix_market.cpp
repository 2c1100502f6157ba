// Converts lines of Matrix Market files to numbers and back, for torch_patterns/matrix_market.py, one block of lines at
// a time.
#include <ATen/Parallel.h>
#include <pybind11/numpy.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "sparse/matrix_market.h"
#include "torch/python.h"

namespace py = pybind11;

namespace tp {
namespace {

// The entries of whole lines as arrays, and the number of the last line; or None. Parts of the text are parsed on
// torch's threads.
template <class Value>
py::object parse(std::string_view view, int64_t first, int indices, bool valued, size_t longest) {
  constexpr int64_t least = 1 << 16;  // bytes that pay for a thread
  const int64_t parts = std::max(int64_t(1), std::min(int64_t(at::get_num_threads()), int64_t(view.size()) / least));
  std::vector<size_t> begins(size_t(parts) + 1, view.size());  // of each part, and the end
  std::vector<int64_t> lines(size_t(parts) + 1, 0), found(size_t(parts), 0);
  begins[0] = 0;
  for (size_t i = 1; i < size_t(parts); ++i) {
    const size_t end = view.find('\n', std::max(begins[i - 1], view.size() / size_t(parts) * i));
    begins[i] = end == view.npos ? view.size() : end + 1;
  }
  const auto part = [&](size_t i) { return view.substr(begins[i], begins[i + 1] - begins[i]); };
  const auto each_part = [&](const auto& f) {
    py::gil_scoped_release no_gil;
    at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) f(size_t(i));
    });
  };
  each_part([&](size_t i) { lines[i + 1] = std::count(part(i).begin(), part(i).end(), '\n'); });
  for (size_t i = 0; i < size_t(parts); ++i) lines[i + 1] += lines[i];
  const py::ssize_t most = lines[size_t(parts)];
  py::array_t<int64_t> coordinates({py::ssize_t(indices), most}), numbers(most);
  py::array_t<Value> values(most);
  sparse::Entries<Value> all{nullptr, nullptr, values.mutable_data(), numbers.mutable_data(), valued};
  if (indices == 2) all.row = coordinates.mutable_data(), all.col = all.row + most;
  const auto from = [&](int64_t k) {
    return sparse::Entries<Value>{all.row ? all.row + k : nullptr, all.col ? all.col + k : nullptr, all.values + k,
                                  all.lines + k, valued};
  };
  each_part([&](size_t i) { found[i] = sparse::parse_lines(part(i), first + lines[i], longest, from(lines[i])); });
  // Lines without an entry leave gaps after each part.
  int64_t n = 0;
  for (size_t i = 0; i < size_t(parts); ++i) {
    if (found[i] < 0) return py::none();
    const auto close = [&](auto* array) {
      if (array && n < lines[i]) std::memmove(array + n, array + lines[i], size_t(found[i]) * sizeof(*array));
    };
    close(all.row), close(all.col), close(all.values), close(all.lines);
    n += found[i];
  }
  const py::slice used(0, n, 1);
  return py::make_tuple(coordinates[py::make_tuple(py::ellipsis(), used)], values[used], numbers[used],
                        first + most - 1);
}

// Writes lines "row column value": positions count from 1, and floats have the fewest digits that give them back.
template <class Value>
py::bytes format(const py::array_t<int64_t>& row, const py::array_t<int64_t>& col, const py::array_t<Value>& values) {
  constexpr size_t most = 24;  // characters of a number: "-2.2250738585072014e-308"
  const auto i = row.template unchecked<1>(), j = col.template unchecked<1>();
  const auto v = values.template unchecked<1>();
  if (i.size() != v.size() || j.size() != v.size()) throw py::value_error("format_entries: arrays of several lengths");
  std::string text;
  {
    py::gil_scoped_release no_gil;
    for (py::ssize_t k = 0; k < v.size(); ++k) {
      char line[3 * (most + 1)];
      char* at = std::to_chars(line, line + most, i(k) + 1).ptr;
      *at++ = ' ';
      at = std::to_chars(at, at + most, j(k) + 1).ptr;
      *at++ = ' ';
      if (v(k) != v(k)) {
        at = std::copy_n("nan", 3, at);
      } else {
        at = std::to_chars(at, at + most, v(k)).ptr;
      }
      *at++ = '\n';
      text.append(line, size_t(at - line));
    }
  }
  return text;
}

}  // namespace

void bind_matrix_market(py::module_& m) {
  m.def("parse_entries",
        [](const py::buffer& text, int64_t first, int indices, const std::string& field, size_t longest) {
          const py::buffer_info bytes = text.request();
          const std::string_view view(static_cast<const char*>(bytes.ptr), size_t(bytes.size));
          const bool valued = field != "pattern";
          return field == "integer" ? parse<int64_t>(view, first, indices, valued, longest)
                                    : parse<double>(view, first, indices, valued, longest);
        });
  m.def("format_entries", &format<int64_t>, py::arg("row").noconvert(), py::arg("col").noconvert(),
        py::arg("values").noconvert());
  m.def("format_entries", &format<double>, py::arg("row").noconvert(), py::arg("col").noconvert(),
        py::arg("values").noconvert());
}

}  // namespace tp
