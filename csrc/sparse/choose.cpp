#include "sparse/sparse.h"

namespace tp {

const char* spmv_coo::choose(const Args&, const Device&) { return "threaded"; }
const char* spmv_csr::choose(const Args&, const Device&) { return "threaded"; }
const char* spmv_csc::choose(const Args&, const Device&) { return "threaded"; }
const char* spmv_ell::choose(const Args&, const Device&) { return "threaded"; }
const char* spmv_hyb::choose(const Args&, const Device&) { return "threaded"; }
const char* spmv_jds::choose(const Args&, const Device&) { return "threaded"; }
const char* spmv_sell::choose(const Args&, const Device&) { return "threaded"; }
const char* sampled_product::choose(const Args&, const Device&) { return "threaded"; }

}  // namespace tp
