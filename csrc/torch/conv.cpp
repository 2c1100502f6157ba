// torch_patterns::conv2d, conv2d_dgrad, conv2d_wgrad: checks, kernels, Meta, derivatives.
//
// The convolution is linear in the input and in the filters, and dgrad and wgrad are its transposes. So the gradients
// of each of the three operators are calls of the other two, and its tangent is the sum of a call of itself for each
// argument that has a tangent. Every order of derivative thus exists in both modes. The gradient of the bias is a plain
// sum.
#include "conv/conv.h"

#include <ATen/ATen.h>

#include "torch/checks.h"
#include "torch/gradient.h"
#include "torch/reduce.h"

namespace tp {
namespace {

using conv::Pass;

Pattern conv_pattern("conv2d", conv::ladder);

// How the filters move over the input, and which algorithm is used: the last arguments of all three operators.
struct Window {
  const Sizes &stride, &padding, &dilation;
  const SymInt& groups;
  Str algorithm;
};

#define TP_WINDOW                                                                                               \
  "SymInt[2] stride=1, SymInt[2] padding=0, SymInt[2] dilation=1, SymInt groups=1, str algorithm=\"auto\") -> " \
  "Tensor"

struct Conv2d {
  static constexpr auto schema = "conv2d(Tensor x, Tensor weight, Tensor? bias=None, " TP_WINDOW;
  Tensor x, weight;
  OptionalTensor bias;
  Sizes stride, padding, dilation;
  SymInt groups;
  Str algorithm;

  TP_DIFFERENTIABLE(Tensor);
  bool keeps(size_t input) const { return input != 2; }
  Autocast autocast() const { return Autocast::lower; }
  Window window() const { return {stride, padding, dilation, groups, algorithm}; }
};

struct Conv2dDgrad {
  static constexpr auto schema = "conv2d_dgrad(Tensor grad, Tensor weight, SymInt[] input_size, " TP_WINDOW;
  Tensor grad, weight;
  Sizes input_size, stride, padding, dilation;
  SymInt groups;
  Str algorithm;

  TP_LINEAR(Tensor)
  Autocast autocast() const { return Autocast::lower; }
  Window window() const { return {stride, padding, dilation, groups, algorithm}; }
};

struct Conv2dWgrad {
  static constexpr auto schema = "conv2d_wgrad(Tensor grad, Tensor x, SymInt[2] kernel_size, " TP_WINDOW;
  Tensor grad, x;
  Sizes kernel_size, stride, padding, dilation;
  SymInt groups;
  Str algorithm;

  TP_LINEAR(Tensor)
  Autocast autocast() const { return Autocast::lower; }
  Window window() const { return {stride, padding, dilation, groups, algorithm}; }
};

#undef TP_WINDOW

// ---- checks, the same for kernels and Meta

// One convolution: the sizes of its three arrays.
struct Problem {
  Sizes x, weight, y;
};

void check_pair(const char* name, const char* what, const Sizes& values, int64_t least) {
  constexpr int64_t most = 2147483647;  // so that products and sums of two sizes are exact
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

// ---- kernels, the same for CPU and CUDA; Meta

// Results have the memory format of the input images. If the strides are symbolic and cannot be decided, results are
// contiguous.
at::MemoryFormat format_of(const Tensor& images) {
  const auto lie_in = [&](at::MemoryFormat f) {
    return images.sym_is_contiguous(f).guard_or_false(__FILE__, __LINE__);
  };
  const bool last = !lie_in(at::MemoryFormat::Contiguous) && lie_in(at::MemoryFormat::ChannelsLast);
  return last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous;
}

conv::Axis axis(const Problem& p, const Window& w, size_t i) {
  return {p.x[2 + i].expect_int(),  p.y[2 + i].expect_int(),   p.weight[2 + i].expect_int(),
          w.stride[i].expect_int(), w.padding[i].expect_int(), w.dilation[i].expect_int()};
}

// Runs one pass. Of x, weight and y, the one that the pass writes is undefined on entry and is returned. An image has
// the memory format of the image that was read; filters that are written are contiguous.
Tensor run_pass(const char* name, Pass pass, const Problem& p, const Window& w, Tensor x, Tensor weight, Tensor y,
                Tensor bias) {
  Tensor& written = pass == Pass::fprop ? y : pass == Pass::dgrad ? x : weight;
  const Tensor& read = pass == Pass::fprop ? x : y;
  written = pass == Pass::wgrad
                ? empty_result(p.weight, read.options())
                : empty_result(pass == Pass::fprop ? p.y : p.x, read.options().memory_format(format_of(read)));
  if (is_done(written, conv::ladder, name, w.algorithm)) return written;
  const at::MemoryFormat format =
      pass == Pass::wgrad && format_of(x) != format_of(y) ? at::MemoryFormat::Contiguous : format_of(read);
  if (read.numel() == 0) check_algorithm(conv::ladder, name, w.algorithm);
  if (pass != Pass::fprop && read.numel() == 0) return written.zero_();  // there are no products to add up
  for (Tensor* images : {&x, &y}) *images = images->contiguous(format);
  if (bias.defined()) bias = bias.contiguous();
  // The rung writes only the array that its pass computes, so the const_cast of the others is harmless.
  const auto data = [](const Tensor& t) { return const_cast<void*>(t.const_data_ptr()); };
  const auto layout = [](at::MemoryFormat f) {
    return f == at::MemoryFormat::Contiguous ? conv::Layout::nchw : conv::Layout::nhwc;
  };
  conv::Args args{pass,
                  dtype_of_tensor(name, read),
                  data(x),
                  nullptr,
                  data(y),
                  data_or_null(bias),
                  p.x[0].expect_int(),
                  p.x[1].expect_int(),
                  p.y[1].expect_int(),
                  w.groups.expect_int(),
                  axis(p, w, 0),
                  axis(p, w, 1),
                  layout(format)};
  run(conv::ladder, conv::choose, name, w.algorithm, read, args, [&](Str rung) {
    const at::MemoryFormat filters = conv::reads_nhwc_filters(rung) ? format_of(weight) : at::MemoryFormat::Contiguous;
    weight = weight.contiguous(filters);
    args.weight = data(weight);
    args.filters = layout(filters);
  });
  return written;
}

}  // namespace

Tensor Conv2d::kernel() const {
  const Tensor shift = bias.value_or(Tensor());
  check_tensors("conv2d", {{"x", &x}, {"weight", &weight}, {"bias", &shift}});
  const Problem p = problem("conv2d", x.sym_sizes().vec(), weight.sym_sizes().vec(), window());
  if (shift.defined()) {
    TORCH_CHECK(shift.dim() == 1, "conv2d: bias must have 1 dimension, got ", shift.dim());
    TORCH_SYM_CHECK(shift.sym_size(0).sym_eq(p.weight[0]), "conv2d: bias has ", shift.sym_size(0), " elements for ",
                    p.weight[0], " filters");
  }
  return run_pass("conv2d", Pass::fprop, p, window(), x, weight, {}, shift);
}

Tensor Conv2dDgrad::kernel() const {
  check_tensors("conv2d_dgrad", {{"grad", &grad}, {"weight", &weight}});
  const Problem p = problem("conv2d_dgrad", input_size, weight.sym_sizes().vec(), window());
  check_grad("conv2d_dgrad", grad, p);
  return run_pass("conv2d_dgrad", Pass::dgrad, p, window(), {}, weight, grad, {});
}

Tensor Conv2dWgrad::kernel() const {
  const char* const name = "conv2d_wgrad";
  check_tensors(name, {{"grad", &grad}, {"x", &x}});
  TORCH_CHECK(grad.dim() == 4 && x.dim() == 4, name, ": grad and x must have 4 dimensions, got ", grad.dim(), " and ",
              x.dim());
  TORCH_CHECK(kernel_size.size() == 2, name, ": kernel_size must have 2 elements, got ", kernel_size.size());
  check_groups(name, window());
  const Sizes weight = {grad.sym_size(1), x.sym_size(1) / groups, kernel_size[0], kernel_size[1]};
  const Problem p = problem(name, x.sym_sizes().vec(), weight, window());
  check_grad(name, grad, p);
  return run_pass(name, Pass::wgrad, p, window(), x, {}, grad, {});
}

// ---- derivatives

namespace {

// Calls an operator with the same window.
template <class Op, class... Head>
Tensor with(const Window& w, const Head&... head) {
  return call(Op{head..., w.stride, w.padding, w.dilation, w.groups, w.algorithm});
}

const OptionalTensor no_bias;

Sizes kernel_size_of(SymIntArrayRef weight) { return {weight[2], weight[3]}; }

// The sum over images, rows and columns. It sums within each map first, because the elements of a map are neighbours in
// memory, but not half types, whose sums of a map would be rounded.
Tensor sum_of_maps(const Tensor& g) {
  const auto sum = [](const Tensor& x, std::vector<int64_t> dims) {
    return call(Reduce{x, std::move(dims), "sum", false, "auto"});
  };
  return wide_dtype(g) == g.scalar_type() ? sum(sum(g, {2, 3}), {0}) : sum(g, {0, 2, 3});
}

}  // namespace

Tensors Conv2d::vjp(const Backward& b) const {
  const Tensor& g = b.grad();
  Tensors grads(3);
  if (b.wants(0)) grads[0] = with<Conv2dDgrad>(window(), g, weight, b.sizes(0).vec());
  if (b.wants(1)) grads[1] = with<Conv2dWgrad>(window(), g, x, kernel_size_of(b.sizes(1)));
  if (b.wants(2)) grads[2] = sum_of_maps(g);
  return grads;
}

Tensors Conv2dDgrad::vjp(const Backward& b) const {
  const Tensor& g = b.grad();
  Tensors grads(2);
  if (b.wants(0)) grads[0] = with<Conv2d>(window(), g, weight, no_bias);
  if (b.wants(1)) grads[1] = with<Conv2dWgrad>(window(), grad, g, kernel_size_of(b.sizes(1)));
  return grads;
}

Tensors Conv2dWgrad::vjp(const Backward& b) const {
  const Tensor& g = b.grad();
  Tensors grads(2);
  if (b.wants(0)) grads[0] = with<Conv2d>(window(), x, g, no_bias);
  if (b.wants(1)) grads[1] = with<Conv2dDgrad>(window(), grad, g, b.sizes(1).vec());
  return grads;
}

Tensors Conv2d::jvp(const Forward& f) const {
  const Tensor t = tangent_of_linear(Conv2d{x, weight, {}, stride, padding, dilation, groups, algorithm}, f);
  const Tensor& shift = f.tangent(2);
  if (!shift.defined()) return {t};
  return {plus(t, shift.unsqueeze(1).unsqueeze(2).expand_symint(f.output().sym_sizes()))};
}

TORCH_LIBRARY_FRAGMENT(torch_patterns, m) { define<Conv2d, Conv2dDgrad, Conv2dWgrad>(m); }

}  // namespace tp
