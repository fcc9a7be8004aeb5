/* The litefuse delegate as a C library.
 *
 * It is a plugin for TFLite's and LiteRT's external delegate loader, and can as well be linked or opened directly. The
 * runtime is not linked: the delegate works with whichever one it is given to.
 *
 * Options (keys and values are strings):
 *   threads   threads that a region may use; 0, the default, for as many as the runtime recommends
 *   backend   what runs the regions: cpu, the default, with vector kernels where there are such; or reference, with
 *             kernels that are slow and equal to TFLite's reference kernels to the bit
 *   winograd  0 to keep from Winograd's algorithm for 3x3 convolutions, whose error is larger (at most 1e-5 of the
 *             largest output of a convolution); 1, the default, lets it be used where the file does too
 *   verbose   1 to say on standard error what is claimed and what is not
 *   profile   1 to measure the time of every operator inside the regions
 */
#ifndef LITEFUSE_LITEFUSE_H_
#define LITEFUSE_LITEFUSE_H_

#include <stddef.h>

#if defined(_WIN32)
#define LITEFUSE_EXPORT __declspec(dllexport)
#else
#define LITEFUSE_EXPORT __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct TfLiteDelegate TfLiteDelegate;

/* The delegate, which must outlive every interpreter it is given to. NULL when an option is wrong: `report_error`, if
 * given, is told why. May be given to any number of interpreters. */
LITEFUSE_EXPORT TfLiteDelegate* tflite_plugin_create_delegate(const char* const* keys, const char* const* values,
                                                              size_t count, void (*report_error)(const char*));

LITEFUSE_EXPORT void tflite_plugin_destroy_delegate(TfLiteDelegate* delegate);

/* What the delegate has claimed and what not, as JSON:
 *   {"backend": "cpu", "description": "...",
 *    "packing": {"bytes": 65536, "milliseconds": 1.25, "packed": 12, "shared": 3},
 *    "regions": [{"name": "litefuse.conv_epilogue", "position": 3, "operators": 4, "slow_operators": 0,
 *                 "scratch_bytes": 4096, "follows_plan": true, "runs": 10,
 *                 "times": [{"operator": "CONV_2D #0 `x`", "nanoseconds": 1}]}],
 *    "refused": [{"what": "litefuse.softmax #7", "reason": "..."}]}
 * `packing` is about the whole process: the bytes of packed weights that are held now, the time that packing has taken,
 * how many matrices were packed, and how many times one was there already. `position` is the operator of the graph that
 * the region took the place of (of a plan, the first); `slow_operators` are those that run in reference kernels, since
 * there is no fast one for their types and shapes; `runs` and `times` are there with the option `profile`. Writes at most `size` bytes, zero included, and returns the length of the whole
 * text. */
LITEFUSE_EXPORT size_t litefuse_delegate_report(const TfLiteDelegate* delegate, char* text, size_t size);

/* Sets runs and times to zero. */
LITEFUSE_EXPORT void litefuse_delegate_clear_profile(TfLiteDelegate* delegate);

/* The version of the library, such as "0.1.0". */
LITEFUSE_EXPORT const char* litefuse_version(void);

#ifdef __cplusplus
}
#endif

#endif /* LITEFUSE_LITEFUSE_H_ */
