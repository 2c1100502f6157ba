// Direction-optimizing search on host threads (Beamer, Asanović and Patterson 2012). A top-down step pushes from a
// queue, a bottom-up step pulls from a bitmap; for each level, the cheaper step is chosen. A top-down step checks every
// edge that leaves the frontier. A bottom-up step checks, for each unreached vertex, its in-edges one by one until one
// comes from the frontier. The expected number of edges that it checks is what it takes to meet such an edge at their
// average density, but at most all remaining edges. Without in-edges, all steps are top-down. An edge of a top-down
// step costs as much as several edges of a bottom-up step if it waits for memory, and as a fraction of one if it does
// not, because mispredicted branches then dominate the bottom-up step. Top-down steps resume when the frontier shrinks
// and is smaller than 1 / 18 of the vertices.
//
// The first thread to set a vertex's parent adds it to the queue. Later threads of the same level may still lower the
// parent, so the smallest id wins, and levels and parents do not depend on timing; only the order of the queue does.
// Small levels, and all levels of a graph that fits in the cache, are pushed by one thread, without atomics and almost
// without branches.
#include <algorithm>
#include <atomic>
#include <vector>

#include "graph/edges.h"

namespace tp::graph {
namespace {

constexpr int64_t beta = 18;
constexpr int64_t serial = 1 << 14;  // levels with fewer vertices and edges are faster on one thread than on several
constexpr int64_t cached = 1 << 18;  // with fewer vertices, their parents fit in the cache of a core

template <class T>
T load(const T& x) {
  return __atomic_load_n(&x, __ATOMIC_RELAXED);
}

template <class Row, class Id>
class Search {
 public:
  using Word = uint64_t;
  static constexpr int64_t bits = 64;

  // While one thread pushes, parents_ holds candidates, the smallest of which wins. A parent that is set in this level
  // has its highest bit set, so parents of earlier levels are smaller than all candidates, and `none` is the greatest.
  using Candidate = typename std::make_unsigned<Id>::type;
  static constexpr Candidate none = Candidate(-1), this_level = Candidate(1) << (8 * sizeof(Id) - 1);

  static constexpr int64_t piece = 256;  // vertices whose edges are gathered together
  static constexpr int64_t row = 12;     // the most edges of a short row
  static constexpr int64_t ahead = 48;   // entries of the queue whose data are prefetched
  // Edges gathered from short rows. The arrays are slightly longer than needed, so that addresses that are written
  // together do not differ by a multiple of the page size.
  struct EdgeList {
    Id to[(piece + 2) * row];
    Candidate from[piece * row];
  };

  Search(const Args& args, Context& context)
      : args_(args),
        context_(context),
        out_(adjacency<Row, Id>(args.out, args)),
        in_(adjacency<Row, Id>(args.in, args)),
        levels_(args.levels),
        parents_(static_cast<Id*>(args.parents)),
        top_down_cost_(args.vertices < cached ? 0.1 : 4),
        counts_(args.vertices >= cached ||
                (in_.ids != nullptr && double(args.vertices) < top_down_cost_ * double(args.edges))),
        words_(ceil_div(args.vertices, bits)),
        queue_(context.workspace<Id>(args.vertices + 1)) {}

  void run() {
    int64_t scout_count = start(), edges_to_check = args_.edges;
    while (begin_ < end_ && level_ <= args_.max_level) {
      if (in_.ids != nullptr && bottom_up_cost(scout_count, edges_to_check) < top_down_cost_ * double(scout_count)) {
        bottom_up_steps();
        scout_count = 1;  // at least one top-down step before the next change of direction
      } else {
        edges_to_check -= scout_count;
        const bool serially = args_.vertices < cached || tp::max(scout_count, end_ - begin_) < serial;
        scout_count = serially ? top_down_step_serial() : top_down_step();
      }
    }
  }

 private:
  Candidate* candidates() { return reinterpret_cast<Candidate*>(parents_); }

  // The expected number of edges that a bottom-up step checks; at least the number of vertices.
  double bottom_up_cost(int64_t edges, int64_t edges_to_check) const {
    const double each = double(args_.edges) / double(tp::max(edges, int64_t(1)));
    return tp::max(double(args_.vertices), tp::min(double(edges_to_check), double(args_.vertices - end_) * each));
  }

  // Sums f(begin, end) over pieces of 0..n. Threads take the next piece as they become free; if there is little work,
  // one thread takes 0..n at once.
  template <class F>
  int64_t sum_over_pieces(int64_t n, int64_t piece, int64_t work, F f) {
    if (work < serial) return f(0, n);
    std::atomic<int64_t> next{0}, sum{0};
    const int64_t pieces = ceil_div(n, piece), workers = tp::min(pieces, int64_t(context_.device.threads));
    context_.parallel_for(workers, 1, [&](int64_t first, int64_t last) {
      for (; first < last; ++first) {
        int64_t mine = 0;
        for (int64_t i; (i = next.fetch_add(piece)) < n;) mine += f(i, tp::min(n, i + piece));
        sum += mine;
      }
    });
    return sum;
  }

  int64_t start() {
    context_.parallel_for(args_.vertices, 1 << 16, [&](int64_t begin, int64_t end) {
      std::fill(levels_ + begin, levels_ + end, unreached);
      std::fill(parents_ + begin, parents_ + end, Id(-1));
    });
    int64_t edges = 0;
    for (int64_t i = 0; i < args_.num_sources; ++i) {
      const int64_t source = args_.sources[i];
      if (uint64_t(source) >= uint64_t(args_.vertices) || levels_[source] == 0) continue;
      levels_[source] = 0;
      parents_[source] = Id(source);
      queue_[end_++] = Id(source);
      edges += out_.degree(source);
    }
    return edges;
  }

  // Lowers the parent of `to` to `from`. Returns whether `to` was unreached before.
  bool lower_parent(Id from, int64_t to, int32_t level) {
    Id parent = load(parents_[to]);
    while (parent < 0 || parent > from) {
      if (parent >= 0) {
        const int32_t theirs = load(levels_[to]);
        if (theirs != level && theirs != unreached) return false;  // a level that is not written yet is this level
      }
      constexpr auto relaxed = __ATOMIC_RELAXED;
      if (__atomic_compare_exchange_n(&parents_[to], &parent, from, false, relaxed, relaxed)) return parent < 0;
    }
    return false;
  }

  void append(std::vector<Id>& gathered) {
    std::copy(gathered.begin(), gathered.end(), queue_ + tail_.fetch_add(int64_t(gathered.size())));
    gathered.clear();
  }

  // Sets the parent of `to` to `from` if it is the first or the smallest one of this level, without a branch: `to` is
  // always written at the end of the queue, which advances only if `to` was unreached.
  void update_parent(Id to, Candidate from, int64_t& tail) {
    Candidate& current = candidates()[to];
    const Candidate old = current;
    current = tp::min(old, from);
    queue_[tail] = to;
    Candidate next;
    tail += __builtin_add_overflow(old, Candidate(1), &next);  // overflows exactly if `old` is `none`
  }

  // Pushes all edges of a long row. Groups of eight neighbours that need no update are skipped.
  __attribute__((noinline)) int64_t push_row(Id vertex, int64_t tail) {
    const Candidate from = this_level | Candidate(vertex);
    const uint64_t vertices = uint64_t(args_.vertices);
    const int64_t end = out_.end(vertex);
    int64_t edge = out_.begin(vertex);
    for (; edge + 8 <= end; edge += 8) {
      bool any = false;
      for (int64_t i = edge; i < edge + 8; ++i) {
        if (uint64_t(out_[i]) >= vertices) return refuse();
        any |= candidates()[out_[i]] > from;
      }
      for (int64_t i = edge; any && i < edge + 8; ++i) update_parent(out_.ids[i], from, tail);
    }
    for (; edge < end; ++edge) {
      if (uint64_t(out_[edge]) >= vertices) return refuse();
      update_parent(out_.ids[edge], from, tail);
    }
    return tail;
  }

  // A vertex whose turn comes after that of entry i of the queue.
  Id later(int64_t i) const { return queue_[tp::min(i + ahead, end_ - 1)]; }

  // Gathers the edges of short rows. It copies `row` edges per vertex, whatever its degree, so that no loop has an
  // unpredictable length; the next vertex overwrites the excess. Returns the number of edges.
  int64_t gather_edges(int64_t first, int64_t last, EdgeList& list, int64_t& tail) {
    const int64_t whole = args_.edges - row;
    int64_t count = 0;
    for (int64_t i = first; i < last; ++i) {
      const Id vertex = queue_[i];
      // The first edges of a row have often been read with the row before.
      __builtin_prefetch(out_.ids + out_.begin(later(i)) + row - 1);
      const int64_t begin = out_.rows[vertex];
      const uint64_t degree = uint64_t(out_.rows[vertex + 1]) - uint64_t(begin);
      if (degree > uint64_t(row) || begin < 0 || begin > whole) {
        tail = push_row(vertex, tail);
        continue;
      }
      std::copy_n(out_.ids + begin, row, list.to + count);
      std::fill_n(list.from + count, row, this_level | Candidate(vertex));
      count += int64_t(degree);
    }
    return count;
  }

  // One thread pushes one level, without atomics. Returns the scout count if it is needed, else 0.
  int64_t top_down_step_serial() {
    const int32_t level = int32_t(level_++);
    const uint64_t vertices = uint64_t(args_.vertices);
    EdgeList gathered_edges;
    int64_t tail = end_;
    for (int64_t first = begin_; first < end_; first += piece) {
      const int64_t count = gather_edges(first, tp::min(first + piece, end_), gathered_edges, tail);
      // The edges of a vertex are often neighbours.
      for (int64_t i = 0; i < count; i += 3) __builtin_prefetch(candidates() + gathered_edges.to[i]);
#pragma GCC unroll 4
      for (int64_t i = 0; i < count; ++i) {
        if (uint64_t(gathered_edges.to[i]) >= vertices) return refuse();
        update_parent(gathered_edges.to[i], gathered_edges.from[i], tail);
      }
    }
    begin_ = end_;
    end_ = tail;
    int64_t scout_count = 0;
    for (int64_t i = begin_; i < end_; ++i) {
      const Id vertex = queue_[i];
      __builtin_prefetch(levels_ + later(i), 1);
      __builtin_prefetch(out_.rows + later(i));
      candidates()[vertex] &= ~this_level;
      levels_[vertex] = level;
      if (counts_) scout_count += out_.degree(vertex);
    }
    return scout_count;
  }

  // Raises the error for the first edge of the frontier whose target is not a vertex.
  __attribute__((noinline, cold)) int64_t refuse() {
    for (int64_t i = begin_; i < end_; ++i) {
      const int64_t end = out_.end(queue_[i]);
      for (int64_t edge = out_.begin(queue_[i]); edge < end; ++edge) is_vertex(out_[edge], args_, edge);
    }
    return 0;
  }

  // All threads push one level. Returns the scout count: the number of edges that leave the new frontier.
  int64_t top_down_step() {
    const int32_t level = int32_t(level_++);
    tail_ = end_;
    const int64_t scout_count = sum_over_pieces(end_ - begin_, 64, serial, [&](int64_t first, int64_t last) {
      std::vector<Id> gathered;
      int64_t scout_count = 0;
      for (int64_t i = begin_ + first; i < begin_ + last; ++i) {
        const Id vertex = queue_[i];
        const int64_t end = out_.end(vertex);
        for (int64_t edge = out_.begin(vertex); edge < end; ++edge) {
          const int64_t neighbor = out_[edge];
          if (!is_vertex(neighbor, args_, edge) || !lower_parent(vertex, neighbor, level)) continue;
          __atomic_store_n(&levels_[neighbor], level, __ATOMIC_RELAXED);
          gathered.push_back(Id(neighbor));
          scout_count += out_.degree(neighbor);
        }
      }
      append(gathered);
      return scout_count;
    });
    begin_ = end_;
    end_ = tail_;
    return scout_count;
  }

  // Runs bottom-up steps for as long as they are faster. Copies the frontier from the queue to a bitmap before, and
  // back after.
  void bottom_up_steps() {
    std::vector<Word> front(size_t(words_), 0), next(size_t(words_), 0), open(size_t(words_), 0);
    queue_to_bitmap(front, open);
    int64_t awake_count = end_ - begin_, old_awake_count = 0;
    do {
      old_awake_count = awake_count;
      awake_count = bottom_up_step(front, next, open);
      front.swap(next);
    } while ((awake_count >= old_awake_count || awake_count > args_.vertices / beta) && awake_count > 0 &&
             level_ <= args_.max_level);
    bitmap_to_queue(front);
  }

  // Sets the bits of the frontier in `front`, and those of the unreached vertices with in-edges in `open`.
  void queue_to_bitmap(std::vector<Word>& front, std::vector<Word>& open) {
    for (int64_t i = begin_; i < end_; ++i) front[size_t(queue_[i] / bits)] |= Word(1) << queue_[i] % bits;
    sum_over_pieces(words_, 256, args_.vertices, [&](int64_t first, int64_t last) {
      for (int64_t v = first * bits; v < tp::min(last * bits, args_.vertices); ++v)
        open[size_t(v / bits)] |= Word(parents_[v] < 0 && in_.rows[v] != in_.rows[v + 1]) << v % bits;
      return 0;
    });
  }

  void bitmap_to_queue(const std::vector<Word>& front) {
    tail_ = begin_ = end_;
    sum_over_pieces(words_, 256, args_.vertices, [&](int64_t first, int64_t last) {
      std::vector<Id> gathered;
      for (int64_t w = first; w < last; ++w) {
        for (Word word = front[size_t(w)]; word != 0; word &= word - 1)
          gathered.push_back(Id(w * bits + __builtin_ctzll(word)));
      }
      append(gathered);
      return 0;
    });
    end_ = tail_;
  }

  // Pulls one level, from the bitmap `front` of the previous level to `next`, for the vertices in `open`. Returns the
  // awake count, which is the number of vertices found.
  int64_t bottom_up_step(const std::vector<Word>& front, std::vector<Word>& next, std::vector<Word>& open) {
    const int32_t level = int32_t(level_++);
    return sum_over_pieces(words_, 64, args_.vertices, [&](int64_t first, int64_t last) {
      int64_t count = 0;
      for (int64_t w = first; w < last; ++w) {
        Word found = 0;
        for (Word word = open[size_t(w)]; word != 0; word &= word - 1) {
          const int bit = __builtin_ctzll(word);
          if (find_parent(w * bits + bit, front.data(), level)) found |= Word(1) << bit;
        }
        next[size_t(w)] = found;
        open[size_t(w)] &= ~found;
        count += __builtin_popcountll(found);
      }
      return count;
    });
  }

  bool find_parent(int64_t vertex, const Word* front, int32_t level) {
    const int64_t end = in_.end(vertex);
    for (int64_t edge = in_.begin(vertex); edge < end; ++edge) {
      const int64_t neighbor = in_[edge];
      if (!is_vertex(neighbor, args_, edge) || !(front[neighbor / bits] >> neighbor % bits & 1)) continue;
      levels_[vertex] = level;
      parents_[vertex] = Id(neighbor);
      return true;
    }
    return false;
  }

  const Args& args_;
  Context& context_;
  const Adjacency<const Row*, const Id*> out_, in_;
  int32_t* levels_;
  Id* parents_;
  double top_down_cost_;  // the cost of an edge in a top-down step, as a multiple of that in a bottom-up step
  bool counts_;           // whether the scout count can ever lead to a bottom-up step or to more threads
  int64_t words_;
  Id* queue_;  // all levels one after another; the last one is [begin_, end_)
  int64_t begin_ = 0, end_ = 0, level_ = 1;
  std::atomic<int64_t> tail_{0};
};

}  // namespace

void threaded(const Args& args, Context& context) {
  with_types(args, [&](auto row, auto id) { Search<decltype(row), decltype(id)>(args, context).run(); });
}

}  // namespace tp::graph
