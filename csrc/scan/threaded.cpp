// The production scan of the CPU. Threads take fixed chunks in order, so that memory is read only once.
//
// Rows are divided into chunks. If rows are not contiguous, neighbouring rows form a strip, in which elements k of all
// rows are neighbours. A thread that takes a chunk first reduces it, which loads it into the thread's cache, stores its
// total for other threads, combines the totals before it, and then scans the chunk. The totals of earlier chunks are
// usually ready. If one is not ready in time, because its thread is not running, this thread computes it as well, so no
// thread ever blocks. The partition depends only on the shape, so results have the same bits for any number of threads.
//
// Operands are converted to accumulators in a buffer and scanned there (buffer.h): a contiguous row by vectors,
// neighbouring rows lane by lane, and short rows many at a time. Sums and products of floats accumulate in double, so
// the rounding error does not grow with n.
#include <atomic>
#include <vector>

#include "scan/buffer.h"
#include "scan/elements.h"

namespace tp::scan {
namespace {

constexpr int64_t chunk_size = 1 << 15;  // elements per chunk: a chunk's input and output fit in the cache of a core
constexpr int64_t tasks_per_thread = 4;  // a thread with fewer tasks is not worth waking
constexpr int64_t patience = 1 << 14;  // how often a total is polled before it is recomputed, which takes about as long
constexpr int64_t most_rows = buffer_size / 2;  // rows per strip
constexpr int64_t many_strips = 32;             // this many strips keep the threads busy without dividing rows
constexpr int64_t narrow = 16;                  // strips with fewer rows are scanned row by row
constexpr int64_t short_row = 32;               // or many strips at a time, if their rows are not longer than this

template <class T>
using wide_t = typename std::conditional<is_floating<T>, double, T>::type;

template <class Elements>
class Threaded {
  using M = typename Elements::Monoid;
  using Acc = typename M::Acc;
  using Lane = typename Operands<M>::Lane;
  using Bound = decltype(std::declval<Elements>().bind(simt::Pointers{}));

 public:
  Threaded(const Elements& e, int threads)
      : e_(e),
        x_(e.bind(simt::Pointers{})),
        rows_(min(e.inner, most_rows)),
        across_(ceil_div(e.inner, most_rows)),
        strips_(e.rows / e.inner * across_),
        length_(max(is_whole(e, threads) ? e.n : int64_t(1), chunk_size / rows_)),
        chunks_(ceil_div(e.n, length_)) {}

  void run(Context& context) {
    const int64_t together = max(int64_t(1), length_ / e_.n);  // strips that fit in one chunk
    const int64_t tasks = ceil_div(strips_, together) * chunks_;
    const int64_t threads = min(int64_t(context.device.threads), ceil_div(tasks, tasks_per_thread));
    std::atomic<int64_t> next{0};
    Totals totals;
    if (chunks_ > 1) {
      totals.values = context.workspace<Acc>(tasks * rows_);
      totals.ready = std::vector<std::atomic<bool>>(tasks);
    }
    context.parallel_for(threads, 1, [&](int64_t, int64_t) {
      Before before;
      for (int64_t task; (task = next++) < tasks;) {
        const int64_t first = task * together, last = min(strips_, first + together);
        if (chunks_ > 1) {
          scan_chunk(task, totals, before);
        } else if (e_.inner < narrow && e_.n <= short_row) {
          scan_short(first, last);
        } else {
          for (int64_t strip = first; strip < last; ++strip) scan_strip(strip);
        }
      }
    });
  }

 private:
  // Whether no row is divided.
  bool is_whole(const Elements& e, int threads) const {
    return (strips_ >= many_strips && e.inner >= narrow) || (std::is_integral_v<Acc> && threads == 1);
  }

  struct Strip {
    int64_t row, lanes;
  };
  Strip strip(int64_t i) const {
    const int64_t column = i % across_ * most_rows;
    return {i / across_ * e_.inner + column, min(most_rows, e_.inner - column)};
  }

  void scan_strip(int64_t i) const {
    const Strip s = strip(i);
    Buffer<M> running;
    if constexpr (M::id == OpId::affine) {
      if (e_.inner >= narrow && !e_.exclusive) return recur(s, running.values());
    }
    running.clear(0, s.lanes);
    pass<true>(s, 0, e_.n, running);
  }

  // Computes h = a h + b along a whole strip, which needs no composition of maps.
  void recur(const Strip& s, Lane* h) const {
    using In = typename Elements::Input;
    using Out = typename Elements::Output;
    for (int64_t lane = 0; lane < s.lanes; ++lane) h[lane] = x_.load(s.row + lane, 0).b;
    fast<Store<Lane, Out>>(h, s.lanes, e_.out + x_.at(s.row, 0), 1);
    for (int64_t k = 1; k < e_.n; ++k) {
      const int64_t at = x_.at(s.row, k);
      fast<Recur<In, Lane, Out>>(e_.factors() + at, e_.in + at, s.lanes, h, e_.out + at);
    }
  }

  // The totals of all chunks except the last of each strip: one value per row.
  struct Totals {
    Acc* values;
    std::vector<std::atomic<bool>> ready;
  };
  // What a thread has combined so far: all chunks of a strip before its current one.
  struct Before {
    int64_t chunk = -1;
    Buffer<M> running;
  };

  // Scans one chunk; chunks are numbered through all strips.
  void scan_chunk(int64_t chunk, Totals& totals, Before& before) const {
    const Strip s = strip(chunk / chunks_);
    const int64_t first = chunk / chunks_ * chunks_, begin = (chunk - first) * length_;
    Buffer<M> mine;
    if (begin + length_ < e_.n) {
      reduce_chunk(s, chunk, mine);
      for (int64_t lane = 0; lane < s.lanes; ++lane) totals.values[chunk * rows_ + lane] = mine.get(lane);
      totals.ready[chunk].store(true, std::memory_order_release);
    }
    // Combine the totals before this chunk.
    if (before.chunk < first) {
      before.chunk = first;
      before.running.clear(0, s.lanes);
    }
    for (; before.chunk < chunk; ++before.chunk) {
      bool ready = false;
      for (int64_t tries = 0; tries < patience && !ready; ++tries) {
        ready = totals.ready[before.chunk].load(std::memory_order_acquire);
      }
      if (!ready) reduce_chunk(s, before.chunk, mine);
      for (int64_t lane = 0; lane < s.lanes; ++lane) {
        const Acc total = ready ? totals.values[before.chunk * rows_ + lane] : mine.get(lane);
        before.running.put(lane, M::combine(before.running.get(lane), total));
      }
    }
    mine = before.running;
    pass<true>(s, begin, min(e_.n, begin + length_), mine);
  }

  void reduce_chunk(const Strip& s, int64_t chunk, Buffer<M>& total) const {
    const int64_t begin = chunk % chunks_ * length_;
    total.clear(0, s.lanes);
    pass<false>(s, begin, begin + length_, total);
  }

  // Reduces elements begin..end of a strip into `running`, and also stores the prefixes if `scan`.
  template <bool scan>
  void pass(const Strip& s, int64_t begin, int64_t end, Buffer<M>& running) const {
    Buffer<M> x;
    if (e_.inner >= narrow) {
      for (int64_t k = begin; k < end; ++k) {
        load(x, s.row, k, 1, s.lanes, s.lanes, s.lanes);
        fast<Across<M>>(&x, s.lanes, &running);
        if (scan) store(running, s.row, k, 1, s.lanes);
      }
      return;
    }
    const int64_t step = e_.reverse ? -e_.inner : e_.inner;
    for (int64_t k = begin; k < end; k += buffer_size) {
      const int64_t n = min(buffer_size, end - k);
      for (int64_t lane = 0; lane < s.lanes; ++lane) {
        Acc before = running.get(lane);
        load(x, s.row + lane, k, step, n, 1, n);
        fast<typename std::conditional<scan, Scan<M>, Reduce<M>>::type>(&x, n, &before);
        running.put(lane, before);
        if (scan) store(x, s.row + lane, k, step, n);
      }
    }
  }

  // Scans strips begin..end, which are neighbours in memory: as many at a time as fit in a buffer, starting from the
  // last one in a reverse scan.
  void scan_short(int64_t begin, int64_t end) const {
    const int64_t rows = e_.inner, size = e_.n * rows, most = buffer_size / size, step = e_.reverse ? -1 : 1;
    Buffer<M> x;
    for (int64_t i = begin; i < end; i += most) {
      const int64_t strips = min(most, end - i), row = e_.reverse ? (i + strips) * rows - 1 : i * rows;
      load(x, row, 0, step, strips * size, rows, size);
      fast<ScanShort<M>>(&x, strips, e_.n, rows);
      store(x, row, 0, step, strips * size);
    }
  }

  // Loads n operands from (row, k) on, `step` elements apart. If k is 0, the first `starts` of every `size` operands
  // are the first of their rows, which may need another value than the one in memory.
  void load(Buffer<M>& to, int64_t row, int64_t k, int64_t step, int64_t n, int64_t starts, int64_t size) const {
    using In = typename Elements::Input;
    constexpr bool affine = M::id == OpId::affine;
    const int64_t skip = k == 0 && (affine || e_.exclusive) ? starts : 0;
    const int64_t from = x_.at(row, k - e_.exclusive) + skip * step;
    if (n > skip) {
      if (affine) fast<Load<In, Lane>>(e_.factors() + from, step, n - skip, to.x + skip);
      fast<Load<In, Lane>>(e_.in + from, step, n - skip, to.values() + skip);
    }
    for (int64_t i = 0; i < n && skip > 0; i += size, row += starts * step) {
      for (int64_t j = 0; j < starts; ++j) to.put(i + j, x_.load(row + j * step, 0));
    }
  }

  void store(Buffer<M>& x, int64_t row, int64_t k, int64_t step, int64_t n) const {
    using Out = typename Elements::Output;
    fast<Store<Lane, Out>>(x.values(), n, e_.out + x_.at(row, k), step);
  }

  const Elements& e_;
  Bound x_;
  const int64_t rows_, across_, strips_, length_, chunks_;
};

}  // namespace

void threaded(const Args& args, Context& context) {
  with_elements<wide_t>(args, [&](const auto& elements) {
    Threaded<std::decay_t<decltype(elements)>>(elements, context.device.threads).run(context);
  });
}

}  // namespace tp::scan
