// What "auto" means: on the device, the rung that is balanced whatever the lengths of the rows and gives the same bits
// in every run; formats.def names it for each format. On the CPU, `threaded`.
#include "sparse/sparse.h"
#include "sparse/spgemm.h"

namespace tp {
namespace {

const char* on(const Device& device, const char* cuda) { return device.cuda ? cuda : "threaded"; }

// The rung on the device: the one that formats.def lists, unless the problem calls for another.
const char* cuda_rung(const sparse::Args&, const char* listed) { return listed; }
const char* cuda_rung(const sparse::CsrArgs& args, const char* listed) {
  // merge_path takes three launches and scratch memory, which is 25 us of host time on an H200, where torch's product
  // takes 17 us. With so few entries no warp is busy for long, however they are distributed over rows, so one launch of
  // warp_per_row is faster.
  constexpr int64_t few_entries = 1 << 12;
  return args.entries <= few_entries ? "warp_per_row" : listed;
}

}  // namespace

// A deterministic product of CSC does not get here: csrc/torch multiplies it by a plan, through the ladder of CSR.
#define FORMAT(name, cuda, ...) \
  const char* spmv_##name::choose(const Args& args, const Device& device) { return on(device, cuda_rung(args, cuda)); }
#include "sparse/formats.def"
#undef FORMAT
const char* sampled_product::choose(const Args&, const Device& device) { return on(device, "lanes_per_entry"); }
const char* spgemm::choose(const Args&, const Device& device) { return on(device, "hash_per_row"); }

}  // namespace tp
