#include "core/simt_host.h"

namespace tp::simt {

void run_blocks(const char* name, Dim grid, int threads, int64_t shared_bytes, const void* kernel,
                void (*run)(const void* kernel, HostBlock& block)) {
  const std::unique_ptr<LaunchCheck> check = LaunchCheck::make(name, grid, threads, shared_bytes);
  const std::unique_ptr<double[]> pool(new double[size_t(shared_bytes / 8 + 3)]);
  char* aligned = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(pool.get()) + 15) / 16 * 16);
  const int64_t blocks = grid.x * grid.y * grid.z;
  for (int64_t i = 0; i < blocks; ++i) {
    const int64_t id = check ? check->begin_block(i) : i;
    HostBlock block(check.get(), {id % grid.x, id / grid.x % grid.y, id / (grid.x * grid.y)}, grid, threads, aligned);
    run(kernel, block);
    if (check) check->end_block();
  }
}

}  // namespace tp::simt
