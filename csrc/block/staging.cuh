// Copies lines of an array to shared memory and back. Where addresses allow it, the bulk copy engine does it: one
// thread requests a whole range of memory in units of 16 bytes, and no thread moves data itself.
//
// A copy covers whole units, so it may include neighbours of the range, but never anything outside the array: if the
// array's first or last unit reaches beyond the array, its elements are copied one by one. An element has the same
// offset within its unit in shared memory as in global memory (phase).
#pragma once
#include "block/shared_address.cuh"
#include "block/warp.cuh"

namespace tp::block {

// The offset of an address within its unit of 16 bytes, in elements.
template <class T>
TP_DEVICE int phase(const T* address) {
  return int(reinterpret_cast<uintptr_t>(address) % 16 / sizeof(T));
}

// The columns of a row-major array, divided into strips of equal width, at most a warp wide. `single` says that there
// is only one column, so everything below is known at compile time.
template <bool single>
class Strips {
  int across_, count_, together_;

 public:
  int64_t width;

  explicit Strips(int64_t width) : count_(int(ceil_div(width, int64_t(warp_size)))), width(width) {
    across_ = int(ceil_div(width, int64_t(tp::max(count_, 1))));
    together_ = warp_size / tp::max(across_, 1);
  }
  TP_HD int across() const { return single ? 1 : across_; }              // columns per strip
  TP_HD int count() const { return single ? 1 : count_; }                // the number of strips
  TP_HD int together() const { return single ? warp_size : together_; }  // lines that a warp processes at once

  // Item i of all (line, strip) pairs, in which the strips of a line are neighbours.
  TP_DEVICE int64_t line(int64_t i) const { return count() == 1 ? i : i / count(); }
  TP_DEVICE int64_t first_column(int64_t i) const { return count() == 1 ? 0 : i % count() * across(); }
  TP_DEVICE int columns(int64_t first) const { return single ? 1 : int(tp::min(int64_t(across()), width - first)); }
};

// Waits for copies to shared memory. It serves one round: stage() each array, then all threads call wait().
class Arrivals {
  uint64_t barrier;

 public:
  // Called by one thread, before a barrier of the block.
  TP_DEVICE void start(int arrays) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(arrays) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  // Called by one thread per array, with the number of bytes that will be copied.
  TP_DEVICE void expect(int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
                 : "memory");
  }
  TP_DEVICE void copy(void* to, const void* from, int bytes) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(&barrier))
                 : "memory");
  }
  TP_DEVICE void wait() {
    unsigned done = 0;
    while (!done) {
      asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], 0;\nselp.u32 %0, 1, 0, p;\n}"
                   : "=r"(done)
                   : "r"(shared_address(&barrier))
                   : "memory");
    }
  }
  TP_DEVICE static void copy_back(void* to, const void* from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared_address(from)),
                 "r"(bytes)
                 : "memory");
  }
  TP_DEVICE static void wait_back() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }
};

namespace detail {
template <class T>
TP_DEVICE T* down_to_unit(T* p) {
  return reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(p) / 16 * 16);
}
template <class T>
TP_DEVICE T* up_to_unit(T* p) {
  return reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(p) + 15) / 16 * 16);
}
// Calls store(i, load(i)) for `columns` elements of each of `lines` lines, with neighbouring elements in neighbouring
// lanes and several loads in flight. Each element has an offset in shared memory and one in global memory.
template <int threads, bool single, class Load, class Store>
TP_DEVICE void each_element(int lines, const Strips<single>& strips, int columns, Load load, Store store) {
  constexpr int batch = 8;
  const int lane = int(threadIdx.x) % warp_size, together = warp_size / columns;
  const int line = lane / columns, column = lane - line * columns, step = threads / warp_size * together;
  if (line >= together) return;
  for (int i = int(threadIdx.x) / warp_size * together + line; i < lines; i += batch * step) {
    decltype(load(0, int64_t(0))) x[batch];
#pragma unroll
    for (int j = 0; j < batch; ++j) {
      const int at = tp::min(i + j * step, lines - 1);
      x[j] = load(at * strips.across() + column, at * strips.width + column);
    }
#pragma unroll
    for (int j = 0; j < batch; ++j) {
      const int at = i + j * step;
      if (at < lines) store(at * strips.across() + column, at * strips.width + column, x[j]);
    }
  }
}
}  // namespace detail

// A strip of lines: `columns` elements of each of `lines` lines from element `first` on, in an array of `count`
// elements.
template <class T>
struct Lines {
  T* array;
  int64_t count;
  T* first;
  int lines, columns;

  TP_DEVICE Lines(T* array, int64_t count, int64_t first, int lines, int columns)
      : array(array), count(count), first(array + first), lines(lines), columns(columns) {}
  // Whether every line of a strip begins and ends at a multiple of 16 bytes.
  template <bool single>
  TP_DEVICE bool by_line(const Strips<single>& strips) const {
    constexpr int vector = int(16 / sizeof(T));
    return phase(array) == 0 && strips.width % vector == 0 && strips.across() % vector == 0;
  }
};

// Starts to copy lines to shared memory, where they are contiguous from shared + phase(lines.first) on. A barrier of
// the block and arrivals.wait() must follow.
template <int threads, class T, bool single>
TP_DEVICE void stage(Arrivals& arrivals, T* shared, const Lines<const T>& lines, const Strips<single>& strips) {
  const int skip = phase(lines.first), me = int(threadIdx.x);
  if (strips.count() == 1) {
    if (me >= warp_size) return;
    const T *from = lines.first, *to = from + lines.lines * strips.across();
    const T* low = tp::max(detail::down_to_unit(from), detail::up_to_unit(lines.array));
    const T* high = tp::min(detail::up_to_unit(to), detail::down_to_unit(lines.array + lines.count));
    if (low >= high) low = high = to;
    if (me == 0) {
      const int bytes = int(high - low) * int(sizeof(T));
      arrivals.expect(bytes);
      if (bytes > 0) arrivals.copy(shared + skip + (low - from), low, bytes);
    }
    if (from + me < low) shared[skip + me] = from[me];
    if (high + me < to) shared[skip + (high - from) + me] = high[me];
  } else if (lines.by_line(strips)) {
    const int bytes = lines.columns * int(sizeof(T));
    if (me == 0) arrivals.expect(lines.lines * bytes);
    for (int i = me; i < lines.lines; i += threads) {
      arrivals.copy(shared + i * strips.across(), lines.first + i * strips.width, bytes);
    }
  } else {
    if (me == 0) arrivals.expect(0);
    detail::each_element<threads>(
        lines.lines, strips, lines.columns, [&](int, int64_t g) { return lines.first[g]; },
        [&](int k, int64_t, T x) { shared[skip + k] = x; });
  }
}

// Must be called by all threads that wrote to shared memory, before the barrier that precedes unstage().
TP_DEVICE inline void staged_is_written() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Copies lines back to global memory, from shared + skip on.
template <int threads, class T, bool single>
TP_DEVICE void unstage(const Lines<T>& lines, const T* shared, int skip, const Strips<single>& strips) {
  const int me = int(threadIdx.x);
  shared += skip;
  if (strips.count() == 1 && skip == phase(lines.first)) {
    if (me >= warp_size) return;
    T *from = lines.first, *to = from + lines.lines * strips.across();
    T *low = tp::min(detail::up_to_unit(from), to), *high = tp::max(low, detail::down_to_unit(to));
    if (me == 0 && low < high) {
      Arrivals::copy_back(low, shared + (low - from), int(high - low) * int(sizeof(T)));
      Arrivals::wait_back();
    }
    if (from + me < low) from[me] = shared[me];
    if (high + me < to) high[me] = shared[(high - from) + me];
  } else if (strips.count() > 1 && skip == 0 && lines.by_line(strips)) {
    for (int i = me; i < lines.lines; i += threads) {
      Arrivals::copy_back(lines.first + i * strips.width, shared + i * strips.across(), lines.columns * int(sizeof(T)));
    }
    Arrivals::wait_back();
  } else {
    detail::each_element<threads>(
        lines.lines, strips, lines.columns, [&](int k, int64_t) { return shared[k]; },
        [&](int, int64_t g, T x) { lines.first[g] = x; });
  }
}

}  // namespace tp::block
