// The pipeline of decoupled_lookback. A block stays on its multiprocessor and takes tile after tile, by ticket, through
// a ring of stages in shared memory. Its warps have one trade each and meet at the barriers of a stage only:
//
//   load   takes a ticket and begins to copy the tile into the stage       then the stage is `full`
//   sum    combines each part of the tile, publishes the tile's total      `summed`
//   look   looks up what precedes the tile                                 `ready`
//   scan   one part a warp: completes the elements and writes them
//
// and when the last three have left it, it is `empty`. What a Stage holds besides the tile is read and written by the
// first `lanes` lanes of a warp, and those arrive, each for itself, and wait for all that it needs; when a tile is
// summed, all that read a stage which the scan will overwrite (`summing_lanes`). The loading warps meet at a barrier of
// their own.
//
// So a tile's total is out as soon as its data is in, and while a tile waits for those before it, the memory is busy
// with those behind it. Tickets rise along the ring, and whoever holds a smaller one publishes without waiting for a
// larger one: every wait ends. The launch begins while the chain is still being cleared, and copies meanwhile: whoever
// looks at the chain waits for that first.
//
// Tiles form chains, and a tile's place in its chain has three digits: the first `near` tiles make a section, `far`
// sections a group. What precedes a tile is the running total of the groups before, then the totals of its group's
// earlier sections, then of its section's earlier tiles, each by a fixed tree: the same bits in every run, and a chain
// of waits as short as there are groups. The last tile of a section or group publishes for all of it.
//
// A Plan says what a tile is: its Spot in a chain, how it is copied, summed and scanned, part by part. What is carried
// from part to part and from tile to tile is a value for each of `lanes` x `width` columns: lane l of a warp holds
// those from l * width on.
#pragma once
#include "block/lookback.cuh"
#include "block/pipeline.cuh"
#include "scan/elements.h"

namespace tp::scan::lookback {

// A Plan says how many warps sum and look, and in how many parts a tile is scanned, one a warp.
constexpr int load_warps = 2;

template <class Plan>
constexpr int pipeline_threads = (Plan::parts + Plan::sum_warps + Plan::look_warps + load_warps) * block::warp_size;

TP_HD inline int64_t quotient(int64_t a, int64_t b) {
  return (uint64_t(a) | uint64_t(b)) >> 32 ? a / b : int64_t(unsigned(a) / unsigned(b));
}

// Where a tile stands: in which chain, at what place of it, and the first place that it combines with.
struct Spot {
  int64_t tile;  // negative: there are no more
  int64_t chain, place, start;
  int64_t first;          // rows: the position of the first element
  int to_head;            // rows: how far from there the next head is, capped
  int64_t outer, column;  // strips: which of the outer dimension, and the first column
};

template <class Plan>
struct Stage {
  block::Barrier full, summed, ready, empty;
  Spot spot;
  typename Plan::Value total[Plan::parts][Plan::max_lanes], before[Plan::max_lanes];
  bool whole[Plan::parts];  // no row starts in the part
};

template <class Plan>
struct Pipe {
  using M = typename Plan::M;
  using Value = typename Plan::Value;  // block::Pack<M, width>
  using Cell = block::Cell<typename M::Acc>;
  static constexpr int parts = Plan::parts, sum_warps = Plan::sum_warps, look_warps = Plan::look_warps;
  const Plan& plan;
  const block::Chain<typename M::Acc>& chain;
  Stage<Plan>* stages;
  unsigned char* data;
  int depth, lane;

  TP_DEVICE unsigned char* bytes(int stage) const { return data + stage * plan.stage_bytes(); }

  TP_DEVICE void load(int warp) const {
    if (ordered()) block::wait_for_launch_before();
    int64_t ticket = warp == 0 && lane == 0 ? take_ticket(int64_t(blockIdx.x)) : 0;
    int ends = 0;
    for (block::Cursor at(depth); ends < look_warps; at.next()) {  // every looking warp meets an end
      Stage<Plan>& stage = stages[at.stage];
      stage.empty.wait(at.parity ^ 1);
      if (warp == 0 && lane == 0) {
        if (ticket < plan.tiles) {
          stage.spot = plan.spot(ticket);
          ticket = take_ticket(ticket + gridDim.x);
        } else {
          stage.spot.tile = -1;
        }
      }
      block::sync_warps(1, load_warps);
      const Spot spot = stage.spot;
      if (spot.tile < 0) {
        ++ends;
      } else {
        plan.load(spot, stage.full, bytes(at.stage), warp, lane);
      }
      stage.full.arrive_after_copies();
      stage.full.arrive();
    }
  }

  TP_DEVICE void sum(int warp) const {
    block::wait_for_launch_before();
    for (block::Cursor at(depth);; at.next()) {
      Stage<Plan>& stage = stages[at.stage];
      stage.full.wait(at.parity);
      const Spot spot = spot_of(stage);
      if (spot.tile < 0) return;
#pragma unroll 1
      for (int part = warp; part < parts; part += sum_warps) {
        bool whole = true;
        const Value total = plan.sum(spot, bytes(at.stage), part, lane, whole);
        if (lane < plan.lanes()) stage.total[part][lane] = total;
        if (lane == 0) stage.whole[part] = whole;
      }
      arrive(stage.summed, plan.summing_lanes());
      block::sync_warps(2, sum_warps);
      bool whole;
      if (warp == 0 && lane < plan.lanes() && chain.tickets) {
        publish(chain.tiles, spot.chain, spot.place, join_parts(stage, parts, Value::identity(), lane, whole));
      }
      arrive(stage.empty, plan.lanes());
    }
  }

  TP_DEVICE void look(int warp) const {
    block::wait_for_launch_before();
    block::Cursor at(depth);
    for (int i = 0; i < warp; ++i) at.next();
    for (;;) {
      Stage<Plan>& stage = stages[at.stage];
      stage.full.wait(at.parity);
      const Spot spot = spot_of(stage);
      if (spot.tile < 0) return;
      const Value before = look_back(stage, spot, at.parity);
      if (lane < plan.lanes()) stage.before[lane] = before;
      arrive(stage.ready, plan.lanes());
      arrive(stage.empty, plan.lanes());
      for (int i = 0; i < look_warps; ++i) at.next();
    }
  }

  TP_DEVICE void scan(int part) const {
    for (block::Cursor at(depth);; at.next()) {
      Stage<Plan>& stage = stages[at.stage];
      stage.full.wait(at.parity);
      const Spot spot = spot_of(stage);
      if (spot.tile < 0) return;
      plan.scan(spot, bytes(at.stage), part, lane, [&] {
        stage.summed.wait(at.parity);
        stage.ready.wait(at.parity);
        Value before = Value::identity();
        bool whole;
        if (lane < plan.lanes()) before = join_parts(stage, part, stage.before[lane], lane, whole);
        return block::broadcast(before, lane % plan.lanes());
      });
      arrive(stage.empty, plan.lanes());
    }
  }

 private:
  TP_DEVICE Spot spot_of(const Stage<Plan>& stage) const {
    Spot spot{};
    if (lane == 0) spot = stage.spot;
    return block::broadcast(spot, 0);
  }
  TP_DEVICE void arrive(block::Barrier& barrier, int lanes) const {
    __syncwarp();
    if (lane < lanes) barrier.arrive();
  }
  // Where no tile has one before it, or every block takes one tile and so all run at once, blocks need no order.
  TP_DEVICE bool ordered() const { return chain.tickets && plan.tiles > gridDim.x; }
  TP_DEVICE int64_t take_ticket(int64_t turn) const {
    return ordered() ? int64_t(atomicAdd(chain.tickets, 1ull)) : turn;
  }

  // `before`, then the first `n` parts, from the last head on; `whole`: no row starts in them.
  TP_DEVICE static Value join_parts(const Stage<Plan>& stage, int n, Value before, int mine, bool& whole) {
    whole = true;
#pragma unroll
    for (int i = 0; i < parts; ++i) {
      if (i >= n) break;
      const bool joined = Plan::headless || stage.whole[i];
      before = joined ? Value::combine(before, stage.total[i][mine]) : stage.total[i][mine];
      whole = whole && joined;
    }
    return before;
  }

  TP_DEVICE Cell* at(Cell* cells, int64_t chain, int64_t place, int mine) const {
    return cells + ((place * plan.chains() + chain) * plan.lanes() + mine) * Plan::width;
  }
  TP_DEVICE void publish(Cell* cells, int64_t chain, int64_t place, const Value& value) const {
#pragma unroll
    for (int v = 0; v < Plan::width; ++v) at(cells, chain, place, lane)[v].publish(value.v[v]);
  }

  // Combines the cells from place `from` up to `to`, at most `near` or `far` of them: the lanes of a column share them,
  // ask for several at once, and the first of the lanes gets the result.
  TP_DEVICE Value gather(Cell* cells, int64_t chain, int64_t from, int64_t to, int most) const {
    constexpr int batch = 4;
    const int lanes = plan.lanes(), mine = lane % lanes, each = tp::max(1, most * lanes / block::warp_size);
    const int64_t first = from + lane / lanes * each, last = tp::min(first + each, to);
    Value sum = Value::identity();
    for (int64_t t = first; t < last; t += batch) {
      Value value[batch];
      bool there;
      do {
        there = true;
#pragma unroll
        for (int i = 0; i < batch; ++i) {
#pragma unroll
          for (int v = 0; v < Plan::width; ++v) {
            value[i].v[v] = t + i < last ? at(cells, chain, t + i, mine)[v].peek(there) : M::identity();
          }
        }
      } while (!there);
#pragma unroll
      for (int i = 0; i < batch; ++i) sum = Value::combine(sum, value[i]);
    }
    __syncwarp();
    for (int stride = lanes; stride < block::warp_size; stride *= 2) {
      sum = Value::combine(sum, block::shuffle_down(sum, stride));
    }
    return sum;
  }

  // What precedes the tile of a stage; lane l < lanes gets it.
  TP_DEVICE Value look_back(Stage<Plan>& stage, const Spot& spot, unsigned parity) const {
    if (!chain.tickets) {
      stage.summed.wait(parity);
      return plan.origin(spot, lane);
    }
    const int near = plan.near, far = plan.far;
    Cell *sections = chain.groups, *groups = sections + plan.sections() * plan.chains() * plan.lanes() * Plan::width;
    const int64_t section = spot.place / near, group = section / far;
    Value before = gather(chain.tiles, spot.chain, tp::max(spot.start, section * near), spot.place, near);
    stage.summed.wait(parity);
    bool whole = true;
    const bool ends_section = spot.place % near == near - 1;
    Value total = Value::identity();
    if (lane < plan.lanes() && ends_section) {
      total = join_parts(stage, parts, Value::identity(), lane, whole);
      if (far > 1) publish(sections, spot.chain, section, whole ? Value::combine(before, total) : total);
    }
    __syncwarp();
    if (far > 1) {
      const Value earlier = gather(sections, spot.chain, tp::max(spot.start / near, group * far), section, far);
      before = Value::combine(earlier, before);
    }
    if (lane < plan.lanes()) {
      Value earlier = plan.origin(spot, lane);
      if (spot.start < group * far * near) {
#pragma unroll
        for (int v = 0; v < Plan::width; ++v) earlier.v[v] = at(groups, spot.chain, group - 1, lane)[v].wait();
      }
      before = Value::combine(earlier, before);
      if (ends_section && section % far == far - 1) {
        publish(groups, spot.chain, group, whole ? Value::combine(before, total) : total);
      }
    }
    return before;
  }
};

template <class Plan>
__global__ __launch_bounds__(pipeline_threads<Plan>,
                             1) void pipeline_kernel(const Plan plan, const block::Chain<typename Plan::M::Acc> chain,
                                                     int depth) {
  constexpr int parts = Plan::parts, sum_warps = Plan::sum_warps, look_warps = Plan::look_warps;
  extern __shared__ __align__(128) unsigned char memory[];
  auto* stages = reinterpret_cast<Stage<Plan>*>(memory + depth * plan.stage_bytes());
  if (threadIdx.x < depth) {
    Stage<Plan>& stage = stages[threadIdx.x];
    stage.full.init(2 * load_warps * block::warp_size);
    stage.summed.init(sum_warps * plan.summing_lanes());
    stage.ready.init(plan.lanes());
    stage.empty.init((parts + sum_warps + 1) * plan.lanes());
  }
  __syncthreads();
  const int warp = int(threadIdx.x) / block::warp_size;
  const Pipe<Plan> pipe{plan, chain, stages, memory, depth, int(threadIdx.x) % block::warp_size};
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

template <class Plan>
void launch_pipeline(const Plan& plan, Context& context) {
  using Acc = typename Plan::M::Acc;
  constexpr int look_warps = Plan::look_warps;
  const int stage_bytes = plan.stage_bytes() + int(sizeof(Stage<Plan>));
  const int most = block::device_attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>() / stage_bytes;
  require(most >= look_warps, "decoupled_lookback: this device has too little shared memory");
  const int64_t grid = tp::min(plan.tiles, int64_t(block::device_attribute<cudaDevAttrMultiProcessorCount>()));
  const int depth = int(tp::min(int64_t(most), tp::max(ceil_div(plan.tiles, grid), int64_t(look_warps))));
  const int64_t sections = plan.sections(), groups = ceil_div(sections, int64_t(plan.far));
  const int64_t columns = plan.chains() * plan.lanes() * Plan::width;
  block::Chain<Acc> chain{};
  cudaFuncSetAttribute(pipeline_kernel<Plan>, cudaFuncAttributeMaxDynamicSharedMemorySize, most * stage_bytes);
  if (plan.independent()) {
    pipeline_kernel<Plan>
        <<<unsigned(grid), pipeline_threads<Plan>, size_t(depth * stage_bytes), cudaStream_t(context.stream)>>>(
            plan, chain, depth);
  } else {
    chain = block::make_chain<Acc>(context, plan.tiles / plan.chains() * columns, (sections + groups) * columns);
    block::launch_early(pipeline_kernel<Plan>, grid, pipeline_threads<Plan>, depth * stage_bytes, context, plan, chain,
                        depth);
  }
  check_launch("decoupled_lookback");
}

}  // namespace tp::scan::lookback
