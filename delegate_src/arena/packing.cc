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
// what made it fail, earlier in the search. No way to choose is good for all problems, and luck has a large part in it:
// after some runs, an epoch, the counts start anew, and the next epoch has other orders. From time to time one run is
// given much longer, which proves small infeasible problems to be so.

#include "packing.h"

#include <algorithm>
#include <chrono>
#include <iterator>
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
constexpr int64_t kNobody = -1;

// How a run chooses where to decide.
enum class Choice {
  kConflicts,     // where most overflows were per candidate
  kFewestRivals,  // where there are fewest candidates, then lowest
};

// By what candidates are ranked, most first; ties by area.
enum Order { kLoad, kNeighbours, kDuration, kArea, kOrders };  // load: the most that lives during the buffer's life

// A run that decides by conflicts alternates with one of another kind. The first rank their candidates by an order less
// the overflows they took part in, of which each is worth some ranks; the others by start, then in the same way.
struct Strategy {
  Order order;
  Choice other_choice;
  Order other_order;
  double ranks_per_conflict;
};

// Each epoch of runs uses the next one. Of some 40 that were tried for 12,000 decisions each on seven known hard
// problems (as they are, reversed in time, with other sizes) these solved most, a third to two thirds, and not the same
// ones. Fewer ranks per conflict, longer or shorter runs, more noise and candidates by size were worse.
constexpr Strategy kStrategies[] = {
    {kLoad, Choice::kFewestRivals, kNeighbours, 0.2},     {kLoad, Choice::kFewestRivals, kArea, 0.2},
    {kNeighbours, Choice::kFewestRivals, kDuration, 0.2}, {kLoad, Choice::kFewestRivals, kNeighbours, 0.3},
    {kLoad, Choice::kConflicts, kNeighbours, 0.2},        {kLoad, Choice::kFewestRivals, kDuration, 0.2},
};
// After so many runs the counts of overflows outweigh the ranks, and runs resemble each other: an epoch ends, and the
// counts start anew.
constexpr int64_t kRunsPerEpoch = 20;
// After the first epoch the ranks are disturbed by up to this part of the number of buffers.
constexpr double kNoise = 0.01;
// Decisions of one run: this times the number of buffers, and no fewer than kMinRunNodes.
constexpr int64_t kRunNodesPerBuffer = 2;
constexpr int64_t kMinRunNodes = 100;
// Between two epochs, once the number of decisions has doubled since the last time, a long run gets this part of it.
constexpr int64_t kLongRunPart = 8;
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

  // --- the problem ---
  int count_;
  int64_t capacity_;
  std::vector<int64_t> size_;
  size_t words_;                      // of a row of neighbours_
  std::vector<uint64_t> neighbours_;  // for each buffer a row with a bit for each buffer, 64 in a word
  std::vector<int> first_section_;    // of each buffer, like the last one; it is in all between as well
  std::vector<int> last_section_;
  std::vector<int64_t> section_load_;   // the sum of all sizes
  std::vector<size_t> members_begin_;   // of each section in members_, and where the last one ends
  std::vector<size_t> position_begin_;  // of each buffer in position_
  std::vector<int> ranks_[kOrders];

  // --- the state ---
  std::vector<int64_t> floor_;
  std::vector<int64_t> barrier_;  // a buffer is excluded while its barrier is above its floor; it starts no lower
  std::vector<int64_t> start_;
  std::vector<int64_t> end_;
  struct Section {
    int64_t highest_start;  // of its lowest unplaced buffer: more would overflow
    size_t unplaced;        // how many; they come first among its members
    // Found by the last check, and true until one of the three buffers moves.
    int64_t lowest_end;
    int64_t second_end;
    int64_t with_lowest_start;  // a buffer, or kNobody
    int64_t with_lowest_end;
    int64_t with_second_end;
  };
  std::vector<Section> sections_;
  std::vector<int> members_;        // the buffers of each section
  std::vector<size_t> position_;    // of each buffer in members_, for each of its sections
  std::vector<uint64_t> unplaced_;  // a bit for each unplaced buffer, 64 in a word
  std::vector<int64_t> excluded_;   // the same for the excluded ones
  struct Change {
    int64_t* variable;
    int64_t before;
  };
  std::vector<Change> trail_;
  std::vector<int> placements_;

  // --- pending propagation ---
  std::vector<int> section_queue_;
  std::vector<char> section_queued_;
  std::vector<int> move_queue_;        // buffers that have risen or were placed
  std::vector<int64_t> start_before_;  // of each buffer: where it started when it was queued, or kPlaced
  std::vector<int> support_queue_;
  std::vector<char> support_queued_;
  bool contradiction_ = false;
  std::vector<int> blocker_;  // of each buffer: the neighbour last seen in the way of it at its floor

  // --- what survives a restart ---
  std::vector<double> conflicts_;
  std::unordered_set<StateKey, StateKeyHash> failed_;
  int64_t runs_ = 0;
  int64_t next_long_run_ = 0;  // in decisions

  // --- the current run ---
  Choice choice_ = Choice::kConflicts;
  std::vector<double> rank_;
  double ranks_per_conflict_ = 0;
  int64_t node_limit_ = 0;
  Clock::time_point deadline_;
  Clock::time_point next_question_;
  const std::function<bool()>* interrupted_ = nullptr;
  bool timed_out_ = false;
  bool was_interrupted_ = false;

  static size_t at(int index) { return static_cast<size_t>(index); }
  bool excluded(int b) const { return excluded_[at(b) / 64] >> (at(b) % 64) & 1; }
  size_t& position_of(int b, size_t section) {
    return position_[position_begin_[at(b)] + section - at(first_section_[at(b)])];
  }
  bool placed(int b) const { return !(unplaced_[at(b) / 64] >> (at(b) % 64) & 1); }
  bool adjacent(int a, int b) const {
    return a != b && first_section_[at(a)] <= last_section_[at(b)] && first_section_[at(b)] <= last_section_[at(a)];
  }
  // Calls visit(neighbour) for the unplaced neighbours of b, until it returns false; whether it never did.
  template <typename Visit>
  bool all_neighbours(int b, Visit visit) const {
    const uint64_t* row = &neighbours_[at(b) * words_];
    for (size_t w = 0; w < words_; ++w) {
      for (uint64_t bits = row[w] & unplaced_[w]; bits != 0; bits &= bits - 1) {
        if (!visit(static_cast<int>(w) * 64 + lowest_bit(bits))) return false;
      }
    }
    return true;
  }

  void build_sections(const std::vector<Buffer>& buffers);
  void build_neighbours();
  void rank(const std::vector<Buffer>& buffers);

  void assign(int64_t& variable, int64_t value);
  void undo(size_t trail, size_t placements);
  void reset();

  void raise(int b, int64_t start);
  void queue_move(int b);
  void settle_move(int b);
  void queue_support(int b);
  void update_excluded(int b);
  void place(int b);
  void exclude(int b, int64_t start);
  void stand_on_neighbour(int b);
  bool settle_supports();
  bool check_section(int index);
  bool propagate(const std::vector<int>& open);
  void clear_queues();

  bool fits_below(int b, int64_t address) const;
  int candidates(int b) const;
  std::pair<int, int> choose(const std::vector<int>& open) const;
  bool better(int a, int b) const;
  std::vector<std::vector<int>> parts(const std::vector<int>& open) const;
  bool out_of_time();
  void prepare_run(bool is_long);
  Verdict solve(std::vector<int> open);
  Verdict solve_parts(std::vector<std::vector<int>> parts);
};

// ------------------------------------------------------------------------------------------------ the problem

Packer::Search::Search(const std::vector<Buffer>& buffers, int64_t capacity)
    : count_(static_cast<int>(buffers.size())), capacity_(capacity), words_((buffers.size() + 63) / 64) {
  for (const Buffer& buffer : buffers) size_.push_back(buffer.size);
  build_sections(buffers);
  build_neighbours();
  rank(buffers);
  conflicts_.assign(buffers.size(), 0.0);
}

// The buffers alive just before an end that follows a start are a maximal set, and all maximal sets are found so.
void Packer::Search::build_sections(const std::vector<Buffer>& buffers) {
  first_section_.assign(buffers.size(), 0);
  last_section_.assign(buffers.size(), 0);
  members_begin_.assign(1, 0);
  std::vector<int> live;
  bool grown = false;
  for (const Event& event : events_of(buffers)) {
    if (event.starts) {
      first_section_[at(event.buffer)] = static_cast<int>(section_load_.size());
      live.push_back(event.buffer);
    } else {
      if (grown) {
        section_load_.push_back(0);
        for (int b : live) section_load_.back() += size_[at(b)];
        members_.insert(members_.end(), live.begin(), live.end());
        members_begin_.push_back(members_.size());
      }
      last_section_[at(event.buffer)] = static_cast<int>(section_load_.size()) - 1;
      live.erase(std::find(live.begin(), live.end(), event.buffer));
    }
    grown = event.starts;
  }
  size_t positions = 0;
  for (int b = 0; b < count_; ++b) {
    position_begin_.push_back(positions);
    positions += at(last_section_[at(b)] - first_section_[at(b)] + 1);
  }
  position_.resize(positions);
  sections_.resize(section_load_.size());
  for (size_t s = 0; s < sections_.size(); ++s) {
    for (size_t i = members_begin_[s]; i < members_begin_[s + 1]; ++i) position_of(members_[i], s) = i;
  }
}

void Packer::Search::build_neighbours() {
  neighbours_.assign(at(count_) * words_, 0);
  for (int a = 0; a < count_; ++a) {
    for (int b = 0; b < count_; ++b) {
      if (a != b && adjacent(a, b)) neighbours_[at(a) * words_ + at(b) / 64] |= uint64_t{1} << (at(b) % 64);
    }
  }
}

void Packer::Search::rank(const std::vector<Buffer>& buffers) {
  std::vector<double> load(buffers.size());
  std::vector<double> neighbours(buffers.size());
  std::vector<double> duration(buffers.size());
  std::vector<double> area(buffers.size());
  const std::vector<double> size(size_.begin(), size_.end());
  for (int b = 0; b < count_; ++b) {
    load[at(b)] = static_cast<double>(*std::max_element(section_load_.begin() + first_section_[at(b)],
                                                        section_load_.begin() + last_section_[at(b)] + 1));
    for (int c = 0; c < count_; ++c) neighbours[at(b)] += adjacent(b, c) ? 1 : 0;
    // As doubles: a difference of two times, or its product with a size, may not fit in 64 bits.
    duration[at(b)] = static_cast<double>(buffers[at(b)].upper) - static_cast<double>(buffers[at(b)].lower);
    area[at(b)] = duration[at(b)] * size[at(b)];
  }
  const auto rank_by = [&](Order by, const std::vector<double>& first, const std::vector<double>& second) {
    std::vector<int> order(buffers.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return std::tie(first[at(a)], second[at(a)], area[at(a)]) > std::tie(first[at(b)], second[at(b)], area[at(b)]);
    });
    ranks_[by].resize(buffers.size());
    for (int i = 0; i < count_; ++i) ranks_[by][at(order[at(i)])] = i;
  };
  rank_by(kLoad, load, duration);
  rank_by(kNeighbours, neighbours, area);
  rank_by(kDuration, duration, area);
  rank_by(kArea, area, size);
}

// ------------------------------------------------------------------------------------------------ the state

void Packer::Search::assign(int64_t& variable, int64_t value) {
  if (variable == value) return;
  trail_.push_back({&variable, variable});
  variable = value;
}

void Packer::Search::undo(size_t trail, size_t placements) {
  for (; trail_.size() > trail; trail_.pop_back()) *trail_.back().variable = trail_.back().before;
  for (; placements_.size() > placements; placements_.pop_back()) {
    const int b = placements_.back();
    unplaced_[at(b) / 64] |= uint64_t{1} << (at(b) % 64);
    for (int s = first_section_[at(b)]; s <= last_section_[at(b)]; ++s) {
      sections_[at(s)].highest_start -= size_[at(b)];
      ++sections_[at(s)].unplaced;
    }
  }
}

void Packer::Search::reset() {
  const size_t n = at(count_);
  floor_.assign(n, 0);
  barrier_.assign(n, 0);
  start_.assign(n, 0);
  end_ = size_;
  unplaced_.assign(words_, 0);
  for (size_t b = 0; b < n; ++b) unplaced_[b / 64] |= uint64_t{1} << (b % 64);
  excluded_.assign(words_, 0);
  trail_.clear();
  placements_.clear();
  support_queue_.clear();
  move_queue_.clear();
  start_before_.assign(n, kPlaced);
  section_queue_.resize(sections_.size());
  std::iota(section_queue_.begin(), section_queue_.end(), 0);
  for (size_t s = 0; s < sections_.size(); ++s) {
    sections_[s] = {capacity_ - section_load_[s],
                    members_begin_[s + 1] - members_begin_[s],
                    kPlaced,
                    kPlaced,
                    kNobody,
                    kNobody,
                    kNobody};
  }
  section_queued_.assign(sections_.size(), 1);
  support_queued_.assign(n, 0);
  contradiction_ = false;
  blocker_.assign(n, 0);
  offsets.assign(n, 0);
}

// Brings the bit of b up to date with its barrier and floor.
void Packer::Search::update_excluded(int b) {
  const uint64_t bit = uint64_t{1} << (at(b) % 64);
  const uint64_t word = static_cast<uint64_t>(excluded_[at(b) / 64]);
  const bool is = !placed(b) && barrier_[at(b)] > floor_[at(b)];
  assign(excluded_[at(b) / 64], static_cast<int64_t>(is ? word | bit : word & ~bit));
}

// Raises the lowest start of an unplaced buffer.
void Packer::Search::raise(int b, int64_t start) {
  queue_move(b);
  assign(start_[at(b)], start);
  assign(end_[at(b)], start + size_[at(b)]);
  if (end_[at(b)] > capacity_) contradiction_ = true;
}

// To be called before the start and end of b rise, or before b is placed.
void Packer::Search::queue_move(int b) {
  if (start_before_[at(b)] != kPlaced) return;
  start_before_[at(b)] = start_[at(b)];
  move_queue_.push_back(b);
}

// Queues the sections in which the moves of b may change something, and the excluded neighbours that could have stood
// on b and may have lost their support.
void Packer::Search::settle_move(int b) {
  const int64_t start_before = start_before_[at(b)];
  const int64_t end_before = start_before + size_[at(b)];
  start_before_[at(b)] = kPlaced;
  const int64_t start = start_[at(b)] == kPlaced ? 0 : start_[at(b)];
  for (int s = first_section_[at(b)]; s <= last_section_[at(b)]; ++s) {
    const Section& section = sections_[at(s)];
    const bool now_late = start > section.highest_start && start_before <= section.highest_start;
    const bool watched = b == section.with_lowest_start || b == section.with_lowest_end || b == section.with_second_end;
    if ((!now_late && !watched) || section_queued_[at(s)]) continue;
    section_queued_[at(s)] = 1;
    section_queue_.push_back(s);
  }
  const uint64_t* row = &neighbours_[at(b) * words_];
  for (size_t w = 0; w < words_; ++w) {
    for (uint64_t bits = row[w] & static_cast<uint64_t>(excluded_[w]); bits != 0; bits &= bits - 1) {
      const int c = static_cast<int>(w) * 64 + lowest_bit(bits);
      if (start_[at(c)] >= end_before && start_[at(c)] < end_[at(b)]) queue_support(c);
    }
  }
}

void Packer::Search::queue_support(int b) {
  if (support_queued_[at(b)]) return;
  support_queued_[at(b)] = 1;
  support_queue_.push_back(b);
}

// Places b at its lowest start, which is its floor.
void Packer::Search::place(int b) {
  const int64_t top = end_[at(b)];
  offsets[at(b)] = start_[at(b)];
  queue_move(b);
  unplaced_[at(b) / 64] &= ~(uint64_t{1} << (at(b) % 64));
  placements_.push_back(b);
  assign(start_[at(b)], kPlaced);
  assign(end_[at(b)], kPlaced);
  for (size_t s = at(first_section_[at(b)]); s <= at(last_section_[at(b)]); ++s) {
    sections_[s].highest_start += size_[at(b)];
    // Swapped with the last unplaced one; undo() need not swap back.
    const size_t to = members_begin_[s] + --sections_[s].unplaced;
    const int other = members_[to];
    std::swap(members_[position_of(b, s)], members_[to]);
    std::swap(position_of(b, s), position_of(other, s));
  }
  all_neighbours(b, [&](int c) {
    if (floor_[at(c)] >= top) return true;
    assign(floor_[at(c)], top);
    if (barrier_[at(c)] > top) return true;
    update_excluded(c);
    if (start_[at(c)] < top) raise(c, top);
    return true;
  });
}

// Says that b does not stand on its floor and starts no lower than `start`.
void Packer::Search::exclude(int b, int64_t start) {
  assign(barrier_[at(b)], std::max(floor_[at(b)] + 1, start));
  update_excluded(b);
  queue_support(b);
}

// Raises the start of an excluded buffer to the first end of a neighbour, as far as the sections know it: when that
// neighbour has moved since, its move will queue b again.
void Packer::Search::stand_on_neighbour(int b) {
  int64_t first = kPlaced;
  for (int s = first_section_[at(b)]; s <= last_section_[at(b)]; ++s) {
    const Section& section = sections_[at(s)];
    first = std::min(first, b == section.with_lowest_end ? section.second_end : section.lowest_end);
  }
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
    if (!placed(b) && !excluded(b)) end[at(b)] = end_[at(b)];
  }
  while (true) {
    int lowest = -1;
    for (int b = 0; b < count_; ++b) {
      if (!settled[at(b)] && end[at(b)] < kPlaced && (lowest < 0 || end[at(b)] < end[at(lowest)])) lowest = b;
    }
    if (lowest < 0) break;
    settled[at(lowest)] = 1;
    all_neighbours(lowest, [&](int c) {
      if (end[at(c)] < kPlaced) return true;  // the first neighbour to settle ends lowest
      start[at(c)] = std::max({start_[at(c)], barrier_[at(c)], end[at(lowest)]});
      end[at(c)] = start[at(c)] + size_[at(c)];
      return true;
    });
  }
  for (int b = 0; b < count_; ++b) {
    if (placed(b) || !excluded(b)) continue;
    if (end[at(b)] >= kPlaced) return false;
    if (start[at(b)] > start_[at(b)]) raise(b, start[at(b)]);
    if (contradiction_) return false;
  }
  return true;
}

// Returns false if the section overflows. Excludes the buffers that cannot be the lowest of it.
bool Packer::Search::check_section(int index) {
  Section& section = sections_[at(index)];
  const int* const members = &members_[members_begin_[at(index)]];
  const int64_t* const starts = start_.data();
  const int64_t* const ends = end_.data();
  int64_t lowest_start = kPlaced;
  int64_t highest_start = 0;
  int64_t lowest_end = kPlaced;
  int64_t second_end = kPlaced;
  int64_t with_lowest_start = kNobody;
  int64_t with_lowest_end = kNobody;
  int64_t with_second_end = kNobody;
  for (size_t i = 0; i < section.unplaced; ++i) {
    const int b = members[i];
    const int64_t start = starts[b];
    const int64_t end = ends[b];
    highest_start = std::max(highest_start, start);
    if (start < lowest_start) {
      lowest_start = start;
      with_lowest_start = b;
    }
    if (end < lowest_end) {
      second_end = lowest_end;
      with_second_end = with_lowest_end;
      lowest_end = end;
      with_lowest_end = b;
    } else if (end < second_end) {
      second_end = end;
      with_second_end = b;
    }
  }
  if (section.unplaced > 0 && lowest_start > section.highest_start) {
    for (size_t i = 0; i < section.unplaced; ++i) conflicts_[at(members[i])] += 1;
    return false;
  }
  assign(section.lowest_end, lowest_end);
  assign(section.second_end, second_end);
  assign(section.with_lowest_start, with_lowest_start);
  assign(section.with_lowest_end, with_lowest_end);
  assign(section.with_second_end, with_second_end);
  if (highest_start <= section.highest_start || section.unplaced < 2) return true;
  for (size_t i = 0; i < section.unplaced; ++i) {
    const int b = members[i];
    if (start_[at(b)] <= section.highest_start) continue;
    const int64_t other_end = b == with_lowest_end ? second_end : lowest_end;
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
  for (int b : move_queue_) start_before_[at(b)] = kPlaced;
  move_queue_.clear();
  contradiction_ = false;
}

// Draws all conclusions; returns false if there is no packing of this kind. `open` are the unplaced buffers at hand.
// Goes in waves, so that many moves of one buffer are settled as one.
bool Packer::Search::propagate(const std::vector<int>& open) {
  const int64_t patience = 16 * static_cast<int64_t>(open.size()) + 1000;
  int64_t steps = 0;
  while (!contradiction_) {
    for (int b : move_queue_) settle_move(b);
    move_queue_.clear();
    for (int s : section_queue_) {
      section_queued_[at(s)] = 0;
      if (!contradiction_ && !check_section(s)) contradiction_ = true;
    }
    section_queue_.clear();
    if (move_queue_.empty() && support_queue_.empty()) break;
    for (int b : support_queue_) {
      support_queued_[at(b)] = 0;
      if (contradiction_ || !excluded(b)) continue;
      if (++steps % patience != 0) {
        stand_on_neighbour(b);
      } else if (!settle_supports()) {
        contradiction_ = true;
      }
    }
    support_queue_.clear();
    if (steps >= patience && out_of_time()) break;  // the state is not settled, but solve() asks the clock next
  }
  if (contradiction_) {
    clear_queues();
    return false;
  }
  for (int b : open) {
    if (!excluded(b)) continue;
    const int64_t top = floor_[at(b)] + size_[at(b)];
    if (start_[at(blocker_[at(b)])] < top && adjacent(b, blocker_[at(b)])) continue;
    const bool free = all_neighbours(b, [&](int c) {
      if (start_[at(c)] >= top) return true;
      blocker_[at(b)] = c;
      return false;
    });
    if (free) return false;
  }
  return true;
}

// ------------------------------------------------------------------------------------------------ the search

// Whether b or a neighbour of it can end below the address.
bool Packer::Search::fits_below(int b, int64_t address) const {
  for (int s = first_section_[at(b)]; s <= last_section_[at(b)]; ++s) {
    if (sections_[at(s)].lowest_end < address) return true;
  }
  return false;
}

// How many buffers, b included, could take the place of b at its floor; 0 if something can still go under one of them.
int Packer::Search::candidates(int b) const {
  const int64_t top = end_[at(b)];
  if (excluded(b) || fits_below(b, top)) return 0;
  int number = 1;
  const bool bottom = all_neighbours(b, [&](int c) {
    if (start_[at(c)] >= top) return true;
    ++number;
    return !fits_below(c, top);
  });
  return bottom ? number : 0;
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
      all_neighbours(b, [&](int c) {
        if (start_[at(c)] < top) weight += conflicts_[at(c)];
        return true;
      });
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
  const double rank_a = rank_[at(a)] - ranks_per_conflict_ * conflicts_[at(a)];
  const double rank_b = rank_[at(b)] - ranks_per_conflict_ * conflicts_[at(b)];
  return rank_a != rank_b ? rank_a < rank_b : a < b;
}

// The groups of buffers that are connected through neighbours, smallest group first.
std::vector<std::vector<int>> Packer::Search::parts(const std::vector<int>& open) const {
  std::vector<std::vector<int>> result;
  int last = -1;        // section of the group
  for (int b : open) {  // in the order of their first sections
    if (first_section_[at(b)] > last) result.emplace_back();
    result.back().push_back(b);
    last = std::max(last, last_section_[at(b)]);
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
    all_neighbours(chosen, [&](int c) {
      if (start_[at(c)] < top && better(c, pick)) pick = c;
      return true;
    });
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

// Sets up the choice and the ranks of the next run; a long one goes by conflicts, and is not counted in its epoch.
void Packer::Search::prepare_run(bool is_long) {
  const int64_t epoch = runs_ / kRunsPerEpoch;
  const Strategy& strategy = kStrategies[at(static_cast<int>(epoch % static_cast<int64_t>(std::size(kStrategies))))];
  const bool by_conflicts = is_long || runs_ % 2 == 0;
  choice_ = by_conflicts ? Choice::kConflicts : strategy.other_choice;
  ranks_per_conflict_ = strategy.ranks_per_conflict;
  if (!is_long && runs_ % kRunsPerEpoch == 0) conflicts_.assign(at(count_), 0.0);
  const std::vector<int>& ranks = ranks_[by_conflicts ? strategy.order : strategy.other_order];
  rank_.assign(ranks.begin(), ranks.end());
  if (epoch > 0) {
    for (int b = 0; b < count_; ++b) {
      const uint64_t draw = mix(mix(static_cast<uint64_t>(runs_)) + static_cast<uint64_t>(b)) >> 11;
      const double symmetric = static_cast<double>(draw) * 0x1.0p-52 - 1.0;
      rank_[at(b)] += kNoise * count_ * symmetric;
    }
  }
  reset();
}

Outcome Packer::Search::run(int64_t node_limit, double seconds, const std::function<bool()>& interrupted) {
  const auto now = Clock::now();
  // Written so that a huge or undefined number of seconds is no limit, and a negative one strikes at once.
  deadline_ =
      seconds < 1e6
          ? now + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(std::max(seconds, 0.0)))
          : Clock::time_point::max();
  next_question_ = now;
  interrupted_ = &interrupted;
  timed_out_ = was_interrupted_ = false;
  const int64_t last_node = node_limit < std::numeric_limits<int64_t>::max() - nodes
                                ? nodes + node_limit
                                : std::numeric_limits<int64_t>::max();
  std::vector<int> all(at(count_));
  std::iota(all.begin(), all.end(), 0);
  while (true) {
    const bool is_long = nodes > 0 && runs_ % kRunsPerEpoch == 0 && nodes >= next_long_run_;
    int64_t budget = std::max(kMinRunNodes, kRunNodesPerBuffer * count_);
    if (is_long) {
      budget = std::max(budget, nodes / kLongRunPart);
      next_long_run_ = 2 * nodes;
    }
    prepare_run(is_long);
    if (failed_.size() > kMaxMemory) failed_.clear();
    node_limit_ = nodes + budget;
    const Verdict verdict = solve(all);
    if (!is_long) ++runs_;
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
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].size > 0) solid_.push_back(i);  // others are in nobody's way; the search relies on sizes above 0
  }
  // The search relies on the order of time, and so the order in which the buffers are given does not matter to it.
  std::stable_sort(solid_.begin(), solid_.end(), [&](size_t a, size_t b) {
    return std::tie(buffers[a].lower, buffers[a].upper, buffers[a].size) <
           std::tie(buffers[b].lower, buffers[b].upper, buffers[b].size);
  });
  std::vector<Buffer> solid;
  for (size_t i : solid_) solid.push_back(buffers[i]);
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
