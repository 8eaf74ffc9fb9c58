#include "kernels/gemm/linear.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <variant>
#include <vector>

#include "kernels/arguments.h"
#include "kernels/gemm/linear_algorithms.h"
#include "kernels/gemm/linear_table.h"
#include "kernels/gemm/sm90/block_linear.h"
#include "kernels/gemm/sm90/stream_linear.h"
#include "kernels/gemm/sm90/wide_linear.h"

namespace millrace::kernels {

class LinearPlan {
 public:
  // cuBLASLt's algorithm, or one of our own kernels'.
  using AnyChoice = std::variant<Choice, sm90::StreamChoice, sm90::WideChoice, sm90::BlockChoice>;

  struct Range {
    int64_t tokens;  // the largest
    AnyChoice choice;
  };

  LinearPlan(const CublasLt& lt, const LinearShape& shape, const LinearOptions& options)
      : lt(lt), shape(shape), options(options) {}

  const Range& RangeOf(int64_t count) const {
    return *std::find_if(ranges.begin(), ranges.end(),
                         [&](const Range& range) { return count <= range.tokens; });
  }

  const CublasLt& lt;
  const LinearShape shape;
  const LinearOptions options;
  std::vector<Range> ranges;  // ascending, up to options.max_tokens
};

namespace {

std::string CheckShape(const LinearShape& shape) {
  if (shape.rows < 16 || shape.rows % 16 != 0) {
    return "a linear has " + std::to_string(shape.rows) + " outputs; allowed: a multiple of 16";
  }
  if (shape.stride < kColumnPadding || shape.stride % kColumnPadding != 0) {
    return "a linear has " + std::to_string(shape.stride) +
           " padded inputs; allowed: a multiple of " + std::to_string(kColumnPadding);
  }
  if (shape.type == Type::kF32) return "a linear's weight is F32; allowed: BF16, FP8";
  if (shape.blocks && shape.type != Type::kFp8) {
    return "a linear with block scales is not FP8; allowed: FP8";
  }
  if (shape.output == Type::kFp8) return "a linear's output is FP8; allowed: BF16, F32";
  return "";
}

// The last token count of each range.
std::vector<int64_t> Bounds(int64_t max_tokens) {
  std::vector<int64_t> bounds;
  for (const int64_t bound : kTokenBounds) {
    if (bound < max_tokens) bounds.push_back(bound);
  }
  bounds.push_back(max_tokens);
  return bounds;
}

// Another version, or the kernels for another GPU, may not know the table's algorithms, and
// cuBLASLt has been seen to crash on ones that it does not know.
bool IsTunedFor(const CublasLt& lt) {
  int device = 0, major = 0, minor = 0;
  return lt.version() == kTunedVersion && cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
         10 * major + minor == kTunedCapability;
}

// One of our own kernels for up to `most` tokens, where it is faster than cuBLASLt. What has the
// bits of cuBLASLt's full sums must not stand in for its fast ones.
std::optional<LinearPlan::AnyChoice> ChooseOwn(const LinearOptions& options,
                                               const LinearShape& shape, int64_t most) {
  if (options.gemm == Gemm::kCublasLt) return std::nullopt;
  if (options.fast_accumulation && shape.type == Type::kFp8 && !shape.blocks) return std::nullopt;
  if (const auto block = sm90::ChooseBlock(shape, most)) return *block;
  if (const auto wide = sm90::ChooseWide(shape, most)) return *wide;
  if (const auto stream = sm90::ChooseStream(shape, most)) return *stream;
  return std::nullopt;
}

// For [least, most] tokens: what was measured, else what cuBLASLt would take.
std::optional<Choice> Choose(const CublasLt& lt, const LinearShape& shape,
                             const LinearOptions& options, int64_t least, int64_t most) {
  const TunedAlgorithm* const tuned = IsTunedFor(lt) ? FindTuned(shape, options, most) : nullptr;
  if (tuned != nullptr) {
    const auto algorithm = MakeAlgorithm(lt, shape, tuned->config);
    const int64_t run = std::max<int64_t>(tuned->run_tokens, most);
    if (algorithm.has_value() && CanRunBetween(lt, shape, options, *algorithm, least, most) &&
        CanRunBetween(lt, shape, options, *algorithm, run, run)) {
      return Choice{.run_tokens = run, .algorithm = *algorithm};
    }
  }
  return DefaultChoice(lt, shape, options, least, most);
}

bool Fits(const LinearArgs& args) {
  const LinearShape& shape = args.plan->shape;
  const Weight& weight = args.weight;
  const Activation& input = args.input;
  if (weight.rows != shape.rows || weight.stride != shape.stride || weight.type != shape.type ||
      !IsValid(input, shape.stride) || input.stride != shape.stride || input.type != shape.type) {
    return false;
  }
  if (args.tokens < 1 || args.tokens > args.plan->options.max_tokens) return false;
  const bool gated = args.gated.data != nullptr;  // our own kernels look at the rest of it
  if (gated ? !TakesGate(args.plan, args.tokens) || args.output != nullptr
            : args.output_stride < shape.rows || args.output_stride % 8 != 0) {
    return false;
  }
  for (const void* pointer :
       {weight.data, static_cast<const void*>(gated ? args.gated.data : args.output),
        static_cast<const void*>(args.workspace)}) {
    if (pointer == nullptr || !IsAligned16(pointer)) return false;
  }
  const auto scaled_as = [&](WeightScaling one, Scaling other) {
    return weight.scaling == one && input.scaling == other;
  };
  if (shape.type == Type::kBf16) return scaled_as(WeightScaling::kNone, Scaling::kNone);
  if (weight.scales == nullptr) return false;
  if (shape.blocks) {
    return scaled_as(WeightScaling::kBlock, Scaling::kTokenGroup) && IsAligned16(weight.scales) &&
           IsAligned16(input.scales);
  }
  return (weight.scaling == WeightScaling::kTensor || weight.scaling == WeightScaling::kChannel) &&
         (input.scaling == Scaling::kTensor || input.scaling == Scaling::kToken);
}

sm90::OwnLinear OwnProduct(const LinearArgs& args) {
  return {.weight = args.weight,
          .input = args.input,
          .tokens = args.tokens,
          .output = args.output,
          .output_type = args.plan->shape.output,
          .output_stride = args.output_stride,
          .ticket = args.ticket,
          .gated = args.gated};
}

cudaError_t CudaError(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return cudaSuccess;
    case CUBLAS_STATUS_INVALID_VALUE:
      return cudaErrorInvalidValue;
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return cudaErrorNotSupported;
    case CUBLAS_STATUS_ALLOC_FAILED:
      return cudaErrorMemoryAllocation;
    default: {
      const cudaError_t error = cudaPeekAtLastError();
      return error == cudaSuccess ? cudaErrorLaunchFailure : error;
    }
  }
}

}  // namespace

struct LinearPlanner::State {
  const CublasLt& lt;
  LinearOptions options;
  std::vector<std::unique_ptr<LinearPlan>> plans;
};

LinearPlanner::LinearPlanner(const CublasLt& lt, const LinearOptions& options)
    : state_(new State{.lt = lt, .options = options, .plans = {}}) {}
LinearPlanner::~LinearPlanner() = default;

const LinearOptions& LinearPlanner::options() const { return state_->options; }

const LinearPlan* LinearPlanner::Plan(const LinearShape& shape, std::string* error) {
  for (const auto& plan : state_->plans) {
    if (plan->shape == shape) return plan.get();
  }
  *error = CheckShape(shape);
  if (!error->empty()) return nullptr;
  auto plan = std::make_unique<LinearPlan>(state_->lt, shape, state_->options);
  int64_t least = 1;
  for (const int64_t most : Bounds(state_->options.max_tokens)) {
    if (const auto own = ChooseOwn(state_->options, shape, most)) {
      plan->ranges.push_back({.tokens = most, .choice = *own});
      least = most + 1;
      continue;
    }
    const auto choice = Choose(state_->lt, shape, state_->options, least, most);
    if (!choice.has_value()) {
      *error = "cuBLASLt " + std::to_string(state_->lt.version()) + " has no algorithm for " +
               std::to_string(shape.rows) + " outputs of " + std::to_string(shape.stride) +
               " inputs at " + std::to_string(most) + " tokens on this device";
      return nullptr;
    }
    plan->ranges.push_back({.tokens = most, .choice = *choice});
    least = most + 1;
  }
  state_->plans.push_back(std::move(plan));
  return state_->plans.back().get();
}

bool MakesInput(const LinearPlan* plan, int64_t tokens) {
  return plan != nullptr && tokens == 1 && !plan->shape.blocks &&
         plan->shape.stride <= kMostMadeInputs && plan->shape.output == Type::kBf16 &&
         std::holds_alternative<sm90::StreamChoice>(plan->RangeOf(tokens).choice);
}

bool TakesGate(const LinearPlan* plan, int64_t tokens) {
  if (plan == nullptr || plan->shape.blocks || plan->shape.output != Type::kBf16) return false;
  const LinearPlan::AnyChoice& choice = plan->RangeOf(tokens).choice;
  return std::holds_alternative<sm90::StreamChoice>(choice) ||
         std::holds_alternative<sm90::WideChoice>(choice);
}

cudaError_t LaunchLinear(const LinearArgs& args, cudaStream_t stream) {
  if (args.plan == nullptr || !Fits(args)) return cudaErrorInvalidValue;
  const LinearPlan& plan = *args.plan;
  const LinearPlan::Range& range = plan.RangeOf(args.tokens);
  if (const auto* const choice = std::get_if<sm90::StreamChoice>(&range.choice)) {
    return sm90::LaunchStreamLinear({OwnProduct(args), *choice, args.input_row}, stream);
  }
  if (args.input_row != nullptr) return cudaErrorInvalidValue;
  if (const auto* const choice = std::get_if<sm90::WideChoice>(&range.choice)) {
    return sm90::LaunchWideLinear({OwnProduct(args), *choice}, stream);
  }
  if (const auto* const choice = std::get_if<sm90::BlockChoice>(&range.choice)) {
    return sm90::LaunchBlockLinear({OwnProduct(args), *choice}, stream);
  }
  const Choice& choice = std::get<Choice>(range.choice);
  const bool padded = choice.run_tokens > range.tokens && choice.run_tokens <= args.room;
  const bool weight_scaled = args.weight.scaling != WeightScaling::kChannel;
  const bool input_scaled = args.input.scaling != Scaling::kToken;
  Matmul matmul;
  const cublasStatus_t status =
      MakeMatmul(plan.lt,
                 {.shape = plan.shape,
                  .fast_accumulation = plan.options.fast_accumulation,
                  .tokens = padded ? choice.run_tokens : args.tokens,
                  .output_stride = args.output_stride,
                  .weight_scales = weight_scaled ? args.weight.scales : nullptr,
                  .input_scales = input_scaled ? args.input.scales : nullptr},
                 &matmul);
  if (status != CUBLAS_STATUS_SUCCESS) return CudaError(status);
  return CudaError(
      RunMatmul(plan.lt, matmul, args, choice.algorithm, plan.options.workspace_bytes, stream));
}

Product LinearProduct(const LinearArgs& args) {
  return {
      .data = static_cast<const Bf16*>(args.output),
      .stride = args.output_stride,
      .token_scales = args.input.scaling == Scaling::kToken ? args.input.scales : nullptr,
      .channel_scales =
          args.weight.scaling == WeightScaling::kChannel ? args.weight.scales : nullptr,
  };
}

}  // namespace millrace::kernels
