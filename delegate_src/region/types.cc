#include "region/types.h"

#include <algorithm>

namespace litefuse {

size_t size_of(Type type) {
  switch (type) {
    case Type::kFloat32:
    case Type::kInt32:
      return 4;
    case Type::kInt64:
      return 8;
    case Type::kInt16:
    case Type::kFloat16:
      return 2;
    case Type::kUInt8:
    case Type::kInt8:
    case Type::kBool:
      return 1;
    case Type::kNone:
      break;
  }
  return 0;
}

const char* name_of(Type type) {
  switch (type) {
    case Type::kFloat32:
      return "float32";
    case Type::kInt32:
      return "int32";
    case Type::kInt64:
      return "int64";
    case Type::kInt16:
      return "int16";
    case Type::kFloat16:
      return "float16";
    case Type::kUInt8:
      return "uint8";
    case Type::kInt8:
      return "int8";
    case Type::kBool:
      return "bool";
    case Type::kNone:
      break;
  }
  return "an unknown type";
}

Shape::Shape(std::initializer_list<int32_t> dims) { assign(dims.begin(), static_cast<int>(dims.size())); }

bool Shape::assign(const int32_t* dims, int rank) {
  if (rank < 0 || rank > kMaxRank) return false;
  int64_t elements = 1;
  for (int i = 0; i < rank; ++i) {
    if (dims[i] < 0) return false;
    // A zero among the dimensions must not hide that the others are absurd: strides are products of them.
    const int64_t dim = std::max(dims[i], 1);
    if (dim > kMaxElements / elements) return false;
    elements *= dim;
  }
  std::copy(dims, dims + rank, dims_.begin());
  std::fill(dims_.begin() + rank, dims_.end(), 0);
  rank_ = rank;
  return true;
}

int64_t Shape::elements() const {
  int64_t product = 1;
  for (int i = 0; i < rank_; ++i) product *= (*this)[i];
  return product;
}

Shape Shape::extended(int rank) const {
  Shape result;
  result.rank_ = rank;
  std::fill(result.dims_.begin(), result.dims_.begin() + (rank - rank_), 1);
  std::copy(dims_.begin(), dims_.begin() + rank_, result.dims_.begin() + (rank - rank_));
  return result;
}

std::string Shape::str() const {
  std::string text = "[";
  for (int i = 0; i < rank_; ++i) text += (i ? "," : "") + std::to_string((*this)[i]);
  return text + "]";
}

bool Shape::operator==(const Shape& other) const {
  return rank_ == other.rank_ && std::equal(dims_.begin(), dims_.begin() + rank_, other.dims_.begin());
}

}  // namespace litefuse
