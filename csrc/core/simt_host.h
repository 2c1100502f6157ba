// The host half of simt.h: a block is a loop over its lanes, and a grid is a loop over its blocks. In checked mode
// every access goes through simt_check.h first; otherwise an array is a plain pointer with one branch that is never
// taken.
#pragma once
#include <memory>
#include <vector>

#include "core/op.h"
#include "core/simt_check.h"

namespace tp::simt {

template <class T>
class HostRef {
  using Value = typename std::remove_const<T>::type;

 public:
  HostRef(T* p, Tracked* tracked, int64_t i) : p_(p), tracked_(tracked), i_(i) {}
  HostRef(const HostRef&) = delete;
  operator Value() const&& {  // rvalues only: `auto v = s[t]` would read when used, not when written
    if (tracked_) tracked_->read(i_);
    return *p_;
  }
  void operator=(Value v) const&& {
    if (tracked_) tracked_->write(i_, p_, &v, sizeof(Value));
    *p_ = v;
  }
  void operator=(HostRef&& other) && { std::move(*this) = Value(std::move(other)); }
  void operator+=(Value v) const&& {
    if (tracked_) tracked_->read(i_), tracked_->write(i_);
    *p_ = Value(*p_ + v);
  }

 private:
  T* p_;
  Tracked* tracked_;
  int64_t i_;
};

template <class T>
class HostArray {
 public:
  HostArray(T* data, Tracked* tracked) : data_(data), tracked_(tracked) {}
  HostRef<T> operator[](int64_t i) const { return HostRef<T>(data_ + i, tracked_, i); }
  template <class U>
  HostArray<U> as() const {
    return {reinterpret_cast<U*>(data_), tracked_};
  }
  template <class Op>
  T atomic(int64_t i, T v) const {
    if (tracked_) tracked_->atomic(i);
    const T before = data_[i];
    data_[i] = Op::combine(before, v);
    return before;
  }
  T* data() const { return data_; }
  Tracked* tracked() const { return tracked_; }

 private:
  T* data_;
  Tracked* tracked_;
};

// One value per lane, initially zero. A lane can access only its own value, so nothing has to be checked.
template <class T>
class HostPerLane {
 public:
  explicit HostPerLane(int threads) : values_(new T[unsigned(threads)]()) {}
  T& operator[](int lane) { return values_[size_t(lane)]; }

 private:
  std::unique_ptr<T[]> values_;
};

class HostBlock {
 public:
  HostBlock(LaunchCheck* check, Dim index, Dim grid, int threads, char* pool)
      : check_(check), index_(index), grid_(grid), threads_(threads), pool_(pool) {}

  Dim index() const { return index_; }
  Dim grid() const { return grid_; }
  int threads() const { return threads_; }

  template <class T>
  HostArray<T> shared(const char* name, int n) {
    const int64_t begin = ceil_div(used_, int64_t(alignof(T))) * int64_t(alignof(T));
    used_ = begin + int64_t(n) * int64_t(sizeof(T));
    T* data = reinterpret_cast<T*>(pool_ + begin);
    return {data, check_ ? check_->shared(name, data, n, used_) : nullptr};
  }
  template <class T>
  HostArray<T> global(const char* name, T* data, int64_t n, Sharing sharing = Sharing::exclusive) {
    return {data, check_ ? check_->global(name, data, n, sharing) : nullptr};
  }
  template <class T>
  HostPerLane<T> per_lane(const char*) {
    return HostPerLane<T>(threads_);
  }

  // f is called in one place only, so that each kernel body is compiled once per kernel, dtype and operator.
  template <class F>
  void phase(const char* name, F f) {
    if (check_) check_->begin_phase(name);
    for (int i = 0; i < threads_; ++i) f(check_ ? check_->enter_lane(i) : i);
    if (check_) check_->end_phase();
  }
  template <class F>
  auto uniform(const char* name, F f) {
    if (check_) check_->begin_phase(name);
    decltype(f()) value{};
    for (int i = 0; i < (check_ ? threads_ : 1); ++i) {
      if (check_) check_->enter_lane(i);
      const auto found = f();
      if (i == 0) value = found;
      if (check_) check_->same(memcmp_equal(value, found));
    }
    if (check_) check_->end_phase();
    return value;
  }
  int64_t ticket(HostArray<int64_t> counter) {
    auto mine = shared<int64_t>("ticket", 1);
    phase("ticket", [&](int t) {
      if (t == 0) mine[0] = counter.template atomic<Sum<int64_t>>(0, 1);
    });
    return uniform("ticket", [&] { return int64_t(mine[0]); });
  }
  void wait(HostArray<int> flags, int64_t i) {
    if (check_) check_->acquire(flags.tracked(), i);
    require(flags.data()[i] != 0, "simt: a block waits for flag ", i, ", which no block has set: deadlock");
  }
  void signal(HostArray<int> flags, int64_t i) {
    if (check_) check_->release(flags.tracked(), i);
    flags.data()[i] = 1;
  }

 private:
  template <class T>
  static bool memcmp_equal(const T& a, const T& b) {
    return memcmp(&a, &b, sizeof(T)) == 0;
  }

  LaunchCheck* check_;
  Dim index_, grid_;
  int threads_;
  char* pool_;
  int64_t used_ = 0;
};

// Calls run(kernel, block) for every block of the grid.
TP_EXPORT void run_blocks(const char* name, Dim grid, int threads, int64_t shared_bytes, const void* kernel,
                          void (*run)(const void* kernel, HostBlock& block));

template <class Kernel>
void run_on_host(const char* name, Dim grid, int threads, int64_t shared_bytes, const Kernel& kernel) {
  run_blocks(name, grid, threads, shared_bytes, &kernel,
             [](const void* given, HostBlock& block) { (*static_cast<const Kernel*>(given))(block); });
}

}  // namespace tp::simt
