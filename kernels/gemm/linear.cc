#include "kernels/gemm/linear.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <variant>
#include <vector>

#include "kernels/arguments.h"
#include "kernels/gemm/gemm_rule.h"
#include "kernels/gemm/gemm_table.h"
#include "kernels/gemm/linear_algorithms.h"
#include "kernels/gemm/linear_plan.h"
#include "kernels/gemm/sm90/dense/block_linear.h"
#include "kernels/gemm/sm90/dense/skinny_linear.h"
#include "kernels/gemm/sm90/dense/wide_linear.h"
#include "kernels/kernel_table.h"

namespace millrace::kernels {

namespace {

std::string Check(const GemmDesc& desc) {
  if (desc.rows < 16 || desc.rows % 16 != 0) {
    return "a linear has " + std::to_string(desc.rows) + " outputs; allowed: a multiple of 16";
  }
  if (desc.stride < kColumnPadding || desc.stride % kColumnPadding != 0) {
    return "a linear has " + std::to_string(desc.stride) +
           " padded inputs; allowed: a multiple of " + std::to_string(kColumnPadding);
  }
  if (desc.weight == Type::kF32) return "a linear's weight is F32; allowed: BF16, FP8";
  if (desc.input != desc.weight) {
    return "a linear's input is of another type than its weight; allowed: the same";
  }
  if (desc.blocks() && desc.weight != Type::kFp8) {
    return "a linear with block scales is not FP8; allowed: FP8";
  }
  if (desc.output == Type::kFp8) return "a linear's output is FP8; allowed: BF16, F32";
  return "";
}

// The last number of tokens of each range.
std::vector<int64_t> Bounds(int64_t max_tokens) {
  std::vector<int64_t> bounds;
  for (const int64_t bound : kTokenBounds) {
    if (bound < max_tokens) bounds.push_back(bound);
  }
  bounds.push_back(max_tokens);
  return bounds;
}

// Another version of cuBLASLt, or the kernels for another GPU, may not know the table's algorithms,
// and cuBLASLt has been seen to crash on ones that it does not know.
bool TableHolds(const CublasLt& lt, const LinearOptions& options) {
  int device = 0, major = 0, minor = 0;
  return options.gemm == Gemm::kAuto && !options.fast_accumulation &&
         lt.version() == kTableVersion && cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
         10 * major + minor == kTableCapability && NumSms() == kTableSms;
}

// The known config for up to so many tokens. Behind the last range its config holds, too.
GemmConfig ConfigFor(const GemmRanges& known, int64_t tokens) {
  for (const GemmRange& range : known) {
    if (tokens <= range.tokens) return range.config;
  }
  GemmConfig config = known.back().config;
  config.run_tokens = 0;
  return config;
}

// Adds to the plan what is known. False where some of it cannot run.
bool AddKnown(const GemmRanges& known, LinearPlan& plan) {
  for (const int64_t tokens : Bounds(plan.options.max_tokens)) {
    if (!plan.Add({.tokens = tokens, .config = ConfigFor(known, tokens)})) return false;
  }
  return true;
}

// Adds to the plan what rules say. False where cuBLASLt has no algorithm for up to *tokens.
bool AddByRule(LinearPlan& plan, int64_t* tokens) {
  const bool own = MayRunOwn(plan.desc, plan.options);
  const int sms = NumSms();
  for (const int64_t most : Bounds(plan.options.max_tokens)) {
    *tokens = most;
    if (own) {
      const std::optional<GemmConfig> config = HeuristicConfig(plan.desc, most, sms);
      if (config.has_value() && plan.Add({.tokens = most, .config = *config})) continue;
    }
    const int64_t least = plan.ranges.empty() ? 1 : plan.ranges.back().tokens + 1;
    const std::optional<GemmConfig> config =
        DefaultConfig(plan.lt, plan.desc, plan.options, least, most);
    if (!config.has_value() || !plan.Add({.tokens = most, .config = *config})) return false;
  }
  return true;
}

// Returns whether one of our own kernels has the config and takes so many tokens.
bool OwnCanRun(const GemmDesc& desc, const GemmConfig& config, int64_t tokens) {
  constexpr int kMostCtas = 4096, kMostStages = 64;  // a launch takes the stages that fit
  const auto sizes_are_valid = [](const auto& own) {
    return own.stages >= 2 && own.stages <= kMostStages && own.ctas >= 1 && own.ctas <= kMostCtas;
  };
  const auto has = [](const auto& tiles, const auto& tile) {
    return std::find(tiles.begin(), tiles.end(), tile) != tiles.end();
  };
  if (const auto* const skinny = std::get_if<sm90::SkinnyConfig>(&config.kernel)) {
    return tokens <= sm90::kMaxSkinnyTokens && sizes_are_valid(*skinny);
  }
  if (const auto* const wide = std::get_if<sm90::WideConfig>(&config.kernel)) {
    return !desc.blocks() && tokens <= int64_t{wide->tile.tokens} * wide->tile.cluster &&
           sizes_are_valid(*wide) && has(sm90::WideTiles(), wide->tile);
  }
  const auto& block = std::get<sm90::BlockConfig>(config.kernel);
  return desc.blocks() && tokens <= sm90::kMaxBlockTokens && sizes_are_valid(block) &&
         has(sm90::BlockTiles(), block.tile);
}

bool Fits(const LinearArgs& args) {
  const GemmDesc& desc = args.plan->desc;
  const Weight& weight = args.weight;
  const Activation& input = args.input;
  if (weight.rows != desc.rows || weight.stride != desc.stride || weight.type != desc.weight ||
      !IsValid(input, desc.stride) || input.stride != desc.stride || input.type != desc.weight) {
    return false;
  }
  if (args.tokens < 1 || args.tokens > args.plan->options.max_tokens) return false;
  const bool gated = args.gated.data != nullptr;  // our own kernels look at the rest of it
  if (gated ? !FusesGate(args.plan, args.tokens) || args.output != nullptr
            : args.output_stride < desc.rows || args.output_stride % 8 != 0) {
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
  if (desc.weight == Type::kBf16) return scaled_as(WeightScaling::kNone, Scaling::kNone);
  if (weight.scales == nullptr) return false;
  if (desc.blocks()) {
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
          .output_type = args.plan->desc.output,
          .output_stride = args.output_stride,
          .tile_counter = args.tile_counter,
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

bool MayRunOwn(const GemmDesc& desc, const LinearOptions& options) {
  const bool fp8 = desc.weight == Type::kFp8;
  return options.gemm == Gemm::kAuto && (!options.fast_accumulation || !fp8 || desc.blocks()) &&
         MayRun(fp8 ? Kernel::kLinearFp8Sm90 : Kernel::kLinearBf16Sm90);
}

int NumSms() {
  int device = 0, sms = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return 0;
  if (cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) return 0;
  return sms;
}

bool LinearPlan::Add(const GemmRange& range) {
  Range added = {.tokens = range.tokens, .config = range.config, .algorithm = {}};
  const auto* const library = std::get_if<AlgorithmConfig>(&range.config.kernel);
  if (library == nullptr) {
    if (!MayRunOwn(desc, options) || !OwnCanRun(desc, range.config, range.tokens)) return false;
  } else {
    if (options.exact && !IsExact(*library)) return false;
    const auto algorithm = MakeAlgorithm(lt, desc, *library);
    const int64_t least = ranges.empty() ? 1 : ranges.back().tokens + 1;
    if (!algorithm.has_value() ||
        !CanRunBetween(lt, desc, options, *algorithm, least, range.tokens)) {
      return false;
    }
    const int64_t run = range.config.run_tokens;
    if (run > 0 &&
        (run < range.tokens || !CanRunBetween(lt, desc, options, *algorithm, run, run))) {
      return false;
    }
    added.algorithm = *algorithm;
  }
  ranges.push_back(added);
  return true;
}

struct LinearPlanner::State {
  struct Learned {
    GemmDesc desc;
    GemmRanges ranges;
  };
  const CublasLt& lt;
  LinearOptions options;
  bool table_holds;
  std::vector<std::unique_ptr<LinearPlan>> plans;
  std::vector<Learned> learned;

  // Returns the measured ranges of the product, if there are any.
  std::optional<GemmRanges> Find(const GemmDesc& desc) const {
    for (const Learned& one : learned) {
      if (one.desc == desc) return one.ranges;
    }
    return table_holds ? FindInTable(desc, options.exact) : std::nullopt;
  }
};

LinearPlanner::LinearPlanner(const CublasLt& lt, const LinearOptions& options)
    : state_(new State{.lt = lt,
                       .options = options,
                       .table_holds = TableHolds(lt, options),
                       .plans = {},
                       .learned = {}}) {}
LinearPlanner::~LinearPlanner() = default;

const LinearOptions& LinearPlanner::options() const { return state_->options; }
const CublasLt& LinearPlanner::library() const { return state_->lt; }

bool LinearPlanner::Knows(const GemmDesc& desc) const { return state_->Find(desc).has_value(); }

bool LinearPlanner::Learn(const GemmDesc& desc, const GemmRanges& ranges) {
  LinearPlan plan(state_->lt, desc, state_->options);
  if (!Check(desc).empty() || ranges.empty() || !AddKnown(ranges, plan)) return false;
  state_->learned.push_back({desc, ranges});
  return true;
}

const LinearPlan* LinearPlanner::Plan(const GemmDesc& desc, std::string* error) {
  for (const auto& plan : state_->plans) {
    if (plan->desc == desc) return plan.get();
  }
  *error = Check(desc);
  if (!error->empty()) return nullptr;
  auto plan = std::make_unique<LinearPlan>(state_->lt, desc, state_->options);
  const std::optional<GemmRanges> known = state_->Find(desc);
  if (!known.has_value() || !AddKnown(*known, *plan)) {
    plan->ranges.clear();
    int64_t tokens = 0;
    if (!AddByRule(*plan, &tokens)) {
      *error = "cuBLASLt " + std::to_string(state_->lt.version()) + " has no algorithm for " +
               std::to_string(desc.rows) + " outputs of " + std::to_string(desc.stride) +
               " inputs at " + std::to_string(tokens) + " tokens on this device";
      return nullptr;
    }
  }
  state_->plans.push_back(std::move(plan));
  return state_->plans.back().get();
}

bool FusesPrologue(const LinearPlan* plan, int64_t tokens) {
  return plan != nullptr && tokens == 1 && !plan->desc.blocks() &&
         plan->desc.stride <= kMaxPrologueWidth && plan->desc.output == Type::kBf16 &&
         std::holds_alternative<sm90::SkinnyConfig>(plan->RangeOf(tokens).config.kernel);
}

bool FusesGate(const LinearPlan* plan, int64_t tokens) {
  if (plan == nullptr || plan->desc.blocks() || plan->desc.output != Type::kBf16) return false;
  const auto& kernel = plan->RangeOf(tokens).config.kernel;
  return std::holds_alternative<sm90::SkinnyConfig>(kernel) ||
         std::holds_alternative<sm90::WideConfig>(kernel);
}

bool ReadsWeightEarly(const LinearPlan* plan, int64_t tokens) {
  return !std::holds_alternative<AlgorithmConfig>(plan->RangeOf(tokens).config.kernel);
}

cudaError_t LaunchLinear(const LinearArgs& args, cudaStream_t stream) {
  if (args.plan == nullptr || !Fits(args)) return cudaErrorInvalidValue;
  const LinearPlan& plan = *args.plan;
  const LinearPlan::Range& range = plan.RangeOf(args.tokens);
  const auto& kernel = range.config.kernel;
  if (const auto* const config = std::get_if<sm90::SkinnyConfig>(&kernel)) {
    return sm90::LaunchSkinnyLinear({OwnProduct(args), *config, args.input_row}, stream);
  }
  if (args.input_row != nullptr) return cudaErrorInvalidValue;
  if (const auto* const config = std::get_if<sm90::WideConfig>(&kernel)) {
    return sm90::LaunchWideLinear({OwnProduct(args), *config}, stream);
  }
  if (const auto* const config = std::get_if<sm90::BlockConfig>(&kernel)) {
    return sm90::LaunchBlockLinear({OwnProduct(args), *config}, stream);
  }
  const int64_t run_tokens = range.config.run_tokens;
  const bool padded = run_tokens > args.tokens && run_tokens <= args.capacity;
  const bool weight_scaled = args.weight.scaling != WeightScaling::kChannel;
  const bool input_scaled = args.input.scaling != Scaling::kToken;
  Matmul matmul;
  const cublasStatus_t status =
      MakeMatmul(plan.lt,
                 {.desc = plan.desc,
                  .fast_accumulation = plan.options.fast_accumulation,
                  .tokens = padded ? run_tokens : args.tokens,
                  .output_stride = args.output_stride,
                  .weight_scales = weight_scaled ? args.weight.scales : nullptr,
                  .input_scales = input_scaled ? args.input.scales : nullptr},
                 &matmul);
  if (status != CUBLAS_STATUS_SUCCESS) return CudaError(status);
  return CudaError(
      RunMatmul(plan.lt, matmul, args, range.algorithm, plan.options.workspace_bytes, stream));
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
