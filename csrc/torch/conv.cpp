// torch_patterns::conv2d, conv2d_dgrad, conv2d_wgrad: schema, checks, Meta, Autograd, Autocast.
//
// The convolution is linear in the input and in the filters, and dgrad and wgrad are its transposes. So each operator's
// gradients are calls of the other two, and every order of derivative exists. The gradient of the bias is a plain sum.
#include "conv/conv.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/autograd.h>
#include <torch/library.h>

#include "torch/glue.h"

namespace tp {
namespace {

using c10::SymInt;
using c10::SymIntArrayRef;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using OptionalTensor = std::optional<Tensor>;
using Sizes = std::vector<SymInt>;
using conv::Pass;

Pattern conv_pattern("conv2d", conv::ladder);

// How the filters move over the input, and who computes it.
struct Window {
  Sizes stride, padding, dilation;
  SymInt groups;
  std::string algorithm;

  Window(SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation, SymInt groups, Str algorithm)
      : stride(stride.vec()),
        padding(padding.vec()),
        dilation(dilation.vec()),
        groups(std::move(groups)),
        algorithm(algorithm) {}
};

// ---- calls through the dispatcher

Tensor conv2d(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const Window& w) {
  static const auto handle = op<Tensor(const Tensor&, const Tensor&, const OptionalTensor&, SymIntArrayRef,
                                       SymIntArrayRef, SymIntArrayRef, SymInt, Str)>("conv2d");
  return handle.call(x, weight, bias, w.stride, w.padding, w.dilation, w.groups, w.algorithm);
}

using Gradient = Tensor(const Tensor&, const Tensor&, SymIntArrayRef, SymIntArrayRef, SymIntArrayRef, SymIntArrayRef,
                        SymInt, Str);

Tensor conv2d_dgrad(const Tensor& grad, const Tensor& weight, SymIntArrayRef input_size, const Window& w) {
  static const auto handle = op<Gradient>("conv2d_dgrad");
  return handle.call(grad, weight, input_size, w.stride, w.padding, w.dilation, w.groups, w.algorithm);
}

Tensor conv2d_wgrad(const Tensor& grad, const Tensor& x, SymIntArrayRef kernel_size, const Window& w) {
  static const auto handle = op<Gradient>("conv2d_wgrad");
  return handle.call(grad, x, kernel_size, w.stride, w.padding, w.dilation, w.groups, w.algorithm);
}

// ---- checks: the same for kernels and Meta

// One convolution: the sizes of the three arrays that it connects.
struct Problem {
  Sizes x, weight, y;
};

void check_pair(const char* name, const char* what, const Sizes& values, int64_t least) {
  constexpr int64_t most = 2147483647;  // so that products and sums of two are exact
  TORCH_CHECK(values.size() == 2, name, ": ", what, " must have 2 elements, got ", values.size());
  for (const SymInt& v : values) {
    TORCH_SYM_CHECK(v.sym_ge(least), name, ": ", what, " must be at least ", least, ", got ", v);
    TORCH_SYM_CHECK(v.sym_le(most), name, ": ", what, " must be at most ", most, ", got ", v);
  }
}

SymInt output_size(const char* name, const char* what, const SymInt& in, const SymInt& kernel, const Window& w,
                   size_t axis) {
  const SymInt reach = w.dilation[axis] * (kernel - 1) + 1, padded = in + w.padding[axis] * 2;
  TORCH_SYM_CHECK(padded.sym_ge(reach), name, ": the kernel reaches over ", reach, " ", what, ", the padded input has ",
                  padded);
  return (padded - reach) / w.stride[axis] + 1;
}

void check_groups(const char* name, const Window& w) {
  TORCH_SYM_CHECK(w.groups.sym_ge(1), name, ": groups must be at least 1, got ", w.groups);
}

Problem problem(const char* name, Sizes x, Sizes weight, const Window& w) {
  TORCH_CHECK(x.size() == 4, name, ": the input must have 4 dimensions [n, c, h, w], got ", x.size());
  TORCH_CHECK(weight.size() == 4, name, ": weight must have 4 dimensions [m, c / groups, h, w], got ", weight.size());
  check_pair(name, "stride", w.stride, 1);
  check_pair(name, "padding", w.padding, 0);
  check_pair(name, "dilation", w.dilation, 1);
  check_pair(name, "kernel size", {weight[2], weight[3]}, 1);
  check_groups(name, w);
  for (const SymInt& size : x)
    TORCH_SYM_CHECK(size.sym_ge(0), name, ": the input has a negative size: ", SymIntArrayRef(x));
  TORCH_SYM_CHECK(x[1].sym_ge(1), name, ": the input has no channels: ", SymIntArrayRef(x));
  TORCH_SYM_CHECK((x[1] % w.groups).sym_eq(0), name, ": ", x[1], " input channels do not divide into ", w.groups,
                  " groups");
  TORCH_SYM_CHECK((weight[0] % w.groups).sym_eq(0), name, ": ", weight[0], " filters do not divide into ", w.groups,
                  " groups");
  TORCH_SYM_CHECK((weight[1] * w.groups).sym_eq(x[1]), name, ": weight ", SymIntArrayRef(weight),
                  " with groups=", w.groups, " takes ", weight[1] * w.groups, " input channels, the input has ", x[1]);
  Sizes y = {x[0], weight[0], output_size(name, "rows", x[2], weight[2], w, 0),
             output_size(name, "columns", x[3], weight[3], w, 1)};
  return {std::move(x), std::move(weight), std::move(y)};
}

void check_grad(const char* name, const Tensor& grad, const Problem& p) {
  TORCH_CHECK(grad.dim() == 4, name, ": grad must have 4 dimensions [n, m, h, w], got ", grad.dim());
  for (int64_t d = 0; d < 4; ++d) {
    TORCH_SYM_CHECK(grad.sym_size(d).sym_eq(p.y[size_t(d)]), name, ": grad must have the output's sizes ",
                    SymIntArrayRef(p.y), ", got ", grad.sym_sizes());
  }
}

void check_tensors(const char* name, std::initializer_list<std::pair<const char*, const Tensor*>> tensors) {
  check_same_device(name, tensors);
  const auto& first = *tensors.begin();
  translate_errors([&] { dispatch(FloatTypes{}, dtype_of_tensor(name, *first.second), name, [](auto) {}); });
  for (const auto& t : tensors) {
    TORCH_CHECK(!t.second->defined() || t.second->scalar_type() == first.second->scalar_type(), name, ": ", first.first,
                " is ", first.second->scalar_type(), ", ", t.first, " is ", t.second->scalar_type());
  }
}

Problem check_conv2d(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, const Window& w) {
  const Tensor shift = bias.value_or(Tensor());
  check_tensors("conv2d", {{"x", &x}, {"weight", &weight}, {"bias", &shift}});
  const Problem p = problem("conv2d", x.sym_sizes().vec(), weight.sym_sizes().vec(), w);
  if (!shift.defined()) return p;
  TORCH_CHECK(shift.dim() == 1, "conv2d: bias must have 1 dimension, got ", shift.dim());
  TORCH_SYM_CHECK(shift.sym_size(0).sym_eq(p.weight[0]), "conv2d: bias has ", shift.sym_size(0), " elements for ",
                  p.weight[0], " filters");
  return p;
}

Problem check_dgrad(const Tensor& grad, const Tensor& weight, SymIntArrayRef input_size, const Window& w) {
  check_tensors("conv2d_dgrad", {{"grad", &grad}, {"weight", &weight}});
  const Problem p = problem("conv2d_dgrad", input_size.vec(), weight.sym_sizes().vec(), w);
  check_grad("conv2d_dgrad", grad, p);
  return p;
}

Problem check_wgrad(const Tensor& grad, const Tensor& x, SymIntArrayRef kernel_size, const Window& w) {
  const char* const name = "conv2d_wgrad";
  check_tensors(name, {{"grad", &grad}, {"x", &x}});
  TORCH_CHECK(grad.dim() == 4 && x.dim() == 4, name, ": grad and x must have 4 dimensions, got ", grad.dim(), " and ",
              x.dim());
  TORCH_CHECK(kernel_size.size() == 2, name, ": kernel_size must have 2 elements, got ", kernel_size.size());
  check_groups(name, w);
  const Problem p = problem(name, x.sym_sizes().vec(),
                            {grad.sym_size(1), x.sym_size(1) / w.groups, kernel_size[0], kernel_size[1]}, w);
  check_grad(name, grad, p);
  return p;
}

// ---- kernels: CPU and CUDA alike; Meta

// Images come back in the memory format of the images that went in. Undecidable strides count as contiguous.
at::MemoryFormat format_of(const Tensor& images) {
  const auto lie_in = [&](at::MemoryFormat f) {
    return images.sym_is_contiguous(f).guard_or_false(__FILE__, __LINE__);
  };
  const bool last = !lie_in(at::MemoryFormat::Contiguous) && lie_in(at::MemoryFormat::ChannelsLast);
  return last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
}

Tensor empty_images(SymIntArrayRef sizes, const Tensor& like) {
  return at::empty_symint(sizes, like.options(), format_of(like));
}

conv::Axis axis(const Problem& p, const Window& w, size_t i) {
  return {p.x[2 + i].expect_int(),  p.y[2 + i].expect_int(),   p.weight[2 + i].expect_int(),
          w.stride[i].expect_int(), w.padding[i].expect_int(), w.dilation[i].expect_int()};
}

// Runs a pass; the one of x, weight and y that it writes is undefined and comes back, an image in the memory format of
// the one that was read, filters contiguous.
Tensor run_pass(const char* name, Pass pass, const Problem& p, const Window& w, Tensor x, Tensor weight, Tensor y,
                Tensor bias) {
  Tensor& written = pass == Pass::fprop ? y : pass == Pass::dgrad ? x : weight;
  const Tensor& read = pass == Pass::fprop ? x : y;
  const at::MemoryFormat format =
      pass == Pass::wgrad && format_of(x) != format_of(y) ? at::MemoryFormat::Contiguous : format_of(read);
  written = pass == Pass::wgrad ? at::empty_symint(p.weight, read.options())
                                : empty_images(pass == Pass::fprop ? p.y : p.x, read);
  if (written.numel() == 0 || read.numel() == 0) check_algorithm(conv::ladder, name, w.algorithm);
  if (written.numel() == 0) return written;
  if (pass != Pass::fprop && read.numel() == 0) return written.zero_();  // no gradient flows
  for (Tensor* images : {&x, &y}) *images = images->contiguous(format);
  for (Tensor* t : {&weight, &bias}) {
    if (t->defined()) *t = t->contiguous();
  }
  // The rung writes only what its pass writes.
  const auto data = [](const Tensor& t) { return const_cast<void*>(t.const_data_ptr()); };
  const conv::Args args{pass,
                        dtype_of_tensor(name, read),
                        data(x),
                        data(weight),
                        data(y),
                        bias.defined() ? bias.const_data_ptr() : nullptr,
                        p.x[0].expect_int(),
                        p.x[1].expect_int(),
                        p.y[1].expect_int(),
                        w.groups.expect_int(),
                        axis(p, w, 0),
                        axis(p, w, 1),
                        format == at::MemoryFormat::Contiguous ? conv::Layout::nchw : conv::Layout::nhwc};
  run(conv::ladder, conv::choose, name, w.algorithm, read, args);
  return written;
}

#define TP_WINDOW SymIntArrayRef stride, SymIntArrayRef padding, SymIntArrayRef dilation, SymInt groups, Str algorithm

Tensor conv2d_kernel(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, TP_WINDOW) {
  const Window w(stride, padding, dilation, groups, algorithm);
  const Problem p = check_conv2d(x, weight, bias, w);
  return run_pass("conv2d", Pass::fprop, p, w, x, weight, {}, bias.value_or(Tensor()));
}

Tensor dgrad_kernel(const Tensor& grad, const Tensor& weight, SymIntArrayRef input_size, TP_WINDOW) {
  const Window w(stride, padding, dilation, groups, algorithm);
  const Problem p = check_dgrad(grad, weight, input_size, w);
  return run_pass("conv2d_dgrad", Pass::dgrad, p, w, {}, weight, grad, {});
}

Tensor wgrad_kernel(const Tensor& grad, const Tensor& x, SymIntArrayRef kernel_size, TP_WINDOW) {
  const Window w(stride, padding, dilation, groups, algorithm);
  return run_pass("conv2d_wgrad", Pass::wgrad, check_wgrad(grad, x, kernel_size, w), w, x, {}, grad, {});
}

Tensor conv2d_meta(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, TP_WINDOW) {
  check_algorithm(conv::ladder, "conv2d", algorithm);
  return empty_images(check_conv2d(x, weight, bias, {stride, padding, dilation, groups, algorithm}).y, x);
}

Tensor dgrad_meta(const Tensor& grad, const Tensor& weight, SymIntArrayRef input_size, TP_WINDOW) {
  check_algorithm(conv::ladder, "conv2d_dgrad", algorithm);
  return empty_images(check_dgrad(grad, weight, input_size, {stride, padding, dilation, groups, algorithm}).x, grad);
}

Tensor wgrad_meta(const Tensor& grad, const Tensor& x, SymIntArrayRef kernel_size, TP_WINDOW) {
  check_algorithm(conv::ladder, "conv2d_wgrad", algorithm);
  return at::empty_symint(check_wgrad(grad, x, kernel_size, {stride, padding, dilation, groups, algorithm}).weight,
                          grad.options());
}

// ---- Autograd

Sizes kernel_size(const Tensor& weight) { return {weight.sym_size(2), weight.sym_size(3)}; }

void save(AutogradContext* ctx, const Window& w, const Tensor& first, const Tensor& second) {
  ctx->set_materialize_grads(false);
  ctx->save_for_backward({first, second});
  ctx->saved_data["stride"] = SymIntArrayRef(w.stride);
  ctx->saved_data["padding"] = SymIntArrayRef(w.padding);
  ctx->saved_data["dilation"] = SymIntArrayRef(w.dilation);
  ctx->saved_data["groups"] = w.groups;
  ctx->saved_data["algorithm"] = w.algorithm;
}

Window saved_window(AutogradContext* ctx) {
  const auto sizes = [&](const char* name) { return ctx->saved_data.at(name).toSymIntVector(); };
  return {sizes("stride"), sizes("padding"), sizes("dilation"), ctx->saved_data.at("groups").toSymInt(),
          ctx->saved_data.at("algorithm").toStringRef()};
}

struct ConvFunction : torch::autograd::Function<ConvFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& weight, const OptionalTensor& bias,
                        const Window& w) {
    save(ctx, w, x, weight);
    ctx->saved_data["bias"] = bias.has_value() && bias->defined();
    at::AutoDispatchBelowADInplaceOrView below;
    return conv2d(x, weight, bias, w);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &g = grads[0], &x = saved[0], &weight = saved[1];
    variable_list result(4);
    if (!g.defined()) return result;
    const Window w = saved_window(ctx);
    if (ctx->needs_input_grad(0)) result[0] = conv2d_dgrad(g, weight, x.sym_sizes(), w);
    if (ctx->needs_input_grad(1)) result[1] = conv2d_wgrad(g, x, kernel_size(weight), w);
    if (ctx->saved_data.at("bias").toBool() && ctx->needs_input_grad(2)) result[2] = g.contiguous().sum({0, 2, 3});
    return result;
  }
};

struct DgradFunction : torch::autograd::Function<DgradFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& grad, const Tensor& weight, const Sizes& input_size,
                        const Window& w) {
    save(ctx, w, grad, weight);
    at::AutoDispatchBelowADInplaceOrView below;
    return conv2d_dgrad(grad, weight, input_size, w);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &g = grads[0], &grad = saved[0], &weight = saved[1];
    variable_list result(4);
    if (!g.defined()) return result;
    const Window w = saved_window(ctx);
    if (ctx->needs_input_grad(0)) result[0] = conv2d(g, weight, {}, w);
    if (ctx->needs_input_grad(1)) result[1] = conv2d_wgrad(grad, g, kernel_size(weight), w);
    return result;
  }
};

struct WgradFunction : torch::autograd::Function<WgradFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& grad, const Tensor& x, const Sizes& kernel_size,
                        const Window& w) {
    save(ctx, w, grad, x);
    at::AutoDispatchBelowADInplaceOrView below;
    return conv2d_wgrad(grad, x, kernel_size, w);
  }
  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const Tensor &g = grads[0], &grad = saved[0], &x = saved[1];
    variable_list result(4);
    if (!g.defined()) return result;
    const Window w = saved_window(ctx);
    if (ctx->needs_input_grad(0)) result[0] = conv2d(x, g, {}, w);
    if (ctx->needs_input_grad(1)) result[1] = conv2d_dgrad(grad, g, x.sym_sizes(), w);
    return result;
  }
};

Tensor conv2d_autograd(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, TP_WINDOW) {
  return ConvFunction::apply(x, weight, bias, Window(stride, padding, dilation, groups, algorithm));
}

Tensor dgrad_autograd(const Tensor& grad, const Tensor& weight, SymIntArrayRef input_size, TP_WINDOW) {
  return DgradFunction::apply(grad, weight, input_size.vec(), Window(stride, padding, dilation, groups, algorithm));
}

Tensor wgrad_autograd(const Tensor& grad, const Tensor& x, SymIntArrayRef kernel_size, TP_WINDOW) {
  return WgradFunction::apply(grad, x, kernel_size.vec(), Window(stride, padding, dilation, groups, algorithm));
}

// ---- Autocast: convolutions run in the lower precision, as torch's do

template <c10::DeviceType device>
Tensor lower(const Tensor& t) {
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), t, device);
}

template <c10::DeviceType device, c10::DispatchKey key>
Tensor conv2d_autocast(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, TP_WINDOW) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  const OptionalTensor shift = bias && bias->defined() ? OptionalTensor(lower<device>(*bias)) : std::nullopt;
  return conv2d(lower<device>(x), lower<device>(weight), shift, {stride, padding, dilation, groups, algorithm});
}

template <c10::DeviceType device, c10::DispatchKey key>
Tensor dgrad_autocast(const Tensor& grad, const Tensor& weight, SymIntArrayRef input_size, TP_WINDOW) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  return conv2d_dgrad(lower<device>(grad), lower<device>(weight), input_size,
                      {stride, padding, dilation, groups, algorithm});
}

template <c10::DeviceType device, c10::DispatchKey key>
Tensor wgrad_autocast(const Tensor& grad, const Tensor& x, SymIntArrayRef kernel_size, TP_WINDOW) {
  c10::impl::ExcludeDispatchKeyGuard no_autocast(key);
  return conv2d_wgrad(lower<device>(grad), lower<device>(x), kernel_size,
                      {stride, padding, dilation, groups, algorithm});
}

#undef TP_WINDOW

template <c10::DeviceType device, c10::DispatchKey key>
void register_autocast(torch::Library& m) {
  m.impl("conv2d", &conv2d_autocast<device, key>);
  m.impl("conv2d_dgrad", &dgrad_autocast<device, key>);
  m.impl("conv2d_wgrad", &wgrad_autocast<device, key>);
}

void register_kernels(torch::Library& m) {
  m.impl("conv2d", &conv2d_kernel);
  m.impl("conv2d_dgrad", &dgrad_kernel);
  m.impl("conv2d_wgrad", &wgrad_kernel);
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) {
  const std::string window =
      "SymInt[2] stride=1, SymInt[2] padding=0, SymInt[2] dilation=1, SymInt groups=1, str algorithm=\"auto\") -> "
      "Tensor";
  const auto def = [&](const std::string& head) {
    m.def(torch::schema((head + window).c_str()), {at::Tag::pt2_compliant_tag});
  };
  def("conv2d(Tensor x, Tensor weight, Tensor? bias=None, ");
  def("conv2d_dgrad(Tensor grad, Tensor weight, SymInt[] input_size, ");
  def("conv2d_wgrad(Tensor grad, Tensor x, SymInt[2] kernel_size, ");
}
TORCH_LIBRARY_IMPL(torch_patterns, CPU, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, CUDA, m) { register_kernels(m); }
TORCH_LIBRARY_IMPL(torch_patterns, Meta, m) {
  m.impl("conv2d", &conv2d_meta);
  m.impl("conv2d_dgrad", &dgrad_meta);
  m.impl("conv2d_wgrad", &wgrad_meta);
}
TORCH_LIBRARY_IMPL(torch_patterns, Autograd, m) {
  m.impl("conv2d", &conv2d_autograd);
  m.impl("conv2d_dgrad", &dgrad_autograd);
  m.impl("conv2d_wgrad", &wgrad_autograd);
}
TORCH_LIBRARY_IMPL(torch_patterns, AutocastCPU, m) { register_autocast<at::kCPU, c10::DispatchKey::AutocastCPU>(m); }
TORCH_LIBRARY_IMPL(torch_patterns, AutocastCUDA, m) { register_autocast<at::kCUDA, c10::DispatchKey::AutocastCUDA>(m); }

}  // namespace
}  // namespace tp
