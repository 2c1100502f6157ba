// How kernels go through the edges of many vertices: 32 lanes stride through the edges of a vertex. A vertex of many
// edges, a hub, waits in a list instead, and a second launch gives `parts` blocks to each hub; 32 lanes alone would
// take milliseconds for the largest hub of a power law, and all others would wait for them.
#pragma once
#include "graph/search.h"

namespace tp::sssp {

constexpr int lanes = 32;             // per vertex
constexpr int64_t hub_edges = 1024;   // a vertex of more edges is a hub
constexpr int64_t parts = 16;         // blocks per hub
constexpr int64_t most_parts = 1056;  // blocks in a launch for hubs: 8 for each multiprocessor of an H200

// The hubs met by a walk, by the numbers of their items.
template <class Id>
struct Hubs {
  Id* items;       // [vertices]
  int64_t* count;  // cleared before each walk
  bool any;        // whether the graph has hubs at all
};

// The items of a walk: all vertices, each its own item.
struct AllVertices {
  int64_t vertices;

  template <class Block>
  TP_HD AllVertices bind(Block&) const {
    return *this;
  }
  TP_HD int64_t size() const { return vertices; }
  TP_HD int64_t operator[](int64_t item) const { return item; }
};

// The items of a walk: the vertices of a list whose size only the device knows.
template <class Id>
struct Listed {
  const Id* list;
  const int64_t* size;
  int64_t room;

  template <class Ids, class Size>
  struct Bound {
    Ids ids;
    Size count;
    TP_HD int64_t size() const { return count[0]; }
    TP_HD int64_t operator[](int64_t item) const { return ids[item]; }
  };
  template <class Block>
  TP_HD auto bind(Block& block) const {
    const auto ids = block.global("list", list, room);
    const auto count = block.global("size of the list", size, 1);
    return Bound<std::decay_t<decltype(ids)>, std::decay_t<decltype(count)>>{ids, count};
  }
};

// The two launches of a walk: through the edges of rows, and then of hubs, by a multiple of `parts` blocks. `Work` has
// the paths p, the items, and visit(block), which returns a function of an item, its vertex and one of the vertex's
// edges.
template <class Work, bool of_hubs>
struct Walk {
  using Id = typename Work::Id;
  Work work;
  Hubs<Id> hubs;

  template <class Block>
  TP_HD void operator()(Block& block) const {
    const auto items = work.items.bind(block);
    const auto out = work.p.out(block);
    const auto waiting = block.global("hubs", hubs.items, work.p.args.vertices);
    const auto count = block.global("hub count", hubs.count, 1);
    const auto visit = work.visit(block);
    if constexpr (of_hubs) {
      block.phase("hubs", [&](int t) {
        const int64_t size = count[0], first = block.index().x % parts * block.threads() + t;
        for (int64_t hub = block.index().x / parts; hub < size; hub += block.grid().x / parts) {
          const int64_t item = Id(waiting[hub]), vertex = items[item], end = out.end(vertex);
          for (int64_t edge = out.begin(vertex) + first; edge < end; edge += parts * block.threads()) {
            visit(item, vertex, edge);
          }
        }
      });
    } else {
      block.phase("rows", [&](int t) {
        const int64_t first = block.index().x * block.threads() + t, step = block.grid().x * block.threads() / lanes;
        const int64_t size = items.size(), lane = first % lanes;
        for (int64_t item = first / lanes; item < size; item += step) {
          const int64_t vertex = items[item], begin = out.begin(vertex), end = out.end(vertex);
          if (end - begin > hub_edges) {
            if (lane == 0) waiting[count.template atomic<Sum<int64_t>>(0, 1)] = Id(item);
            continue;
          }
          for (int64_t edge = begin + lane; edge < end; edge += lanes) visit(item, vertex, edge);
        }
      });
    }
  }
};

// Walks through the edges of all items; `row_lanes` is the number of lanes of the first launch.
template <class Work>
void walk(Context& context, const char* rung, const Work& work, const Hubs<typename Work::Id>& hubs,
          int64_t row_lanes) {
  graph::launch(context, rung, row_lanes, Walk<Work, false>{work, hubs});
  if (!hubs.any) return;
  const int64_t blocks = context.device.cuda ? most_parts : parts;
  graph::launch(context, rung, blocks * graph::threads, Walk<Work, true>{work, hubs});
}

}  // namespace tp::sssp
