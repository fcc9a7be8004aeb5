// Depth-first computation of several stages, strip by strip.
//
// A pipeline is a graph of stages between streams. A stream is a tensor that is computed and read row by row: either it
// lies whole in memory, or only its last few rows are kept in a ring. Of every output a strip of rows is computed at a
// time; what the stages before need for it is computed just before, so that it is still in the cache when it is read.
// How tall strips are and how many rows the rings hold is decided once for all by plan(), from the sizes of the caches.
//
// A result does not depend on how tall strips are: stages compute each row in the same way, whichever rows they are
// asked for together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "region/profile.h"
#include "region/status.h"
#include "region/threads.h"

namespace litefuse {

// A tensor seen as images of rows of pixels.
struct Image {
  int32_t batch = 1, height = 1, width = 1, channels = 1;

  int64_t pixels() const { return int64_t{batch} * height * width; }
  int64_t elements() const { return pixels() * channels; }
  int64_t row() const { return int64_t{width} * channels; }
  bool operator==(const Image& o) const {
    return batch == o.batch && height == o.height && width == o.width && channels == o.channels;
  }
  bool operator!=(const Image& o) const { return !(*this == o); }
};

// Where the rows of images lie in a tensor whose dimensions are in another order: image i is found at
// i / inner_count * outer + i % inner_count * inner, in floats.
struct Strides {
  int32_t inner_count = 1;
  ptrdiff_t outer = 0, inner = 0;
  ptrdiff_t row = 0;  // 0: the images lie one behind the other, as do their rows

  bool dense() const { return row == 0; }
};

// Rows [begin, end).
struct Span {
  int32_t begin = 0, end = 0;
  int32_t size() const { return end - begin; }
};

// Where the rows of a stream are, for one image of the batch.
struct Rows {
  float* base = nullptr;  // pixel 0 of row 0
  ptrdiff_t row = 0;      // floats from one row to the next
  ptrdiff_t pixel = 0;    // floats from one pixel to the next
  int32_t modulus = 1;    // row y lies where row y % modulus does
  int32_t height = 1, width = 1, channels = 1;
  int32_t left = 0, right = 0;   // pixels of zeros that can be read beside each row
  const float* zeros = nullptr;  // a row of zeros, as wide as others, for those outside the image
  bool far = false;              // whether it lies whole in memory that is probably not in a near cache

  float* at(int32_t y) const { return base + static_cast<ptrdiff_t>(y % modulus) * row; }
  // The row, or zeros where it is outside of the image.
  const float* padded(int32_t y) const { return y < 0 || y >= height ? zeros : at(y); }
  // Zeros beside all rows, which need only be written once.
  void clear_sides() const {
    for (int32_t y = 0; y < modulus; ++y) {
      float* const first = at(y);
      std::fill(first - left * pixel, first, 0.0f);
      std::fill(first + width * pixel, first + (width + right) * pixel, 0.0f);
    }
  }
  // How many of the rows from `span.begin` on lie one behind the other without a gap, as one long row of pixels.
  int32_t joined(Span span) const {
    if (row != pixel * width) return 1;
    const int32_t place = span.begin % modulus;
    return span.size() < modulus - place ? span.size() : modulus - place;
  }
};

// Floats from one row to the next where each has so many with the zeros beside it: rows never lie a multiple of 4 KiB
// apart, where they would fight for the same places in the cache.
inline size_t padded_row(size_t floats) { return floats * sizeof(float) % 4096 < 128 ? floats + 32 : floats; }

// Calls f(row, how many) for rows of all streams that lie one behind the other, as if they were one.
template <typename F>
void each_run(const Rows* const* all, size_t count, Span rows, const F& f) {
  for (int32_t y = rows.begin; y < rows.end;) {
    int32_t together = rows.end - y;
    for (size_t i = 0; i < count; ++i) together = std::min(together, all[i]->joined(Span{y, y + together}));
    f(y, together);
    y += together;
  }
}

// One of `parts` that work on the same rows at the same time.
struct Share {
  int32_t part = 0, parts = 1;

  // The rows of this part, in multiples of `grain` but for the last.
  Span of(Span rows, int32_t grain = 1) const {
    const int64_t pieces = (rows.size() + grain - 1) / grain;
    const auto edge = [&](int32_t i) {
      const auto row = static_cast<int32_t>(rows.begin + pieces * i / parts * grain);
      return row < rows.end ? row : rows.end;
    };
    return Span{edge(part), edge(part + 1)};
  }
};

// Computes rows of its outputs from rows of its inputs. Has no state that run() changes.
class Stage {
 public:
  virtual ~Stage() = default;
  // The rows of an input that some rows of the outputs need; may lie outside of the image where the stage pads.
  virtual Span needs(size_t input, Span rows) const {
    (void)input;
    return rows;
  }
  // Rows are computed in multiples of this, the last ones apart.
  virtual int32_t grain() const { return 1; }
  // Columns of zeros that it wants beside the rows of an input: pixels left and right.
  virtual int32_t wants_left(size_t input) const {
    (void)input;
    return 0;
  }
  virtual int32_t wants_right(size_t input) const {
    (void)input;
    return 0;
  }
  // Whether it reads rows of zeros where an input has none.
  virtual bool reads_zeros() const { return false; }
  // Whether it cannot do without, or would be much slower; then what has no room beside its rows is copied before.
  virtual bool needs_padding() const { return true; }
  // Memory for run() with so many rows at most.
  virtual size_t scratch_bytes(int32_t rows) const {
    (void)rows;
    return 0;
  }
  // Bytes of constants that are read for every strip.
  virtual size_t weight_bytes() const { return 0; }
  // Multiply-adds, or what takes as long, for a row of output.
  virtual double work(const Image& output) const { return static_cast<double>(output.row()); }
  // Computes its share of some rows: what parts there are, together, is all of it.
  virtual void run(const Rows* inputs, const Rows* outputs, Span rows, Share share, void* scratch) const = 0;
};

class Pipeline {
 public:
  // Streams.
  int add_input(const Image& image, int external, Strides strides = {});   // the external tensor of this number, whole
  int add_output(const Image& image, int external, Strides strides = {});  // computed whole
  int add_ring(const Image& image);
  // Channels [first, first + channels) of another stream.
  int add_view(int stream, int32_t first, int32_t channels);
  const Image& image(int stream) const { return streams_[static_cast<size_t>(stream)].image; }
  // Whether the memory of a stream is a ring, be it another's.
  bool is_ring(int stream) const { return streams_[root(stream)].place == Place::kRing; }
  bool is_own_ring(int stream) const { return streams_[static_cast<size_t>(stream)].place == Place::kRing; }
  // Whether its pixels are parts of wider ones.
  bool is_sliced(int stream) const { return streams_[root(stream)].image.channels != image(stream).channels; }
  // Makes a ring the same memory as another stream of the same size: channels [first, ...) of it.
  void make_view(int stream, int of, int32_t first);

  // An operator, by its number, and the part of a stage's time that it gets in profiles.
  struct Timed {
    int op = -1;
    double part = 1;
  };
  // Stages, in an order in which they can run, with the operators that they compute.
  void add_stage(std::unique_ptr<Stage> stage, std::vector<int> inputs, std::vector<int> outputs,
                 std::vector<Timed> ops);
  void add_stage(std::unique_ptr<Stage> stage, std::vector<int> inputs, std::vector<int> outputs, int op) {
    add_stage(std::move(stage), std::move(inputs), std::move(outputs), std::vector<Timed>{{op, 1.0}});
  }

  // Decides on strips and memory. All streams and stages must be there.
  Status plan(int threads);
  // Scratch memory for run(), in bytes.
  size_t scratch_bytes() const { return scratch_bytes_; }
  // Rows of the last output that are computed together.
  int32_t strip() const { return strip_; }
  // For tests: the height of strips instead of the one that plan() would choose.
  void set_strip(int32_t strip) { forced_ = strip; }

  void run(const float* const* inputs, float* const* outputs, void* scratch, Threads* threads, Profile* profile) const;

 private:
  enum class Place { kInput, kOutput, kRing, kView };
  struct Stream {
    Image image;
    Place place = Place::kRing;
    int external = -1;
    Strides strides;
    int of = -1;  // the stream that it is a view of
    int32_t first = 0;
    std::vector<std::pair<int, size_t>> readers;  // node, number of the input
    int32_t left = 0, right = 0;                  // of roots only
    int32_t kept = 0;                             // rows in the ring
    size_t offset = 0;                            // of the ring in a worker's memory
  };
  struct Node {
    std::unique_ptr<Stage> stage;  // nullptr where streams are views of one another
    std::vector<int> inputs, outputs;
    std::vector<Timed> ops;
    int32_t most = 0;       // rows computed in one call
    size_t first_view = 0;  // of its inputs and outputs, among those of all
  };
  struct Task {
    int32_t node = 0;
    Span rows;
    int32_t parts = 1;  // that workers may do at the same time
  };
  using Schedule = std::vector<Task>;
  // Some rows of one image, which a worker computes with rings of its own. If it has just done the band before, the
  // rows that both need are still there.
  struct Band {
    Schedule alone, behind;
  };

  size_t root(int stream, int32_t* first = nullptr) const;
  int32_t height(const Node& node) const { return image(node.outputs[0]).height; }
  int32_t share(int output, int32_t rows) const;
  static Span needs(const Node& node, size_t input, Span rows);
  // Rows from which all nodes have to begin, so that the driver's rows from one on can be computed.
  std::vector<int32_t> begin_at(int32_t row) const;
  // What to do for rows of the driver in strips of a height, where nodes have done their rows up to `done`, which is
  // changed; counts kept rows and rows in a call.
  Schedule advance(Span rows, int32_t strip, std::vector<int32_t>* done);
  void divide(int32_t bands, int32_t shares, int32_t strip);
  int32_t parts_of(const Task& task) const;
  size_t row_floats(const Stream& stream) const;
  // Gives the rings their places; returns the bytes of a worker's memory.
  size_t lay_out();
  double cost(int32_t strip);
  void clear_counts();
  double work_of(const Schedule& schedule) const;
  double scheduled_work(int32_t workers) const;
  bool bands_are_apart() const;
  // Makes the memory of a worker ready, and what stages read and write.
  std::vector<Rows> prepare(int32_t image, const float* const* inputs, float* const* outputs, char* memory) const;
  void run_tasks(const Schedule& schedule, const std::vector<Rows>& views, char* memory, Threads* threads,
                 Profile* profile) const;
  void run_bands(int32_t image, const float* const* inputs, float* const* outputs, char* memory, Threads* threads,
                 Profile* profile) const;
  Rows rows_of(int stream, int32_t image, const float* const* inputs, float* const* outputs, char* memory) const;

  std::vector<Stream> streams_;
  std::vector<Node> nodes_;
  std::vector<int> outputs_;  // streams
  int driver_ = -1;           // the output whose strips set the pace
  int32_t batch_ = 1;
  int32_t strip_ = 1;
  int32_t forced_ = 0;
  int32_t shares_ = 1;      // workers that compute each call together, with the same rings
  int32_t workers_ = 1;     // that compute bands, or images, at the same time
  bool by_images_ = false;  // workers compute whole images
  std::vector<Band> bands_;
  bool chained_ = true;  // whether a worker may do a band behind another one without beginning anew
  size_t zeros_ = 0;     // offset of the row of zeros in a worker's memory
  size_t zero_bytes_ = 0;
  size_t stage_offset_ = 0;  // of the stages' own memory
  size_t stage_bytes_ = 0;
  size_t memory_bytes_ = 0;  // of one worker
  size_t scratch_bytes_ = 0;
};

}  // namespace litefuse
