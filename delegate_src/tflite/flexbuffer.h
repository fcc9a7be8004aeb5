// Reads the flexbuffers that composites, custom operators and plans carry. The bytes are not trusted: whatever does not
// fit reads as nothing.
// The format is that of https://flatbuffers.dev/flexbuffers: a value is an offset back from where it is referred to,
// and the root stands at the end, before its type and width.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace litefuse {

class FlexValue {
 public:
  // Nothing: every question is answered with the default.
  FlexValue() = default;
  // The root of a buffer, which must outlive the value.
  static FlexValue root(const uint8_t* data, size_t size);

  bool exists() const { return data_ != nullptr; }
  int64_t integer(int64_t otherwise) const;
  std::string string(const std::string& otherwise) const;
  // Elements of a vector of any sort, or of the values of a map; 0 for anything else.
  size_t size() const;
  FlexValue element(size_t i) const;
  // The value of a key in a map.
  FlexValue get(const char* key) const;
  // The integers of a vector; those that are none are 0.
  std::vector<int64_t> integers() const;

 private:
  FlexValue(const uint8_t* data, size_t size, size_t at, uint32_t parent_width, uint8_t packed);
  bool readable(size_t at, size_t bytes) const { return at <= size_ && bytes <= size_ - at; }
  uint64_t read(size_t at, uint32_t width) const;
  // Where the value lies to which the reference at at_ leads; false when that is outside the buffer.
  bool target(size_t* at) const;
  bool is_vector() const;

  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  size_t at_ = 0;              // where the value or the reference to it stands
  uint32_t parent_width_ = 1;  // bytes of what stands there
  uint32_t width_ = 1;         // bytes of an element of what it refers to
  uint32_t type_ = 0;
};

}  // namespace litefuse
