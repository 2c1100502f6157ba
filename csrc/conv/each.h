// A step in which every item is computed independently. There is one body: on CUDA it runs in one thread per item,
// through simt; on the CPU it runs on all threads. A checked session runs the simt form on the CPU, too.
#pragma once
#include "conv/elements.h"

namespace tp::conv {

constexpr int each_threads = 256;

template <class Body>
struct Each {
  Body body;
  int64_t count;
  const char* name;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto bound = body.bind(block);
    for (int64_t first = block.index().x * each_threads; first < count; first += block.grid().x * each_threads) {
      block.phase(name, [&](int t) {
        if (first + t < count) bound(first + t);
      });
    }
  }
};

// Runs body.bind(block)(i) for every i in 0..count, on CUDA by at most `most` blocks.
template <class Body>
void each(Context& context, const char* name, int64_t count, const Body& body, int64_t most = max_grid) {
  if (context.device.cuda || simt::session()) {
    const int64_t blocks = min(ceil_div(count, int64_t(each_threads)), most);
    return simt::launch(context, name, {blocks}, each_threads, 0, Each<Body>{body, count, name});
  }
  const auto bound = body.bind(Pointers{});
  context.parallel_for(count, 1024, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) bound(i);
  });
}

// to[i] = from[i]; with `add`, to[i] += from[i].
template <class From, class To>
struct Copy {
  const From* from;
  To* to;
  int64_t n;
  bool add;

  template <class F, class D>
  struct Bound {
    F from;
    D to;
    bool add;
    TP_HD void operator()(int64_t i) const {
      const From value = from[i];
      const To before = add ? To(to[i]) : To(0.0f);
      to[i] = add ? To(before + To(value)) : To(value);
    }
  };
  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto source = block.global("from", from, n);
    const auto target = block.global("to", to, n);
    return Bound<std::decay_t<decltype(source)>, std::decay_t<decltype(target)>>{source, target, add};
  }
};

}  // namespace tp::conv
