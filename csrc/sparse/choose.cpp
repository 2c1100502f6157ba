// What "auto" means: on the device, the rung that gives the same bits in every run, whatever the lengths of the rows.
// formats.def names it for each format.
#include "sparse/sparse.h"
#include "sparse/spgemm.h"

namespace tp {
namespace {

const char* on(const Device& device, const char* cuda) { return device.cuda ? cuda : "threaded"; }

// The rung on the device: what formats.def lists, unless the problem says otherwise.
const char* cuda_rung(const sparse::Args&, const char* listed) { return listed; }
const char* cuda_rung(const sparse::CsrArgs& args, const char* listed) {
  // merge_path takes three launches and scratch memory: 25 us of host time on an H200, where torch's product takes 17
  // us. So few entries do not keep any warp busy for long, whatever their rows, and are multiplied in one launch.
  constexpr int64_t few_entries = 1 << 12;
  return args.entries <= few_entries ? "warp_per_row" : listed;
}

}  // namespace

// csrc/torch sends a product of CSC that must be deterministic through a plan, and so to the ladder of CSR.
#define FORMAT(name, cuda, ...) \
  const char* spmv_##name::choose(const Args& args, const Device& device) { return on(device, cuda_rung(args, cuda)); }
#include "sparse/formats.def"
#undef FORMAT
const char* sampled_product::choose(const Args&, const Device& device) { return on(device, "lanes_per_entry"); }
const char* spgemm::choose(const Args&, const Device& device) { return on(device, "expand_sort_compress"); }

}  // namespace tp
