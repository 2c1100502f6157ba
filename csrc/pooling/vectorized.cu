// Pooling at the speed of memory. A thread writes 16 bytes at a time if it can, finds its pixels by 32-bit
// multiplications instead of 64-bit divisions, and unrolls windows of 2 x 2 and 3 x 3 pixels with stride 2. Overlapping
// windows and gradients hit the L1 cache, because neighbouring threads read the same lines.
//
// Maxima, and the sums of their gradients, are taken in the order of the sequential rung, so they are the same bits.
#include "pooling/pooling.h"
#ifdef __CUDACC__
#include "pooling/backward.cuh"
#include "pooling/forward.cuh"
#include "pooling/subsample_backward.cuh"

namespace tp::pooling {
namespace {

constexpr int64_t launch_elements = int64_t(1) << 30;  // per launch and side, so that 32-bit offsets cannot overflow

// The part of the batch that one launch takes: outer maps from `first` on.
template <class I, class H, class W>
struct Part {
  Grid<I, H, W> grid;
  int64_t first, in_offset, out_offset;  // in outer maps, and in elements of either side
};

// Calls call(part) for the parts of the batch, as many maps at a time as a launch takes.
template <class I, class H, class W, class Call>
void for_parts(const Args& a, Call call) {
  const int64_t in_map = a.in.h * a.in.w * a.in.inner, out_map = a.out.h * a.out.w * a.in.inner;
  const int64_t most = tp::max(launch_elements / tp::max(in_map, out_map), int64_t(1));
  for (int64_t first = 0; first < a.in.outer; first += most) {
    const Grid<I, H, W> grid{H(a.h), W(a.w), I(a.in.inner), I(tp::min(most, a.in.outer - first)), a.count_include_pad};
    call(Part<I, H, W>{grid, first, first * in_map, first * out_map});
  }
}

template <int height, int across, int width, class I, class Part, class Kernel, class... Arguments>
void launch_outputs(const Args& a, const Part& part, Context& context, Kernel kernel, const Arguments&... arguments) {
  const Pixels<I> pixels(part.grid.outer, ceil_div(a.out.h, int64_t(height)), ceil_div(a.out.w, int64_t(across)),
                         a.in.inner / width);
  kernel<<<pixels.blocks(), vectorized_threads, 0, cudaStream_t(context.stream)>>>(part.grid, pixels, arguments...);
  check_launch("vectorized");
}

template <bool across, int width, class I, class Part, class Kernel, class... Arguments>
void launch_inputs(const Args& a, const Part& part, Context& context, Kernel kernel, const Arguments&... arguments) {
  constexpr int64_t height = patch_height<across, decltype(part.grid.h)>, along = across ? 1 : width;
  const Pixels<I> pixels(part.grid.outer, ceil_div(a.in.h, height), ceil_div(a.in.w, along),
                         across ? a.in.inner / width : a.in.inner);
  kernel<<<pixels.blocks(), vectorized_threads, 0, cudaStream_t(context.stream)>>>(part.grid, pixels, arguments...);
  check_launch("vectorized");
}

bool multiple_of(const void* p, int64_t bytes) { return reinterpret_cast<uintptr_t>(p) % uintptr_t(bytes) == 0; }

// Whether threads of a launch with these arrays may load four columns of a row at once, and store two results, for
// windows with stride 2. The arrays of a later part may begin at an odd element.
template <class T, class... Results>
bool in_quads(const Args& a, const T* x, const Results*... results) {
  constexpr auto bytes = [](int n, size_t size) { return tp::min(n * int64_t(size), int64_t(16)); };
  return a.in.inner == 1 && a.in.w % 4 == 0 && a.w.padding <= 1 && multiple_of(x, bytes(4, sizeof(T))) &&
         (multiple_of(results, bytes(2, sizeof(Results))) && ...);
}

// The numbers of elements of which the starts of all rows of grad_x are multiples.
template <class T>
int store_unit(const Args& a) {
  for (int unit : {4, 2}) {
    if (a.in.w % unit == 0 && multiple_of(a.grad_x, tp::min(unit * int64_t(sizeof(T)), int64_t(16)))) return unit;
  }
  return 1;
}

// ---- the steps, for windows of a kind and vectors of `width`

template <class T, int width, class I, class H, class W>
void maximum(const Args& a, Context& context) {
  with_indices(a, [&](auto* indices) {
    using Index = std::decay_t<decltype(*indices)>;
    for_parts<I, H, W>(a, [&](const auto& part) {
      const T* x = static_cast<const T*>(a.x) + part.in_offset;
      T* y = static_cast<T*>(a.y) + part.out_offset;
      Index* out_indices = indices + part.out_offset;
      launch_outputs<outputs_along<width, H>, outputs_along<width, W>, width, I>(
          a, part, context, maximum_kernel<width, T, Index, I, H, W>, x, y, out_indices,
          in_quads(a, x, y, out_indices));
    });
  });
}

template <class T, int width, class I, class H, class W>
void average(const Args& a, Context& context) {
  for_parts<I, H, W>(a, [&](const auto& part) {
    const int64_t maps = tp::max(a.maps, int64_t(1));
    const Neuron<T, I> neuron{static_cast<const T*>(a.bias), a.activation, maps, part.first % maps,
                              Divisor<I>(tp::min(maps, launch_elements))};
    const T* x = static_cast<const T*>(a.x) + part.in_offset;
    T* y = static_cast<T*>(a.y) + part.out_offset;
    if constexpr (width == 1 && std::is_same<W, Windows<2, 2>>::value) {
      const bool covered = a.in.h == 2 * a.out.h && a.in.w == 2 * a.out.w && a.h.padding + a.w.padding == 0;
      if (covered && in_quads(a, x, y)) {
        const int64_t quads = a.in.w / 4, count = part.grid.outer * a.out.h * quads;
        const unsigned blocks(ceil_div(count, int64_t(vectorized_threads)));
        halves_kernel<T, I><<<blocks, vectorized_threads, 0, cudaStream_t(context.stream)>>>(
            I(count), Divisor<I>(quads), Divisor<I>(a.out.h), x, y, neuron);
        return check_launch("vectorized");
      }
    }
    launch_outputs<outputs_along<width, H>, outputs_along<width, W>, width, I>(
        a, part, context, average_kernel<width, T, I, H, W>, x, y, neuron, in_quads(a, x, y));
  });
}

template <class T, bool across, int width, class I, class H, class W>
void maximum_backward(const Args& a, Context& context) {
  with_indices(a, [&](const auto* indices) {
    using Index = std::decay_t<decltype(*indices)>;
    for_parts<I, H, W>(a, [&](const auto& part) {
      launch_inputs<across, width, I>(a, part, context, maximum_backward_kernel<across, width, T, Index, I, H, W>,
                                      static_cast<const T*>(a.grad) + part.out_offset, indices + part.out_offset,
                                      static_cast<T*>(a.grad_x) + part.in_offset, store_unit<T>(a));
    });
  });
}

template <class T, bool across, int width, class I, class H, class W>
void average_backward(const Args& a, Context& context) {
  const acc_t<T> full_share = acc_t<T>(1) / (acc_t<T>(a.h.kernel) * acc_t<T>(a.w.kernel));
  for_parts<I, H, W>(a, [&](const auto& part) {
    launch_inputs<across, width, I>(a, part, context, average_backward_kernel<across, width, T, I, H, W>,
                                    static_cast<const T*>(a.grad) + part.out_offset, full_share,
                                    static_cast<T*>(a.grad_x) + part.in_offset, store_unit<T>(a));
  });
}

template <class T, class I, class H, class W>
void tangent(const Args& a, Context& context) {
  with_indices(a, [&](const auto* indices) {
    using Index = std::decay_t<decltype(*indices)>;
    for_parts<I, H, W>(a, [&](const auto& part) {
      launch_outputs<1, 1, 1, I>(a, part, context, tangent_kernel<T, Index, I, H, W>,
                                 static_cast<const T*>(a.x) + part.in_offset, static_cast<T*>(a.y) + part.out_offset,
                                 indices + part.out_offset);
    });
  });
}

// ---- which windows, which vectors

bool short_offsets(const Args& a) {
  const auto fits = [](const Axis& axis) { return axis.size + 4 * axis.padding + axis.reach() < launch_elements; };
  return fits(a.h) && fits(a.w) && a.in.h * a.in.w * a.in.inner < launch_elements &&
         a.out.h * a.out.w * a.out.inner < launch_elements;
}

// Calls call(Type<I>, Type<W>), where I is the type of offsets and W that of the windows along both axes.
template <class Call>
void with_windows(const Args& a, Call call) {
  if (!short_offsets(a)) return call(Type<int64_t>{}, Type<AnyWindows<int64_t>>{});
  const auto fits = [&](auto windows) {
    using W = typename decltype(windows)::type;
    return W::fits(a.h) && W::fits(a.w);
  };
  if (fits(Type<Windows<2, 2>>{})) return call(Type<int32_t>{}, Type<Windows<2, 2>>{});
  if (fits(Type<Windows<3, 2>>{})) return call(Type<int32_t>{}, Type<Windows<3, 2>>{});
  call(Type<int32_t>{}, Type<AnyWindows<int32_t>>{});
}

template <int width>
using Width = std::integral_constant<int, width>;

// Channels last, a thread takes up to 16 bytes of channels of each array; indices are the widest elements and are moved
// in pairs.
template <class T>
constexpr int channel_width = sizeof(T) < 4 ? 4 : 16 / int(sizeof(T));

template <class T>
bool on_channel_vectors(const Args& a) {
  constexpr int width = channel_width<T>;
  const int64_t bytes = width * int64_t(sizeof(T));
  for (const void* p : {a.x, static_cast<const void*>(a.y), a.grad, static_cast<const void*>(a.grad_x)}) {
    if (!multiple_of(p, tp::min(bytes, int64_t(16)))) return false;
  }
  return a.in.inner % width == 0 && multiple_of(a.indices, 16);
}

// Calls call(Width<n>) for the vectors of a forward step.
template <class T, class I, class Call>
void with_channels(const Args& a, Call call) {
  if constexpr (sizeof(I) == 4 && is_floating<T>) {
    if (on_channel_vectors<T>(a)) return call(Width<channel_width<T>>{});
  }
  call(Width<1>{});
}

// Calls call(across, Width<n>) for the vectors of a backward step.
template <class T, class I, class Call>
void with_pixels(const Args& a, Call call) {
  if constexpr (sizeof(I) == 4) {
    if (on_channel_vectors<T>(a)) return call(std::true_type{}, Width<channel_width<T>>{});
    if (a.in.inner == 1) return call(std::false_type{}, Width<4>{});
  }
  call(std::false_type{}, Width<1>{});
}

// The backward pass of subsampling. A launch takes the whole batch, with 64-bit offsets if they have to be.
template <class T>
void subsample_gradients(const Args& a, Context& context) {
  if (a.in.size() >= launch_elements) return subsample_backward<T, int64_t, false>(a, context);
  const bool halves = a.h.kernel == 2 && a.w.kernel == 2 && multiple_of(a.grad_x, 2 * sizeof(T));
  halves ? subsample_backward<T, int32_t, true>(a, context) : subsample_backward<T, int32_t, false>(a, context);
}

template <class T>
void averages(const Args& a, Context& context) {
  if (a.step == Step::average_backward && a.maps > 0) return subsample_gradients<T>(a, context);
  with_windows(a, [&](auto offsets, auto windows) {
    using I = typename decltype(offsets)::type;
    using W = typename decltype(windows)::type;
    if (a.step == Step::average) {
      return with_channels<T, I>(a, [&](auto width) { average<T, width.value, I, W, W>(a, context); });
    }
    with_pixels<T, I>(
        a, [&](auto across, auto width) { average_backward<T, across.value, width.value, I, W, W>(a, context); });
  });
}

template <class T>
void maxima(const Args& a, Context& context) {
  with_windows(a, [&](auto offsets, auto windows) {
    using I = typename decltype(offsets)::type;
    using W = typename decltype(windows)::type;
    if constexpr (!is_floating<T>) {
      using Any = AnyWindows<I>;  // integers are never differentiated, so they are rare here
      maximum<T, 1, I, Any, Any>(a, context);
    } else {
      if (a.step == Step::maximum) {
        return with_channels<T, I>(a, [&](auto width) { maximum<T, width.value, I, W, W>(a, context); });
      }
      if (a.step == Step::maximum_tangent) return tangent<T, I, AnyWindows<I>, AnyWindows<I>>(a, context);
      with_pixels<T, I>(
          a, [&](auto across, auto width) { maximum_backward<T, across.value, width.value, I, W, W>(a, context); });
    }
  });
}

}  // namespace

void vectorized(const Args& args, Context& context) {
  if (args.step == Step::average || args.step == Step::average_backward) {
    return dispatch(FloatTypes{}, args.dtype, "avg_pool2d",
                    [&](auto type) { averages<typename decltype(type)::type>(args, context); });
  }
  dispatch(AllTypes{}, args.dtype, "max_pool2d",
           [&](auto type) { maxima<typename decltype(type)::type>(args, context); });
}

}  // namespace tp::pooling
#endif
