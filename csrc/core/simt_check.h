// The checked mode of the host's simt: breaking a rule of block algorithms is an error that names the array, the
// element, the lanes and the phase. It records the accesses to every element, and orders them by happens-before: a
// later phase of a block follows an earlier one, and a wait() follows its signal(). Two unordered accesses to one
// element are a race if at least one of them writes and they are not both atomic, in whatever order the lanes ran.
// Shared memory starts unwritten. Indices are checked against array bounds, and launches against CUDA's limits.
//
// A Session turns the mode on for this host thread, chooses the order of lanes and blocks, and may observe every phase.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/op.h"

namespace tp {
constexpr int64_t max_grid = 2147483647;  // CUDA's limit on the blocks of a launch, along x
}  // namespace tp

namespace tp::simt {

struct Dim {
  int64_t x = 1, y = 1, z = 1;
};

enum class Sharing {
  exclusive,
  idempotent
};  // idempotent: concurrent writes of the same value, and reads of it, are no race
enum class Order { forward, reverse, shuffle };

constexpr int64_t max_shared_bytes = 48 * 1024;
TP_EXPORT void check_limits(const char* kernel, Dim grid, int threads, int64_t shared_bytes);

// The values of an array after a phase, as numbers. The components of an element follow each other.
struct Snapshot {
  std::string array;
  int components;
  std::vector<double> values;
  std::vector<bool> written;
};

struct Phase {
  std::string kernel, name;
  int64_t block;
  int number;
  std::vector<Snapshot> shared;
};

struct Session {
  Order order = Order::forward;
  uint64_t seed = 0;
  std::function<void(const Phase&)> observer;
};

// The session of this host thread, or null if there is none and nothing is checked.
TP_EXPORT Session*& session();

class LaunchCheck;

// One array that is checked.
class TP_EXPORT Tracked {
 public:
  const std::string name;
  const Sharing sharing;

  Tracked(LaunchCheck& launch, std::string name, int64_t n, bool shared, Sharing sharing);
  // Each of these checks the index first.
  void read(int64_t i);
  void write(int64_t i);
  void write(int64_t i, const void* element, const void* value, size_t size);  // writes a value of that many bytes
  void atomic(int64_t i);
  bool written(int64_t i) const { return !cells_[size_t(i)].writers.empty(); }

  std::function<void(Snapshot&)> values;  // appends the array's values for an observer

 private:
  enum class Kind { read, write, atomic };
  struct Access {
    int64_t block;
    int phase, lane, other_lane;  // other_lane: a second lane of that phase, or -1
    Kind kind;
  };
  struct Cell {
    std::vector<Access> writers, readers;  // at most one per block: its latest phase, which implies the earlier ones
  };
  void bound(int64_t i) const;
  void against(const std::vector<Access>& earlier, int64_t i, Kind kind) const;
  void note(std::vector<Access>& accesses, Kind kind);
  Cell& cell(int64_t i);

  friend class LaunchCheck;
  LaunchCheck& launch_;
  const bool shared_;
  std::vector<Cell> cells_;
};

// A launch that is checked: which block, phase and lane is running, and what each block is ordered after.
class TP_EXPORT LaunchCheck {
 public:
  // Returns null when no session is active.
  static std::unique_ptr<LaunchCheck> make(const char* kernel, Dim grid, int threads, int64_t shared_bytes);
  ~LaunchCheck();

  int64_t begin_block(int64_t i);  // returns which block runs i-th
  void end_block();
  void begin_phase(const char* name);
  void end_phase();
  int enter_lane(int i);  // returns which lane runs i-th
  void same(bool equal) const;

  template <class T>
  Tracked* shared(const char* name, T* data, int64_t n, int64_t used) {
    Tracked* tracked = add_shared(name, n, used);
    describe(*tracked, data, n);
    return tracked;
  }
  Tracked* global(const char* name, const void* data, int64_t n, Sharing sharing);
  void acquire(Tracked* flags, int64_t i);
  void release(Tracked* flags, int64_t i);

 private:
  friend class Tracked;
  struct Moment {
    // Everything up to here has happened: all earlier phases, and what this lane did in this phase.
    int phase = -1, lane = -1;
  };
  using Clock = std::map<int64_t, Moment>;  // per block, how much of it happened before

  LaunchCheck(const char* kernel, Dim grid, int threads, int64_t shared_bytes);
  Tracked* add_shared(const char* name, int64_t n, int64_t used);
  std::string where() const;
  void observe();
  static void merge(Clock& into, const Clock& from);

  template <class T>
  static void describe(Tracked& tracked, T* data, int64_t n) {
    tracked.values = [data, n](Snapshot& out) {
      for (int64_t i = 0; i < n; ++i) {
        out.components = 0;
        append(out, data[i]);
      }
    };
  }
  template <class T>
  static constexpr bool has_four_members(decltype(T{{}, {}, {}, {}})*) {
    return true;
  }
  template <class T>
  static constexpr bool has_four_members(...) {
    return false;
  }
  template <class T>
  static void append(Snapshot& out, const T& v) {
    if constexpr (std::is_convertible<T, double>::value) {
      ++out.components;
      out.values.push_back(double(v));
    } else if constexpr (has_four_members<T>(nullptr)) {
      const auto& [first, second, third, fourth] = v;
      append(out, first);
      append(out, second);
      append(out, third);
      append(out, fourth);
    } else {
      const auto& [first, second] = v;
      append(out, first);
      append(out, second);
    }
  }

  std::string kernel_;
  int threads_;
  int64_t blocks_, shared_bytes_;
  Session& session_;
  std::vector<int64_t> block_order_;
  std::vector<int> lane_order_;
  std::vector<std::unique_ptr<Tracked>> shared_;
  std::map<const void*, std::unique_ptr<Tracked>> globals_;
  std::map<std::pair<Tracked*, int64_t>, Clock> flags_;

  int64_t block_ = -1;
  int phase_ = -1, lane_ = -1;  // lane -1: between phases
  bool in_phase_ = false;
  std::string phase_name_;
  Clock clock_;  // of the running block: what all its lanes are ordered after
  // Per lane, what it has waited for in this phase; it joins the block's clock in the next phase.
  std::map<int, Clock> acquired_;
};

}  // namespace tp::simt
