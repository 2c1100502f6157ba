// Divides a gather (gather.h) into dense convolutions with stride and dilation 1, for the rungs that can compute only
// those: winograd and fft.
//
// Tap k of output o reads source element origin + o S + k D. Let L = lcm(S, D). Then the outputs o = class + a L / S
// and the taps k = t + j L / D form a lattice in the source, whose points are L apart: tap j of output a reads point a
// + j. So the outputs are divided into L / S classes, each of which is a convolution of its own. For each class, the
// taps are divided into L / D sets, and each set into groups of at most `group_taps` neighbouring taps. The results of
// all groups of a class are added up, as if groups were further channels.
#pragma once
#include "conv/gather.h"

namespace tp::conv {

struct LatticeAxis {
  GatherAxis axis;
  int64_t output_class, class_step, sets, groups_per_set, group_taps;
  int64_t origin,
      distance;   // the source element of output class 0 and tap 0, and the distance between points of the lattice
  bool reversed;  // taps count from the last one, where D is negative

  LatticeAxis(const GatherAxis& axis, int64_t output_class, int64_t most_group_taps)
      : axis(axis), output_class(output_class) {
    reversed = axis.source_tap < 0;
    const int64_t apart = reversed ? -axis.source_tap : axis.source_tap;
    distance = axis.source_step / common_divisor(axis.source_step, apart) * apart;
    class_step = distance / axis.source_step;
    sets = min(distance / apart, axis.taps);
    const int64_t set_taps = sets > 0 ? ceil_div(axis.taps, sets) : 0;
    group_taps = min(max(set_taps, int64_t(1)), most_group_taps);
    groups_per_set = ceil_div(set_taps, group_taps);
    origin = axis.origin + (reversed ? (axis.taps - 1) * axis.source_tap : 0) + output_class * axis.source_step;
  }
  // The number of classes that have outputs.
  static int64_t classes(const GatherAxis& axis) {
    const int64_t apart = axis.source_tap < 0 ? -axis.source_tap : axis.source_tap;
    return min(apart / common_divisor(axis.source_step, apart), axis.outputs);
  }

  TP_HD int64_t outputs() const { return ceil_div(axis.outputs - output_class, class_step); }
  TP_HD int64_t target(int64_t a) const { return axis.target(output_class + a * class_step); }
  TP_HD int64_t groups() const { return sets * groups_per_set; }
  // The tap of the filter that is number j of a group, or -1 if the group has fewer taps.
  TP_HD int64_t tap(int64_t group, int64_t j) const {
    const int64_t k = first_tap(group) + j * sets_apart();
    return k < axis.taps ? axis.tap(reversed ? axis.taps - 1 - k : k) : -1;
  }
  // The source element at point `u` of a group, or -1 if that is outside. Tap j of output a reads point a + j.
  TP_HD int64_t source(int64_t group, int64_t u) const {
    const int64_t apart = reversed ? -axis.source_tap : axis.source_tap;
    const int64_t i = origin + first_tap(group) * apart + u * distance;
    return axis.inside(i) ? i : -1;
  }

 private:
  TP_HD int64_t sets_apart() const { return distance / (reversed ? -axis.source_tap : axis.source_tap); }
  TP_HD int64_t first_tap(int64_t group) const {
    return group / groups_per_set + group % groups_per_set * group_taps * sets_apart();
  }
};

// Calls f(rows, cols) for every class of every phase.
template <class T, class F>
void for_lattices(const Gather<T>& g, int64_t group_taps, const F& f) {
  for (int64_t row_phase = 0; row_phase < phases(g.rows, g.pass); ++row_phase) {
    for (int64_t col_phase = 0; col_phase < phases(g.cols, g.pass); ++col_phase) {
      const GatherAxis rows = gather_axis(g.rows, g.pass, row_phase), cols = gather_axis(g.cols, g.pass, col_phase);
      for (int64_t row = 0; row < LatticeAxis::classes(rows); ++row) {
        for (int64_t col = 0; col < LatticeAxis::classes(cols); ++col) {
          f(LatticeAxis(rows, row, group_taps), LatticeAxis(cols, col, group_taps));
        }
      }
    }
  }
}

}  // namespace tp::conv
