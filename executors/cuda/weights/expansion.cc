#include "executors/cuda/weights/expansion.h"

#include <algorithm>
#include <string>
#include <variant>

#include "base/status.h"
#include "base/strings.h"
#include "executors/cuda/weights/weights.h"
#include "kernels/gemm/four_bit.h"
#include "kernels/gemm/grouped_linear.h"

namespace millrace::cuda {
namespace {

// The most that the workspace takes. The largest linear of an 8B fits, 28672 x 4096.
constexpr int64_t kMostBytes = int64_t{256} << 20;

int64_t Bf16Bytes(int64_t rows, int64_t stride) {
  return rows * stride * static_cast<int64_t>(sizeof(kernels::Bf16));
}

// Returns the product of a piece of the linear's rows, as a linear with BF16 weights has it.
kernels::GemmDesc DescOf(const CudaLinear& linear, int64_t rows) {
  const bool gated = linear.gate == kernels::GateLayout::kInterleaved;
  return {.rows = rows,
          .stride = linear.weight.stride,
          .weight = kernels::Type::kBf16,
          .input = kernels::Type::kBf16,
          .output = kernels::Type::kBf16,
          .epilogue = gated ? kernels::Epilogue::kGate : kernels::Epilogue::kStore};
}

}  // namespace

CudaExpansion DescribeExpansion(int64_t rows, int64_t stride) {
  const int64_t pieces = (Bf16Bytes(rows, stride) + kMostBytes - 1) / kMostBytes;
  if (pieces == 1) return {.piece_rows = rows};
  const int64_t fair = (rows + pieces - 1) / pieces;
  return {.piece_rows = std::min(rows, RoundUp(fair, kernels::kFourBitRows))};
}

bool Expands(const FourBitLinear& linear, int64_t tokens) {
  return tokens >= kExpandFrom &&
         kernels::ExpandingIsFaster(linear.weight, static_cast<int>(tokens));
}

size_t ExpansionBytes(const CudaWeights& weights, int64_t max_tokens) {
  int64_t most = 0;
  if (max_tokens < kExpandFrom) return 0;
  for (const CudaLinear& linear : weights.linears) {
    const FourBitLinear* const four_bit = linear.four_bit();
    if (four_bit == nullptr) continue;
    most = std::max(most, Bf16Bytes(four_bit->expansion.piece_rows, linear.weight.stride));
  }
  return static_cast<size_t>(most);
}

absl::Status MakeExpansion(CudaWeights& weights, kernels::LinearPlanner& planner) {
  const size_t bytes = ExpansionBytes(weights, planner.options().max_tokens);
  if (bytes == 0) return absl::OkStatus();
  for (CudaLinear& linear : weights.linears) {
    auto* const four_bit = std::get_if<FourBitLinear>(&linear.runner);
    if (four_bit == nullptr) continue;
    CudaExpansion& expansion = four_bit->expansion;
    const int64_t last = linear.weight.rows % expansion.piece_rows;
    std::string error;
    expansion.plan = planner.Plan(DescOf(linear, expansion.piece_rows), &error);
    expansion.last_plan = last == 0 ? expansion.plan : planner.Plan(DescOf(linear, last), &error);
    if (expansion.plan == nullptr || expansion.last_plan == nullptr) {
      return absl::UnimplementedError(StrCat("a linear with four-bit weights: ", error));
    }
    for (const kernels::LinearPlan* const plan : {expansion.plan, expansion.last_plan}) {
      if (kernels::ReadsWeightEarly(plan, kExpandFrom)) {
        return absl::InternalError("the plan of an expanded weight reads it too early");
      }
    }
  }
  MILLRACE_ASSIGN_OR_RETURN(weights.expansion, DeviceMemory::Allocate(bytes, "expanded weights"));
  return absl::OkStatus();
}

}  // namespace millrace::cuda
