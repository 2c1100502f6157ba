// What "auto" means: on the device, the rung that gives the same bits in every run, whatever the lengths of the rows.
#include "sparse/sparse.h"
#include "sparse/spgemm.h"

namespace tp {
namespace {

const char* on(const Device& device, const char* cuda) { return device.cuda ? cuda : "threaded"; }

}  // namespace

const char* spmv_coo::choose(const Args&, const Device& device) { return on(device, "segmented"); }
const char* spmv_csr::choose(const Args& args, const Device& device) {
  // merge_path takes three launches and scratch memory: 25 us of host time on an H200, where torch's product takes 17
  // us. So few entries do not keep any warp busy for long, whatever their rows, and are multiplied in one launch.
  constexpr int64_t few_entries = 1 << 12;
  return on(device, args.entries <= few_entries ? "warp_per_row" : "merge_path");
}
// csrc/torch sends a product that must be deterministic through a plan, and so to the ladder of CSR.
const char* spmv_csc::choose(const Args&, const Device& device) { return on(device, "thread_per_column"); }
const char* spmv_ell::choose(const Args&, const Device& device) { return on(device, "thread_per_row"); }
const char* spmv_hyb::choose(const Args&, const Device& device) { return on(device, "ell_plus_segments"); }
const char* spmv_jds::choose(const Args&, const Device& device) { return on(device, "thread_per_row"); }
const char* spmv_sell::choose(const Args&, const Device& device) { return on(device, "thread_per_row"); }
const char* spmv_blocked::choose(const Args&, const Device& device) { return on(device, "two_stages"); }
const char* sampled_product::choose(const Args&, const Device& device) { return on(device, "lanes_per_entry"); }
const char* spgemm::choose(const Args&, const Device& device) { return on(device, "expand_sort_compress"); }

}  // namespace tp
