#include "executors/cuda/model_memory.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>
#include <utility>
#include <variant>

#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "executors/cuda/decode_graphs.h"
#include "executors/cuda/mixed_graphs.h"
#include "executors/cuda/weights/expansion.h"
#include "executors/models/model_state.h"
#include "executors/models/parts.h"
#include "kernels/attention/rope_append.h"
#include "kernels/gemm/grouped_linear.h"
#include "kernels/moe/route.h"

namespace millrace::cuda {
namespace {

constexpr Logger kLog(LogComponent::kExecutors);

constexpr size_t kMiB = size_t{1} << 20;
// Bytes of a captured step for each layer: about 0.3 MB with 32 layers, and room for those of
// experts.
constexpr int64_t kGraphLayerBytes = int64_t{12} << 10;
// Code and tables of the kernels that a model loads besides the context.
constexpr int64_t kKernelBytes = int64_t{48} << 20;

// Returns the layers of softmax attention, at least one.
std::vector<const SoftmaxAttention*> SoftmaxLayers(const ModelConfig& config) {
  std::vector<const SoftmaxAttention*> layers;
  for (const LayerConfig& layer : config.layers) {
    if (const SoftmaxAttention* softmax = layer.FindSoftmax()) layers.push_back(softmax);
  }
  return layers;
}

// The rotation of the first layer that has one, or nullptr. Ops refuse layers with another.
const RopeConfig* FirstRope(const ModelConfig& config) {
  for (const SoftmaxAttention* softmax : SoftmaxLayers(config)) {
    if (softmax->rope.has_value()) return &*softmax->rope;
  }
  return nullptr;
}

StateUse UseOf(const StepLimits& limits, const CudaSpec& device) {
  return {.max_num_seqs = limits.max_num_seqs,
          .max_num_batched_tokens = limits.max_num_batched_tokens,
          .max_model_len = limits.max_model_len,
          .checkpoint_bytes = limits.has_slots() ? device.state_cache_memory : 0};
}

// Returns the bytes that the device's share leaves to others; none where the KV cache has a size.
size_t KeptFree(const CudaSpec& device, const MemoryUse& memory) {
  if (device.kv_cache_memory != 0) return 0;
  return static_cast<size_t>(static_cast<double>(memory.total) *
                             (1 - device.gpu_memory_utilization));
}

size_t RotationBytes(const ModelConfig& config, int positions) {
  const RopeConfig* const rope = FirstRope(config);
  if (rope == nullptr) return 0;
  return sizeof(float2) * positions * (Served(*rope, positions).dimensions / 2);
}

// The memory of the routers of mixtures.
struct RoutingSizes {
  size_t touched;   // bytes
  size_t counters;  // words
  size_t words;
  size_t bytes() const { return touched + words * 4; }
};
RoutingSizes RoutingSizesOf(size_t mixtures, const StepLimits& limits) {
  const size_t counters = limits.max_num_batched_tokens / kernels::kRouteTokens + 2;
  return {.touched = mixtures * sizeof(unsigned long long),
          .counters = counters,
          .words = counters + kernels::kMaxAssignedGroups + 2};
}

size_t RoutingBytes(const ModelConfig& config, const StepLimits& limits) {
  const auto mixtures =
      std::count_if(config.layers.begin(), config.layers.end(), [](const LayerConfig& layer) {
        return std::holds_alternative<ExpertsFeedForward>(layer.feed_forward);
      });
  return mixtures == 0 ? 0 : RoutingSizesOf(mixtures, limits).bytes();
}

// The memory of attention: of each of the context's plans, and of all of them together.
struct AttentionSizes {
  size_t plan = 0;
  size_t plans = 0;
  size_t scratch = 0;
};
AttentionSizes AttentionSizesOf(const Model& model, const ModelConfig& config,
                                const StepLimits& limits, const CudaOpsContext& context) {
  AttentionSpec spec;
  spec.num_heads = model.heads();
  spec.num_kv_heads = model.kv_heads();
  const int head_size = SoftmaxLayers(config)[0]->head_size;  // SharedHeadShape
  spec.window = context.attention_plans[0].window;            // what is taken does not depend on it
  AttentionSizes sizes;
  for (const CudaStepInput& input : StepsToMeasure(model, limits, *context.weights)) {
    const kernels::AttentionStep step = AttentionStepOf(input, context, spec);
    sizes.plan = std::max(sizes.plan, kernels::AttentionPlanBytes(step));
    sizes.scratch = std::max(sizes.scratch, kernels::AttentionScratchBytes(step, head_size));
  }
  sizes.plan = (sizes.plan + 255) / 256 * 256;
  sizes.plans = sizes.plan * context.attention_plans.size();
  return sizes;
}

// Refuses a division of `bytes`, which are beside checkpoints, that has no blocks but those of
// padding.
absl::Status CheckBlocks(const CudaSpec& device, int64_t bytes, const StateLayout& layout,
                         absl::Span<const int32_t> blocks) {
  if (blocks[0] >= 1) return absl::OkStatus();  // or no group has any
  const std::string states = layout.has_slots()
                                 ? StrCat(", and ", device.max_num_seqs + 1, " states of ",
                                          layout.SlotBytes(), " (max_num_seqs, and one)")
                                 : "";
  const std::string checkpoints =
      layout.has_slots()
          ? StrCat(", beside ", device.state_cache_memory, " for checkpoints (state_cache_memory)")
          : "";
  return absl::InvalidArgumentError(
      StrCat(device.kv_cache_memory == 0
                 ? StrCat("gpu_memory_utilization is ", device.gpu_memory_utilization,
                          ", which leaves ", bytes, " bytes for the KV cache", checkpoints)
                 : StrCat("kv_cache_memory is ", bytes, " bytes"),
             ", needed: at least two blocks of ", BytesOfABlockEach(layout), states));
}

// The choices of kernels by which steps of so many tokens differ in more than their tokens.
class KernelChoices {
 public:
  explicit KernelChoices(const CudaWeights& weights) {
    std::set<std::tuple<size_t, bool, int64_t, int64_t>> seen;  // kinds, forms and shapes
    for (const CudaLinear& linear : weights.linears) {
      const auto* const experts = std::get_if<ExpertsLinear>(&linear.runner);
      const bool four_bit = linear.four_bit() != nullptr ||
                            (experts != nullptr && experts->weight.four_bit.has_value());
      if (!seen.emplace(linear.runner.index(), four_bit, linear.weight.rows, linear.weight.stride)
               .second) {
        continue;
      }
      if (linear.four_bit() != nullptr) expanded_.push_back(linear.four_bit());
      if (experts != nullptr) experts_.push_back(experts);
    }
  }

  std::vector<int64_t> Of(int tokens) const {
    std::vector<int64_t> choices = {
        tokens == 1,  // a mixture's router may make the norm before it
        kernels::LinearCapacity(tokens),
        std::distance(std::begin(kernels::kTokenBounds),
                      std::lower_bound(std::begin(kernels::kTokenBounds),
                                       std::end(kernels::kTokenBounds), tokens))};
    for (const FourBitLinear* linear : expanded_) choices.push_back(Expands(*linear, tokens));
    for (const ExpertsLinear* linear : experts_) {
      choices.push_back(
          kernels::DefaultGroupedConfig(linear->weight, tokens * linear->chosen).tile_tokens);
    }
    return choices;
  }

 private:
  std::vector<const FourBitLinear*> expanded_;
  std::vector<const ExpertsLinear*> experts_;
};

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
  for (const SoftmaxAttention* softmax : SoftmaxLayers(config)) windows.insert(softmax->window);
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
  MILLRACE_ASSIGN_OR_RETURN(m.rotations,
                            DeviceMemory::Allocate(RotationBytes(config, positions), "rotations"));
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
  const RoutingSizes sizes = RoutingSizesOf(m.mixtures.size(), m.info.limits);
  MILLRACE_ASSIGN_OR_RETURN(m.routing, DeviceMemory::Allocate(sizes.bytes(), "routing"));
  MILLRACE_RETURN_IF_ERROR(
      ToStatus(cudaMemset(m.routing.data(), 0, m.routing.bytes()), "setting memory"));
  context.touched_experts = m.routing.As<unsigned long long>();
  context.route_counters = reinterpret_cast<unsigned*>(m.routing.data() + sizes.touched);
  context.group_offsets = reinterpret_cast<int32_t*>(context.route_counters + sizes.counters);
  return absl::OkStatus();
}

absl::Status CheckKvHeads(const ModelConfig& config, absl::Span<const int32_t> state_heads) {
  std::vector<std::pair<int32_t, size_t>> heads;  // of layers
  for (size_t i = 0; i < config.layers.size(); ++i) {
    if (config.layers[i].FindSoftmax() != nullptr) heads.emplace_back(state_heads[i], i);
  }
  const auto [least, most] = std::minmax_element(heads.begin(), heads.end());
  if (least->first == most->first) return absl::OkStatus();
  return absl::UnimplementedError(
      StrCat("a rank has ", least->first, " kv heads of layer ", least->second, ", but ",
             most->first, " of layer ", most->second,
             ", since their weights are divided by blocks of unequal sizes; allowed on the GPU: as "
             "many of every layer (try a smaller tensor_parallel_size)"));
}

KvArena DescribeKv(const ModelConfig& config, const Model& model, const CudaSpec& device,
                   int32_t max_model_len) {
  const PageSpec pages = CudaPages(device.block_size, device.kv_cache_fp8, max_model_len);
  KvArena kv;
  kv.type = device.kv_cache_fp8 ? kernels::Type::kFp8 : kernels::Type::kBf16;
  kv.block_size = device.block_size;
  kv.kv_heads = model.kv_heads();
  kv.head_size = SoftmaxLayers(config)[0]->head_size;  // SharedHeadShape
  kv.block_elements = kv.kv_heads * pages.HeadBytes(kv.head_size) / kv.element_bytes();
  kv.slots = device.max_num_seqs;
  kv.state = StateOf(config, model.layer_state_heads(), pages);
  kv.pools.resize(kv.state.layout.num_groups());
  for (const LayerPlacement& placement : kv.state.placements) {
    if (placement.group != kNoGroup) ++kv.pools[placement.group].layers;
  }
  for (int group = 0; group < kv.state.layout.num_groups(); ++group) {
    KvArena::Pool& pool = kv.pools[group];
    const bool paged = kv.state.layout.Paged(group) != nullptr;
    pool.place_bytes = paged ? kv.block_bytes() : kv.state.layout.MoveBytes(group);
    if (!paged) pool.layers = 1;
  }
  return kv;
}

std::vector<CudaStepInput> StepsToMeasure(const Model& model, const StepLimits& limits,
                                          const CudaWeights& weights) {
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
  // Attention's own memory grows with the rows, too: with those of a graph's padding.
  std::vector<CudaStepInput> steps = {step(few, few, 1), step(rows, rows, 1),
                                      step(rows + kMaxPaddingRows, tokens, tokens)};
  const KernelChoices choices(weights);
  std::vector<int64_t> of_next = choices.Of(1);
  for (int size = 1; size <= tokens; ++size) {
    const std::vector<int64_t> of_size = std::exchange(of_next, choices.Of(size + 1));
    if (of_size == of_next && size < tokens) continue;
    steps.push_back(step(1, size, size));
    if (size < few) steps.push_back(step(size, size, 1));
  }
  return steps;
}

// Gives the context's plans their memory.
absl::Status MakeAttentionMemory(const ModelConfig& config, CudaModel& m, CudaOpsContext& context) {
  const auto [plan, plans, scratch] = AttentionSizesOf(*m.model, config, m.info.limits, context);
  MILLRACE_ASSIGN_OR_RETURN(m.attention, DeviceMemory::Allocate(plans + scratch, "attention"));
  // No launch's turn, until there is a plan.
  MILLRACE_RETURN_IF_ERROR(ToStatus(cudaMemset(m.attention.data(), 0, plans), "setting memory"));
  for (size_t i = 0; i < context.attention_plans.size(); ++i) {
    context.attention_plans[i].memory = m.attention.data() + i * plan;
  }
  context.attention_scratch = m.attention.data() + plans;
  return absl::OkStatus();
}

int64_t GraphBytes(size_t layers, const StepLimits& limits, const CudaSpec& device) {
  if (device.enforce_eager) return kKernelBytes;
  size_t graphs = DecodeSizes(limits.max_num_seqs).size();
  if (device.graph_tokens > 0) graphs += MixedGraphs::kMostGraphs;
  return kKernelBytes + static_cast<int64_t>(graphs * layers) * kGraphLayerBytes;
}

// How many blocks the memory has room for: what the setting says, or what is left of the share.
absl::StatusOr<std::vector<int32_t>> CountBlocks(const CudaSpec& device, const StepLimits& limits,
                                                 const KvArena& kv, int64_t graph_bytes,
                                                 int sharers) {
  const StateLayout& layout = kv.state.layout;
  const StateUse use = UseOf(limits, device);
  int64_t bytes = device.kv_cache_memory;
  if (bytes == 0) {
    MILLRACE_ASSIGN_OR_RETURN(const MemoryUse memory, ReadMemory());
    bytes = static_cast<int64_t>(memory.free) - static_cast<int64_t>(KeptFree(device, memory)) -
            sharers * graph_bytes;
    bytes = bytes / sharers - use.checkpoint_bytes;
  }
  // One of each group is that of padding rows.
  std::vector<int32_t> blocks =
      DivideState(layout, bytes - BytesOfABlockEach(layout) - layout.SlotBytes(), use);
  MILLRACE_RETURN_IF_ERROR(CheckBlocks(device, bytes, layout, blocks));
  return blocks;
}

absl::StatusOr<MemoryPlan> PlanRank(const RankToPlan& rank) {
  StepLimits limits = rank.limits;
  const CudaWeights shapes = rank.placer.Shapes();
  StepBuffers buffers;
  buffers.max_logit_rows = StepBuffers::MaxLogitRows(limits);
  const CudaOpsContext context =
      DescribeContext(rank.config, limits.max_model_len, shapes, buffers);
  MILLRACE_ASSIGN_OR_RETURN(const size_t activations,
                            MostActivationBytes(rank.model, limits, context));
  MILLRACE_RETURN_IF_ERROR(CheckKvHeads(rank.config, rank.model.layer_state_heads()));
  limits.state =
      DescribeKv(rank.config, rank.model, rank.device, limits.max_model_len).state.layout;
  const AttentionSizes attention = AttentionSizesOf(rank.model, rank.config, limits, context);
  const size_t workspaces =
      StepBuffers::Bytes(limits, rank.logits_stride, rank.logits_share) +
      kMaxStepsInFlight * StepPacker::MaxWords(limits) * sizeof(int32_t) + attention.plans +
      attention.scratch + RotationBytes(rank.config, limits.max_model_len) +
      RoutingBytes(rank.config, limits) + kernels::LinearOptions{}.workspace_bytes +
      ExpansionBytes(shapes, limits.max_num_batched_tokens) + rank.mailbox_bytes;
  MemoryPlan plan{.weights = static_cast<int64_t>(rank.placer.bytes()),
                  .activations = static_cast<int64_t>(activations),
                  .workspaces = static_cast<int64_t>(workspaces),
                  .graphs = GraphBytes(rank.config.layers.size(), limits, rank.device),
                  .state = limits.state,
                  .use = UseOf(limits, rank.device),
                  .spare_blocks = 1};  // of padding rows
  if (const int64_t bytes = rank.device.kv_cache_memory; bytes != 0) {
    plan.num_blocks = plan.Divide(bytes);
    MILLRACE_RETURN_IF_ERROR(CheckBlocks(rank.device, bytes, plan.state, plan.num_blocks));
  }
  return plan;
}

absl::Status CheckMemory(const CudaSpec& device, const MemoryUse& memory, const MemoryPlan& of_rank,
                         int sharers) {
  const bool is_share = device.kv_cache_memory == 0;
  const size_t cache = sharers * (is_share ? of_rank.LeastStateBytes() : device.kv_cache_memory);
  const size_t checkpoints = sharers * of_rank.use.checkpoint_bytes;
  const size_t weights = sharers * of_rank.weights;
  const size_t activations = sharers * of_rank.activations;
  const size_t workspaces = sharers * of_rank.workspaces;
  const size_t graphs = sharers * of_rank.graphs;
  const size_t kept_free = KeptFree(device, memory);
  const size_t needed = weights + activations + workspaces + graphs + cache + checkpoints;
  if (needed + kept_free <= memory.free) return absl::OkStatus();
  return absl::ResourceExhaustedError(StrCat(
      "the model needs ", needed / kMiB, " MiB of the GPU's memory: weights ", weights / kMiB,
      ", activations ", activations / kMiB, ", workspaces ", workspaces / kMiB, ", graphs ",
      graphs / kMiB, is_share ? ", KV cache at least " : ", KV cache (kv_cache_memory) ",
      cache / kMiB,
      checkpoints > 0 ? StrCat(", checkpoints (state_cache_memory) ", checkpoints / kMiB) : "",
      "; ", memory.free / kMiB, " MiB of ", memory.total / kMiB, " are free",
      is_share ? StrCat(", and gpu_memory_utilization ", device.gpu_memory_utilization, " leaves ",
                        kept_free / kMiB, " of them alone")
               : ""));
}

absl::Status MakeKv(const CudaSpec& device, CudaModel& m) {
  const std::vector<int32_t>& blocks = m.info.limits.num_blocks;
  MILLRACE_ASSIGN_OR_RETURN(m.kv_memory,
                            DeviceMemory::Allocate(m.kv.Bytes(blocks), "the KV cache"));
  m.kv.Place(blocks, m.kv_memory.data());
  m.info.kv_type = device.kv_cache_fp8 ? "fp8_e4m3" : "bfloat16 and float16";
  return absl::OkStatus();
}

absl::StatusOr<size_t> MostActivationBytes(const Model& model, const StepLimits& limits,
                                           const CudaOpsContext& context) {
  size_t most = 0;
  for (const CudaStepInput& step : StepsToMeasure(model, limits, *context.weights)) {
    MILLRACE_ASSIGN_OR_RETURN(const size_t bytes, ActivationBytes(model, context, step));
    most = std::max(most, bytes);
  }
  return most;
}

absl::StatusOr<size_t> DryRun(const Model& model, const ModelConfig& config,
                              const StepLimits& limits, const CudaWeights& shapes) {
  StepBuffers buffers;
  buffers.max_logit_rows = StepBuffers::MaxLogitRows(limits);
  return MostActivationBytes(model, limits,
                             DescribeContext(config, limits.max_model_len, shapes, buffers));
}

void LogMemory(const CudaModel& m, size_t graph_bytes, const MemoryUse& now) {
  kLog.Info(m.device.name, " memory in MiB: weights ", m.weights.bytes() / kMiB, ", KV cache ",
            m.kv_memory.bytes() / kMiB, " (",
            DivisionText(m.info.limits.state, m.info.limits.num_blocks), "), activations ",
            m.activation_memory.bytes() / kMiB, ", logits and steps ",
            m.buffers.memory.bytes() / kMiB, ", workspaces ",
            (m.linear_workspace.bytes() + m.attention.bytes() + m.rotations.bytes()) / kMiB,
            ", expanded weights ", m.weights.expansion.bytes() / kMiB, ", graphs and kernels ",
            graph_bytes / kMiB, ", free ", now.free / kMiB, " of ", now.total / kMiB);
}

}  // namespace millrace::cuda
