#include "core/for_each.h"
#include "core/key.h"
#include "sort/small_keys.h"

namespace tp::sort {
namespace {

constexpr int items = 4;  // that a lane has in flight

template <class In, class Out, class Map>
struct MapEach {
  const In* in;
  Out* out;
  int64_t n;
  Map map;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto x = block.global("x", in, n);
    const auto y = block.global("y", out, n);
    const auto f = map.bind(block);
    const int64_t threads = block.threads(), step = block.grid().x * threads * items;
    for (int64_t first = block.index().x * threads * items; first < n; first += step) {
      block.phase("map", [&](int t) {
        In values[items];
        for (int j = 0; j < items; ++j) {
          const int64_t i = first + j * threads + t;
          if (i < n) values[j] = x[i];
        }
        for (int j = 0; j < items; ++j) {
          const int64_t i = first + j * threads + t;
          if (i >= n) continue;
          const Out value = f(values[j]);
          y[i] = value;
        }
      });
    }
  }
};

template <class In, class Out>
struct FromFirst {
  uint64_t first, count;

  template <class Block>
  TP_HD FromFirst bind(Block&&) const {
    return *this;
  }
  TP_HD Out operator()(In x) const {
    const uint64_t key = uint64_t(int64_t(x)) - first;
    return Out(key < count ? key : count);
  }
};

template <class In>
struct InTable {
  const int64_t* table;
  int64_t count;

  template <class Array>
  struct Bound {
    Array table;
    TP_HD int64_t operator()(In key) const {
      const int64_t found = table[int64_t(key)];
      return found;
    }
  };
  template <class Block>
  TP_HD auto bind(Block&& block) const {
    const auto all = block.global("table", table, count);
    return Bound<std::decay_t<decltype(all)>>{all};
  }
};

template <class In, class Out, class Map>
void map_each(const In* in, Out* out, int64_t n, const Map& map, Context& context) {
  if (context.device.cuda || simt::session()) {
    const int64_t blocks = tp::min(ceil_div(n, int64_t(items * simt::for_each_threads)), max_grid);
    return simt::launch(context, "small_keys", {blocks}, simt::for_each_threads, 0,
                        MapEach<In, Out, Map>{in, out, n, map});
  }
  const auto f = map.bind(simt::Pointers{});
  context.parallel_for(n, 1 << 14, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out[i] = f(in[i]);
  });
}

// Calls f with the type of a key of that many bytes.
template <class F>
void with_small_key(int bytes, F f) {
  with_word(bytes, [&](auto word) {
    if constexpr (sizeof(typename decltype(word)::type) <= 8) f(word);
  });
}

}  // namespace

void make_small_keys(const SmallKeys& x, Context& context) {
  dispatch(Types<uint8_t, int8_t, int16_t, int32_t, int64_t>{}, x.dtype, "small_keys", [&](auto type) {
    using In = typename decltype(type)::type;
    with_small_key(x.bytes, [&](auto word) {
      using Out = typename decltype(word)::type;
      map_each(static_cast<const In*>(x.in), static_cast<Out*>(x.keys), x.n,
               FromFirst<In, Out>{uint64_t(x.first), x.count}, context);
    });
  });
}

void look_up(const LookUp& x, Context& context) {
  with_small_key(x.bytes, [&](auto word) {
    using In = typename decltype(word)::type;
    map_each(static_cast<const In*>(x.keys), x.out, x.n, InTable<In>{x.table, x.count}, context);
  });
}

}  // namespace tp::sort
