// torch_patterns._C: everything that is not a tensor operator: the ladders, build information, the checked mode of the
// simt model, and the lines of matrix files.
#include "torch/python.h"

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/version.h>

#include "core/faults.h"
#include "core/simt_check.h"
#include "torch/glue.h"
#include "torch/sparse.h"

namespace py = pybind11;

namespace {

py::list rungs(const std::vector<tp::RungInfo>& ladder) {
  py::list list;
  for (const tp::RungInfo& r : ladder) {
    list.append(py::dict(py::arg("name") = r.name, py::arg("source") = r.source, py::arg("figures") = r.figures,
                         py::arg("work") = r.work, py::arg("steps") = r.steps, py::arg("traits") = r.traits.names(),
                         py::arg("summary") = r.summary, py::arg("written_for") = r.written_for, py::arg("cpu") = r.cpu,
                         py::arg("cuda") = r.cuda));
  }
  return list;
}

py::dict ladders() {
  py::dict all;
  for (const auto& pattern : tp::patterns()) all[py::str(pattern.first)] = rungs(pattern.second);
  return all;
}

py::dict sparse_formats() {
  using tp::FormatInfo;
  py::dict all;
  for (const FormatInfo& info : tp::all_formats()) {
    py::list index, values;
    for (const size_t i : info.index) index.append(info.fields[i].name);
    for (const size_t i : info.values) values.append(info.fields[i].name);
    py::dict row(py::arg("index") = index, py::arg("values") = values);
    for (const auto& [name, trait] :
         {std::pair("gives_rows", FormatInfo::gives_rows), std::pair("has_coordinates", FormatInfo::has_coordinates),
          std::pair("padded", FormatInfo::padded), std::pair("in_sections", FormatInfo::in_sections)}) {
      row[name] = info.has(trait);
    }
    all[info.name] = row;
  }
  return all;
}

py::dict build_info() {
  py::dict info(py::arg("cuda") = tp::with_cuda, py::arg("torch_version") = TORCH_VERSION,
                py::arg("compiler") = __VERSION__, py::arg("cuda_version") = py::none());
#ifdef TP_CUDA_VERSION
  info["cuda_version"] = TP_CUDA_VERSION;
#endif
  return info;
}

py::dict describe(const tp::simt::Phase& phase) {
  py::dict arrays;
  for (const auto& a : phase.shared) {
    py::list values;
    for (size_t i = 0; i < a.written.size(); ++i) {
      if (!a.written[i]) {
        values.append(py::none());
      } else if (a.components == 1) {
        values.append(a.values[i]);
      } else {
        values.append(py::make_tuple(a.values[2 * i], a.values[2 * i + 1]));
      }
    }
    arrays[py::str(a.array)] = values;
  }
  return py::dict(py::arg("kernel") = phase.kernel, py::arg("name") = phase.name, py::arg("block") = phase.block,
                  py::arg("number") = phase.number, py::arg("arrays") = arrays);
}

// Checks this thread's simt launches while it lives; used as a context manager by torch_patterns.simt.
class Checked {
 public:
  Checked(const std::string& order, uint64_t seed, py::object observer) {
    static const std::map<std::string, tp::simt::Order> orders = {{"forward", tp::simt::Order::forward},
                                                                  {"reverse", tp::simt::Order::reverse},
                                                                  {"shuffle", tp::simt::Order::shuffle}};
    const auto found = orders.find(order);
    if (found == orders.end()) throw py::value_error("order must be forward, reverse or shuffle, got '" + order + "'");
    session_.order = found->second;
    session_.seed = seed;
    if (observer.is_none()) return;
    session_.observer = [observer](const tp::simt::Phase& phase) {
      py::gil_scoped_acquire gil;
      observer(describe(phase));
    };
  }
  void enter() {
    outer_ = tp::simt::session();
    tp::simt::session() = &session_;
  }
  void exit() { tp::simt::session() = outer_; }

 private:
  tp::simt::Session session_;
  tp::simt::Session* outer_ = nullptr;
};

}  // namespace

PYBIND11_MODULE(_C, m) {
  m.def("ladders", &ladders, "pattern -> its rungs, in textbook order");
  m.def("sparse_formats", &sparse_formats, "format -> its fields and traits");
  m.def("build_info", &build_info);
  m.def("free_memory", &tp::free_memory, "bytes that are free on a CUDA device, or kept by torch's allocator");
  tp::bind_operator_call(m);
  tp::bind_matrix_market(m);
  m.def("faults", &tp::simt::faults, "names of the kernels that break a rule of the simt model");
  m.def("run_fault", [](const std::string& name) {
    py::gil_scoped_release no_gil;
    tp::simt::run_fault(name);
  });
  py::register_exception<tp::Error>(m, "SimtError", PyExc_RuntimeError);
  py::class_<Checked>(m, "Checked")
      .def(py::init<const std::string&, uint64_t, py::object>())
      .def("enter", &Checked::enter)
      .def("exit", &Checked::exit);
}
