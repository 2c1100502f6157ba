"""Fifty faults to seed, one at a time: each a small edit of a kernel, and the tests that must notice it.

`tests` are arguments of pytest; `device` is where the fault can show. run.py applies them; tests/test_faults.py sees to
it that every edit still fits the sources.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    name: str
    file: str  # below csrc/
    before: str  # stands there once
    after: str
    tests: str
    device: str = "cpu"


def ladder(spec: str, rung: str = "", device: str = "cpu") -> str:
    chosen = " and ".join(filter(None, (f"{spec}-{device}", rung)))
    return f'tests/test_ladder.py -k "{chosen}"'


REDUCE, SCAN, MERGE, SORT, BFS = "reduce", "scan", "merge", "sort", "bfs_csr"
FAULTS = (
    # reduction
    Fault(
        "interleaved-index", "reduction/interleaved.cu", "s[t + stride]);", "s[t + 1]);", ladder(REDUCE, "interleaved")
    ),
    Fault("mirrored-bound", "reduction/mirrored.cu", "stride >= 1;", "stride > 1;", ladder(REDUCE, "mirrored")),
    Fault(
        "convergent-tail",
        "reduction/convergent.cu",
        "x.load(id, t + threads)",
        "x.load(id, t)",
        ladder(REDUCE, "convergent"),
    ),
    Fault(
        "coarsened-step",
        "reduction/coarsened.cu",
        "tile < coarse_factor * 2;",
        "tile < coarse_factor * 2 - 1;",
        ladder(REDUCE, "coarsened"),
    ),
    Fault(
        "atomic-identity",
        "reduction/atomics.h",
        "output[first + t] = M::identity();",
        "output[first + t] = Acc(0);",
        ladder(REDUCE, "multi_block"),
    ),
    Fault(
        "max-ties",
        "core/op.h",
        "return earlier >= later || earlier != earlier ? earlier : later;",
        "return earlier > later || earlier != earlier ? earlier : later;",
        "tests/test_scan.py -k zeros",
    ),
    Fault(
        "max-nan",
        "core/op.h",
        "return earlier >= later || earlier != earlier ? earlier : later;",
        "return earlier >= later ? earlier : later;",
        "tests/test_scan.py -k nan_and_infinities",
    ),
    Fault(
        "min-identity",
        "core/op.h",
        "TP_HD static A identity() { return detail::highest<A>(); }",
        "TP_HD static A identity() { return A(0); }",
        ladder(REDUCE),
    ),
    Fault(
        "warp-lane",
        "reduction/warp_shuffle.cu",
        "if (t == 0) input.store(id, total);",
        "if (t == 1) input.store(id, total);",
        ladder(REDUCE, "warp_shuffle", "cuda"),
        "cuda",
    ),
    # scan
    Fault(
        "kogge-stone-barrier",
        "scan/kogge_stone.cu",
        "XY[t] = temp[t];",
        "XY[t] = M::combine(XY[t - stride], XY[t]);",
        ladder(SCAN, "kogge_stone"),
    ),
    Fault(
        "kogge-stone-reach",
        "scan/kogge_stone.cu",
        "if (t >= stride) temp[t] =",
        "if (t > stride) temp[t] =",
        ladder(SCAN, "kogge_stone"),
    ),
    Fault(
        "operands-swapped",
        "scan/hillis_steele.cu",
        "M::combine(temp[in + t - stride], own)",
        "M::combine(own, temp[in + t - stride])",
        ladder("linear_recurrence", "hillis_steele"),
    ),
    Fault(
        "brent-kung-down",
        "scan/brent_kung.cu",
        "stride = section / 4;",
        "stride = section / 8;",
        ladder(SCAN, "brent_kung"),
    ),
    Fault(
        "blelloch-root",
        "scan/blelloch.cu",
        "if (t == 0) XY[section - 1] = M::identity();",
        "if (t == 0) XY[0] = M::identity();",
        ladder(SCAN, "blelloch"),
    ),
    Fault("sklansky-index", "scan/sklansky.cu", "XY[second - 1]", "XY[second - stride]", ladder(SCAN, "sklansky")),
    Fault(
        "coarsened-complete",
        "scan/coarsened.cu",
        "if (t == 0) return;",
        "if (t <= 1) return;",
        ladder(SCAN, "coarsened"),
    ),
    Fault(
        "sections-begin",
        "block/scan_sections.h",
        "return id % sections * section;",
        "return id * section;",
        ladder("linear_recurrence", "hierarchical"),
    ),
    Fault("domino-flag", "scan/single_pass.cu", "block.wait(flag, bid);", "", ladder(SCAN, "single_pass")),
    Fault(
        "domino-previous",
        "scan/single_pass.cu",
        "value[bid + 1] = M::combine(previous, XY[section - 1]);",
        "value[bid + 1] = XY[section - 1];",
        ladder(SCAN, "single_pass"),
    ),
    Fault(
        "scan-exclusive",
        "scan/elements.h",
        "if (e.exclusive && k-- == 0) return M::identity();",
        "if (e.exclusive && k == 0) return M::identity();",
        ladder(SCAN, "kogge_stone"),
    ),
    Fault(
        "affine-overflow",
        "core/op.h",
        "earlier.b == A{} ? later.b : factor * earlier.b + later.b",
        "factor * earlier.b + later.b",
        'tests/test_scan.py -k "outlive"',
    ),
    Fault(
        "affine-nan", "core/op.h", "return {a, a == a ? b : a};", "return {a, b};", 'tests/test_scan.py -k "infinity"'
    ),
    Fault(
        "threaded-carry",
        "scan/threaded.cpp",
        "mine = before.running;",
        "mine.clear(0, s.lanes);",
        ladder(SCAN, "threaded"),
    ),
    Fault(
        "lookback-flag",
        "block/lookback.cuh",
        "if (!valid) continue;",
        "",
        'tests/test_cuda.py -k "scan-cuda-decoupled_lookback and contention"',
        "cuda",
    ),
    Fault(
        "lookback-group",
        "segmented/lookback_segments.cuh",
        "if (start < group * tiles_per_group) {",
        "if (start < supergroup * groups_per_supergroup * tiles_per_group) {",
        ladder("segment_scan", "decoupled_lookback", "cuda"),
        "cuda",
    ),
    # segments
    Fault(
        "offsets-search",
        "block/offsets.h",
        "if (begin(middle) <= row) {",
        "if (begin(middle) < row) {",
        ladder("segment_reduce", "atomic"),
    ),
    Fault(
        "offsets-clamp",
        "block/offsets.h",
        "tp::max(int64_t(0), tp::min(n, given(i)))",
        "given(i)",
        "tests/test_segmented.py",
        "cuda",
    ),
    Fault(
        "segment-head",
        "segmented/scan_elements.h",
        "later.head ? later.value : M::combine(earlier.value, later.value)",
        "M::combine(earlier.value, later.value)",
        ladder("segment_scan", "hierarchical"),
    ),
    Fault(
        "segment-mean",
        "segmented/elements.h",
        "Output(length > 0 ? value / Acc(length) : Acc(0))",
        "Output(value / Acc(length))",
        "tests/test_segmented.py",
    ),
    # merge
    Fault("co-rank-bound", "merge/merge.h", "tp::min(k, m), [&]", "tp::min(k, m - 1), [&]", ladder(MERGE, "basic")),
    Fault("merge-stability", "merge/merge.h", "if (later(i, j)) {", "if (!later(i, j)) {", ladder(MERGE, "sequential")),
    Fault("merge-tail", "merge/merge.h", "for (; j < n; ++j) take_b(j, i + j);", "", ladder(MERGE, "basic")),
    Fault("merge-end-of-b", "merge/uncoarsened.cu", "(j == x.in.n || ", "(", ladder(MERGE, "uncoarsened")),
    # sort
    Fault(
        "radix-zeros",
        "sort/radix_1bit.cu",
        "int64_t(ones_before[last]) + int64_t(bit[last])",
        "int64_t(ones_before[last])",
        ladder(SORT, "radix_1bit"),
    ),
    Fault("radix-bit", "sort/radix_1bit.cu", ">> iter & 1)", ">> (iter + 1) & 1)", ladder(SORT, "radix_1bit")),
    Fault(
        "transposition-turns",
        "sort/odd_even_transposition.cu",
        "turn < rows.n;",
        "turn < rows.n - 1;",
        ladder(SORT, "odd_even_transposition"),
    ),
    Fault(
        "bitonic-mirror", "sort/bitonic.cu", "group + size - 1 - i % stride", "low + stride", ladder(SORT, "bitonic")
    ),
    Fault(
        "segments-outside",
        "sort/onesweep/classes.cuh",
        "for (int64_t i = first; i < before; i += stride)",
        "for (int64_t i = first; i + 1 < before; i += stride)",
        "tests/test_sort.py",
        "cuda",
    ),
    # sparse
    Fault(
        "sparse-column",
        "sparse/matrix.h",
        "const T value = values[at], factor = x[column * a.k + c];",
        "const T value = values[at], factor = x[column * a.k];",
        ladder("spmm_csr", "sequential"),
    ),
    Fault(
        "csr-row-end",
        "sparse/csr/layout.h",
        "b.pointer(position + 1) - begin)",
        "b.pointer(position + 1) - begin - 1)",
        ladder("spmv_csr", "sequential"),
    ),
    Fault(
        "padding-read",
        "sparse/matrix.h",
        "if (padded && column == -1) return false;",
        "",
        'tests/test_sparse_products.py -k "minus_one"',
    ),
    Fault(
        "sell-height",
        "sparse/sell/layout.h",
        "tp::min(b.a.section_rows, b.a.rows - start), begin",
        "b.a.section_rows, begin",
        ladder("spmv_sell", "sequential"),
    ),
    Fault(
        "pointers-unchecked",
        "sparse/pointers.h",
        "decreases |= p[i + 1] < p[i];",
        "decreases |= false;",
        'tests/test_sparse.py -k "wrong_pointers"',
    ),
    Fault("y-forgotten", "sparse/matrix.h", "sum += Acc(start);", "(void)start;", ladder("spmv_csr", "sequential")),
    # graphs
    Fault(
        "bfs-frontier", "graph/frontier.cu", "!= no_level) continue;", "== no_level) continue;", ladder(BFS, "frontier")
    ),
    Fault(
        "bfs-parents",
        "graph/search.h",
        "if (theirs == level + 1)",
        "if (theirs == level)",
        ladder(BFS, "vertex_push"),
    ),
    Fault(
        "bfs-max-level",
        "graph/search.h",
        "level <= g.args.max_level;",
        "level < g.args.max_level;",
        ladder(BFS, "vertex_push"),
    ),
    Fault(
        "bfs-level",
        "graph/edge_centric.cu",
        "if (vertex < 0 || uint32_t(level[vertex]) != curr_level - 1) return;",
        "if (vertex < 0 || uint32_t(level[vertex]) != curr_level) return;",
        ladder(BFS, "edge_centric"),
    ),
    # convolution, pooling, losses
    Fault(
        "conv-tile-tail",
        "conv/direct.cu",
        "if (h >= e.rows.out || w >= e.cols.out) return;",
        "if (h > e.rows.out || w >= e.cols.out) return;",
        ladder("conv2d", "direct"),
    ),
    Fault(
        "pool-nan", "pooling/maximum.h", "!(value <= best) & (best == best)", "value > best", "tests/test_pooling.py"
    ),
    Fault(
        "pool-first",
        "pooling/maximum.h",
        "!(value <= best) & (best == best)",
        "!(value < best) & (best == best)",
        "tests/test_pooling.py",
    ),
    Fault(
        "average-divisor",
        "pooling/average.h",
        "sum /= acc_t<T>(count * counted(w, o.w, count_include_pad));",
        "sum /= acc_t<T>(count * cols.count);",
        ladder("avg_pool2d", "sequential"),
    ),
    Fault(
        "loss-scale", "layers/loss.h", "reduction == Reduction::mean ? n : 1);", "n);", ladder("squared_error_backward")
    ),
    Fault(
        "softmax-overflow",
        "layers/loss.h",
        "std::exp(load<T>(x, first + c) - greatest)",
        "std::exp(load<T>(x, first + c))",
        "tests/test_layers.py -k logits",
    ),
    Fault(
        "rbf-square",
        "layers/rbf.h",
        "half = A(std::ldexp(1.0, -exponent / 2));",
        "half = A(1);",
        "tests/test_layers.py -k rbf",
    ),
    Fault(
        "winograd-filter",
        "conv/winograd_transforms.h",
        "c = v[0] - v[1] + v[2], d = v[2] + v[2];",
        "c = v[0] + v[1] - v[2], d = v[2] + v[2];",
        ladder("conv2d", "winograd"),
    ),
    Fault(
        "winograd-again",
        "conv/not_finite.h",
        "if (any == boolean(false)) return;",
        "if (any == any) return;",
        'tests/test_conv.py -k "not_finite"',
    ),
    # sums of groups, products of sparse matrices
    Fault(
        "exact-sum-rest",
        "segmented/exact_sum.h",
        "rest |= (carry & ((int64_t(1) << width) - 1)) != 0;",
        "rest |= (carry & 1) != 0;",
        'tests/test_groups.py -k "exact_sums"',
    ),
    Fault(
        "equal-columns",
        "sparse/spgemm/add_products.h",
        "for (int v = w + 1; v < length",
        "for (int v = w + 2; v < length",
        "tests/test_spgemm_rows.py -k any_order",
    ),
    Fault(
        "piece-window",
        "sparse/spgemm/pieces.h",
        "{tp::min(low, cols), tp::min(low + width, cols)}",
        "{tp::min(low, cols), tp::min(low + width - 1, cols)}",
        "tests/test_spgemm_rows.py -k long_rows",
    ),
)
