#include "region/strips.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

#include "kernels/simd/simd.h"
#include "region/denormals.h"
#include "region/scratch.h"

namespace litefuse {
namespace {

size_t at(int32_t i) { return static_cast<size_t>(i); }

int32_t round_up(int32_t value, int32_t grain) { return (value + grain - 1) / grain * grain; }

// Bytes for each nanosecond from the second and third level of caches and from memory; what is wanted is their
// proportion to one another and to a multiply-add, which is much the same on all cores.
constexpr double kL2 = 60, kL3 = 30, kMemory = 10;
constexpr double kWork = 40;   // multiply-adds for each nanosecond
constexpr double kCall = 200;  // nanoseconds of one call of a stage, with the rows that its last tiles have too few of
// A pipeline may keep so much, even if it has to fetch it from a farther cache each time.
constexpr uint64_t kMaxMemory = uint64_t{1} << 34;
// Strips of one image: what they cost besides does not count any more, and a schedule is a list of them.
constexpr int32_t kMostStrips = 512;
// Workers that bands are given to.
constexpr int32_t kMostWorkers = 32;

}  // namespace

int Pipeline::add_input(const Image& image, int external, Strides strides) {
  Stream stream;
  stream.image = image;
  stream.place = Place::kInput;
  stream.external = external;
  stream.strides = strides;
  streams_.push_back(std::move(stream));
  return static_cast<int>(streams_.size()) - 1;
}

int Pipeline::add_output(const Image& image, int external, Strides strides) {
  const int result = add_input(image, external, strides);
  streams_.back().place = Place::kOutput;
  outputs_.push_back(result);
  driver_ = result;
  batch_ = image.batch;
  return result;
}

int Pipeline::add_ring(const Image& image) {
  const int result = add_input(image, -1);
  streams_.back().place = Place::kRing;
  return result;
}

int Pipeline::add_view(int stream, int32_t first, int32_t channels) {
  Image image = streams_[at(stream)].image;
  image.channels = channels;
  const int result = add_ring(image);
  make_view(result, stream, first);
  return result;
}

void Pipeline::make_view(int stream, int of, int32_t first) {
  streams_[at(stream)].place = Place::kView;
  streams_[at(stream)].of = of;
  streams_[at(stream)].first = first;
}

void Pipeline::add_stage(std::unique_ptr<Stage> stage, std::vector<int> inputs, std::vector<int> outputs,
                         std::vector<Timed> ops) {
  Node node;
  node.stage = std::move(stage);
  node.inputs = std::move(inputs);
  node.outputs = std::move(outputs);
  node.ops = std::move(ops);
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    streams_[at(node.inputs[i])].readers.emplace_back(static_cast<int>(nodes_.size()), i);
  }
  nodes_.push_back(std::move(node));
}

size_t Pipeline::root(int stream, int32_t* first) const {
  int32_t channel = 0;
  while (streams_[at(stream)].of >= 0) {
    channel += streams_[at(stream)].first;
    stream = streams_[at(stream)].of;
  }
  if (first != nullptr) *first = channel;
  return at(stream);
}

// -- the schedule --------------------------------------------------------------------------------------------------

// Rows of an output that belong to the first `rows` of the driver's.
int32_t Pipeline::share(int output, int32_t rows) const {
  const int32_t total = image(driver_).height;
  if (output == driver_ || rows == total) return rows == total ? image(output).height : rows;
  return static_cast<int32_t>(int64_t{image(output).height} * rows / total);
}

Span Pipeline::needs(const Node& node, size_t input, Span rows) {
  return node.stage ? node.stage->needs(input, rows) : rows;
}

// Each stage begins at the first row that something behind it needs.
std::vector<int32_t> Pipeline::begin_at(int32_t begin) const {
  std::vector<int32_t> first(streams_.size(), std::numeric_limits<int32_t>::max());
  for (int output : outputs_) first[at(output)] = share(output, begin);
  std::vector<int32_t> done(nodes_.size());
  for (size_t n = nodes_.size(); n-- > 0;) {
    const Node& node = nodes_[n];
    int32_t row = std::numeric_limits<int32_t>::max();
    for (int output : node.outputs) row = std::min(row, first[at(output)]);
    row = std::min(row, height(node));
    if (node.stage) row = row / node.stage->grain() * node.stage->grain();
    done[n] = row;
    if (row == height(node)) continue;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      int32_t& need = first[at(node.inputs[i])];
      need = std::min(need, std::max(needs(node, i, Span{row, row + 1}).begin, 0));
    }
  }
  return done;
}

Pipeline::Schedule Pipeline::advance(Span rows, int32_t strip, std::vector<int32_t>* state) {
  Schedule result;
  std::vector<int32_t>& done = *state;
  std::vector<int32_t> wanted(streams_.size()), until(nodes_.size()), low(streams_.size()), high(streams_.size());
  for (int32_t begin = rows.begin; begin < rows.end; begin += strip) {
    const int32_t end = std::min(begin + strip, rows.end);
    std::fill(wanted.begin(), wanted.end(), 0);
    for (int output : outputs_) wanted[at(output)] = share(output, end);
    for (size_t n = nodes_.size(); n-- > 0;) {
      const Node& node = nodes_[n];
      int32_t target = 0;
      for (int output : node.outputs) target = std::max(target, wanted[at(output)]);
      if (node.stage) target = round_up(target, node.stage->grain());
      until[n] = std::max(std::min(target, height(node)), done[n]);
      if (until[n] == done[n]) continue;
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        const int32_t need = needs(node, i, Span{done[n], until[n]}).end;
        int32_t& want = wanted[at(node.inputs[i])];
        want = std::max(want, std::min(need, image(node.inputs[i]).height));
      }
    }
    // Rows that have to be kept: from the first that a reader still needs to the last that there is after this step.
    std::fill(low.begin(), low.end(), std::numeric_limits<int32_t>::max());
    std::fill(high.begin(), high.end(), 0);
    for (size_t s = 0; s < streams_.size(); ++s) {
      const size_t r = root(static_cast<int>(s));
      for (const auto& [n, input] : streams_[s].readers) {
        const Node& reader = nodes_[at(n)];
        if (done[at(n)] >= height(reader)) continue;
        const int32_t need = needs(reader, input, Span{done[at(n)], done[at(n)] + 1}).begin;
        low[r] = std::min(low[r], std::max(need, 0));
      }
    }
    for (size_t n = 0; n < nodes_.size(); ++n) {
      Node& node = nodes_[n];
      for (int output : node.outputs) {
        const size_t r = root(output);
        low[r] = std::min(low[r], until[n] > done[n] ? done[n] : low[r]);
        high[r] = std::max(high[r], until[n]);
      }
      if (until[n] == done[n]) continue;
      if (node.stage) {
        result.push_back(Task{static_cast<int32_t>(n), Span{done[n], until[n]}});
        node.most = std::max(node.most, until[n] - done[n]);
      }
      done[n] = until[n];
    }
    for (size_t s = 0; s < streams_.size(); ++s) {
      if (high[s] > low[s]) streams_[s].kept = std::max(streams_[s].kept, high[s] - low[s]);
    }
  }
  return result;
}

void Pipeline::clear_counts() {
  for (Stream& stream : streams_) stream.kept = 0;
  for (Node& node : nodes_) node.most = 0;
}

size_t Pipeline::row_floats(const Stream& stream) const {
  const int64_t columns = int64_t{stream.image.width} + stream.left + stream.right;
  const auto floats = static_cast<size_t>(columns * stream.image.channels);
  return stream.left + stream.right > 0 ? padded_row(floats) : floats;
}

size_t Pipeline::lay_out() {
  size_t offset = 0;
  zero_bytes_ = 0;
  for (const Node& node : nodes_) {
    if (!node.stage || !node.stage->reads_zeros()) continue;
    zero_bytes_ = std::max(zero_bytes_, row_floats(streams_[root(node.inputs[0])]) * sizeof(float));
  }
  for (Stream& stream : streams_) {
    const size_t row = row_floats(stream) * sizeof(float);
    if (stream.place != Place::kRing) continue;
    stream.kept = std::min(std::max(stream.kept, 1), stream.image.height);
    stream.offset = offset;
    offset += aligned(row * static_cast<size_t>(stream.kept));
  }
  zeros_ = offset;
  offset += aligned(zero_bytes_);
  size_t views = 0;
  for (Node& node : nodes_) {
    node.first_view = views;
    views += node.inputs.size() + node.outputs.size();
  }
  stage_offset_ = offset;
  stage_bytes_ = 0;
  for (const Node& node : nodes_) {
    if (node.stage) stage_bytes_ = std::max(stage_bytes_, aligned(node.stage->scratch_bytes(node.most)));
  }
  return offset + stage_bytes_ * at(shares_);
}

// Nanoseconds that depend on the height of strips.
double Pipeline::cost(int32_t strip) {
  clear_counts();
  const int32_t total = image(driver_).height;
  std::vector<int32_t> done = begin_at(0);
  const Schedule all = advance(Span{0, total}, strip, &done);
  const auto memory = static_cast<double>(lay_out());
  double weights = 0, traffic = 0;
  for (const Node& node : nodes_) {
    if (node.stage) weights += static_cast<double>(node.stage->weight_bytes());
  }
  // What is computed in place in an output does not count: a matrix product that goes through its whole height, one
  // panel after the other, is fetched ahead by the processor, and loses more by being cut than a second pass takes.
  for (const Stream& stream : streams_) {
    if (stream.place == Place::kRing) traffic += 2.0 * sizeof(float) * static_cast<double>(stream.image.elements());
  }
  const auto l1 = static_cast<double>(caches().l1), l2 = static_cast<double>(caches().l2);
  const auto l3 = std::max(static_cast<double>(caches().l3), 4 * l2);
  // Nanoseconds for a byte of what is used again and again. A cache does not hold it all or nothing: other data are in
  // the way from half of its size on, and some of it is still found at twice that.
  const auto time_for = [&](double bytes) {
    const double beyond = std::clamp(bytes / l2 - 0.5, 0.0, 1.0);
    return (1 - beyond) / kL2 + beyond / (bytes <= l3 / 2 ? kL3 : kMemory);
  };
  const double strips = (total + strip - 1) / strip;
  // Weights are read once for each strip, from where they stay beside the rings.
  double time = strips * weights * time_for(weights + memory);
  if (memory > 0.75 * l1) time += traffic * time_for(memory + std::min(weights, l2 / 4));
  return time + kCall * static_cast<double>(all.size());
}

Status Pipeline::plan(int threads) {
  LITEFUSE_REQUIRE(driver_ >= 0, "nothing is computed");
  // What stages want beside their rows becomes part of the ring.
  for (Stream& stream : streams_) stream.left = stream.right = 0;
  for (const Node& node : nodes_) {
    if (!node.stage) continue;
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      Stream& stream = streams_[root(node.inputs[i])];
      if (stream.place != Place::kRing) continue;
      stream.left = std::max(stream.left, node.stage->wants_left(i));
      stream.right = std::max(stream.right, node.stage->wants_right(i));
    }
  }
  const int32_t total = image(driver_).height;
  shares_ = 1;
  double work = 0, weights = 0;
  for (const Node& node : nodes_) {
    if (!node.stage) continue;
    const Image& output = image(node.outputs[0]);
    work += node.stage->work(output) * output.height;
    weights += static_cast<double>(node.stage->weight_bytes());
  }
  strip_ = std::max(total, 1);
  if (forced_ > 0) {
    strip_ = std::min(forced_, strip_);
  } else {
    // The shortest that is about as good as the best: what the model does not know speaks for short ones.
    std::vector<std::pair<int32_t, double>> tried;
    double best = std::numeric_limits<double>::max();
    for (int32_t strip = std::max(1, total / kMostStrips);; strip += std::max(1, strip / 3)) {
      const int32_t height = std::min(strip, total);
      tried.emplace_back(height, cost(height) + work / kWork);
      best = std::min(best, tried.back().second);
      if (height == total) break;
    }
    for (const auto& [height, time] : tried) {
      strip_ = height;
      if (time <= best * 1.01) break;
    }
  }
  // Below this, in multiply-adds, waking threads takes longer than they save.
  constexpr double kWorthThreads = 100e3;
  const int32_t whole = strip_;
  by_images_ = threads > 1 && batch_ * work > kWorthThreads && (batch_ % threads == 0 || batch_ >= 4 * threads);
  if (by_images_) {
    divide(1, 1, whole);
  } else if (threads > 1 && batch_ * work > kWorthThreads) {
    // Bands have rings of their own, and edges are computed twice where another worker goes on. Where that is much, or
    // there are few rows, or weights that no core's own cache holds, all work on the same rows.
    // There are several bands for each worker, so that nobody waits for a slower core, of so many pixels that a product
    // is worth while.
    constexpr int32_t kBands = 3, kPixels = 28;
    const int32_t width = std::max(image(driver_).width, 1);
    const int32_t most = (total + kBands * threads - 1) / (kBands * threads);
    const int32_t rows = std::max(std::min(whole, most), std::min((kPixels + width - 1) / width, total));
    const int32_t bands = std::min(round_up((total + rows - 1) / rows, threads), total);
    divide(bands, 1, std::min(whole, rows));
    const bool suits = bands >= 2 * threads && weights <= 2.0 * static_cast<double>(caches().l2);
    if (!suits || !bands_are_apart() || scheduled_work(threads) > 1.25 * work) divide(1, threads, whole);
  } else {
    divide(1, 1, whole);
  }
  workers_ = by_images_ ? threads : std::min({static_cast<int32_t>(bands_.size()), threads, kMostWorkers});
  memory_bytes_ = lay_out();
  LITEFUSE_REQUIRE(memory_bytes_ <= kMaxMemory / at(workers_), "its rings are too large");
  scratch_bytes_ = memory_bytes_ * at(workers_);
  return Status();
}

// How many parts of a call are worth their own tasks.
int32_t Pipeline::parts_of(const Task& task) const {
  if (shares_ == 1) return 1;
  constexpr double kSmallest = 30e3;  // multiply-adds
  const Node& node = nodes_[at(task.node)];
  const double work = node.stage->work(image(node.outputs[0])) * task.rows.size();
  if (work < 2 * kSmallest) return 1;
  return static_cast<int32_t>(std::min(work / kSmallest, 2.0 * shares_));
}

void Pipeline::divide(int32_t bands, int32_t shares, int32_t strip) {
  shares_ = shares;
  strip_ = strip;
  clear_counts();
  bands_.clear();
  chained_ = true;
  std::vector<int32_t> behind;
  for (int32_t b = 0; b < bands; ++b) {
    const Span rows = Share{b, bands}.of(Span{0, image(driver_).height});
    std::vector<int32_t> alone = begin_at(rows.begin);
    bands_.emplace_back();
    bands_.back().alone = advance(rows, strip_, &alone);
    for (Task& task : bands_.back().alone) task.parts = parts_of(task);
    if (b == 0) {  // which is behind nothing
      behind = alone;
      continue;
    }
    bands_.back().behind = advance(rows, strip_, &behind);
    // What comes next has to find the same rows, whichever way this band was done.
    chained_ = chained_ && alone == behind;
  }
}

double Pipeline::work_of(const Schedule& schedule) const {
  double work = 0;
  for (const Task& task : schedule) {
    const Node& node = nodes_[at(task.node)];
    work += node.stage->work(image(node.outputs[0])) * task.rows.size();
  }
  return work;
}

// Work of all bands together, if each worker does as many, one behind the other.
double Pipeline::scheduled_work(int32_t workers) const {
  double work = 0;
  const auto bands = static_cast<int32_t>(bands_.size());
  for (int32_t w = 0; w < workers; ++w) {
    const Span own = Share{w, workers}.of(Span{0, bands});
    for (int32_t b = own.begin; b < own.end; ++b) {
      work += work_of(chained_ && b > own.begin ? bands_[at(b)].behind : bands_[at(b)].alone);
    }
  }
  return work;
}

// Whether no two bands write to the same row of an output.
bool Pipeline::bands_are_apart() const {
  std::vector<int64_t> rows(nodes_.size(), 0);
  for (const Band& band : bands_) {
    for (const Task& task : band.alone) rows[at(task.node)] += task.rows.size();
  }
  for (size_t n = 0; n < nodes_.size(); ++n) {
    for (int output : nodes_[n].outputs) {
      if (streams_[root(output)].place == Place::kOutput && rows[n] > height(nodes_[n])) return false;
    }
  }
  return true;
}

// -- running -------------------------------------------------------------------------------------------------------

Rows Pipeline::rows_of(int stream, int32_t image, const float* const* inputs, float* const* outputs,
                       char* memory) const {
  int32_t first = 0;
  const Stream& own = streams_[at(stream)];
  const Stream& from = streams_[root(stream, &first)];
  Rows rows;
  rows.height = own.image.height;
  rows.width = own.image.width;
  rows.channels = own.image.channels;
  rows.pixel = from.image.channels;
  rows.left = from.left;
  rows.right = from.right;
  rows.zeros = reinterpret_cast<const float*>(memory + zeros_) + from.left * rows.pixel;
  if (from.place == Place::kRing) {
    rows.row = static_cast<ptrdiff_t>(row_floats(from));
    rows.modulus = from.kept;
    rows.base = reinterpret_cast<float*>(memory + from.offset) + from.left * rows.pixel + first;
    return rows;
  }
  rows.row = static_cast<ptrdiff_t>(from.image.row());
  rows.modulus = std::max(from.image.height, 1);
  rows.far = from.place == Place::kInput && from.image.elements() * sizeof(float) > caches().l2 / 2;
  // Stages do not write to their inputs.
  float* data = from.place == Place::kInput ? const_cast<float*>(inputs[from.external]) : outputs[from.external];
  if (!from.strides.dense()) {
    rows.row = from.strides.row;
    data += image / from.strides.inner_count * from.strides.outer;
    data += image % from.strides.inner_count * from.strides.inner;
  } else if (from.image.batch > 1) {  // what has a batch of one is the same for all images
    data += image * rows.row * from.image.height;
  }
  rows.base = data + first;
  return rows;
}

std::vector<Rows> Pipeline::prepare(int32_t image, const float* const* inputs, float* const* outputs,
                                    char* memory) const {
  std::memset(memory + zeros_, 0, zero_bytes_);
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (streams_[i].place != Place::kRing || streams_[i].left + streams_[i].right == 0) continue;
    rows_of(static_cast<int>(i), image, inputs, outputs, memory).clear_sides();
  }
  // What each stage reads and writes, one behind the other.
  std::vector<Rows> views;
  views.reserve(nodes_.back().first_view + nodes_.back().inputs.size() + nodes_.back().outputs.size());
  for (const Node& node : nodes_) {
    for (int stream : node.inputs) views.push_back(rows_of(stream, image, inputs, outputs, memory));
    for (int stream : node.outputs) views.push_back(rows_of(stream, image, inputs, outputs, memory));
  }
  return views;
}

void Pipeline::run_tasks(const Schedule& schedule, const std::vector<Rows>& views, char* memory, Threads* threads,
                         Profile* profile) const {
  for (const Task& task : schedule) {
    const Node& node = nodes_[at(task.node)];
    const Rows* const ins = views.data() + node.first_view;
    const Rows* const outs = ins + node.inputs.size();
    const uint64_t start = profile != nullptr ? now() : 0;
    if (task.parts > 1) {
      threads->run(task.parts, [&](int part, int worker) {
        char* own = memory + stage_offset_ + stage_bytes_ * at(worker);
        node.stage->run(ins, outs, task.rows, Share{part, task.parts}, own);
      });
    } else {
      node.stage->run(ins, outs, task.rows, Share(), memory + stage_offset_);
    }
    if (profile == nullptr) continue;
    const auto taken = static_cast<double>(now() - start);
    for (const Timed& timed : node.ops) {
      if (timed.op >= 0) profile->add(at(timed.op), static_cast<uint64_t>(taken * timed.part));
    }
  }
}

namespace {

// Bands [first, last) that a worker has before it; others may take them from behind.
class Range {
 public:
  void set(int32_t first, int32_t last) { word_.store(packed(first, last), std::memory_order_release); }
  int32_t size() const { return count(word_.load(std::memory_order_acquire)); }
  // The first one; -1 when there is none.
  int32_t take() {
    uint64_t word = word_.load(std::memory_order_acquire);
    while (count(word) > 0) {
      if (word_.compare_exchange_weak(word, packed(first(word) + 1, last(word)), std::memory_order_acq_rel)) {
        return first(word);
      }
    }
    return -1;
  }
  // The second half, if there is one, becomes another's.
  void give_half(Range* to) {
    uint64_t word = word_.load(std::memory_order_acquire);
    while (count(word) > 0) {
      const int32_t middle = first(word) + count(word) / 2;
      if (word_.compare_exchange_weak(word, packed(first(word), middle), std::memory_order_acq_rel)) {
        to->set(middle, last(word));
        return;
      }
    }
  }

 private:
  static uint64_t packed(int32_t first, int32_t last) {
    return static_cast<uint64_t>(first) << 32 | static_cast<uint64_t>(last);
  }
  static int32_t first(uint64_t word) { return static_cast<int32_t>(word >> 32); }
  static int32_t last(uint64_t word) { return static_cast<int32_t>(word & 0xffffffff); }
  static int32_t count(uint64_t word) { return last(word) - first(word); }

  std::atomic<uint64_t> word_{0};
};

}  // namespace

// Each worker begins with as many bands next to one another, and takes from the others when it has done them.
void Pipeline::run_bands(int32_t image, const float* const* inputs, float* const* outputs, char* memory,
                         Threads* threads, Profile* profile) const {
  Range ranges[kMostWorkers];
  for (int32_t w = 0; w < workers_; ++w) {
    const Span own = Share{w, workers_}.of(Span{0, static_cast<int32_t>(bands_.size())});
    ranges[w].set(own.begin, own.end);
  }
  threads->run(workers_, [&](int task, int worker) {
    char* const own = memory + memory_bytes_ * at(worker);
    const std::vector<Rows> views = prepare(image, inputs, outputs, own);
    for (int32_t before = -2;;) {
      const int32_t b = ranges[task].take();
      if (b < 0) {
        Range* const fullest = std::max_element(ranges, ranges + workers_,
                                                [](const Range& x, const Range& y) { return x.size() < y.size(); });
        if (fullest->size() <= 0) return;
        fullest->give_half(&ranges[task]);
        continue;
      }
      const Band& band = bands_[at(b)];
      run_tasks(chained_ && b == before + 1 ? band.behind : band.alone, views, own, threads, profile);
      before = b;
    }
  });
}

void Pipeline::run(const float* const* inputs, float* const* outputs, void* scratch, Threads* threads,
                   Profile* profile) const {
  const FlushDenormals flush;
  char* memory = static_cast<char*>(scratch);
  if (by_images_) {
    threads->run(batch_, [&](int image, int worker) {
      char* const own = memory + memory_bytes_ * at(worker);
      run_tasks(bands_[0].alone, prepare(image, inputs, outputs, own), own, threads, profile);
    });
    return;
  }
  for (int32_t image = 0; image < batch_; ++image) {
    if (bands_.size() > 1) {
      run_bands(image, inputs, outputs, memory, threads, profile);
    } else {
      run_tasks(bands_[0].alone, prepare(image, inputs, outputs, memory), memory, threads, profile);
    }
  }
}

}  // namespace litefuse
