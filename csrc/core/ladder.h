// The ladder of a pattern: its rungs in textbook order. rungs.def is the only list of them; ladder.inc turns it into
// declarations and into this table, in which csrc/torch looks up names and which Python reads.
#pragma once
#include <string_view>
#include <vector>

#include "core/context.h"

namespace tp {

struct RungInfo {
  const char* name;
  const char* source;  // section or figure of the book, number of another seed text, or "beyond"
  const char* figures;
  const char* work;   // number of operations, as a function of n
  const char* steps;  // length of the longest chain of dependent operations
  // Facts that tests and docs read: batched commutative float_atomics host_sync mixes_neighbours norm_wise quadratic.
  const char* traits;
  const char* summary;
  const char* written_for;  // "cpu", "cuda" or both, "cpu cuda"
  bool cpu, cuda;           // whether this build offers it on each device
};

template <class Args>
struct Rung : RungInfo {
  void (*run)(const Args&, Context&);
};

#ifdef TP_WITH_CUDA
constexpr bool with_cuda = true;
#else
constexpr bool with_cuda = false;
#endif

// The rung that `algorithm` names; an unknown or unavailable name is an error that lists what this device offers.
template <class Ladder>
const auto& find(const Ladder& ladder, const char* pattern, std::string_view algorithm, bool cuda) {
  const auto offers = [&](const RungInfo& rung) { return cuda ? rung.cuda : rung.cpu; };
  for (const auto& rung : ladder) {
    if (offers(rung) && algorithm == rung.name) return rung;
  }
  std::string offered;
  bool known = false;
  for (const auto& rung : ladder) {
    known = known || algorithm == rung.name;
    if (offers(rung)) offered += std::string(", ") + rung.name;
  }
  const char* device = cuda ? "cuda" : "cpu";
  if (!known) {
    fail(ErrorKind::value, pattern, ": unknown algorithm '", algorithm, "'; choose on ", device, " from: auto",
         offered);
  }
  fail(ErrorKind::value, pattern, ": algorithm '", algorithm, "' is not available on ", device, "; choose from: auto",
       offered);
}

}  // namespace tp
