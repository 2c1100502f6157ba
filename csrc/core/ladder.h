// The ladder of a pattern: its rungs (algorithms) in textbook order. rungs.def is the only list of them. ladder.inc
// turns it into declarations and into the table `ladder`, in which csrc/torch finds a rung by its name and which Python
// reads.
#pragma once
#include <iterator>
#include <string_view>
#include <vector>

#include "core/context.h"

namespace tp {

// Facts about a rung on which callers, tests and docs act.
enum Trait : unsigned {
  batched = 1,            // takes many rows in one launch, where other rungs launch once per row
  commutative = 2,        // combines elements out of order, so the operator must be commutative
  float_atomics = 4,      // adds floats in an undefined order, so the last bits may differ from run to run
  host_sync = 8,          // the host waits for the device, so the call cannot be captured in a CUDA graph
  mixes_neighbours = 16,  // other elements affect the rounding of a result, and a NaN in them may reach it
  norm_wise = 32,         // the error is bounded by the norm of the inputs, not element by element
  quadratic = 64          // the work grows with the square of the number of elements
};
constexpr const char* trait_names[] = {"batched",          "commutative", "float_atomics", "host_sync",
                                       "mixes_neighbours", "norm_wise",   "quadratic"};

// A set of traits, made from the words in rungs.def. Ladders are constants, so an unknown word is a compile error.
class Traits {
 public:
  constexpr Traits(const char* words) {  // implicit: rungs.def gives words
    std::string_view rest(words);
    while (!rest.empty()) {
      const size_t length = tp::min(rest.find(' '), rest.size());
      flags_ |= flag_of(rest.substr(0, length));
      rest.remove_prefix(tp::min(length + 1, rest.size()));
    }
  }
  constexpr bool has(Trait trait) const { return (flags_ & trait) != 0; }
  constexpr bool none() const { return flags_ == 0; }
  std::vector<const char*> names() const {
    std::vector<const char*> found;
    for (size_t i = 0; i < std::size(trait_names); ++i) {
      if (flags_ >> i & 1) found.push_back(trait_names[i]);
    }
    return found;
  }

 private:
  static constexpr unsigned flag_of(std::string_view word) {
    for (size_t i = 0; i < std::size(trait_names); ++i) {
      if (word == trait_names[i]) return 1u << i;
    }
    throw "rungs.def names an unknown trait";
  }
  unsigned flags_ = 0;
};

// The courses that rungs name as their source:
// - "Mills 2017": Bryan Mills, GPU Programming with CUDA (optimizing), spring 2017, whose steps are those of Harris,
//   Optimizing Parallel Reduction in CUDA (2007).
// - "ECE 408": Applied Parallel Programming, University of Illinois, lecture 17.
// - "Hwu": Wen-mei Hwu, Heterogeneous Parallel Programming, week 4, lectures 4.1 to 4.7.
struct RungInfo {
  const char* name;
  const char* source;  // section or figure of the book, a paper, one of the courses below, or "beyond"
  const char* figures;
  const char* work;   // number of operations, as a function of n
  const char* steps;  // length of the longest chain of dependent operations
  Traits traits;
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
