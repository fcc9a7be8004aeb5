// How the search works.
//
// Any packing can be pushed down until every buffer stands on the bottom or on another buffer. Such a packing can be
// built from below: take the buffers in the order of their offsets and put each on the highest of the buffers placed
// before it that live at the same time, which is its **floor**. The search makes these placements one by one. For a
// buffer that is not placed yet it knows
//   floor       the top of the highest placed buffer that lives at the same time,
//   excluded    whether it is known not to stand on its floor: it will stand on a buffer that is still to be placed,
//   start, end  the lowest offset that it can still get, and that plus its size.
//
// A decision looks at a buffer b such that no neighbour (buffer alive at the same time) can end below end(b). Either b
// is placed on its floor, or something is in the way there: a neighbour that starts below end(b). As nothing fits under
// these candidates (that is checked when b is chosen), one of them stands on its own floor. So the search takes the most
// promising candidate and either places it on its floor, or excludes it: then it starts at end(b) at the earliest.
// A buffer without rivals is placed without a decision.
//
// What prunes:
//   sections    A section is a maximal set of buffers that live at the same time. The lowest possible start in it plus
//               the sizes of all its unplaced buffers must not pass the capacity. A buffer that would overflow a section
//               if it were the lowest of it is excluded, and starts where the first of the others can end.
//   support     An excluded buffer starts no lower than the first end of a neighbour.
//   dominance   If nothing is in the way of an excluded buffer at its floor, a packing of this kind could be pushed
//               down further; it is covered by the branch in which the buffer was placed there.
//   parts       Once the unplaced buffers fall into groups that share no lifetime, each is solved by itself.
//   memory      States (unplaced buffers, their floors, which are excluded) that were shown to fail are remembered.
// All of them keep every packing whose sum of offsets is least (among those with the same lower part), so an exhausted
// search proves that there is no packing.
//
// The search restarts after a number of decisions and alternates between two ways to choose. It counts, for each
// buffer, the overflows it took part in; these counts and the failed states survive a restart, so it comes back to
// what made it fail, earlier in the search. After many runs the counts start anew, with slightly other orders. From time
// to time one run is given much longer: some problems need it, and it proves small infeasible ones to be so.

#include "packing.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <tuple>
#include <unordered_set>

namespace litefuse::arena {
namespace {

using Clock = std::chrono::steady_clock;

// The start and end of a buffer that is placed: never the least of anything.
constexpr int64_t kPlaced = int64_t{1} << 62;
// Decisions of one run: this times the number of buffers, and no fewer than kMinRunNodes.
constexpr int64_t kRunNodesPerBuffer = 2;
constexpr int64_t kMinRunNodes = 100;
// A long run gets this share of all decisions so far, once the short ones have used that many since the last.
constexpr double kLongRunShare = 0.25;
// Ranks that one overflow is worth in the order of candidates.
constexpr double kRanksPerConflict = 0.1;
// By then the counts of overflows outweigh the ranks, and runs resemble each other: the counts start anew, and from the
// second time on the ranks are disturbed by up to this part of the number of buffers.
constexpr int64_t kRunsPerEpoch = 36;
constexpr double kNoise = 0.01;
constexpr size_t kMaxMemory = 500'000;
constexpr auto kAskInterval = std::chrono::milliseconds(50);

uint64_t mix(uint64_t x) {  // the finaliser of splitmix64
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

int lowest_bit(uint64_t word) {  // of a word that is not 0
#if defined(__GNUC__) || defined(__clang__)
  return __builtin_ctzll(word);
#else
  int bit = 0;
  for (; !(word & 1); word >>= 1) ++bit;
  return bit;
#endif
}

// Two independent sums, so that two states are taken for the same one only with a chance of about 2^-128.
struct StateKey {
  uint64_t first = 0;
  uint64_t second = 0;

  void add(uint64_t buffer, uint64_t floor, bool excluded) {
    const uint64_t once = mix(mix(buffer) + 2 * floor + (excluded ? 1 : 0));
    first += once;
    second += mix(once ^ 0x5851f42d4c957f2du);
  }
  bool operator==(const StateKey& other) const { return first == other.first && second == other.second; }
};

struct StateKeyHash {
  size_t operator()(const StateKey& key) const { return static_cast<size_t>(key.first); }
};

// Lists of small integers, one after the other in one array.
class Lists {
 public:
  struct Range {
    const int* first;
    const int* last;
    const int* begin() const { return first; }
    const int* end() const { return last; }
    size_t size() const { return static_cast<size_t>(last - first); }
  };

  void append(const std::vector<int>& list) {
    items_.insert(items_.end(), list.begin(), list.end());
    ends_.push_back(items_.size());
  }
  Range operator[](int index) const {
    const size_t i = static_cast<size_t>(index);
    return {items_.data() + ends_[i], items_.data() + ends_[i + 1]};
  }
  int size() const { return static_cast<int>(ends_.size()) - 1; }

 private:
  std::vector<int> items_;
  std::vector<size_t> ends_{0};
};

// Starts and ends of lifetimes in the order of time; ends come first, as a buffer does not live at its upper time.
struct Event {
  int64_t time;
  bool starts;
  int buffer;
  bool operator<(const Event& other) const {
    return std::tie(time, starts, buffer) < std::tie(other.time, other.starts, other.buffer);
  }
};

std::vector<Event> events_of(const std::vector<Buffer>& buffers) {
  std::vector<Event> events;
  events.reserve(2 * buffers.size());
  for (size_t i = 0; i < buffers.size(); ++i) {
    events.push_back({buffers[i].lower, true, static_cast<int>(i)});
    events.push_back({buffers[i].upper, false, static_cast<int>(i)});
  }
  std::sort(events.begin(), events.end());
  return events;
}

void validate(const std::vector<Buffer>& buffers) {
  if (buffers.size() > static_cast<size_t>(std::numeric_limits<int>::max() / 4)) {
    throw std::invalid_argument("too many buffers");
  }
  int64_t total = 0;
  for (size_t i = 0; i < buffers.size(); ++i) {
    const Buffer& buffer = buffers[i];
    const std::string which = "buffer " + std::to_string(i);
    if (buffer.lower >= buffer.upper) throw std::invalid_argument(which + " has an empty lifetime");
    if (buffer.size < 0) throw std::invalid_argument(which + " has a negative size");
    if (buffer.size > kMaxTotalSize - total) throw std::invalid_argument("the sum of the sizes is larger than 2^60");
    total += buffer.size;
  }
}

}  // namespace

int64_t lower_bound(const std::vector<Buffer>& buffers) {
  validate(buffers);
  int64_t live = 0;
  int64_t most = 0;
  for (const Event& event : events_of(buffers)) {
    const int64_t size = buffers[static_cast<size_t>(event.buffer)].size;
    live += event.starts ? size : -size;
    most = std::max(most, live);
  }
  return most;
}

class Packer::Search {
 public:
  Search(const std::vector<Buffer>& buffers, int64_t capacity);
  Outcome run(int64_t nodes, double seconds, const std::function<bool()>& interrupted);

  std::vector<int64_t> offsets;
  int64_t nodes = 0;

 private:
  enum class Verdict { kSolved, kFailed, kStopped };
  enum class Choice {
    kConflicts,    // decide where most overflows were per candidate; order candidates by rank and overflows
    kFewestRivals  // decide where there are fewest candidates, then lowest; order candidates by start, then rank
  };

  // --- the problem ---
  int count_;
  int64_t capacity_;
  std::vector<int64_t> size_;
  Lists neighbours_;   // of each buffer, ascending
  Lists sections_of_;  // of each buffer
  Lists sections_;     // the buffers of each section
  size_t words_;       // of a row of adjacency_
  std::vector<uint64_t> adjacency_;
  std::vector<int> rank_by_section_load_;
  std::vector<int> rank_by_area_;

  // --- the state ---
  std::vector<int64_t> floor_;
  std::vector<int64_t> barrier_;  // a buffer is excluded while its barrier is above its floor; it starts no lower
  std::vector<int64_t> start_;
  std::vector<int64_t> end_;
  std::vector<int64_t> unplaced_size_;  // by section, like the next two
  std::vector<int64_t> first_start_;    // the lowest start when the section was last checked
  std::vector<int64_t> second_end_;     // the second lowest end when it was last checked
  std::vector<int64_t> excluded_;       // a bit for each excluded buffer, 64 in a word
  std::vector<char> placed_;
  struct Change {
    int64_t* variable;
    int64_t before;
  };
  std::vector<Change> trail_;
  std::vector<int> placements_;

  // --- pending propagation ---
  std::vector<int> section_queue_;
  std::vector<char> section_queued_;
  std::vector<int> support_queue_;
  std::vector<char> support_queued_;
  bool contradiction_ = false;
  std::vector<int> late_;     // room for check_section()
  std::vector<int> blocker_;  // of each buffer: the neighbour last seen in the way of it at its floor

  // --- what survives a restart ---
  std::vector<double> conflicts_;
  std::unordered_set<StateKey, StateKeyHash> failed_;
  int64_t runs_ = 0;
  int64_t nodes_since_long_run_ = 0;

  // --- the current run ---
  Choice choice_ = Choice::kConflicts;
  std::vector<double> rank_;
  int64_t node_limit_ = 0;
  Clock::time_point deadline_;
  Clock::time_point next_question_;
  const std::function<bool()>* interrupted_ = nullptr;
  bool timed_out_ = false;
  bool was_interrupted_ = false;

  static size_t at(int index) { return static_cast<size_t>(index); }
  bool excluded(int b) const { return excluded_[at(b) / 64] >> (at(b) % 64) & 1; }
  bool adjacent(int a, int b) const {
    return adjacency_[at(a) * words_ + at(b) / 64] >> (at(b) % 64) & 1;
  }

  void build_neighbours(const std::vector<Buffer>& buffers);
  void build_sections(const std::vector<Buffer>& buffers);
  void rank(const std::vector<Buffer>& buffers);

  void assign(int64_t& variable, int64_t value);
  void undo(size_t trail, size_t placements);
  void reset();

  void raise(int b, int64_t start);
  void moved(int b, int64_t start_before, int64_t end_before);
  void update_excluded(int b);
  void place(int b);
  void exclude(int b, int64_t start);
  void stand_on_neighbour(int b);
  bool settle_supports();
  bool check_section(int section);
  bool propagate(const std::vector<int>& open);
  void clear_queues();

  bool fits_below(int b, int64_t address) const;
  int candidates(int b) const;
  std::pair<int, int> choose(const std::vector<int>& open) const;
  bool better(int a, int b) const;
  std::vector<std::vector<int>> parts(const std::vector<int>& open) const;
  bool out_of_time();
  Verdict solve(std::vector<int> open);
  Verdict solve_parts(std::vector<std::vector<int>> parts);
};

// ------------------------------------------------------------------------------------------------ the problem

Packer::Search::Search(const std::vector<Buffer>& buffers, int64_t capacity)
    : count_(static_cast<int>(buffers.size())), capacity_(capacity), words_((buffers.size() + 63) / 64) {
  for (const Buffer& buffer : buffers) size_.push_back(buffer.size);
  build_neighbours(buffers);
  build_sections(buffers);
  rank(buffers);
  conflicts_.assign(buffers.size(), 0.0);
}

void Packer::Search::build_neighbours(const std::vector<Buffer>& buffers) {
  adjacency_.assign(buffers.size() * words_, 0);
  std::vector<int> list;
  for (int i = 0; i < count_; ++i) {
    list.clear();
    for (int j = 0; j < count_; ++j) {
      if (i == j || buffers[at(i)].lower >= buffers[at(j)].upper || buffers[at(j)].lower >= buffers[at(i)].upper) continue;
      list.push_back(j);
      adjacency_[at(i) * words_ + at(j) / 64] |= uint64_t{1} << (at(j) % 64);
    }
    neighbours_.append(list);
  }
}

// The buffers alive just before an end that follows a start are a maximal set, and all maximal sets are found so.
void Packer::Search::build_sections(const std::vector<Buffer>& buffers) {
  std::vector<std::vector<int>> of_buffer(buffers.size());
  std::vector<int> live;
  bool grown = false;
  for (const Event& event : events_of(buffers)) {
    if (event.starts) {
      live.insert(std::lower_bound(live.begin(), live.end(), event.buffer), event.buffer);
    } else {
      if (grown) {
        for (int b : live) of_buffer[at(b)].push_back(sections_.size());
        sections_.append(live);
      }
      live.erase(std::lower_bound(live.begin(), live.end(), event.buffer));
    }
    grown = event.starts;
  }
  for (const std::vector<int>& list : of_buffer) sections_of_.append(list);
}

void Packer::Search::rank(const std::vector<Buffer>& buffers) {
  std::vector<int64_t> load(at(sections_.size()), 0);
  for (int s = 0; s < sections_.size(); ++s) {
    for (int b : sections_[s]) load[at(s)] += size_[at(b)];
  }
  std::vector<int64_t> worst_load(buffers.size(), 0);
  std::vector<double> duration(buffers.size());
  std::vector<double> area(buffers.size());
  for (int b = 0; b < count_; ++b) {
    for (int s : sections_of_[b]) worst_load[at(b)] = std::max(worst_load[at(b)], load[at(s)]);
    // As doubles: a difference of two times, or its product with a size, may not fit in 64 bits.
    duration[at(b)] = static_cast<double>(buffers[at(b)].upper) - static_cast<double>(buffers[at(b)].lower);
    area[at(b)] = duration[at(b)] * static_cast<double>(size_[at(b)]);
  }
  const auto ranks = [&](auto before) {
    std::vector<int> order(buffers.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), before);
    std::vector<int> result(buffers.size());
    for (int i = 0; i < count_; ++i) result[at(order[at(i)])] = i;
    return result;
  };
  rank_by_section_load_ = ranks([&](int a, int b) {
    return std::tie(worst_load[at(a)], duration[at(a)], area[at(a)]) >
           std::tie(worst_load[at(b)], duration[at(b)], area[at(b)]);
  });
  rank_by_area_ = ranks([&](int a, int b) {
    return std::tie(area[at(a)], size_[at(a)]) > std::tie(area[at(b)], size_[at(b)]);
  });
}

// ------------------------------------------------------------------------------------------------ the state

void Packer::Search::assign(int64_t& variable, int64_t value) {
  if (variable == value) return;
  trail_.push_back({&variable, variable});
  variable = value;
}

void Packer::Search::undo(size_t trail, size_t placements) {
  for (; trail_.size() > trail; trail_.pop_back()) *trail_.back().variable = trail_.back().before;
  for (; placements_.size() > placements; placements_.pop_back()) placed_[at(placements_.back())] = 0;
}

void Packer::Search::reset() {
  const size_t n = at(count_);
  floor_.assign(n, 0);
  barrier_.assign(n, 0);
  start_.assign(n, 0);
  end_ = size_;
  placed_.assign(n, 0);
  unplaced_size_.assign(at(sections_.size()), 0);
  for (int s = 0; s < sections_.size(); ++s) {
    for (int b : sections_[s]) unplaced_size_[at(s)] += size_[at(b)];
  }
  first_start_.assign(at(sections_.size()), kPlaced);
  second_end_.assign(at(sections_.size()), kPlaced);
  excluded_.assign(words_, 0);
  trail_.clear();
  placements_.clear();
  section_queue_.clear();
  support_queue_.clear();
  section_queued_.assign(at(sections_.size()), 0);
  support_queued_.assign(n, 0);
  contradiction_ = false;
  blocker_.assign(n, 0);
  late_.assign(n + 1, 0);
  offsets.assign(n, 0);
}

// Brings the bit of b up to date with its barrier and floor.
void Packer::Search::update_excluded(int b) {
  const uint64_t bit = uint64_t{1} << (at(b) % 64);
  const uint64_t word = static_cast<uint64_t>(excluded_[at(b) / 64]);
  const bool is = !placed_[at(b)] && barrier_[at(b)] > floor_[at(b)];
  assign(excluded_[at(b) / 64], static_cast<int64_t>(is ? word | bit : word & ~bit));
}

// Raises the lowest start of an unplaced buffer.
void Packer::Search::raise(int b, int64_t start) {
  const int64_t start_before = start_[at(b)];
  const int64_t end_before = end_[at(b)];
  assign(start_[at(b)], start);
  assign(end_[at(b)], start + size_[at(b)]);
  if (end_[at(b)] > capacity_) {
    contradiction_ = true;
  } else {
    moved(b, start_before, end_before);
  }
}

// The start and end of b have risen, or b was placed. Queues the sections of which b may have been the lowest, or can
// no longer be, and the excluded neighbours that could have stood on b and may have lost their support.
void Packer::Search::moved(int b, int64_t start_before, int64_t end_before) {
  const int64_t start = placed_[at(b)] ? 0 : start_[at(b)];
  for (int s : sections_of_[b]) {
    if (start_before > first_start_[at(s)] && end_before > second_end_[at(s)] &&
        start <= capacity_ - unplaced_size_[at(s)]) {
      continue;
    }
    if (section_queued_[at(s)]) continue;
    section_queued_[at(s)] = 1;
    section_queue_.push_back(s);
  }
  const uint64_t* row = &adjacency_[at(b) * words_];
  for (size_t w = 0; w < words_; ++w) {
    for (uint64_t bits = row[w] & static_cast<uint64_t>(excluded_[w]); bits != 0; bits &= bits - 1) {
      const int c = static_cast<int>(w) * 64 + lowest_bit(bits);
      if (support_queued_[at(c)] || start_[at(c)] < end_before || start_[at(c)] >= end_[at(b)]) continue;
      support_queued_[at(c)] = 1;
      support_queue_.push_back(c);
    }
  }
}

// Places b at its lowest start, which is its floor.
void Packer::Search::place(int b) {
  const int64_t start = start_[at(b)];
  const int64_t top = end_[at(b)];
  offsets[at(b)] = start;
  placed_[at(b)] = 1;
  placements_.push_back(b);
  assign(start_[at(b)], kPlaced);
  assign(end_[at(b)], kPlaced);
  for (int s : sections_of_[b]) assign(unplaced_size_[at(s)], unplaced_size_[at(s)] - size_[at(b)]);
  moved(b, start, top);
  for (int c : neighbours_[b]) {
    if (placed_[at(c)] || floor_[at(c)] >= top) continue;
    assign(floor_[at(c)], top);
    if (barrier_[at(c)] > top) continue;
    update_excluded(c);
    if (start_[at(c)] < top) raise(c, top);
  }
}

// Says that b does not stand on its floor and starts no lower than `start`.
void Packer::Search::exclude(int b, int64_t start) {
  assign(barrier_[at(b)], std::max(floor_[at(b)] + 1, start));
  update_excluded(b);
  stand_on_neighbour(b);
}

// Raises the start of an excluded buffer to the first end of a neighbour.
void Packer::Search::stand_on_neighbour(int b) {
  const int64_t* const ends = end_.data();
  int64_t first = kPlaced;
  for (int c : neighbours_[b]) first = std::min(first, ends[c]);
  if (first == kPlaced) {
    contradiction_ = true;
    return;
  }
  const int64_t start = std::max(barrier_[at(b)], first);
  if (start > start_[at(b)]) raise(b, start);
}

// ------------------------------------------------------------------------------------------------ propagation

// The same as standing every excluded buffer on its neighbours until nothing changes, but in the order of ends: two
// excluded buffers that lift each other in turn would otherwise go up in steps of their sizes. Returns false if some
// excluded buffer finds nothing to stand on.
bool Packer::Search::settle_supports() {
  std::vector<int64_t> end(at(count_), kPlaced);
  std::vector<char> settled(at(count_), 0);
  std::vector<int64_t> start = start_;
  for (int b = 0; b < count_; ++b) {
    if (!placed_[at(b)] && !excluded(b)) end[at(b)] = end_[at(b)];
  }
  while (true) {
    int lowest = -1;
    for (int b = 0; b < count_; ++b) {
      if (!settled[at(b)] && end[at(b)] < kPlaced && (lowest < 0 || end[at(b)] < end[at(lowest)])) lowest = b;
    }
    if (lowest < 0) break;
    settled[at(lowest)] = 1;
    for (int c : neighbours_[lowest]) {
      if (placed_[at(c)] || end[at(c)] < kPlaced) continue;  // the first neighbour to settle ends lowest
      start[at(c)] = std::max({start_[at(c)], barrier_[at(c)], end[at(lowest)]});
      end[at(c)] = start[at(c)] + size_[at(c)];
    }
  }
  for (int b = 0; b < count_; ++b) {
    if (placed_[at(b)] || !excluded(b)) continue;
    if (end[at(b)] >= kPlaced) return false;
    if (start[at(b)] > start_[at(b)]) raise(b, start[at(b)]);
    if (contradiction_) return false;
  }
  return true;
}

// Returns false if the section overflows. Excludes the buffers that cannot be the lowest of it.
bool Packer::Search::check_section(int section) {
  const int64_t* const starts = start_.data();
  const int64_t* const ends = end_.data();
  const int64_t highest_start = capacity_ - unplaced_size_[at(section)];
  int64_t first_start = kPlaced;
  int64_t first_end = kPlaced;
  int64_t second_end = kPlaced;
  int first = -1;
  size_t late = 0;  // unplaced buffers that start too high to be the lowest
  for (int b : sections_[section]) {
    const int64_t start = starts[b];
    const int64_t end = ends[b];
    first_start = std::min(first_start, start);
    if (end < second_end) {
      second_end = std::max(first_end, end);
      if (end < first_end) {
        first_end = end;
        first = b;
      }
    }
    late_[late] = b;
    late += start > highest_start && start < kPlaced ? 1 : 0;
  }
  assign(first_start_[at(section)], first_start);
  assign(second_end_[at(section)], second_end);
  if (first < 0) return true;  // all are placed
  if (first_start > highest_start) {
    for (size_t i = 0; i < late; ++i) conflicts_[at(late_[i])] += 1;
    return false;
  }
  if (second_end == kPlaced) return true;
  for (size_t i = 0; i < late; ++i) {
    const int b = late_[i];
    const int64_t other_end = b == first ? second_end : first_end;
    if (start_[at(b)] < other_end && barrier_[at(b)] < other_end) {
      assign(barrier_[at(b)], other_end);
      update_excluded(b);
      raise(b, other_end);
    }
  }
  return true;
}

void Packer::Search::clear_queues() {
  for (int s : section_queue_) section_queued_[at(s)] = 0;
  for (int b : support_queue_) support_queued_[at(b)] = 0;
  section_queue_.clear();
  support_queue_.clear();
  contradiction_ = false;
}

// Draws all conclusions; returns false if there is no packing of this kind. `open` are the unplaced buffers at hand.
bool Packer::Search::propagate(const std::vector<int>& open) {
  const int64_t patience = 16 * static_cast<int64_t>(open.size()) + 1000;
  int64_t steps = 0;
  while (true) {
    if (contradiction_) {
      clear_queues();
      return false;
    }
    if (!support_queue_.empty()) {
      const int b = support_queue_.back();
      support_queue_.pop_back();
      support_queued_[at(b)] = 0;
      if (placed_[at(b)] || !excluded(b)) continue;
      if (++steps % patience == 0) {
        if (!settle_supports()) contradiction_ = true;
        if (out_of_time()) break;  // the state is not settled, but solve() asks the clock next
      } else {
        stand_on_neighbour(b);
      }
    } else if (!section_queue_.empty()) {
      const int s = section_queue_.back();
      section_queue_.pop_back();
      section_queued_[at(s)] = 0;
      if (!check_section(s)) {
        clear_queues();
        return false;
      }
    } else {
      break;
    }
  }
  for (int b : open) {
    if (!excluded(b)) continue;
    const int64_t top = floor_[at(b)] + size_[at(b)];
    if (start_[at(blocker_[at(b)])] < top && adjacent(b, blocker_[at(b)])) continue;
    bool blocked = false;
    for (int c : neighbours_[b]) {
      if (start_[at(c)] >= top) continue;
      blocked = true;
      blocker_[at(b)] = c;
      break;
    }
    if (!blocked) return false;
  }
  return true;
}

// ------------------------------------------------------------------------------------------------ the search

// Whether a neighbour of b can end below the address.
bool Packer::Search::fits_below(int b, int64_t address) const {
  for (int c : neighbours_[b]) {
    if (end_[at(c)] < address) return true;
  }
  return false;
}

// How many buffers, b included, could take the place of b at its floor; 0 if something can still go under one of them.
int Packer::Search::candidates(int b) const {
  const int64_t top = end_[at(b)];
  if (excluded(b) || fits_below(b, top)) return 0;
  int number = 1;
  for (int c : neighbours_[b]) {
    if (start_[at(c)] >= top) continue;
    if (fits_below(c, top)) return 0;
    ++number;
  }
  return number;
}

// The buffer to decide about, and its number of candidates. There always is one: the buffer that can end lowest.
std::pair<int, int> Packer::Search::choose(const std::vector<int>& open) const {
  int chosen = -1;
  int chosen_number = 0;
  double least = std::numeric_limits<double>::infinity();
  int64_t chosen_top = 0;
  for (int b : open) {
    const int number = candidates(b);
    if (number == 0) continue;
    if (number == 1) return {b, 1};
    const int64_t top = end_[at(b)];
    double cost = number;
    if (choice_ == Choice::kConflicts) {
      double weight = 1 + conflicts_[at(b)];
      for (int c : neighbours_[b]) {
        if (start_[at(c)] < top) weight += conflicts_[at(c)];
      }
      cost /= weight;
    }
    const bool lower = choice_ == Choice::kFewestRivals && cost == least && top < chosen_top;
    if (cost < least || lower) {
      least = cost;
      chosen = b;
      chosen_number = number;
      chosen_top = top;
    }
  }
  return {chosen, chosen_number};
}

bool Packer::Search::better(int a, int b) const {
  if (choice_ == Choice::kFewestRivals && start_[at(a)] != start_[at(b)]) return start_[at(a)] < start_[at(b)];
  const double rank_a = rank_[at(a)] - kRanksPerConflict * conflicts_[at(a)];
  const double rank_b = rank_[at(b)] - kRanksPerConflict * conflicts_[at(b)];
  return rank_a != rank_b ? rank_a < rank_b : a < b;
}

// The groups of buffers that are connected through neighbours, smallest group first.
std::vector<std::vector<int>> Packer::Search::parts(const std::vector<int>& open) const {
  std::vector<uint64_t> left(words_, 0);
  for (int b : open) left[at(b) / 64] |= uint64_t{1} << (at(b) % 64);
  std::vector<std::vector<int>> result;
  for (int b : open) {
    if (!(left[at(b) / 64] >> (at(b) % 64) & 1)) continue;
    left[at(b) / 64] &= ~(uint64_t{1} << (at(b) % 64));
    std::vector<int> part{b};
    for (size_t i = 0; i < part.size() && part.size() < open.size(); ++i) {
      const uint64_t* row = &adjacency_[at(part[i]) * words_];
      for (size_t w = 0; w < words_; ++w) {
        uint64_t reached = row[w] & left[w];
        left[w] &= ~reached;
        for (; reached != 0; reached &= reached - 1) part.push_back(static_cast<int>(w) * 64 + lowest_bit(reached));
      }
    }
    std::sort(part.begin(), part.end());
    result.push_back(std::move(part));
  }
  std::stable_sort(result.begin(), result.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
  return result;
}

bool Packer::Search::out_of_time() {
  if (timed_out_ || was_interrupted_) return true;
  const Clock::time_point now = Clock::now();
  if (now >= deadline_) timed_out_ = true;
  if (now >= next_question_) {
    next_question_ = now + kAskInterval;
    if (*interrupted_ && (*interrupted_)()) was_interrupted_ = true;
  }
  return timed_out_ || was_interrupted_;
}

// Places the open buffers. After kFailed the state is as it was before the call; after kStopped it is undefined.
Packer::Search::Verdict Packer::Search::solve(std::vector<int> open) {
  const size_t trail = trail_.size();
  const size_t placements = placements_.size();
  std::vector<StateKey> passed;  // the states that this call went through: all of them fail if it does
  const auto fail = [&] {
    undo(trail, placements);
    if (failed_.size() < 2 * kMaxMemory) failed_.insert(passed.begin(), passed.end());
    return Verdict::kFailed;
  };
  while (!open.empty()) {
    const bool possible = propagate(open);
    if (out_of_time()) return Verdict::kStopped;
    if (!possible) return fail();

    StateKey key;
    for (int b : open) key.add(static_cast<uint64_t>(b), static_cast<uint64_t>(floor_[at(b)]), excluded(b));
    if (failed_.count(key) != 0) return fail();
    passed.push_back(key);

    std::vector<std::vector<int>> groups = parts(open);
    if (groups.size() > 1) {
      const Verdict verdict = solve_parts(std::move(groups));
      return verdict == Verdict::kFailed ? fail() : verdict;
    }

    const auto [chosen, number] = choose(open);
    if (number == 1) {
      place(chosen);
      open.erase(std::find(open.begin(), open.end(), chosen));
      continue;
    }
    if (nodes >= node_limit_) return Verdict::kStopped;
    ++nodes;
    const int64_t top = end_[at(chosen)];
    int pick = chosen;
    for (int c : neighbours_[chosen]) {
      if (start_[at(c)] < top && better(c, pick)) pick = c;
    }
    const size_t trail_here = trail_.size();
    const size_t placements_here = placements_.size();
    place(pick);
    std::vector<int> rest;
    rest.reserve(open.size() - 1);
    std::copy_if(open.begin(), open.end(), std::back_inserter(rest), [&](int b) { return b != pick; });
    const Verdict verdict = solve(std::move(rest));
    if (verdict != Verdict::kFailed) return verdict;
    undo(trail_here, placements_here);
    exclude(pick, top);
  }
  return Verdict::kSolved;
}

Packer::Search::Verdict Packer::Search::solve_parts(std::vector<std::vector<int>> parts) {
  for (std::vector<int>& part : parts) {
    const Verdict verdict = solve(std::move(part));
    if (verdict != Verdict::kSolved) return verdict;
  }
  return Verdict::kSolved;
}

Outcome Packer::Search::run(int64_t node_limit, double seconds, const std::function<bool()>& interrupted) {
  const auto now = Clock::now();
  // Written so that a huge or undefined number of seconds is no limit, and a negative one strikes at once.
  deadline_ = seconds < 1e6 ? now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(
                                        std::max(seconds, 0.0)))
                            : Clock::time_point::max();
  next_question_ = now;
  interrupted_ = &interrupted;
  timed_out_ = was_interrupted_ = false;
  const int64_t last_node = node_limit < std::numeric_limits<int64_t>::max() - nodes ? nodes + node_limit
                                                                                    : std::numeric_limits<int64_t>::max();
  std::vector<int> all(at(count_));
  std::iota(all.begin(), all.end(), 0);
  while (true) {
    int64_t budget = std::max(kMinRunNodes, kRunNodesPerBuffer * count_);
    const int64_t long_budget = static_cast<int64_t>(kLongRunShare * static_cast<double>(nodes));
    const bool is_long = long_budget > budget && nodes_since_long_run_ > long_budget;
    if (is_long) {
      budget = long_budget;
      choice_ = Choice::kConflicts;
    } else {
      if (runs_ % kRunsPerEpoch == 0) conflicts_.assign(at(count_), 0.0);
      choice_ = runs_ % 2 == 0 ? Choice::kConflicts : Choice::kFewestRivals;
      ++runs_;
    }
    const std::vector<int>& ranks = choice_ == Choice::kConflicts ? rank_by_section_load_ : rank_by_area_;
    rank_.assign(ranks.begin(), ranks.end());
    if (runs_ > kRunsPerEpoch) {
      for (int b = 0; b < count_; ++b) {
        const uint64_t draw = mix(mix(static_cast<uint64_t>(runs_)) + static_cast<uint64_t>(b)) >> 11;
        const double symmetric = static_cast<double>(draw) * 0x1.0p-52 - 1.0;
        rank_[at(b)] += kNoise * count_ * symmetric;
      }
    }
    if (failed_.size() > kMaxMemory) failed_.clear();
    reset();
    const int64_t before = nodes;
    node_limit_ = nodes + budget;
    const Verdict verdict = solve(all);
    nodes_since_long_run_ = is_long ? 0 : nodes_since_long_run_ + (nodes - before);
    if (verdict == Verdict::kSolved) return Outcome::kFound;
    if (verdict == Verdict::kFailed) return Outcome::kInfeasible;
    if (was_interrupted_) return Outcome::kInterrupted;
    if (timed_out_ || nodes >= last_node) return Outcome::kLimit;
  }
}

// ------------------------------------------------------------------------------------------------ the packer

Packer::Packer(const std::vector<Buffer>& buffers, int64_t capacity) {
  if (buffers.size() > static_cast<size_t>(kMaxBuffers)) {
    throw std::invalid_argument("more than " + std::to_string(kMaxBuffers) + " buffers");
  }
  if (lower_bound(buffers) > capacity) outcome_ = Outcome::kInfeasible;
  offsets_.assign(buffers.size(), 0);
  std::vector<Buffer> solid;
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].size == 0) continue;  // in nobody's way; the search relies on sizes above 0
    solid.push_back(buffers[i]);
    solid_.push_back(i);
  }
  search_ = std::make_unique<Search>(solid, std::min(capacity, kMaxTotalSize));
}

Packer::~Packer() = default;

Outcome Packer::run(int64_t nodes, double seconds, const std::function<bool()>& interrupted) {
  if (outcome_ == Outcome::kLimit || outcome_ == Outcome::kInterrupted) {
    outcome_ = search_->run(nodes, seconds, interrupted);
    if (outcome_ == Outcome::kFound) {
      for (size_t i = 0; i < solid_.size(); ++i) offsets_[solid_[i]] = search_->offsets[i];
    }
  }
  return outcome_;
}

const std::vector<int64_t>& Packer::offsets() const {
  static const std::vector<int64_t> none;
  return outcome_ == Outcome::kFound ? offsets_ : none;
}

int64_t Packer::nodes() const { return search_->nodes; }

}  // namespace litefuse::arena
