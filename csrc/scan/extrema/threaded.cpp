// Lines are divided into chunks if there are too few lines for the threads. An extremum does not depend on the order of
// its operands, so each chunk is first reduced to its own extremum, and is scanned when those of earlier chunks are
// known.
#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "block/on_vectors.h"
#include "core/ladder.h"
#include "core/op.h"
#include "scan/extrema.h"

namespace tp::scan {
namespace {

constexpr int64_t strip = 256;            // neighbouring lines whose elements are contiguous
constexpr int64_t least_chunk = 1 << 14;  // elements that are worth another thread

template <class A>
struct Leader {
  A value;
  int64_t index;
};

template <class T, bool least, bool reverse>
class Extrema {
  using A = acc_t<T>;

 public:
  explicit Extrema(const ExtremaArgs& a)
      : in_(static_cast<const T*>(a.in)),
        out_(static_cast<T*>(a.out)),
        index_(a.index),
        n_(a.n),
        inner_(a.inner),
        strips_(ceil_div(a.inner, strip)),
        lines_(a.outer * strips_) {}

  void run(Context& context) {
    const int64_t width = min(inner_, strip), threads = context.device.threads;
    const int64_t wanted = lines_ >= 2 * threads ? 1 : ceil_div(2 * threads, lines_);
    const int64_t chunks = max(int64_t(1), min(wanted, n_ * width / least_chunk));
    std::vector<Leader<A>> totals(size_t(chunks > 1 ? lines_ * chunks * width : 0));
    const auto begin_of = [=, this](int64_t chunk) { return chunk * n_ / chunks; };
    const auto each = [&](auto f) {
      const int64_t grain = max(int64_t(1), least_chunk / max(int64_t(1), n_ / chunks * width));
      context.parallel_for(lines_ * chunks, grain, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) f(i / chunks, i % chunks, totals.data() + i * width);
      });
    };
    if (chunks > 1) {
      each([&](int64_t line, int64_t chunk, Leader<A>* total) {
        start(line, begin_of(chunk), total);
        pass<false>(line, begin_of(chunk), begin_of(chunk + 1), total);
      });
      for (int64_t line = 0; line < lines_; ++line) {  // the total of a chunk becomes that of all chunks up to it
        for (int64_t i = (line * chunks + 1) * width; i < (line + 1) * chunks * width; ++i) {
          const auto &before = totals[size_t(i - width)], &own = totals[size_t(i)];
          if (!leads(own.value, before.value)) totals[size_t(i)] = before;
        }
      }
    }
    each([&](int64_t line, int64_t chunk, Leader<A>* total) {
      Leader<A> running[strip];
      if (chunk == 0) {
        start(line, 0, running);
      } else {
        std::copy(total - width, total, running);
      }
      pass<true>(line, begin_of(chunk), begin_of(chunk + 1), running);
    });
  }

 private:
  static bool leads(A x, A held) {
    const bool beats = least ? !(x >= held) : !(x <= held);
    return beats & (held == held);
  }
  int64_t index_of(int64_t k) const { return reverse ? n_ - 1 - k : k; }
  int64_t lanes(int64_t line) const { return min(strip, inner_ - line % strips_ * strip); }
  // The index of element k of the first lane of a line.
  int64_t at(int64_t line, int64_t k) const {
    return (line / strips_ * n_ + index_of(k)) * inner_ + line % strips_ * strip;
  }

  void start(int64_t line, int64_t k, Leader<A>* running) const {
    for (int64_t l = 0; l < lanes(line); ++l) running[l] = {A(in_[at(line, k) + l]), index_of(k)};
  }

  // Processes elements begin to end - 1, in the order of the scan. `running` is the leader before them, and becomes the
  // leader after them.
  template <bool writes>
  void pass(int64_t line, int64_t begin, int64_t end, Leader<A>* running) const {
    on_vectors([=, this] {
      inner_ == 1 ? along<writes>(line, begin, end, *running) : across<writes>(line, begin, end, running);
    });
  }

  // A single line. Few elements become leaders, so a block of elements without a new one is filled without looking at
  // each.
  template <bool writes>
  void along(int64_t line, int64_t begin, int64_t end, Leader<A>& running) const {
    constexpr int64_t block = 32;
    Leader<A> r = running;
    for (int64_t k = begin; k < end; k += block) {
      const int64_t count = min(block, end - k), low = line * n_ + (reverse ? n_ - k - count : k);
      const T* x = in_ + low;
      T* y = out_ + low;
      int64_t* index = index_ + low;
      const A held = r.value;
      int any = 0;
      if (count == block) {
        for (int64_t i = 0; i < block; ++i) any |= int(leads(A(x[i]), held));
      } else {
        any = 1;
      }
      if (any) {
        for (int64_t i = 0; i < count; ++i) {
          const int64_t j = reverse ? count - 1 - i : i;
          const A value = A(x[j]);
          if (leads(value, r.value)) r = {value, index_of(k + i)};
          if (writes) y[j] = T(r.value), index[j] = r.index;
        }
      } else if (writes) {
        const T value = T(held);
        const int64_t leader = r.index;
        TP_INDEPENDENT
        for (int64_t i = 0; i < block; ++i) y[i] = value;
        TP_INDEPENDENT
        for (int64_t i = 0; i < block; ++i) index[i] = leader;
      }
    }
    running = r;
  }

  // A strip of neighbouring lines.
  template <bool writes>
  void across(int64_t line, int64_t begin, int64_t end, Leader<A>* running) const {
    const int64_t count = lanes(line);
    A value[strip];
    int64_t leader[strip];
    for (int64_t l = 0; l < count; ++l) value[l] = running[l].value, leader[l] = running[l].index;
    for (int64_t k = begin; k < end; ++k) {
      const int64_t first = at(line, k), here = index_of(k);
      const T* x = in_ + first;
      T* y = out_ + first;
      int64_t* index = index_ + first;
      TP_INDEPENDENT
      for (int64_t l = 0; l < count; ++l) {
        const A given = A(x[l]), held = value[l];
        const bool lead = leads(given, held);
        value[l] = lead ? given : held;
        leader[l] = lead ? here : leader[l];
        if (writes) y[l] = T(value[l]), index[l] = leader[l];
      }
    }
    for (int64_t l = 0; l < count; ++l) running[l] = {value[l], leader[l]};
  }

  const T* in_;
  T* out_;
  int64_t* index_;
  int64_t n_, inner_, strips_, lines_;
};

}  // namespace

bool has_one_pass(const char* algorithm, bool cuda, int64_t elements) {
  const std::string_view rung = algorithm;
  if (!cuda) return rung == "auto" || rung == "threaded";
  return with_cuda && (rung == "auto" || rung == "decoupled_lookback") && elements <= INT32_MAX;
}

void running_extrema(const ExtremaArgs& args, Context& context) {
  dispatch(AllTypes{}, args.dtype, "scan_with_indices", [&](auto type) {
    using T = typename decltype(type)::type;
    const auto run = [&](auto least, auto reverse) { Extrema<T, least.value, reverse.value>(args).run(context); };
    const auto directed = [&](auto least) {
      args.reverse ? run(least, std::true_type{}) : run(least, std::false_type{});
    };
    args.least ? directed(std::true_type{}) : directed(std::false_type{});
  });
}

}  // namespace tp::scan
