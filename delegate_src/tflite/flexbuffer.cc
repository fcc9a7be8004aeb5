#include "tflite/flexbuffer.h"

#include <cstring>

namespace litefuse {
namespace {

// Types of flexbuffers.
constexpr uint32_t kInt = 1, kUInt = 2, kKey = 4, kString = 5, kIndirectInt = 6, kIndirectUInt = 7, kMap = 9,
                   kVector = 10, kVectorInt = 11, kVectorUInt = 12, kVectorBool = 36, kBool = 26;
// Fixed-length vectors of integers: pairs, triples, quadruples.
constexpr uint32_t kVectorInt2 = 16, kVectorUInt2 = 17, kVectorInt3 = 19, kVectorUInt3 = 20, kVectorInt4 = 22,
                   kVectorUInt4 = 23;

}  // namespace

FlexValue::FlexValue(const uint8_t* data, size_t size, size_t at, uint32_t parent_width, uint8_t packed)
    : data_(data),
      size_(size),
      at_(at),
      parent_width_(parent_width),
      width_(uint32_t{1} << (packed & 3u)),
      type_(packed >> 2u) {}

FlexValue FlexValue::root(const uint8_t* data, size_t size) {
  if (data == nullptr || size < 3) return FlexValue();
  const uint32_t width = data[size - 1];
  if ((width != 1 && width != 2 && width != 4 && width != 8) || size < 2 + width) return FlexValue();
  return FlexValue(data, size, size - 2 - width, width, data[size - 2]);
}

uint64_t FlexValue::read(size_t at, uint32_t width) const {
  if (!readable(at, width)) return 0;
  uint64_t value = 0;
  for (uint32_t i = 0; i < width; ++i) value |= static_cast<uint64_t>(data_[at + i]) << (8 * i);
  return value;
}

bool FlexValue::target(size_t* at) const {
  if (data_ == nullptr || !readable(at_, parent_width_)) return false;
  const uint64_t back = read(at_, parent_width_);
  if (back == 0 || back > at_) return false;
  *at = at_ - static_cast<size_t>(back);
  return true;
}

int64_t FlexValue::integer(int64_t otherwise) const {
  size_t at = at_;
  uint32_t width = parent_width_;
  if (data_ == nullptr) return otherwise;
  if (type_ == kIndirectInt || type_ == kIndirectUInt) {
    if (!target(&at)) return otherwise;
    width = width_;
  } else if (type_ != kInt && type_ != kUInt && type_ != kBool) {
    return otherwise;
  }
  if (!readable(at, width)) return otherwise;
  const uint64_t value = read(at, width);
  if (type_ != kInt && type_ != kIndirectInt) {
    return value > static_cast<uint64_t>(INT64_MAX) ? otherwise : static_cast<int64_t>(value);
  }
  const uint32_t unused = 64 - 8 * width;
  return static_cast<int64_t>(value << unused) >> unused;
}

std::string FlexValue::string(const std::string& otherwise) const {
  size_t at = 0;
  if ((type_ != kString && type_ != kKey) || !target(&at)) return otherwise;
  const void* end = at < size_ ? std::memchr(data_ + at, 0, size_ - at) : nullptr;
  if (end == nullptr) return otherwise;
  size_t length = static_cast<size_t>(static_cast<const uint8_t*>(end) - (data_ + at));
  if (type_ == kString) {
    if (at < width_) return otherwise;
    const uint64_t stated = read(at - width_, width_);
    if (!readable(at, 0) || stated > size_ - at) return otherwise;
    length = static_cast<size_t>(stated);
  }
  return std::string(reinterpret_cast<const char*>(data_ + at), length);
}

bool FlexValue::is_vector() const {
  return type_ == kMap || type_ == kVector || type_ == kVectorInt || type_ == kVectorUInt || type_ == kVectorBool;
}

size_t FlexValue::size() const {
  switch (type_) {
    case kVectorInt2:
    case kVectorUInt2:
      return 2;
    case kVectorInt3:
    case kVectorUInt3:
      return 3;
    case kVectorInt4:
    case kVectorUInt4:
      return 4;
    default:
      break;
  }
  size_t at = 0;
  if (!is_vector() || !target(&at) || at < width_) return 0;
  const uint64_t count = read(at - width_, width_);
  // Untyped elements have a byte of type behind all of them.
  const uint64_t each = width_ + (type_ == kMap || type_ == kVector ? 1 : 0);
  return count <= (size_ - at) / each ? static_cast<size_t>(count) : 0;
}

FlexValue FlexValue::element(size_t i) const {
  const size_t count = size();
  size_t at = 0;
  if (i >= count || !target(&at)) return FlexValue();
  const size_t place = at + i * width_;
  switch (type_) {
    case kMap:
    case kVector:
      return FlexValue(data_, size_, place, width_, data_[at + count * width_ + i]);
    case kVectorInt:
    case kVectorInt2:
    case kVectorInt3:
    case kVectorInt4:
      return FlexValue(data_, size_, place, width_, static_cast<uint8_t>(kInt << 2u));
    case kVectorBool:
      return FlexValue(data_, size_, place, width_, static_cast<uint8_t>(kBool << 2u));
    default:
      return FlexValue(data_, size_, place, width_, static_cast<uint8_t>(kUInt << 2u));
  }
}

FlexValue FlexValue::get(const char* key) const {
  size_t at = 0;
  if (type_ != kMap || !target(&at) || at < 3 * static_cast<size_t>(width_)) return FlexValue();
  const size_t count = size();
  // Before the length stand the offset to the vector of keys and the width of its elements.
  const size_t slot = at - 3 * static_cast<size_t>(width_);
  const uint64_t back = read(slot, width_);
  const uint64_t key_width = read(slot + width_, width_);
  if (back == 0 || back > slot || (key_width != 1 && key_width != 2 && key_width != 4 && key_width != 8)) {
    return FlexValue();
  }
  const size_t keys = slot - static_cast<size_t>(back);
  const size_t wanted = std::strlen(key) + 1;
  for (size_t i = 0; i < count; ++i) {
    const size_t place = keys + i * static_cast<size_t>(key_width);
    if (!readable(place, static_cast<size_t>(key_width))) return FlexValue();
    const uint64_t distance = read(place, static_cast<uint32_t>(key_width));
    if (distance > place || !readable(place - static_cast<size_t>(distance), wanted)) continue;
    if (std::memcmp(data_ + (place - static_cast<size_t>(distance)), key, wanted) == 0) return element(i);
  }
  return FlexValue();
}

std::vector<int64_t> FlexValue::integers() const {
  std::vector<int64_t> result(size());
  for (size_t i = 0; i < result.size(); ++i) result[i] = element(i).integer(0);
  return result;
}

}  // namespace litefuse
