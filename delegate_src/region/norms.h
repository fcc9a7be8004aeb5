// Finds normalisations that a file spells out in single operators: over the channels of each pixel, or over the pixels of
// each channel.
#pragma once

#include <cstdint>
#include <vector>

#include "region/region.h"

namespace litefuse {

// Starts from the operator that takes the mean (layer normalisation) or the squares (RMS normalisation) of its input,
// and follows what is computed of them as long as it is a part of
//   (x - mean) / sqrt(variance + epsilon) * gamma + beta   or   x / sqrt(mean of squares + epsilon) * gamma,
// whatever the order in which the products and sums are taken.
class NormFinder {
 public:
  NormFinder(const Region& region, const std::vector<Shape>& shapes, const std::vector<std::vector<int32_t>>& readers,
             const std::vector<bool>& leaves)
      : region_(region), shapes_(shapes), readers_(readers), leaves_(leaves) {}

  // Means are taken over the channels (layer and RMS normalisation), or over height and width (instance normalisation).
  void over_pixels() { pixels_ = true; }
  // False when there is none that begins with this operator.
  bool find(int32_t first);

  const std::vector<int32_t>& operators() const { return operators_; }
  bool centred() const { return centred_; }
  float epsilon() const { return epsilon_; }
  int32_t input() const { return input_; }
  int32_t output() const { return output_; }
  // Constants; -1 where there are none.
  int32_t gamma() const { return gamma_; }
  int32_t beta() const { return beta_; }

 private:
  // What a tensor is in the formula.
  enum class Part {
    kNone,
    kInput,
    kMean,
    kCentred,  // x - mean
    kSquares,  // of the centred input, or of the input itself
    kVariance,
    kShifted,      // variance + epsilon
    kDeviation,    // its root
    kReciprocal,   // one over that, perhaps times gamma
    kScaledInput,  // x times the reciprocal
    kScaledMean,   // the mean times the reciprocal
    kOffset,       // beta minus the scaled mean
    kResult,       // all of it, perhaps without beta
  };
  struct Form {
    Part part = Part::kNone;
    int32_t gamma = -1, beta = -1;
  };

  Form form_of(const Operator& op);
  Form product(const Form& a, const Form& b) const;
  bool is_constant(int32_t t) const { return region_.tensors[static_cast<size_t>(t)].constant != nullptr; }
  bool is_channels(int32_t t) const;
  bool is_number(int32_t t, float* value) const;
  bool is_mean(const Operator& op) const;
  bool is_closed(const std::vector<int32_t>& operators, int32_t output) const;

  const Region& region_;
  const std::vector<Shape>& shapes_;
  const std::vector<std::vector<int32_t>>& readers_;
  const std::vector<bool>& leaves_;
  std::vector<Form> forms_;
  std::vector<int32_t> operators_;
  bool pixels_ = false;
  bool centred_ = false;
  float epsilon_ = 0.0f;
  int32_t input_ = -1, output_ = -1, gamma_ = -1, beta_ = -1;
};

}  // namespace litefuse
