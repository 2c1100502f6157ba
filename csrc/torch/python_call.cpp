// torch_patterns._C.operator_call: an operator as a Python function that calls the dispatcher directly.
//
// torch.ops parses every call by its schema, names and defaults, which takes longer than the operator if the tensors
// are small. This function handles the calls that the wrappers make: positional arguments of the exact types that the
// schema names, with plain tensors only. It leaves everything else (subclasses, symbolic integers, modes that override
// functions, tracing, a wrong type) to the operator of torch.ops, which handles it or raises the error that users know.
// Below this function nothing changes: the dispatcher is the same, so torch.func, autograd, autocast and fake tensors
// work.
//
// The mode of a default device (torch.set_default_device, `with torch.device(...)`) adds device= to the functions of
// torch that make tensors, and to no operator of this library. So it does not count as a mode that overrides functions.
// Torch has no public way to recognise it: this file reads the stack of modes (at::impl::PythonTorchFunctionTLS) and
// compares their types with torch.utils._device.DeviceContext.
#include <ATen/PythonTorchFunctionTLS.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <algorithm>

#include "torch/operator.h"
#include "torch/python.h"

namespace py = pybind11;

namespace tp {
namespace {

enum class Kind { tensor, tensors, integer, boolean, real, string, integers, scalar, other };

Kind kind_of(const c10::Type& type) {
  switch (type.kind()) {
    case c10::TypeKind::TensorType:
      return Kind::tensor;
    case c10::TypeKind::IntType:
      return Kind::integer;
    case c10::TypeKind::BoolType:
      return Kind::boolean;
    case c10::TypeKind::FloatType:
      return Kind::real;
    case c10::TypeKind::StringType:
      return Kind::string;
    case c10::TypeKind::NumberType:
      return Kind::scalar;
    case c10::TypeKind::OptionalType:
      return kind_of(*type.expectRef<c10::OptionalType>().getElementType());
    case c10::TypeKind::ListType: {
      const Kind element = kind_of(*type.expectRef<c10::ListType>().getElementType());
      return element == Kind::tensor ? Kind::tensors : element == Kind::integer ? Kind::integers : Kind::other;
    }
    default:
      return Kind::other;
  }
}

struct Parameter {
  Kind kind;
  bool optional;
  // The last string that was passed, and its value; wrappers pass the same few objects again and again.
  py::object last;
  IValue value;
};

struct Operator {
  c10::OperatorHandle handle;
  std::vector<Parameter> parameters;
  py::object general;  // torch.ops.torch_patterns.<name>.default
};

bool read_integer(PyObject* x, int64_t& value) {
  int overflow = 0;
  if (PyLong_CheckExact(x)) value = PyLong_AsLongLongAndOverflow(x, &overflow);
  return PyLong_CheckExact(x) && !overflow;
}

// The items of a list or tuple, if f(item) accepts all of them.
template <class F>
bool each_item(PyObject* list, F f) {
  if (!PyList_CheckExact(list) && !PyTuple_CheckExact(list)) return false;
  const Py_ssize_t n = PySequence_Fast_GET_SIZE(list);
  PyObject** items = PySequence_Fast_ITEMS(list);
  for (Py_ssize_t i = 0; i < n; ++i) {
    if (!f(items[i])) return false;
  }
  return true;
}

// Pushes an argument on the stack, if it has the type that the schema names.
bool push_argument(Stack& stack, Parameter& p, PyObject* x) {
  if (x == Py_None) {
    stack.emplace_back();
    return p.optional;
  }
  switch (p.kind) {
    case Kind::tensor:
      if (!THPVariable_CheckExact(x)) return false;
      stack.emplace_back(THPVariable_Unpack(x));
      return true;
    case Kind::tensors: {
      Tensors list;
      const bool all = each_item(x, [&](PyObject* item) {
        if (THPVariable_CheckExact(item)) list.push_back(THPVariable_Unpack(item));
        return THPVariable_CheckExact(item);
      });
      stack.push_back(box(list));
      return all;
    }
    case Kind::boolean:
      stack.emplace_back(x == Py_True);
      return PyBool_Check(x);
    case Kind::real:
    case Kind::scalar:
      if (PyFloat_CheckExact(x)) {
        stack.emplace_back(PyFloat_AS_DOUBLE(x));
        return true;
      }
      if (p.kind == Kind::real) return false;
      [[fallthrough]];
    case Kind::integer: {
      int64_t value = 0;
      const bool exact = read_integer(x, value);
      stack.emplace_back(value);
      return exact;
    }
    case Kind::string:
      if (p.last.ptr() != x) {
        if (!PyUnicode_CheckExact(x)) return false;
        Py_ssize_t size;
        const char* text = PyUnicode_AsUTF8AndSize(x, &size);
        if (!text) throw py::error_already_set();
        p.value = IValue(std::string(text, size_t(size)));
        p.last = py::reinterpret_borrow<py::object>(x);
      }
      stack.push_back(p.value);
      return true;
    case Kind::integers: {
      std::vector<int64_t> list;
      const bool all = each_item(x, [&](PyObject* item) { return read_integer(item, list.emplace_back()); });
      stack.emplace_back(std::move(list));
      return all;
    }
    case Kind::other:
      return false;
  }
  return false;
}

PyObject* wrap(Stack& results) {
  if (results.size() == 1) return THPVariable_Wrap(std::move(results[0]).toTensor());
  py::tuple all(results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    all[i] = py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(results[i]).toTensor()));
  }
  return all.release().ptr();
}

// Releases the GIL as pybind11's gil_scoped_release does, but without its bookkeeping.
struct WithoutGil {
  PyThreadState* const state = PyEval_SaveThread();
  ~WithoutGil() { PyEval_RestoreThread(state); }
};

// The type torch.utils._device.DeviceContext.
PyObject* device_context = nullptr;

using Modes = at::impl::PythonTorchFunctionTLS;

// Whether all modes that see calls of functions are modes of a default device; there is one per `with
// torch.device(...)` that is entered. A type that is derived from their type may do more, so it is another mode.
bool only_default_devices() {
  for (int64_t i = Modes::stack_len(); i-- > 0;) {
    PyObject* mode = Modes::get_stack_at(i)->ptr(getPyInterpreter());
    if (reinterpret_cast<PyObject*>(Py_TYPE(mode)) != device_context) return false;
  }
  return true;
}

// Takes all modes off the stack. Torch does that for a mode that handles a function, so that Python code that the
// dispatcher calls (fake kernels, hooks of saved tensors) runs without it.
class WithoutModes {
 public:
  explicit WithoutModes(bool active) {
    for (int64_t i = active ? Modes::stack_len() : 0; i > 0; --i) modes_.push_back(Modes::pop_stack());
  }
  ~WithoutModes() {
    for (; !modes_.empty(); modes_.pop_back()) Modes::push_onto_stack(std::move(modes_.back()));
  }
  WithoutModes(const WithoutModes&) = delete;
  WithoutModes& operator=(const WithoutModes&) = delete;

 private:
  c10::SmallVector<std::shared_ptr<c10::SafePyObject>, 2> modes_;
};

// torch.ops calls any object true or false where the schema has a bool. Here neither a float nor None is an answer.
void check_flags(const Operator& op, PyObject* const* args, size_t n) {
  for (size_t i = 0; i < std::min(n, op.parameters.size()); ++i) {
    if (op.parameters[i].kind != Kind::boolean || op.parameters[i].optional) continue;
    const auto& schema = op.handle.schema();
    const std::string name = schema.name().substr(schema.name().find("::") + 2);
    TORCH_CHECK_TYPE(!PyFloat_Check(args[i]) && args[i] != Py_None, name, ": ", schema.arguments()[i].name(),
                     " must be a bool, got ", Py_TYPE(args[i])->tp_name);
  }
}

PyObject* call_operator(PyObject* self, PyObject* const* args, Py_ssize_t n) {
  HANDLE_TH_ERRORS
  auto& op = *static_cast<Operator*>(PyCapsule_GetPointer(self, nullptr));
  Stack stack;
  const bool modes = at::impl::torch_function_mode_enabled();
  bool simple =
      size_t(n) == op.parameters.size() && (!modes || only_default_devices()) && !torch::jit::tracer::isTracing();
  if (simple) stack.reserve(size_t(n));
  for (Py_ssize_t i = 0; simple && i < n; ++i) simple = push_argument(stack, op.parameters[size_t(i)], args[i]);
  if (!simple) {
    check_flags(op, args, size_t(n));
    return PyObject_Vectorcall(op.general.ptr(), args, size_t(n), nullptr);
  }
  // Releasing tensors that Python also holds requires the GIL, so they are released only after it is held again.
  c10::SmallVector<IValue, 8> held;
  for (const IValue& v : stack) {
    if (v.isTensor() || v.isTensorList()) held.push_back(v);
  }
  {
    const WithoutModes none(modes);
    WithoutGil others_may_run;
    op.handle.callBoxed(stack);
  }
  return wrap(stack);
  END_HANDLE_TH_ERRORS
}

PyMethodDef method = {"operator", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call_operator)),
                      METH_FASTCALL, nullptr};

py::object operator_call(const std::string& name, py::object general) {
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(("torch_patterns::" + name).c_str(), "");
  auto op = std::make_unique<Operator>(Operator{handle, {}, std::move(general)});
  for (const auto& argument : handle.schema().arguments()) {
    const bool optional = argument.type()->kind() == c10::TypeKind::OptionalType;
    op->parameters.push_back({kind_of(*argument.type()), optional, {}, {}});
  }
  // Never freed: the function is a global of a module.
  py::capsule self(static_cast<const void*>(op.release()));
  return py::reinterpret_steal<py::object>(PyCFunction_NewEx(&method, self.ptr(), nullptr));
}

}  // namespace

void bind_operator_call(py::module_& m) {
  // Never freed, like the functions that compare with it.
  device_context = py::object(py::module_::import("torch.utils._device").attr("DeviceContext")).release().ptr();
  m.def("operator_call", &operator_call, "the operator of a name as a function of all its arguments, by position");
}

}  // namespace tp
