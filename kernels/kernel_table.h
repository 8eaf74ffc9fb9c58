// The table of kernels by op and architecture. Launch functions that can choose consult it, and
// `millraced --print-kernels` prints it.
#ifndef MILLRACE_KERNELS_KERNEL_TABLE_H_
#define MILLRACE_KERNELS_KERNEL_TABLE_H_

#include <cstdint>
#include <optional>
#include <string>

namespace millrace::kernels {

// Architectures that the table tells apart. A kernel names the set of those that it is for: they
// are not ordered, since a newer one lacks instructions of an older one (wgmma exists on sm_90a
// alone).
enum class Architecture : uint8_t { kSm80, kSm89, kSm90a, kSm100, kSm120 };

// Returns the architecture of a GPU of this compute capability, or nullopt below 8.0. kSm90a,
// kSm100 and kSm120 stand for 9.0, 10.0 and 12.0 alone; every other GPU, and 9.0 where device code
// was not built for sm_90a, counts as the newer of kSm80 and kSm89 that it is at least.
std::optional<Architecture> ArchitectureOf(int major, int minor, bool built_for_sm90a);

// In table order: an op's kernels are adjacent, the preferred one first, and the last one takes
// every shape.
enum class Kernel : uint8_t {
  kEmbed,
  kRmsNorm,
  kLinearBf16Sm90,
  kLinearBf16,
  kLinearFp8Sm90,
  kLinearFp8,
  kGroupedLinear,
  kRoute,
  kAssign,
  kCombine,
  kRopeAppend,
  kPlanAttention,
  kDecode,
  kPrefillSm90,
  kPrefill,
  kShortConvolution,
  kGatedDelta,
  kMamba2,
  kGatedClusters,
  kGatedActivation,
  kQuantize,
  kGateHeads,
  kGatherRows,
  kSample,
  kCopyBlocks,
  kAllReduce,
  kAllGather,
  kDealRows,
  kShareSamples,
};

// Returns whether the table lists `kernel` for `architecture`.
bool IsFor(Kernel kernel, Architecture architecture);

// Returns whether the calling thread's device can run `kernel`: the table lists it and it was
// built. False if there is no device. `portable` excludes kernels for one architecture alone.
bool MayRun(Kernel kernel, bool portable = false);

// Returns the table as Markdown, with one row per op and one column per architecture. Needs no
// device.
std::string KernelTableText();

// Returns a line on the sizes up to which sums over ranks go by one-shot (collective/all_reduce.h).
std::string CrossoversText();

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_KERNEL_TABLE_H_
