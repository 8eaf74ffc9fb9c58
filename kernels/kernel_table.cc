#include "kernels/kernel_table.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/collective/all_reduce.h"

namespace millrace::kernels {
namespace {

constexpr Architecture kArchitectures[] = {Architecture::kSm80, Architecture::kSm89,
                                           Architecture::kSm90a, Architecture::kSm100,
                                           Architecture::kSm120};
constexpr std::string_view kArchitectureNames[] = {"sm_80", "sm_89", "sm_90a", "sm_100", "sm_120"};

// A set of architectures, with a bit for each.
using Architectures = uint32_t;

template <typename... All>
constexpr Architectures SetOf(All... architectures) {
  return ((1U << static_cast<unsigned>(architectures)) | ...);
}

constexpr Architectures kAll = SetOf(Architecture::kSm80, Architecture::kSm89, Architecture::kSm90a,
                                     Architecture::kSm100, Architecture::kSm120);
// Those whose tensor cores multiply FP8.
constexpr Architectures kWithFp8 = kAll & ~SetOf(Architecture::kSm80);
// Those with wgmma, and with the copy engine as these kernels use it.
constexpr Architectures kWithWgmma = SetOf(Architecture::kSm90a);

struct Row {
  Kernel kernel;
  std::string_view op;
  std::string_view name;  // its file, and what distinguishes it from the op's other kernels
  Architectures architectures = kAll;
};

constexpr Row kTable[] = {
    {Kernel::kEmbed, "embedding", "elementwise/embed"},
    {Kernel::kRmsNorm, "residual, norm and quantization", "norm/rms_norm"},
    {Kernel::kLinearBf16Sm90, "linear, BF16", "gemm/sm90/skinny_linear, wide_linear", kWithWgmma},
    {Kernel::kLinearBf16, "linear, BF16", "cuBLASLt"},
    {Kernel::kLinearFp8Sm90, "linear, FP8", "gemm/sm90/skinny_linear, wide_linear, block_linear",
     kWithWgmma},
    {Kernel::kLinearFp8, "linear, FP8", "cuBLASLt", kWithFp8},
    {Kernel::kGroupedLinear, "linears of experts, and with four-bit weights",
     "gemm/sm90/grouped_linear", kWithWgmma},
    {Kernel::kRoute, "router of a mixture", "moe/route"},
    {Kernel::kAssign, "assignment to experts", "moe/assign"},
    {Kernel::kCombine, "combination of experts", "moe/combine"},
    {Kernel::kRopeAppend, "rotation and append", "attention/rope_append"},
    {Kernel::kPlanAttention, "attention, plan", "attention/attention_plan"},
    {Kernel::kDecode, "attention, decode", "attention/paged_decode"},
    {Kernel::kPrefillSm90, "attention, prompts", "attention/paged_prefill_sm90", kWithWgmma},
    {Kernel::kPrefill, "attention, prompts", "attention/paged_prefill"},
    {Kernel::kShortConvolution, "short convolution", "recurrent/short_convolution"},
    {Kernel::kGatedDelta, "gated delta rule", "recurrent/delta_inputs, delta_rule, gated_norm"},
    {Kernel::kMamba2, "Mamba-2", "recurrent/mamba2_inputs, mamba2_scan, mamba2_norm"},
    {Kernel::kGatedClusters, "gated activation and quantization",
     "elementwise/gated_activation_sm90", kWithWgmma},
    {Kernel::kGatedActivation, "gated activation and quantization", "elementwise/gated_activation"},
    {Kernel::kQuantize, "quantization", "elementwise/quantize"},
    {Kernel::kGateHeads, "gates of attention and quantization", "elementwise/gate_heads"},
    {Kernel::kGatherRows, "rows with logits", "elementwise/gather_rows"},
    {Kernel::kSample, "sampling", "sampling/sample"},
    {Kernel::kCopyBlocks, "copies of blocks", "attention/copy_blocks"},
    {Kernel::kAllReduce, "sums over ranks, with norm", "collective/all_reduce"},
    {Kernel::kAllGather, "squares of ranks, for norms", "collective/all_gather"},
    {Kernel::kDealRows, "logits of ranks", "collective/deal_rows"},
    {Kernel::kShareSamples, "samples of ranks", "collective/share_samples"},
};

constexpr bool IsInOrder() {
  for (size_t i = 0; i < std::size(kTable); ++i) {
    if (kTable[i].kernel != static_cast<Kernel>(i)) return false;
  }
  return true;
}
static_assert(IsInOrder());

const Row& RowOf(Kernel kernel) { return kTable[static_cast<size_t>(kernel)]; }

std::optional<Architecture> DeviceArchitecture() {
  int device = 0, major = 0, minor = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) != cudaSuccess) {
    return std::nullopt;
  }
#ifdef MILLRACE_KERNELS_SM90A
  constexpr bool kBuiltForSm90a = true;
#else
  constexpr bool kBuiltForSm90a = false;
#endif
  return ArchitectureOf(major, minor, kBuiltForSm90a);
}

bool Holds(Architectures set, Architecture architecture) {
  return (set & SetOf(architecture)) != 0;
}

// Returns the kernels of an op, e.g. "attention/paged_prefill_sm90, else attention/paged_prefill",
// or "-" if there is none.
std::string Cell(std::string_view op, Architecture architecture) {
  std::string cell;
  for (const Row& row : kTable) {
    if (row.op != op || !Holds(row.architectures, architecture)) continue;
    if (!cell.empty()) cell += ", else ";
    cell += row.name;
  }
  return cell.empty() ? "-" : cell;
}

}  // namespace

std::optional<Architecture> ArchitectureOf(int major, int minor, bool built_for_sm90a) {
  const int capability = 10 * major + minor;
  if (capability < 80) return std::nullopt;
  if (capability == 90 && built_for_sm90a) return Architecture::kSm90a;
  if (capability == 100) return Architecture::kSm100;
  if (capability == 120) return Architecture::kSm120;
  return capability >= 89 ? Architecture::kSm89 : Architecture::kSm80;
}

bool IsFor(Kernel kernel, Architecture architecture) {
  return Holds(RowOf(kernel).architectures, architecture);
}

bool MayRun(Kernel kernel, bool portable) {
  if (portable && std::has_single_bit(RowOf(kernel).architectures)) return false;
  const std::optional<Architecture> architecture = DeviceArchitecture();
  return architecture.has_value() && IsFor(kernel, *architecture);
}

std::string KernelTableText() {
  std::vector<std::vector<std::string>> lines;
  lines.push_back({"op"});
  lines[0].insert(lines[0].end(), std::begin(kArchitectureNames), std::end(kArchitectureNames));
  for (const Row& row : kTable) {
    if (lines.back()[0] == row.op) continue;
    lines.push_back({std::string(row.op)});
    for (const Architecture architecture : kArchitectures) {
      lines.back().push_back(Cell(row.op, architecture));
    }
  }
  std::vector<size_t> widths(lines[0].size());
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) {
      text += "| " + line[i] + std::string(widths[i] - line[i].size() + 1, ' ');
    }
    text += "|\n";
    if (&line != &lines[0]) continue;
    for (const size_t width : widths) text += "|" + std::string(width + 2, '-');
    text += "|\n";
  }
  return text;
}

std::string CrossoversText() {
  std::string text = "Sums over ranks: one-shot with 2; by size, the larger ones two-shot:";
  for (int ranks = 3; ranks <= kMaxRanks; ++ranks) {
    int64_t kib = 1;
    while (BestAllReduce(ranks, (kib + 1) << 10) == AllReduceMethod::kOneShot) ++kib;
    text += (ranks == 3 ? " " : ", ") + std::to_string(ranks) + " ranks up to " +
            std::to_string(kib) + " KiB";
  }
  return text + ".\n";
}

}  // namespace millrace::kernels
