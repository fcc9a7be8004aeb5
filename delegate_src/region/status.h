// The outcome of something that can be refused: nothing, or the reason in words for the user.
#pragma once

#include <cstdarg>
#include <string>
#include <utility>

namespace litefuse {

class [[nodiscard]] Status {
 public:
  Status() = default;
  explicit Status(std::string reason) : reason_(std::move(reason)) {}

  bool ok() const { return reason_.empty(); }
  // Empty when ok().
  const std::string& reason() const { return reason_; }
  // The same reason, with where it arose in front; ok() stays ok().
  Status at(const std::string& place) const { return ok() ? Status() : Status(place + ": " + reason_); }

 private:
  std::string reason_;
};

// A refusal; the format is printf's.
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
Status
refuse(const char* format, ...);

}  // namespace litefuse

#define LITEFUSE_RETURN_IF_REFUSED(expression)         \
  do {                                                 \
    ::litefuse::Status litefuse_status = (expression); \
    if (!litefuse_status.ok()) return litefuse_status; \
  } while (false)

// Refuses with a reason unless the condition holds.
#define LITEFUSE_REQUIRE(condition, ...)                      \
  do {                                                        \
    if (!(condition)) return ::litefuse::refuse(__VA_ARGS__); \
  } while (false)
