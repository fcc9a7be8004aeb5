#include "region/status.h"

#include <cstdio>

namespace litefuse {

Status refuse(const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return Status(text[0] ? text : "refused");
}

}  // namespace litefuse
