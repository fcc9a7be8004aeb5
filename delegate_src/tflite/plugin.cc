// The functions that other code calls.
#include <algorithm>
#include <cstring>
#include <string>

#include "litefuse/litefuse.h"
#include "tflite/delegate.h"

#ifndef LITEFUSE_VERSION
#error "the build defines LITEFUSE_VERSION"
#endif

namespace {

litefuse::LitefuseDelegate* of(const TfLiteDelegate* delegate) {
  return static_cast<litefuse::LitefuseDelegate*>(reinterpret_cast<const litefuse::abi::Delegate*>(delegate)->data);
}

}  // namespace

extern "C" {

TfLiteDelegate* tflite_plugin_create_delegate(const char* const* keys, const char* const* values, size_t count,
                                              void (*report_error)(const char*)) {
  litefuse::Options options;
  litefuse::LitefuseDelegate* delegate = nullptr;
  litefuse::Status status = litefuse::Options::parse(keys, values, count, &options);
  if (status.ok()) status = litefuse::LitefuseDelegate::create(options, &delegate);
  if (!status.ok()) {
    if (report_error != nullptr) report_error(("litefuse: " + status.reason()).c_str());
    return nullptr;
  }
  return reinterpret_cast<TfLiteDelegate*>(delegate->native());
}

void tflite_plugin_destroy_delegate(TfLiteDelegate* delegate) {
  if (delegate != nullptr) of(delegate)->release();
}

size_t litefuse_delegate_report(const TfLiteDelegate* delegate, char* text, size_t size) {
  const std::string report = of(delegate)->report();
  if (text != nullptr && size > 0) {
    const size_t length = std::min(report.size(), size - 1);
    std::memcpy(text, report.data(), length);
    text[length] = 0;
  }
  return report.size();
}

void litefuse_delegate_clear_profile(TfLiteDelegate* delegate) { of(delegate)->clear_profile(); }

const char* litefuse_version(void) { return LITEFUSE_VERSION; }

}  // extern "C"
