#include "executors/cuda/model_memory.h"

#include <algorithm>
#include <set>
#include <variant>

#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "executors/models/parts.h"
#include "executors/weights/shares.h"
#include "kernels/attention/rope_append.h"
#include "kernels/gemm/sm90/grouped_linear.h"
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

// Returns the bytes that the device's share leaves to others; none where the KV cache has a size.
size_t KeptFree(const CudaSpec& device, const MemoryUse& memory) {
  if (device.kv_cache_memory != 0) return 0;
  return static_cast<size_t>(static_cast<double>(memory.total) *
                             (1 - device.gpu_memory_utilization));
}

}  // namespace

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

KvArena DescribeKv(const ModelConfig& config, const Model& model, const CudaSpec& device) {
  KvArena kv;
  kv.type = device.kv_cache_fp8 ? kernels::Type::kFp8 : kernels::Type::kBf16;
  kv.block_size = device.block_size;
  kv.kv_heads = model.kv_heads();
  kv.head_size = config.layers[0].softmax().head_size;  // SharedHeadShape
  kv.layers = config.num_layers();
  kv.block_elements = int64_t{2} * kv.kv_heads * kv.block_size * kv.head_size;
  return kv;
}

// The largest steps of their kinds: all rows decode; as many as attention appends for; one row, or
// all of them, fill the budget; as many tokens as experts' linears have tiles of one size for.
std::vector<CudaStepInput> LargestSteps(const Model& model, const ModelConfig& config,
                                        const StepLimits& limits, RankSpec rank) {
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
  const int few = std::clamp(kernels::MostAppendingRows(model.heads(), model.kv_heads()), 1, rows);
  // One token, too: its linears keep what they make their inputs of.
  std::vector<CudaStepInput> steps = {step(1, 1, 1), step(few, few, 1), step(rows, rows, 1),
                                      step(1, tokens, tokens), step(rows, tokens, tokens)};
  std::set<int64_t> ends;  // in tokens
  for (const LayerConfig& layer : config.layers) {
    const auto* const experts = std::get_if<ExpertsFeedForward>(&layer.feed_forward);
    if (experts == nullptr) continue;
    const RouterConfig& router = experts->router;
    const int64_t held = rank.expert_parallel
                             ? std::max<int64_t>(DivideUnits(router.experts, 1, rank).count, 1)
                             : router.experts;
    for (const int tile : {8, 16, 32, 64}) {
      ends.insert(kernels::sm90::MostGroupedPairs(static_cast<int>(held), tile) / router.chosen);
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
  spec.num_heads = m.model->heads();
  spec.num_kv_heads = m.model->kv_heads();
  const int head_size = config.layers[0].softmax().head_size;  // SharedHeadShape
  spec.window = context.attention_plans[0].window;  // what is taken does not depend on it
  size_t plan = 0;
  size_t scratch = 0;
  for (const CudaStepInput& input : LargestSteps(*m.model, config, m.info.limits, m.weights.rank)) {
    const kernels::AttentionStep step = AttentionStepOf(input, context, spec);
    plan = std::max(plan, kernels::AttentionPlanBytes(step));
    scratch = std::max(scratch, kernels::AttentionScratchBytes(step, head_size));
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
absl::StatusOr<int32_t> CountBlocks(const CudaSpec& device, const KvArena& kv, int sharers) {
  const int64_t block_bytes = kv.block_bytes() * kv.layers;
  int64_t bytes = device.kv_cache_memory;
  if (bytes == 0) {
    MILLRACE_ASSIGN_OR_RETURN(const MemoryUse memory, ReadMemory());
    bytes = static_cast<int64_t>(memory.free) -
            static_cast<int64_t>(KeptFree(device, memory) + sharers * kReservedBytes);
    bytes /= sharers;
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
absl::Status CheckMemory(const CudaSpec& device, const KvArena& kv, const MemoryNeeds& of_rank,
                         int sharers) {
  MILLRACE_ASSIGN_OR_RETURN(const MemoryUse memory, ReadMemory());
  const bool is_share = device.kv_cache_memory == 0;
  const size_t cache = sharers * (is_share ? 2 * kv.block_bytes() * kv.layers + kReservedBytes
                                           : static_cast<size_t>(device.kv_cache_memory));
  const size_t weights = sharers * of_rank.weights;
  const size_t activations = sharers * of_rank.activations;
  const size_t steps = sharers * of_rank.steps;
  const size_t expansion = sharers * of_rank.expansion;
  const size_t kept_free = KeptFree(device, memory);
  const size_t needed = weights + activations + steps + expansion + cache;
  if (needed + kept_free <= memory.free) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      StrCat("the model needs ", needed / kMiB, " MiB of the GPU's memory: weights ",
             weights / kMiB, ", activations ", activations / kMiB, ", logits and steps ",
             steps / kMiB, expansion > 0 ? StrCat(", expanded weights ", expansion / kMiB) : "",
             is_share ? ", KV cache and reserve at least " : ", KV cache (kv_cache_memory) ",
             cache / kMiB, "; ", memory.free / kMiB, " MiB of ", memory.total / kMiB, " are free",
             is_share ? StrCat(", and gpu_memory_utilization ", device.gpu_memory_utilization,
                               " leaves ", kept_free / kMiB, " of them alone")
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

absl::StatusOr<size_t> DryRun(const Model& model, const ModelConfig& config,
                              const StepLimits& limits, const CudaWeights& shapes) {
  StepBuffers buffers;
  buffers.max_logit_rows = StepBuffers::MaxLogitRows(limits);
  const CudaOpsContext context = DescribeContext(config, limits.max_model_len, shapes, buffers);
  size_t most = 0;
  for (const CudaStepInput& step : LargestSteps(model, config, limits, shapes.rank)) {
    MILLRACE_ASSIGN_OR_RETURN(const size_t bytes, ActivationBytes(model, context, step));
    most = std::max(most, bytes);
  }
  return most;
}

void LogMemory(const CudaModel& m, size_t graph_bytes, const MemoryUse& now) {
  kLog.Info(m.device.name, " memory in MiB: weights ", m.weights.bytes() / kMiB, ", KV cache ",
            m.kv_memory.bytes() / kMiB, " (", m.info.limits.num_blocks, " blocks of ",
            m.info.limits.block_size, " tokens), activations ", m.activation_memory.bytes() / kMiB,
            ", logits and steps ", m.buffers.memory.bytes() / kMiB, ", workspaces ",
            (m.linear_workspace.bytes() + m.attention.bytes() + m.rotations.bytes()) / kMiB,
            ", expanded weights ", m.weights.expansion.bytes() / kMiB, ", graphs and kernels ",
            graph_bytes / kMiB, ", free ", now.free / kMiB, " of ", now.total / kMiB);
}

}  // namespace millrace::cuda
