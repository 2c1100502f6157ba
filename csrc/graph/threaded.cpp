// The search on host threads, that changes its direction (Beamer, Asanović and Patterson 2012): push from a queue while
// few edges leave the frontier, pull from a bitmap while they are many. A push looks at those edges. A pull looks, for
// each vertex not reached, at one edge after another until one comes from the frontier: at as many as one such edge has
// on average among all edges, or at all that are left. Whichever is less is done, and all is pushed where there are no
// in-edges. An edge of a push counts for several of a pull where it waits for memory, and for a fraction where it does
// not, since what costs time then is the branches of the pull. Pushing resumes once the frontier shrinks and is less
// than 1 / 18 of the vertices.
//
// A vertex belongs to who first gives it a parent; later offers from the same level may bring the parent down. So the
// threads share a queue and race for its places, and levels and parents come out the same. One thread alone pushes
// small levels, and all of a graph that its cache holds, by a loop over a list of edges, without atomics or branches.
#include <algorithm>
#include <atomic>
#include <vector>

#include "graph/edges.h"

namespace tp::graph {
namespace {

constexpr int64_t beta = 18;
constexpr int64_t serial = 1 << 14;  // vertices or edges of a level, below which other threads do not pay
constexpr int64_t cached = 1 << 18;  // vertices, below which what is known of each lies in a core's cache

template <class T>
T load(const T& x) {
  return __atomic_load_n(&x, __ATOMIC_RELAXED);
}

template <class Row, class Id>
class Search {
 public:
  using Word = uint64_t;
  static constexpr int64_t bits = 64;

  // What parents_ holds while one thread pushes: the least stays. A parent of this level bears the highest bit, so that
  // those of earlier levels are less, and none is the greatest.
  using Claim = typename std::make_unsigned<Id>::type;
  static constexpr Claim none = Claim(-1), offered = Claim(1) << (8 * sizeof(Id) - 1);

  static constexpr int64_t piece = 256, row = 12;  // vertices that are listed at once, and the most edges of such a one
  struct Offers {
    Id to[(piece + 2) * row];  // more than it takes: what is written together shall not lie a multiple of pages apart
    Claim from[piece * row];
  };

  Search(const Args& args, Context& context)
      : args_(args),
        context_(context),
        out_(adjacency<Row, Id>(args.out, args)),
        in_(adjacency<Row, Id>(args.in, args)),
        levels_(args.levels),
        parents_(static_cast<Id*>(args.parents)),
        pushed_(args.vertices < cached ? 0.1 : 4),
        counts_(args.vertices >= cached ||
                (in_.ids != nullptr && double(args.vertices) < pushed_ * double(args.edges))),
        words_(ceil_div(args.vertices, bits)),
        queue_(context.workspace<Id>(args.vertices + 1)) {}

  void run() {
    int64_t edges = start(), edges_left = args_.edges;
    while (begin_ < end_ && level_ <= args_.max_level) {
      if (in_.ids != nullptr && pull_cost(edges, edges_left) < pushed_ * double(edges)) {
        pull_while_it_pays();
        edges = 1;  // one push, at least, before the next change
      } else {
        edges_left -= edges;
        const bool alone = args_.vertices < cached || tp::max(edges, end_ - begin_) < serial;
        edges = alone ? push_alone() : push();
      }
    }
  }

 private:
  Claim* claims() { return reinterpret_cast<Claim*>(parents_); }

  // How many edges a pull is expected to look at, and vertices at least, where so many leave the frontier.
  double pull_cost(int64_t edges, int64_t edges_left) const {
    const double each = double(args_.edges) / double(tp::max(edges, int64_t(1)));
    return tp::max(double(args_.vertices), tp::min(double(edges_left), double(args_.vertices - end_) * each));
  }

  // f(begin, end) over pieces of 0..n, the next to whoever is free, or at once if there is little work; the sum of what
  // it returns.
  template <class F>
  int64_t share(int64_t n, int64_t piece, int64_t work, F f) {
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

  // Offers `from` as a parent of `to`; whether it is the first at all.
  bool offer(Id from, int64_t to, int32_t level) {
    Id parent = load(parents_[to]);
    while (parent < 0 || parent > from) {
      if (parent >= 0) {
        const int32_t theirs = load(levels_[to]);
        if (theirs != level && theirs != unreached) return false;  // not written yet: it is this level
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

  // Takes `from` as the parent of `to` if it is the first or the smallest of this level, without a branch: `to` is
  // written to the end of the queue, which moves on if nobody had reached it.
  void take(Id to, Claim from, int64_t& tail) {
    Claim& claim = claims()[to];
    const Claim old = claim;
    claim = tp::min(old, from);
    queue_[tail] = to;
    Claim next;
    tail += __builtin_add_overflow(old, Claim(1), &next);  // if it was none
  }

  // Offers all edges of a long row. Where most is reached, eight neighbours at a time are seen to take no offer.
  __attribute__((noinline)) int64_t push_row(Id vertex, int64_t tail) {
    const Claim from = offered | Claim(vertex);
    const uint64_t vertices = uint64_t(args_.vertices);
    const int64_t end = out_.end(vertex);
    int64_t edge = out_.begin(vertex);
    for (; edge + 8 <= end; edge += 8) {
      bool takes = false;
      for (int64_t i = edge; i < edge + 8; ++i) {
        if (uint64_t(out_[i]) >= vertices) return refuse();
        takes |= claims()[out_[i]] > from;
      }
      for (int64_t i = edge; takes && i < edge + 8; ++i) take(out_.ids[i], from, tail);
    }
    for (; edge < end; ++edge) {
      if (uint64_t(out_[edge]) >= vertices) return refuse();
      take(out_.ids[edge], from, tail);
    }
    return tail;
  }

  // Lists what the edges of short rows offer, `row` of them at a time whatever the length, so that no loop ends where
  // nobody can foretell it; the next row overwrites the excess. How many there are.
  int64_t list(int64_t first, int64_t last, Offers& offers, int64_t& tail) {
    const int64_t whole = args_.edges - row;
    int64_t count = 0;
    for (int64_t i = first; i < last; ++i) {
      const Id vertex = queue_[i];
      const int64_t begin = out_.rows[vertex];
      const uint64_t degree = uint64_t(out_.rows[vertex + 1]) - uint64_t(begin);
      if (degree > uint64_t(row) || begin < 0 || begin > whole) {
        tail = push_row(vertex, tail);
        continue;
      }
      std::copy_n(out_.ids + begin, row, offers.to + count);
      std::fill_n(offers.from + count, row, offered | Claim(vertex));
      count += int64_t(degree);
    }
    return count;
  }

  // The next level from the queue by one thread, which needs no atomics; how many edges leave it, if that matters.
  int64_t push_alone() {
    const int32_t level = int32_t(level_++);
    const uint64_t vertices = uint64_t(args_.vertices);
    Offers offers;
    int64_t tail = end_;
    for (int64_t first = begin_; first < end_; first += piece) {
      const int64_t count = list(first, tp::min(first + piece, end_), offers, tail);
#pragma GCC unroll 4
      for (int64_t i = 0; i < count; ++i) {
        if (uint64_t(offers.to[i]) >= vertices) return refuse();
        take(offers.to[i], offers.from[i], tail);
      }
    }
    begin_ = end_;
    end_ = tail;
    for (int64_t i = begin_; i < end_; ++i) {
      const Id vertex = queue_[i];
      claims()[vertex] &= ~offered;
      levels_[vertex] = level;
    }
    int64_t leave = 0;
    for (int64_t i = begin_; counts_ && i < end_; ++i) leave += out_.degree(queue_[i]);
    return leave;
  }

  // Raises for the first edge of the frontier that leads to no vertex.
  __attribute__((noinline, cold)) int64_t refuse() {
    for (int64_t i = begin_; i < end_; ++i) {
      const int64_t end = out_.end(queue_[i]);
      for (int64_t edge = out_.begin(queue_[i]); edge < end; ++edge) is_vertex(out_[edge], args_, edge);
    }
    return 0;
  }

  // The same by all threads.
  int64_t push() {
    const int32_t level = int32_t(level_++);
    tail_ = end_;
    const int64_t edges = share(end_ - begin_, 64, serial, [&](int64_t first, int64_t last) {
      std::vector<Id> gathered;
      int64_t leave = 0;
      for (int64_t i = begin_ + first; i < begin_ + last; ++i) {
        const Id vertex = queue_[i];
        const int64_t end = out_.end(vertex);
        for (int64_t edge = out_.begin(vertex); edge < end; ++edge) {
          const int64_t neighbor = out_[edge];
          if (!is_vertex(neighbor, args_, edge) || !offer(vertex, neighbor, level)) continue;
          __atomic_store_n(&levels_[neighbor], level, __ATOMIC_RELAXED);
          gathered.push_back(Id(neighbor));
          leave += out_.degree(neighbor);
        }
      }
      append(gathered);
      return leave;
    });
    begin_ = end_;
    end_ = tail_;
    return edges;
  }

  void pull_while_it_pays() {
    std::vector<Word> front(size_t(words_), 0), next(size_t(words_), 0), open(size_t(words_), 0);
    for (int64_t i = begin_; i < end_; ++i) front[size_t(queue_[i] / bits)] |= Word(1) << queue_[i] % bits;
    share(words_, 256, args_.vertices, [&](int64_t first, int64_t last) {
      for (int64_t v = first * bits; v < tp::min(last * bits, args_.vertices); ++v)
        open[size_t(v / bits)] |= Word(parents_[v] < 0 && in_.rows[v] != in_.rows[v + 1]) << v % bits;
      return 0;
    });
    int64_t found = end_ - begin_, before = 0;
    do {
      before = found;
      found = pull(front, next, open);
      front.swap(next);
    } while ((found >= before || found > args_.vertices / beta) && found > 0 && level_ <= args_.max_level);
    tail_ = begin_ = end_;
    share(words_, 256, args_.vertices, [&](int64_t first, int64_t last) {
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

  // The next level from a bitmap of the last to one of its own; how many vertices it has. `open` are those to ask.
  int64_t pull(const std::vector<Word>& front, std::vector<Word>& next, std::vector<Word>& open) {
    const int32_t level = int32_t(level_++);
    return share(words_, 64, args_.vertices, [&](int64_t first, int64_t last) {
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
  double pushed_;  // what an edge of a push costs, in edges of a pull
  bool counts_;    // whether all edges from one level may be enough for a pull, or for other threads
  int64_t words_;
  Id* queue_;  // levels one after another; the last is [begin_, end_)
  int64_t begin_ = 0, end_ = 0, level_ = 1;
  std::atomic<int64_t> tail_{0};
};

}  // namespace

void threaded(const Args& args, Context& context) {
  with_types(args, [&](auto row, auto id) { Search<decltype(row), decltype(id)>(args, context).run(); });
}

}  // namespace tp::graph
