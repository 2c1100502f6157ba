// Lines of Matrix Market files, to numbers and back: what torch_patterns/matrix_market.py gives a block at a time.
#include <pybind11/numpy.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "torch/python.h"

namespace py = pybind11;

namespace tp {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// A word of digits with or without a sign, few enough to fit; else null. Otherwise what follows the word.
const char* read(const char* at, const char* end, int64_t& value) {
  constexpr int most_digits = 18;
  const bool minus = at < end && *at == '-';
  if (at < end && (*at == '-' || *at == '+')) ++at;
  const char* const digits = at;
  value = 0;
  for (; at < end && is_digit(*at) && at - digits < most_digits; ++at) value = 10 * value + (*at - '0');
  if (at == digits || (at < end && !is_blank(*at))) return nullptr;
  if (minus) value = -value;
  return at;
}

// A decimal number that fits, inf or nan; else null.
const char* read(const char* at, const char* end, double& value) {
  if (at < end && *at == '+' && ++at < end && *at == '-') return nullptr;
  const auto [next, error] = std::from_chars(at, end, value);
  if (error != std::errc() || (next < end && !is_blank(*next)) || next[-1] == ')') return nullptr;  // nan(...)
  return next;
}

template <class Value>
struct Block {
  std::vector<int64_t> row, col, lines;
  std::vector<Value> values;

  // The entries of whole lines; false where one is unusual or wrong.
  bool parse(std::string_view text, int64_t line, bool places, bool valued, size_t longest) {
    const auto lines_in = size_t(std::count(text.begin(), text.end(), '\n'));
    for (auto* v : {&row, &col, &lines}) v->reserve(lines_in);
    values.reserve(lines_in);
    if (text.find('\0') != text.npos) return false;
    for (const char *at = text.data(), *const stop = at + text.size(); at < stop; ++line) {
      const char* end = static_cast<const char*>(std::memchr(at, '\n', size_t(stop - at)));
      if (!end || size_t(end - at) >= longest) return false;
      if (!parse_line(at, end, line, places, valued)) return false;
      at = end + 1;
    }
    return true;
  }

 private:
  static const char* skip(const char* at, const char* end) {
    while (at < end && is_blank(*at)) ++at;
    return at;
  }
  bool parse_line(const char* at, const char* end, int64_t line, bool places, bool valued) {
    at = skip(at, end);
    if (at == end) return true;
    if (*at == '%') return end - at < 2 || at[1] != '%';  // "%%GraphBLAS type" may not stand here
    int64_t i = 0, j = 0;
    Value value = 1;
    if (places) {
      at = read(at, end, i);
      if (!at) return false;
      at = read(skip(at, end), end, j);
      if (!at) return false;
      at = skip(at, end);
    }
    if (valued) {
      at = read(at, end, value);
      if (!at) return false;
    }
    if (skip(at, end) != end) return false;
    if (places) row.push_back(i), col.push_back(j);
    values.push_back(value);
    lines.push_back(line);
    return true;
  }
};

template <class T>
void copy_to(T* to, const std::vector<T>& from) {
  if (!from.empty()) std::memcpy(to, from.data(), from.size() * sizeof(T));
}

template <class Value>
py::object parse(const py::bytes& text, int64_t first, int indices, bool valued, size_t longest) {
  Block<Value> block;
  bool usual;
  {
    const std::string_view view = text;
    py::gil_scoped_release no_gil;
    usual = block.parse(view, first, indices == 2, valued, longest);
  }
  if (!usual) return py::none();
  const auto n = py::ssize_t(block.values.size());
  py::array_t<int64_t> places({py::ssize_t(indices), n}), lines(n);
  py::array_t<Value> values(n);
  copy_to(places.mutable_data(), block.row);
  copy_to(places.mutable_data() + (indices == 2 ? n : 0), block.col);
  copy_to(lines.mutable_data(), block.lines);
  copy_to(values.mutable_data(), block.values);
  return py::make_tuple(places, values, lines);
}

// "row column value" in lines, places counted from 1, floats in the fewest digits that give them back.
template <class Value>
py::bytes format(const py::array_t<int64_t>& row, const py::array_t<int64_t>& col, const py::array_t<Value>& values) {
  constexpr size_t longest = 80;
  const auto i = row.template unchecked<1>(), j = col.template unchecked<1>();
  const auto v = values.template unchecked<1>();
  if (i.size() != v.size() || j.size() != v.size()) throw py::value_error("format_entries: arrays of several lengths");
  std::string text;
  {
    py::gil_scoped_release no_gil;
    for (py::ssize_t k = 0; k < v.size(); ++k) {
      char line[longest];
      char* at = std::to_chars(line, line + longest, i(k) + 1).ptr;
      *at++ = ' ';
      at = std::to_chars(at, line + longest, j(k) + 1).ptr;
      *at++ = ' ';
      if (v(k) != v(k)) {
        at = std::copy_n("nan", 3, at);
      } else {
        at = std::to_chars(at, line + longest, v(k)).ptr;
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
        [](const py::bytes& text, int64_t first, int indices, const std::string& field, size_t longest) {
          const bool valued = field != "pattern";
          return field == "integer" ? parse<int64_t>(text, first, indices, valued, longest)
                                    : parse<double>(text, first, indices, valued, longest);
        });
  m.def("format_entries", &format<int64_t>, py::arg("row").noconvert(), py::arg("col").noconvert(),
        py::arg("values").noconvert());
  m.def("format_entries", &format<double>, py::arg("row").noconvert(), py::arg("col").noconvert(),
        py::arg("values").noconvert());
}

}  // namespace tp
