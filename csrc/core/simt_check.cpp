#include "core/simt_check.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

namespace tp::simt {

Session*& session() {
  static thread_local Session* current = nullptr;
  return current;
}

void check_limits(const char* kernel, Dim grid, int threads, int64_t shared_bytes) {
  require(threads >= 1 && threads <= 1024, kernel, ": ", threads, " threads per block; CUDA takes 1 to 1024");
  require(shared_bytes <= max_shared_bytes, kernel, ": ", shared_bytes,
          " bytes of shared memory per block; 49152 at most");
  require(grid.x <= max_grid && grid.y <= 65535 && grid.z <= 65535, kernel, ": a grid of ", grid.x, " x ", grid.y,
          " x ", grid.z, " blocks; CUDA takes 2147483647 x 65535 x 65535 at most");
}

Tracked::Tracked(LaunchCheck& launch, std::string name, int64_t n, bool shared, Sharing sharing)
    : name(std::move(name)), sharing(sharing), launch_(launch), shared_(shared), cells_(size_t(n)) {}

void Tracked::bound(int64_t i) const {
  if (i >= 0 && i < int64_t(cells_.size())) return;
  fail(ErrorKind::runtime, launch_.where(), ": index ", i, " is outside ", shared_ ? "shared" : "global", " array '",
       name, "' of ", cells_.size(), " elements");
}

Tracked::Cell& Tracked::cell(int64_t i) {
  if (!launch_.in_phase_) fail(ErrorKind::runtime, launch_.where(), ": array '", name, "' is touched outside a phase");
  return cells_[size_t(i)];
}

void Tracked::read(int64_t i) {
  bound(i);
  Cell& c = cell(i);
  if (shared_ && c.writers.empty())
    fail(ErrorKind::runtime, launch_.where(), ": lane ", launch_.lane_, " reads shared array '", name, "' at [", i,
         "], which nothing has written");
  if (sharing == Sharing::idempotent) return;
  against(c.writers, i, Kind::read);
  note(c.readers, Kind::read);
}

void Tracked::write(int64_t i, const void* element, const void* value, size_t size) {
  bound(i);
  if (sharing != Sharing::idempotent || memcmp(element, value, size) != 0) write(i);
}

void Tracked::write(int64_t i) {
  bound(i);
  Cell& c = cell(i);
  against(c.writers, i, Kind::write);
  against(c.readers, i, Kind::write);
  c.readers.clear();
  c.writers.clear();
  note(c.writers, Kind::write);
}

void Tracked::atomic(int64_t i) {
  bound(i);
  Cell& c = cell(i);
  against(c.writers, i, Kind::atomic);
  against(c.readers, i, Kind::atomic);
  note(c.writers, Kind::atomic);
}

void Tracked::against(const std::vector<Access>& earlier, int64_t i, Kind kind) const {
  static const char* const verbs[] = {"reads", "writes", "atomically updates"};
  static const char* const past[] = {"read", "wrote", "atomically updated"};
  const LaunchCheck& now = launch_;
  for (const Access& a : earlier) {
    if (a.kind == Kind::atomic && kind == Kind::atomic) continue;
    int lane = a.lane == now.lane_ && a.block == now.block_ ? a.other_lane
                                                            : a.lane;  // the lane that this access could conflict with
    if (a.block == now.block_) {
      if (a.phase < now.phase_ || lane < 0) continue;
      fail(ErrorKind::runtime, now.where(), ": race on ", shared_ ? "shared" : "global", " array '", name, "' at [", i,
           "]: lane ", now.lane_, " ", verbs[int(kind)], " what lane ", lane, " ", past[int(a.kind)],
           " in the same phase, with no barrier between");
    }
    auto ordered = [&](const LaunchCheck::Clock& clock) {
      const auto m = clock.find(a.block);
      return m != clock.end() && (a.phase < m->second.phase ||
                                  (a.phase == m->second.phase && a.lane == m->second.lane && a.other_lane < 0));
    };
    const auto mine = now.acquired_.find(now.lane_);
    if (ordered(now.clock_) || (mine != now.acquired_.end() && ordered(mine->second))) continue;
    fail(ErrorKind::runtime, now.where(), ": race on global array '", name, "' at [", i, "]: block ", now.block_,
         " (lane ", now.lane_, ") ", verbs[int(kind)], " what block ", a.block, " (lane ", a.lane, ") ",
         past[int(a.kind)], ", and no flag or launch orders the two");
  }
}

void Tracked::note(std::vector<Access>& accesses, Kind kind) {
  for (Access& a : accesses) {
    if (a.block != launch_.block_) continue;
    if (a.phase != launch_.phase_) {
      a = {launch_.block_, launch_.phase_, launch_.lane_, -1, kind};
    } else if (a.lane != launch_.lane_) {
      a.other_lane = a.lane;
      a.lane = launch_.lane_;
    }
    return;
  }
  accesses.push_back({launch_.block_, launch_.phase_, launch_.lane_, -1, kind});
}

std::unique_ptr<LaunchCheck> LaunchCheck::make(const char* kernel, Dim grid, int threads, int64_t shared_bytes) {
  if (!session()) return nullptr;
  return std::unique_ptr<LaunchCheck>(new LaunchCheck(kernel, grid, threads, shared_bytes));
}

LaunchCheck::LaunchCheck(const char* kernel, Dim grid, int threads, int64_t shared_bytes)
    : kernel_(kernel),
      threads_(threads),
      blocks_(grid.x * grid.y * grid.z),
      shared_bytes_(shared_bytes),
      session_(*session()),
      block_order_(size_t(blocks_)),
      lane_order_(size_t(threads)) {
  std::iota(block_order_.begin(), block_order_.end(), 0);
  std::iota(lane_order_.begin(), lane_order_.end(), 0);
  if (session_.order == Order::reverse) {
    std::reverse(block_order_.begin(), block_order_.end());
    std::reverse(lane_order_.begin(), lane_order_.end());
  } else if (session_.order == Order::shuffle) {
    std::mt19937_64 random(session_.seed++);
    std::shuffle(block_order_.begin(), block_order_.end(), random);
    std::shuffle(lane_order_.begin(), lane_order_.end(), random);
  }
}

LaunchCheck::~LaunchCheck() = default;

int64_t LaunchCheck::begin_block(int64_t i) {
  block_ = block_order_[size_t(i)];
  phase_ = -1;
  clock_.clear();
  shared_.clear();
  return block_;
}

void LaunchCheck::end_block() { shared_.clear(); }

void LaunchCheck::begin_phase(const char* name) {
  if (in_phase_)
    fail(ErrorKind::runtime, where(), ": phase '", name, "' begins inside it: a barrier in divergent code");
  ++phase_;
  phase_name_ = name;
  in_phase_ = true;
}

void LaunchCheck::end_phase() {
  in_phase_ = false;
  lane_ = -1;
  for (const auto& entry : acquired_) merge(clock_, entry.second);
  acquired_.clear();
  if (session_.observer) observe();
}

int LaunchCheck::enter_lane(int i) { return lane_ = lane_order_[size_t(i)]; }

void LaunchCheck::same(bool equal) const {
  if (!equal)
    fail(ErrorKind::runtime, where(), ": lanes 0 and ", lane_, " disagree on a value that the whole block must share");
}

Tracked* LaunchCheck::add_shared(const char* name, int64_t n, int64_t used) {
  require(used <= shared_bytes_, kernel_, ": shared arrays up to '", name, "' take ", used,
          " bytes, the launch asked for ", shared_bytes_);
  shared_.push_back(std::make_unique<Tracked>(*this, name, n, true, Sharing::exclusive));
  return shared_.back().get();
}

Tracked* LaunchCheck::global(const char* name, const void* data, int64_t n, Sharing sharing) {
  auto& tracked = globals_[data];
  if (!tracked) tracked = std::make_unique<Tracked>(*this, name, n, false, sharing);
  return tracked.get();
}

void LaunchCheck::acquire(Tracked* flags, int64_t i) {
  flags->bound(i);
  const auto released = flags_.find({flags, i});
  if (released == flags_.end()) {
    fail(ErrorKind::runtime, where(), ": waits for ", flags->name, "[", i, "], which no block has set: deadlock");
  }
  merge(acquired_[lane_], released->second);
}

void LaunchCheck::release(Tracked* flags, int64_t i) {
  flags->bound(i);
  Clock snapshot = clock_;
  const auto mine = acquired_.find(lane_);
  if (mine != acquired_.end()) merge(snapshot, mine->second);
  snapshot[block_] = {phase_, lane_};
  merge(flags_[{flags, i}], snapshot);
}

void LaunchCheck::merge(Clock& into, const Clock& from) {
  for (const auto& entry : from) {
    Moment& m = into[entry.first];
    if (entry.second.phase > m.phase) m = entry.second;
  }
}

std::string LaunchCheck::where() const {
  std::ostringstream out;
  out << kernel_ << ", block " << block_ << ", phase " << phase_;
  if (!phase_name_.empty()) out << " (" << phase_name_ << ")";
  return out.str();
}

void LaunchCheck::observe() {
  Phase phase{kernel_, phase_name_, block_, phase_, {}};
  for (const auto& tracked : shared_) {
    Snapshot snapshot{tracked->name, 1, {}, {}};
    tracked->values(snapshot);
    const int64_t n = int64_t(snapshot.values.size()) / snapshot.components;
    for (int64_t i = 0; i < n; ++i) snapshot.written.push_back(tracked->written(i));
    phase.shared.push_back(std::move(snapshot));
  }
  session_.observer(phase);
}

}  // namespace tp::simt
