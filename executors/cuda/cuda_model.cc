#include "executors/cuda/cuda_model.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "executors/models/parts.h"
#include "executors/phase_timer.h"
#include "executors/step_limits.h"
#include "formats/open_model.h"
#include "kernels/attention/rope_append.h"
#include "kernels/gemm/sm90/grouped_linear.h"
#include "kernels/kernel_table.h"
#include "kernels/moe/route.h"

namespace millrace::cuda {
namespace {

constexpr Logger kLog(LogComponent::kExecutors);

constexpr size_t kMiB = size_t{1} << 20;
// Memory that captured graphs and the driver take besides: about 0.3 MB a graph of a model of 32
// layers.
constexpr size_t kReservedBytes = 512 * kMiB;

// The rotation of the first layer that has one, or nullptr. Ops refuse layers with another.
const RopeConfig* FirstRope(const ModelConfig& config) {
  for (const LayerConfig& layer : config.layers) {
    if (layer.softmax().rope.has_value()) return &*layer.softmax().rope;
  }
  return nullptr;
}

bool HasExperts(const ModelConfig& config) {
  return std::any_of(config.layers.begin(), config.layers.end(), [](const LayerConfig& layer) {
    return std::holds_alternative<ExpertsFeedForward>(layer.feed_forward);
  });
}

absl::Status CheckSettings(const ModelConfig& config, const CudaSpec& device) {
  MILLRACE_RETURN_IF_ERROR(SharedHeadShape(config).status());
  const int block = device.block_size;
  if (block != 16 && block != 32 && block != 64 && block != 128) {
    return absl::InvalidArgumentError(
        StrCat("block_size is ", block, "; allowed on the GPU: 16, 32, 64, 128"));
  }
  if ((device.quantize_fp8 || device.quantize_int4) && config.quantization.has_value()) {
    return absl::InvalidArgumentError(
        StrCat("quantization is ", device.quantize_fp8 ? "fp8" : "int4",
               ", but the model's weights are quantized already; allowed: none"));
  }
  if (device.quantize_int4 &&
      !kernels::MayRun(kernels::Kernel::kGroupedLinear, device.portable_kernels)) {
    return absl::UnimplementedError(
        "quantization is int4, whose kernels are for Hopper GPUs (sm_90a) and not portable; "
        "allowed "
        "here: none, fp8");
  }
  const bool stored_fp8 = config.quantization.has_value() && !config.quantization->packed();
  if ((device.quantize_fp8 || device.quantize_head || stored_fp8) &&
      !kernels::MayRun(kernels::Kernel::kLinearFp8)) {
    return absl::UnimplementedError(
        "quantization: this GPU has no linears for FP8 weights; allowed: models in other types, "
        "with quantization none and without quantize_lm_head");
  }
  if (HasExperts(config) &&
      !kernels::MayRun(kernels::Kernel::kGroupedLinear, device.portable_kernels)) {
    return absl::UnimplementedError(
        "the model's feed-forward network is a mixture of experts, whose kernels are for Hopper "
        "GPUs (sm_90a) and not portable; allowed here: dense models");
  }
  if (device.skewed_routers && !HasExperts(config)) {
    return absl::InvalidArgumentError(
        "routing is real, but the model has no mixture of experts; allowed here: uniform");
  }
  if (device.max_num_batched_tokens < device.max_num_seqs) {
    return absl::InvalidArgumentError(
        StrCat("max_num_batched_tokens is ", device.max_num_batched_tokens,
               ", allowed on the GPU: at least max_num_seqs, ", device.max_num_seqs));
  }
  return absl::OkStatus();
}

// A context for dry runs: what ops look at of a model, without memory.
CudaOpsContext DescribeContext(const ModelConfig& config, int max_model_len,
                               const CudaWeights& weights, const StepBuffers& buffers) {
  CudaOpsContext context{};
  context.weights = &weights;
  context.buffers = &buffers;
  context.vocab_size = config.vocab_size;
  if (const RopeConfig* rope = FirstRope(config)) context.rope = RopeSpecOf(*rope, max_model_len);
  std::set<int32_t> windows;
  for (const LayerConfig& layer : config.layers) windows.insert(layer.softmax().window);
  for (const int32_t window : windows) {
    context.attention_plans.push_back({.window = window, .memory = nullptr});
  }
  return context;
}

absl::Status MakeRotations(const ModelConfig& config, CudaModel& m) {
  if (FirstRope(config) == nullptr) return absl::OkStatus();
  const int positions = m.info.limits.max_model_len;
  const RopeConfig rope = Served(*FirstRope(config), positions);
  const int pairs = rope.dimensions / 2;
  MILLRACE_ASSIGN_OR_RETURN(
      m.rotations, DeviceMemory::Allocate(sizeof(float2) * positions * pairs, "rotations"));
  DeviceMemory factors;
  if (!rope.factors.empty()) {
    MILLRACE_ASSIGN_OR_RETURN(factors, DeviceMemory::Allocate(sizeof(float) * pairs, "rotations"));
    MILLRACE_RETURN_IF_ERROR(
        ToStatus(cudaMemcpyAsync(factors.data(), rope.factors.data(), sizeof(float) * pairs,
                                 cudaMemcpyHostToDevice, m.stream.get()),
                 "rotations"));
  }
  MILLRACE_RETURN_IF_ERROR(
      ToStatus(kernels::LaunchFillRotations({.rotations = m.rotations.As<float2>(),
                                             .positions = positions,
                                             .dimensions = rope.dimensions,
                                             .base = rope.theta,
                                             .factors = factors.As<float>(),
                                             .magnitude = rope.magnitude},
                                            m.stream.get()),
               "rotations"));
  return ToStatus(cudaStreamSynchronize(m.stream.get()), "rotations");
}

// Takes the memory of the routers of mixtures, and gives it to the context.
absl::Status MakeRoutingMemory(CudaModel& m, CudaOpsContext& context) {
  const size_t touched = m.mixtures.size() * sizeof(unsigned long long);
  const size_t counters = m.info.limits.max_num_batched_tokens / kernels::kRouteTokens + 2;
  const size_t words = counters + kernels::kMaxAssignedGroups + 2;
  MILLRACE_ASSIGN_OR_RETURN(m.routing, DeviceMemory::Allocate(touched + words * 4, "routing"));
  MILLRACE_RETURN_IF_ERROR(
      ToStatus(cudaMemset(m.routing.data(), 0, m.routing.bytes()), "setting memory"));
  context.touched_experts = m.routing.As<unsigned long long>();
  context.route_counters = reinterpret_cast<unsigned*>(m.routing.data() + touched);
  context.group_offsets = reinterpret_cast<int32_t*>(context.route_counters + counters);
  return absl::OkStatus();
}

KvArena DescribeKv(const ModelConfig& config, const CudaSpec& device) {
  const SoftmaxAttention& heads = config.layers[0].softmax();  // SharedHeadShape
  KvArena kv;
  kv.type = device.kv_cache_fp8 ? kernels::Type::kFp8 : kernels::Type::kBf16;
  kv.block_size = device.block_size;
  kv.kv_heads = heads.kv_heads;
  kv.head_size = heads.head_size;
  kv.layers = config.num_layers();
  kv.block_elements = int64_t{2} * heads.kv_heads * device.block_size * heads.head_size;
  return kv;
}

// The largest steps of their kinds: all rows decode; as many as attention appends for; one row, or
// all of them, fill the budget; as many tokens as experts' linears have tiles of one size for.
std::vector<CudaStepInput> LargestSteps(const ModelConfig& config, const StepLimits& limits) {
  const auto step = [](int rows, int tokens, int max_row_tokens) {
    CudaStepInput input;
    input.rows = rows;
    input.tokens = input.wanted = tokens;
    input.max_row_tokens = max_row_tokens;
    return input;
  };
  const int rows = limits.max_num_seqs;
  const int tokens = limits.max_num_batched_tokens;
  // Attention that appends keeps the whole product.
  const int few = std::clamp(kernels::MostAppendingRows(config.layers[0].softmax().heads,
                                                        config.layers[0].softmax().kv_heads),
                             1, rows);
  // One token, too: its linears keep what they make their inputs of.
  std::vector<CudaStepInput> steps = {step(1, 1, 1), step(few, few, 1), step(rows, rows, 1),
                                      step(1, tokens, tokens), step(rows, tokens, tokens)};
  std::set<int64_t> ends;  // in tokens
  for (const LayerConfig& layer : config.layers) {
    const auto* const experts = std::get_if<ExpertsFeedForward>(&layer.feed_forward);
    if (experts == nullptr) continue;
    const RouterConfig& router = experts->router;
    // DefaultGroupedConfig doubles the tile until it holds twice the rows of an expert on average.
    for (int tile = 8; tile < kernels::sm90::kPromptTile; tile *= 2) {
      ends.insert(int64_t{tile} * router.experts / 2 / router.chosen);
    }
  }
  for (const int64_t end : ends) {
    const int most = static_cast<int>(std::clamp<int64_t>(end, 1, tokens));
    steps.push_back(step(1, most, most));
  }
  return steps;
}

// Gives the context's plans their memory.
absl::Status MakeAttentionMemory(const ModelConfig& config, CudaModel& m, CudaOpsContext& context) {
  AttentionSpec spec;
  const SoftmaxAttention& heads = config.layers[0].softmax();  // SharedHeadShape
  spec.num_heads = heads.heads;
  spec.num_kv_heads = heads.kv_heads;
  spec.window = context.attention_plans[0].window;  // what is taken does not depend on it
  size_t plan = 0;
  size_t scratch = 0;
  for (const CudaStepInput& input : LargestSteps(config, m.info.limits)) {
    const kernels::AttentionStep step = AttentionStepOf(input, context, spec);
    plan = std::max(plan, kernels::AttentionPlanBytes(step));
    scratch = std::max(scratch, kernels::AttentionScratchBytes(step, heads.head_size));
  }
  plan = (plan + 255) / 256 * 256;
  const size_t plans = plan * context.attention_plans.size();
  MILLRACE_ASSIGN_OR_RETURN(m.attention, DeviceMemory::Allocate(plans + scratch, "attention"));
  // No launch's turn, until there is a plan.
  MILLRACE_RETURN_IF_ERROR(ToStatus(cudaMemset(m.attention.data(), 0, plans), "setting memory"));
  for (size_t i = 0; i < context.attention_plans.size(); ++i) {
    context.attention_plans[i].memory = m.attention.data() + i * plan;
  }
  context.attention_scratch = m.attention.data() + plans;
  return absl::OkStatus();
}

// How many blocks the memory has room for: what the setting says, or what is left of the share.
absl::StatusOr<int32_t> CountBlocks(const CudaSpec& device, const KvArena& kv) {
  const int64_t block_bytes = kv.block_bytes() * kv.layers;
  int64_t bytes = device.kv_cache_memory;
  if (bytes == 0) {
    MILLRACE_ASSIGN_OR_RETURN(const MemoryUse memory, ReadMemory());
    const double kept_free =
        static_cast<double>(memory.total) * (1 - device.gpu_memory_utilization);
    bytes = static_cast<int64_t>(memory.free) - static_cast<int64_t>(kept_free) -
            static_cast<int64_t>(kReservedBytes);
  }
  const int64_t blocks = bytes / block_bytes - 1;  // one is the padding block
  if (blocks < 1) {
    return absl::InvalidArgumentError(
        StrCat(device.kv_cache_memory == 0
                   ? StrCat("gpu_memory_utilization is ", device.gpu_memory_utilization,
                            ", which leaves ", bytes, " bytes for the KV cache")
                   : StrCat("kv_cache_memory is ", bytes, " bytes"),
               ", needed: at least two blocks of ", block_bytes));
  }
  return static_cast<int32_t>(std::min<int64_t>(blocks, int64_t{1} << 30));
}

// Refuses, before anything is read, a model that does not fit: ResourceExhausted, with the numbers.
absl::Status CheckMemory(const CudaSpec& device, const KvArena& kv, size_t weights,
                         size_t activations, size_t steps) {
  MILLRACE_ASSIGN_OR_RETURN(const MemoryUse memory, ReadMemory());
  const bool is_share = device.kv_cache_memory == 0;
  const size_t cache = is_share ? 2 * kv.block_bytes() * kv.layers + kReservedBytes
                                : static_cast<size_t>(device.kv_cache_memory);
  const size_t kept_free = is_share ? static_cast<size_t>(static_cast<double>(memory.total) *
                                                          (1 - device.gpu_memory_utilization))
                                    : 0;
  const size_t needed = weights + activations + steps + cache;
  if (needed + kept_free <= memory.free) return absl::OkStatus();
  return absl::ResourceExhaustedError(StrCat(
      "the model needs ", needed / kMiB, " MiB of the GPU's memory: weights ", weights / kMiB,
      ", activations ", activations / kMiB, ", logits and steps ", steps / kMiB,
      is_share ? ", KV cache and reserve at least " : ", KV cache (kv_cache_memory) ", cache / kMiB,
      "; ", memory.free / kMiB, " MiB of ", memory.total / kMiB, " are free",
      is_share ? StrCat(", and gpu_memory_utilization ", device.gpu_memory_utilization, " leaves ",
                        kept_free / kMiB, " of them alone")
               : ""));
}

absl::Status MakeKv(const CudaSpec& device, CudaModel& m) {
  m.kv.layer_bytes = (m.info.limits.num_blocks + int64_t{1}) * m.kv.block_bytes();
  MILLRACE_ASSIGN_OR_RETURN(m.kv_memory,
                            DeviceMemory::Allocate(m.kv.layer_bytes * m.kv.layers, "the KV cache"));
  m.kv.data = m.kv_memory.data();
  m.info.kv = {
      .block_size = device.block_size,
      .num_blocks = m.info.limits.num_blocks,
      .type = device.kv_cache_fp8 ? "fp8_e4m3" : "bfloat16 and float16",
      .groups = {{.num_layers = m.kv.layers, .bytes_per_block = m.kv.block_bytes() * m.kv.layers}}};
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<size_t> DryRun(const Model& model, const ModelConfig& config,
                              const StepLimits& limits, const CudaWeights& shapes) {
  StepBuffers buffers;
  buffers.max_logit_rows = StepBuffers::MaxLogitRows(limits);
  const CudaOpsContext context = DescribeContext(config, limits.max_model_len, shapes, buffers);
  size_t most = 0;
  for (const CudaStepInput& step : LargestSteps(config, limits)) {
    MILLRACE_ASSIGN_OR_RETURN(const size_t bytes, ActivationBytes(model, context, step));
    most = std::max(most, bytes);
  }
  return most;
}

absl::StatusOr<std::unique_ptr<CudaModel>> LoadCudaModel(const ModelSpec& model,
                                                         const CudaSpec& device) {
  PhaseTimer phases;
  MILLRACE_ASSIGN_OR_RETURN(DeviceInfo gpu, OpenDevice());
  MILLRACE_ASSIGN_OR_RETURN(const OpenedModel opened, OpenModel(model.path));
  const ModelConfig& config = opened.config;
  MILLRACE_RETURN_IF_ERROR(CheckSettings(config, device));
  auto m = std::make_unique<CudaModel>();
  MILLRACE_ASSIGN_OR_RETURN(m->info.limits, MakeStepLimits(config, device));
  const bool dummy = device.dummy_weights;
  if (!dummy && !opened.tensors->has_data()) {
    return absl::NotFoundError(
        StrCat(opened.tensors->base_name(), " has no weights; without them: load_format dummy"));
  }
  phases.End("open the GPU and the model's files");
  m->device = std::move(gpu);
  MILLRACE_ASSIGN_OR_RETURN(m->stream, MakeStream());
  std::string error;
  m->cublaslt = kernels::CublasLt::Open(&error);
  if (m->cublaslt == nullptr) return absl::UnavailableError(StrCat("device: cuda: ", error));
  const bool only_cublaslt = device.portable_kernels || device.cublaslt_linears;
  const kernels::LinearOptions options{
      .gemm = only_cublaslt ? kernels::Gemm::kCublasLt : kernels::Gemm::kAuto,
      .exact = device.exact,
      .max_tokens = device.max_num_batched_tokens};
  m->planner = std::make_unique<kernels::LinearPlanner>(*m->cublaslt, options);

  phases.End("open cuBLASLt");
  CudaWeightPlacer placer(
      *opened.tensors, config,
      {.quantize_fp8 = device.quantize_fp8,
       .quantize_int4 = device.quantize_int4,
       .four_bit = kernels::MayRun(kernels::Kernel::kGroupedLinear, device.portable_kernels),
       .quantize_head = device.quantize_head,
       .dummy = dummy,
       .skewed_routers = device.skewed_routers});
  MILLRACE_ASSIGN_OR_RETURN(m->model, LoadModel(config, m->info.limits.max_model_len, placer));
  const int64_t logits_stride = (config.vocab_size + int64_t{15}) / 16 * 16;
  MILLRACE_ASSIGN_OR_RETURN(const size_t activations,
                            DryRun(*m->model, config, m->info.limits, placer.Shapes()));
  m->kv = DescribeKv(config, device);
  MILLRACE_RETURN_IF_ERROR(CheckMemory(device, m->kv, placer.bytes(), activations,
                                       StepBuffers::Bytes(m->info.limits, logits_stride)));
  MILLRACE_ASSIGN_OR_RETURN(m->weights, placer.Finish(*m->planner));

  phases.End("place the weights");
  StepLimits& limits = m->info.limits;
  m->info.architecture = config.architecture;
  m->info.end_tokens = config.end_tokens;
  m->info.digest = std::string(m->weights.digest.begin(), m->weights.digest.end());
  m->info.batch_invariant = device.exact;
  m->info.weight_bytes = static_cast<int64_t>(m->weights.memory.bytes());
  if (device.kv_cache_fp8 && !m->weights.has_kv_scales) {
    kLog.Warning("kv_cache_dtype is fp8 and the model has no k_scale and v_scale: 1 is taken");
  }

  MILLRACE_RETURN_IF_ERROR(MakeRotations(config, *m));
  MILLRACE_ASSIGN_OR_RETURN(m->linear_workspace,
                            DeviceMemory::Allocate(options.workspace_bytes, "linears"));
  MILLRACE_ASSIGN_OR_RETURN(m->linear_tile_counter,
                            DeviceMemory::Allocate(sizeof(unsigned), "linears"));
  MILLRACE_RETURN_IF_ERROR(
      ToStatus(cudaMemset(m->linear_tile_counter.data(), 0, sizeof(unsigned)), "setting memory"));
  MILLRACE_ASSIGN_OR_RETURN(m->buffers, StepBuffers::Make(limits, logits_stride));
  CudaOpsContext context = DescribeContext(config, limits.max_model_len, m->weights, m->buffers);
  context.kv = m->kv;
  context.rotations = m->rotations.As<float2>();
  context.linear_workspace = m->linear_workspace.data();
  context.linear_tile_counter = m->linear_tile_counter.As<unsigned>();
  context.portable_kernels = device.portable_kernels;
  m->mixtures = DescribeMixtures(*m->model, context);
  if (!m->mixtures.empty()) MILLRACE_RETURN_IF_ERROR(MakeRoutingMemory(*m, context));
  // Before there are blocks: what attention takes does not depend on how many.
  MILLRACE_RETURN_IF_ERROR(MakeAttentionMemory(config, *m, context));
  size_t activation_bytes = 0;
  for (const CudaStepInput& step : LargestSteps(config, limits)) {
    MILLRACE_ASSIGN_OR_RETURN(const size_t bytes, ActivationBytes(*m->model, context, step));
    activation_bytes = std::max(activation_bytes, bytes);
  }
  MILLRACE_ASSIGN_OR_RETURN(m->activation_memory,
                            DeviceMemory::Allocate(activation_bytes, "activations"));
  for (StepLane& lane : m->lanes) {
    MILLRACE_ASSIGN_OR_RETURN(lane, StepLane::Make(limits));
  }
  // Last: it takes what is left. The block behind the last is that of rows that fill a batch up.
  MILLRACE_ASSIGN_OR_RETURN(limits.num_blocks, CountBlocks(device, m->kv));
  MILLRACE_RETURN_IF_ERROR(m->buffers.SetPaddingBlock(limits, limits.num_blocks));
  MILLRACE_RETURN_IF_ERROR(MakeKv(device, *m));
  context.kv = m->kv;
  m->ops = std::make_unique<CudaOps>(context, m->activation_memory.data(),
                                     m->activation_memory.bytes(), m->stream.get());
  // Waits for copies and fills on other streams than the model's own.
  MILLRACE_RETURN_IF_ERROR(ToStatus(cudaDeviceSynchronize(), "loading"));
  phases.End("take memory");
  m->info.load_phases = phases.Take();
  return m;
}

void LogMemory(const CudaModel& m, size_t graph_bytes, const MemoryUse& now) {
  kLog.Info(m.device.name, " memory in MiB: weights ", m.weights.memory.bytes() / kMiB,
            ", KV cache ", m.kv_memory.bytes() / kMiB, " (", m.info.limits.num_blocks,
            " blocks of ", m.info.limits.block_size, " tokens), activations ",
            m.activation_memory.bytes() / kMiB, ", logits and steps ",
            m.buffers.memory.bytes() / kMiB, ", workspaces ",
            (m.linear_workspace.bytes() + m.attention.bytes() + m.rotations.bytes()) / kMiB,
            ", graphs and kernels ", graph_bytes / kMiB, ", free ", now.free / kMiB, " of ",
            now.total / kMiB);
}

}  // namespace millrace::cuda
