// The pipeline of decoupled_lookback. Each block stays on its multiprocessor and takes one tile after another, by
// ticket, through a ring of stages in shared memory. Its warps are specialized, and synchronize only at the barriers of
// a stage:
//
//   load   takes a ticket and starts to copy the tile into the stage     then the stage is `full`
//   sum    combines each part of the tile, publishes its aggregate       `summed`
//   look   looks back for the exclusive prefix of the tile               `ready`
//   scan   one part per warp: scans the elements and stores them
//
// A stage is `empty` when the sum, look and scan warps are done with it. Only the first `lanes` lanes of a warp read
// and write the other members of a Stage; each of these lanes arrives at the barriers and waits on them by itself. At
// `summed`, every lane arrives that reads a part of the stage which the scan will overwrite (`summing_lanes`). The load
// warps synchronize among themselves by a barrier of their own.
//
// The aggregate of a tile is thus published as soon as its data has arrived, and while a tile waits for its
// predecessors, its successors are loaded. Every wait ends, because tickets increase along the ring, and a block with a
// smaller ticket publishes without waiting for a larger one. The launch may start while the tile states are still being
// cleared; it loads tiles meanwhile, and only the warps that use the states wait until they are clear.
//
// Tiles form chains, and the tiles of a chain form groups and supergroups (block/lookback.cuh). The exclusive prefix of
// a tile combines three values, each found by a fixed tree: the inclusive prefix of all earlier supergroups, the
// aggregates of the earlier groups of its supergroup, and the aggregates of the earlier tiles of its group. So the bits
// of the result are the same in every run, and at most one wait per supergroup follows another. The last tile of a
// group publishes the aggregate of the group, and the last tile of a supergroup the inclusive prefix there. If a
// supergroup is a single group, only the prefix is published.
//
// A Layout says what a tile is: its position in a chain, how it is loaded, summed and scanned, part by part, and how
// many tiles a group has (`tiles_per_group`) and how many groups a supergroup has (`groups_per_supergroup`). The value
// that is carried from part to part and from tile to tile has `lanes` x `width` columns; lane l of a warp holds the
// `width` columns from l * width on.
#pragma once
#include "block/lookback.cuh"
#include "block/pipeline.cuh"
#include "core/division.h"
#include "scan/elements.h"

namespace tp::scan::lookback {

// A Layout also sets how many warps sum (sum_warps), how many look back (look_warps), and into how many parts a tile is
// divided for the scan, with one warp per part.
constexpr int load_warps = 2;

template <class Layout>
constexpr int pipeline_threads =
    (Layout::parts + Layout::sum_warps + Layout::look_warps + load_warps) * block::warp_size;

// The position of a tile: its chain, its index there, and the index of the first tile whose value it combines with.
struct TilePosition {
  int64_t tile;  // negative: no tiles are left
  int64_t chain, index, start;
  int64_t first;          // rows only: the position of the first element
  int to_head;            // rows only: the distance from there to the next head, at most `cap`
  int64_t outer, column;  // strips only: the index in the outer dimension, and the first column
};

template <class Layout>
struct Stage {
  block::Barrier full, summed, ready, empty;
  TilePosition position;
  typename Layout::Value total[Layout::parts][Layout::max_lanes], before[Layout::max_lanes];
  bool whole[Layout::parts];  // no row starts in the part
};

template <class Layout>
struct Pipe {
  using M = typename Layout::M;
  using Value = typename Layout::Value;  // block::Pack<M, width>
  using TileState = block::TileState<typename M::Acc>;
  static constexpr int parts = Layout::parts, sum_warps = Layout::sum_warps, look_warps = Layout::look_warps;
  const Layout& layout;
  const block::TileStates<typename M::Acc>& states;
  Stage<Layout>* stages;
  unsigned char* data;
  int depth, lane;

  TP_DEVICE unsigned char* bytes(int stage) const { return data + stage * layout.stage_bytes(); }

  // The load warps: fill free stages with tiles, in the order of tickets.
  TP_DEVICE void load(int warp) const {
    if (ordered()) block::wait_for_launch_before();
    int64_t ticket = warp == 0 && lane == 0 ? take_ticket(int64_t(blockIdx.x)) : 0;
    int ends = 0;
    for (block::Cursor at(depth); ends < look_warps; at.next()) {  // every look-back warp receives an end
      Stage<Layout>& stage = stages[at.stage];
      // Wait until the stage is free, and draw the next ticket.
      stage.empty.wait(at.parity ^ 1);
      if (warp == 0 && lane == 0) {
        if (ticket < layout.tiles) {
          stage.position = layout.position(ticket);
          ticket = take_ticket(ticket + gridDim.x);
        } else {
          stage.position.tile = -1;
        }
      }
      block::sync_warps(1, load_warps);
      // Start the copies; the barrier completes when they have arrived.
      const TilePosition position = stage.position;
      if (position.tile < 0) {
        ++ends;
      } else {
        layout.load(position, stage.full, bytes(at.stage), warp, lane);
      }
      stage.full.arrive_after_copies();
      stage.full.arrive();
    }
  }

  // The sum warps: reduce each tile as soon as it has arrived, and publish its aggregate.
  TP_DEVICE void sum(int warp) const {
    block::wait_for_launch_before();
    for (block::Cursor at(depth);; at.next()) {
      Stage<Layout>& stage = stages[at.stage];
      stage.full.wait(at.parity);
      const TilePosition position = position_of(stage);
      if (position.tile < 0) return;
// Reduce the parts of the tile, each by one warp.
#pragma unroll 1
      for (int part = warp; part < parts; part += sum_warps) {
        bool whole = true;
        const Value total = layout.sum(position, bytes(at.stage), part, lane, whole);
        if (lane < layout.lanes()) stage.total[part][lane] = total;
        if (lane == 0) stage.whole[part] = whole;
      }
      // When all parts are reduced, warp 0 publishes the aggregate of the tile.
      arrive(stage.summed, layout.summing_lanes());
      block::sync_warps(2, sum_warps);
      bool whole;
      if (warp == 0 && lane < layout.lanes() && states.tickets) {
        publish(states.tiles, position.chain, position.index, join_parts(stage, parts, Value::identity(), lane, whole));
      }
      arrive(stage.empty, layout.lanes());
    }
  }

  // The look-back warps take turns: each handles every look_warps-th tile.
  TP_DEVICE void look(int warp) const {
    block::wait_for_launch_before();
    block::Cursor at(depth);
    for (int i = 0; i < warp; ++i) at.next();
    for (;;) {
      Stage<Layout>& stage = stages[at.stage];
      stage.full.wait(at.parity);
      const TilePosition position = position_of(stage);
      if (position.tile < 0) return;
      const Value before = look_back(stage, position, at.parity);
      if (lane < layout.lanes()) stage.before[lane] = before;
      arrive(stage.ready, layout.lanes());
      arrive(stage.empty, layout.lanes());
      for (int i = 0; i < look_warps; ++i) at.next();
    }
  }

  // The scan warps, one per part of a tile. The layout calls the function that it is given when it needs the prefix of
  // the part; only then does the warp wait for the other parts and for the look-back.
  TP_DEVICE void scan(int part) const {
    for (block::Cursor at(depth);; at.next()) {
      Stage<Layout>& stage = stages[at.stage];
      stage.full.wait(at.parity);
      const TilePosition position = position_of(stage);
      if (position.tile < 0) return;
      layout.scan(position, bytes(at.stage), part, lane, [&] {
        stage.summed.wait(at.parity);
        stage.ready.wait(at.parity);
        Value before = Value::identity();
        bool whole;
        if (lane < layout.lanes()) before = join_parts(stage, part, stage.before[lane], lane, whole);
        return block::broadcast(before, lane % layout.lanes());
      });
      arrive(stage.empty, layout.lanes());
    }
  }

 private:
  TP_DEVICE TilePosition position_of(const Stage<Layout>& stage) const {
    TilePosition position{};
    if (lane == 0) position = stage.position;
    return block::broadcast(position, 0);
  }
  TP_DEVICE void arrive(block::Barrier& barrier, int lanes) const {
    __syncwarp();
    if (lane < lanes) barrier.arrive();
  }
  // Tickets are needed only if a tile waits for another one and some block takes several tiles. With one tile per block
  // all blocks run at once, in any order.
  TP_DEVICE bool ordered() const { return states.tickets && layout.tiles > gridDim.x; }
  TP_DEVICE int64_t take_ticket(int64_t turn) const {
    return ordered() ? int64_t(atomicAdd(states.tickets, 1ull)) : turn;
  }

  // Combines `before` with the first `n` parts, restarting at every part in which a row starts. `whole` tells whether
  // there is no such part.
  TP_DEVICE static Value join_parts(const Stage<Layout>& stage, int n, Value before, int mine, bool& whole) {
    whole = true;
#pragma unroll
    for (int i = 0; i < parts; ++i) {
      if (i >= n) break;
      const bool joined = Layout::headless || stage.whole[i];
      before = joined ? Value::combine(before, stage.total[i][mine]) : stage.total[i][mine];
      whole = whole && joined;
    }
    return before;
  }

  TP_DEVICE TileState* at(TileState* array, int64_t chain, int64_t index, int mine) const {
    return array + ((index * layout.chains() + chain) * layout.lanes() + mine) * Layout::width;
  }
  TP_DEVICE void publish(TileState* array, int64_t chain, int64_t index, const Value& value) const {
#pragma unroll
    for (int v = 0; v < Layout::width; ++v) at(array, chain, index, lane)[v].publish(value.v[v]);
  }

  // Combines the states of a chain from index `from` up to `to`; there are at most `most` of them. The lanes that share
  // a column divide the states among them, each reads several at once, and the first of these lanes gets the result.
  TP_DEVICE Value gather(TileState* array, int64_t chain, int64_t from, int64_t to, int most) const {
    constexpr int batch = 4;
    const int lanes = layout.lanes(), mine = lane % lanes, each = tp::max(1, most * lanes / block::warp_size);
    const int64_t first = from + lane / lanes * each, last = tp::min(first + each, to);
    Value sum = Value::identity();
    for (int64_t t = first; t < last; t += batch) {
      Value value[batch];
      bool valid;
      do {
        valid = true;
#pragma unroll
        for (int i = 0; i < batch; ++i) {
#pragma unroll
          for (int v = 0; v < Layout::width; ++v) {
            value[i].v[v] = t + i < last ? at(array, chain, t + i, mine)[v].try_load(valid) : M::identity();
          }
        }
      } while (!valid);
#pragma unroll
      for (int i = 0; i < batch; ++i) sum = Value::combine(sum, value[i]);
    }
    __syncwarp();
    for (int stride = lanes; stride < block::warp_size; stride *= 2) {
      sum = Value::combine(sum, block::shuffle_down(sum, stride));
    }
    return sum;
  }

  // Look-back: returns the exclusive prefix of the tile in lanes l < lanes.
  TP_DEVICE Value look_back(Stage<Layout>& stage, const TilePosition& position, unsigned parity) const {
    if (!states.tickets) {
      stage.summed.wait(parity);
      return layout.origin(position, lane);
    }
    const int tiles_per_group = layout.tiles_per_group, groups_per_supergroup = layout.groups_per_supergroup;
    TileState *groups = states.groups,
              *supergroups = groups + layout.groups() * layout.chains() * layout.lanes() * Layout::width;
    const int64_t group = position.index / tiles_per_group, supergroup = group / groups_per_supergroup;
    // Combine the aggregates of the earlier tiles of the group.
    Value before = gather(states.tiles, position.chain, tp::max(position.start, group * tiles_per_group),
                          position.index, tiles_per_group);
    // The last tile of a group publishes the aggregate of the group as soon as the tile is summed.
    stage.summed.wait(parity);
    bool whole = true;
    const bool ends_group = position.index % tiles_per_group == tiles_per_group - 1;
    Value total = Value::identity();
    if (lane < layout.lanes() && ends_group) {
      total = join_parts(stage, parts, Value::identity(), lane, whole);
      if (groups_per_supergroup > 1) {
        publish(groups, position.chain, group, whole ? Value::combine(before, total) : total);
      }
    }
    __syncwarp();
    // Combine the aggregates of the earlier groups of the supergroup.
    if (groups_per_supergroup > 1) {
      const Value earlier =
          gather(groups, position.chain, tp::max(position.start / tiles_per_group, supergroup * groups_per_supergroup),
                 group, groups_per_supergroup);
      before = Value::combine(earlier, before);
    }
    // Prepend the prefix of all earlier supergroups, or the initial value of the chain.
    if (lane < layout.lanes()) {
      Value earlier = layout.origin(position, lane);
      if (position.start < supergroup * groups_per_supergroup * tiles_per_group) {
#pragma unroll
        for (int v = 0; v < Layout::width; ++v) {
          earlier.v[v] = at(supergroups, position.chain, supergroup - 1, lane)[v].wait();
        }
      }
      before = Value::combine(earlier, before);
      if (ends_group && group % groups_per_supergroup == groups_per_supergroup - 1) {
        publish(supergroups, position.chain, supergroup, whole ? Value::combine(before, total) : total);
      }
    }
    return before;
  }
};

// Divides the warps of the block into the four roles and runs them; the stages lie behind the tiles' data.
template <class Layout>
__global__ __launch_bounds__(pipeline_threads<Layout>,
                             1) void pipeline_kernel(const Layout layout,
                                                     const block::TileStates<typename Layout::M::Acc> states,
                                                     int depth) {
  constexpr int parts = Layout::parts, sum_warps = Layout::sum_warps, look_warps = Layout::look_warps;
  extern __shared__ __align__(128) unsigned char memory[];
  auto* stages = reinterpret_cast<Stage<Layout>*>(memory + depth * layout.stage_bytes());
  if (threadIdx.x < depth) {
    Stage<Layout>& stage = stages[threadIdx.x];
    stage.full.init(2 * load_warps * block::warp_size);
    stage.summed.init(sum_warps * layout.summing_lanes());
    stage.ready.init(layout.lanes());
    stage.empty.init((parts + sum_warps + 1) * layout.lanes());
  }
  __syncthreads();
  const int warp = int(threadIdx.x) / block::warp_size;
  const Pipe<Layout> pipe{layout, states, stages, memory, depth, int(threadIdx.x) % block::warp_size};
  if (warp < parts) {
    pipe.scan(warp);
  } else if (warp < parts + sum_warps) {
    pipe.sum(warp - parts);
  } else if (warp < parts + sum_warps + look_warps) {
    pipe.look(warp - parts - sum_warps);
  } else {
    pipe.load(warp - parts - sum_warps - look_warps);
  }
}

// How much shared memory a stage takes, its tile included, and how many a block can have.
template <class Layout>
int bytes_per_stage(const Layout& layout) {
  return layout.stage_bytes() + int(sizeof(Stage<Layout>));
}
template <class Layout>
int stages_that_fit(const Layout& layout) {
  return block::device_attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>() / bytes_per_stage(layout);
}

// Launches one block per multiprocessor, with as many stages as shared memory holds or its tiles need.
template <class Layout>
void launch_pipeline(const Layout& layout, Context& context) {
  using Acc = typename Layout::M::Acc;
  constexpr int look_warps = Layout::look_warps;
  const int stage_bytes = bytes_per_stage(layout), most = stages_that_fit(layout);
  require(most >= look_warps, "decoupled_lookback: this device has too little shared memory");
  const int64_t grid = tp::min(layout.tiles, int64_t(block::device_attribute<cudaDevAttrMultiProcessorCount>()));
  const int depth = int(tp::min(int64_t(most), tp::max(ceil_div(layout.tiles, grid), int64_t(look_warps))));
  const int64_t groups = layout.groups(), supergroups = ceil_div(groups, int64_t(layout.groups_per_supergroup));
  const int64_t columns = layout.chains() * layout.lanes() * Layout::width;
  block::TileStates<Acc> states{};
  block::allow_shared_memory(pipeline_kernel<Layout>, most * stage_bytes);
  if (layout.independent()) {
    pipeline_kernel<Layout>
        <<<unsigned(grid), pipeline_threads<Layout>, size_t(depth * stage_bytes), cudaStream_t(context.stream)>>>(
            layout, states, depth);
  } else {
    states = block::make_tile_states<Acc>(context, layout.tiles / layout.chains() * columns,
                                          (groups + supergroups) * columns);
    block::launch_early(pipeline_kernel<Layout>, grid, pipeline_threads<Layout>, depth * stage_bytes, context, layout,
                        states, depth);
  }
  check_launch("decoupled_lookback");
}

}  // namespace tp::scan::lookback
