#include "torch/windows.h"

namespace tp {

SymPair pair(const char* op, const char* name, SymIntArrayRef values, SymIntArrayRef otherwise) {
  if (values.empty() && !otherwise.empty()) return pair(op, name, otherwise);
  TORCH_CHECK(values.size() == 1 || values.size() == 2, op, ": ", name, " must be one number or two, got ",
              values.size());
  return {values.front(), values.back()};
}

void check_maps(const char* op, const char* name, const Tensor& x) {
  TORCH_CHECK(x.dim() == 3 || x.dim() == 4, op, ": ", name, " must be [N, C, H, W] or [C, H, W], got shape ",
              x.sym_sizes());
  for (int64_t d = x.dim() - 3; d < x.dim(); ++d) {
    TORCH_SYM_CHECK(x.sym_size(d).sym_gt(0), op, ": only the batch of ", name, " may be empty, got shape ",
                    x.sym_sizes());
  }
}

// With ceil_mode the last window may extend past the far edge, but it must begin in the map or in the padding before
// it.
static SymInt count_along(const char* op, const Windows& windows, size_t d, const SymInt& size) {
  const SymInt &kernel = windows.kernel[d], &stride = windows.stride[d], &padding = windows.padding[d],
               &dilation = windows.dilation[d];
  constexpr int64_t most = 2147483647;
  const auto check = [&](const char* name, const SymInt& value, int64_t least) {
    TORCH_SYM_CHECK(value.sym_ge(least).sym_and(value.sym_le(most)), op, ": ", name, " must be from ", least, " to ",
                    most, ", got ", value);
  };
  check("kernel_size", kernel, 1);
  check("stride", stride, 1);
  check("padding", padding, 0);
  check("dilation", dilation, 1);
  const SymInt reach = (kernel - 1) * dilation + 1;
  TORCH_SYM_CHECK((padding * 2).sym_le(kernel), op, ": padding must be at most half of kernel_size, got padding ",
                  padding, " for kernel_size ", kernel);
  const SymInt room = size + padding * 2 - reach + (windows.ceil_mode ? stride - 1 : SymInt(0));
  TORCH_SYM_CHECK(room.sym_ge(0), op, ": a window of ", reach, " pixels (kernel_size ", kernel, ", dilation ", dilation,
                  ") does not fit into ", size, " pixels with padding ", padding);
  const SymInt count = room / stride + 1;
  return windows.ceil_mode && (count - 1) * stride >= size + padding ? count - 1 : count;
}

SymPair count_windows(const char* op, const Windows& windows, const SymPair& size) {
  return {count_along(op, windows, 0, size[0]), count_along(op, windows, 1, size[1])};
}

// This happens only with padding, and if taps are farther apart than the map is wide.
void check_taps(const char* op, const pooling::Args& args) {
  for (const pooling::Axis& axis : {args.h, args.w}) {
    if (axis.size >= axis.dilation) continue;
    for (int64_t o = 0; o < axis.outputs && o * axis.stride < axis.padding; ++o) {
      const int64_t begin = o * axis.stride - axis.padding;
      TORCH_CHECK(begin + ceil_div(-begin, axis.dilation) * axis.dilation < axis.size, op, ": no tap of window ", o,
                  " (kernel_size ", axis.kernel, ", dilation ", axis.dilation, ", padding ", axis.padding,
                  ") lies in the ", axis.size, " pixels of x");
    }
  }
}

SymPair maps_of(const Tensor& x) { return {x.sym_size(-2), x.sym_size(-1)}; }
Sizes maps_of(SymIntArrayRef sizes) { return sizes.slice(sizes.size() - 2).vec(); }

Sizes with_maps(const Tensor& x, const SymPair& size) {
  auto shape = x.sym_sizes().vec();
  shape[shape.size() - 2] = size[0];
  shape[shape.size() - 1] = size[1];
  return shape;
}

void check_shape(const char* op, const char* name, const Tensor& x, const SymPair& maps) {
  TORCH_SYM_CHECK(sym_equals(maps_of(x), maps), op, ": ", name, " must have maps of ", maps[0], " x ", maps[1],
                  ", got shape ", x.sym_sizes());
}

at::MemoryFormat format_of(const Tensor& x) {
  return x.dim() == 4 ? x.suggest_memory_format() : at::MemoryFormat::Contiguous;
}

Tensor empty_maps(const Tensor& like, const SymPair& maps, at::ScalarType dtype) {
  return empty_result(with_maps(like, maps), like.options().dtype(dtype).memory_format(format_of(like)));
}

pooling::Args pooling_args(const char* op, const Tensor& any, at::MemoryFormat format, const Windows& windows,
                           const SymPair& in, const SymPair& out) {
  const auto number = [](const SymInt& value) { return value.expect_int(); };
  const int64_t batch = any.dim() == 4 ? any.size(0) : 1, maps = any.size(-3);
  const bool last = format == at::MemoryFormat::ChannelsLast;
  const auto side = [&](const SymPair& size) {
    return pooling::Maps{last ? batch : batch * maps, number(size[0]), number(size[1]), last ? maps : 1};
  };
  const auto axis = [&](size_t d) {
    return pooling::Axis{number(in[d]),
                         number(out[d]),
                         number(windows.kernel[d]),
                         number(windows.stride[d]),
                         number(windows.padding[d]),
                         number(windows.dilation[d])};
  };
  pooling::Args args{};
  args.dtype = dtype_of_tensor(op, any);
  args.in = side(in);
  args.out = side(out);
  args.h = axis(0);
  args.w = axis(1);
  args.count_include_pad = windows.count_include_pad;
  return args;
}

}  // namespace tp
