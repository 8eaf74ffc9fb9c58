// Which kernels serve which op on which architecture: the one place where that is said. Launch
// functions with a choice ask here, and `millraced --print-kernels` prints it.
#ifndef MILLRACE_KERNELS_KERNEL_TABLE_H_
#define MILLRACE_KERNELS_KERNEL_TABLE_H_

#include <cstdint>
#include <string>

namespace millrace::kernels {

// What device code is written for. A GPU in between, or later, is taken for the one before it;
// sm_90a is compute capability 9.0 alone.
enum class Architecture : uint8_t { kSm80, kSm89, kSm90a };

// In the order of the table: an op's kernels follow each other, the preferred one first, and the
// last one takes every shape.
enum class Kernel : uint8_t {
  kEmbed,
  kRmsNorm,
  kLinearBf16Sm90,
  kLinearBf16,
  kLinearFp8Sm90,
  kLinearFp8,
  kRopeAppend,
  kPlanAttention,
  kDecode,
  kPrefillSm90,
  kPrefill,
  kGatedClusters,
  kGatedActivation,
  kQuantize,
  kGatherRows,
  kSample,
  kCopyBlocks,
};

// Whether the table has it there.
bool IsFor(Kernel kernel, Architecture architecture);

// Whether the calling thread's device may run it: the table has it there and it was built. False,
// too, where there is no device. `portable`: not what is for sm_90a alone.
bool MayRun(Kernel kernel, bool portable = false);

// The table as Markdown: a row an op, a column an architecture. Needs no device.
std::string KernelTableText();

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_KERNEL_TABLE_H_
