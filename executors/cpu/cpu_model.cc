#include "executors/cpu/cpu_model.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/control_group.h"
#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "executors/models/model_state.h"
#include "executors/step_limits.h"
#include "formats/model/model_config.h"
#include "formats/open_model.h"

namespace millrace::cpu {
namespace {

constexpr Logger kLog(LogComponent::kExecutors);

absl::Status CheckBlockSize(const CpuSpec& device) {
  if (device.block_size < kTileRows || device.block_size % kTileRows != 0) {
    return absl::InvalidArgumentError(StrCat("block_size is ", device.block_size,
                                             "; allowed on the CPU: multiples of ", kTileRows));
  }
  return absl::OkStatus();
}

absl::Status CheckExpertParallel(const ModelConfig& config, const CpuSpec& device) {
  const auto has_experts = [](const LayerConfig& layer) {
    return std::holds_alternative<ExpertsFeedForward>(layer.feed_forward);
  };
  if (!device.expert_parallel ||
      std::any_of(config.layers.begin(), config.layers.end(), has_experts)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(StrCat("enable_expert_parallel is true, but ",
                                           config.architecture,
                                           " is no mixture of experts; allowed: false"));
}

// Returns how many of `threads` belong to rank `index` of `count`.
int ThreadsOf(int threads, int index, int count) {
  return std::max(1, threads / count + (index < threads % count ? 1 : 0));
}

// Opened files, and each rank's model as far as it is made of them.
struct Loading {
  const CpuSpec& device;
  const Kernels& kernels;
  LocalRanks local;
  const OpenedModel& opened;
  StepLimits limits;
  ModelState state;  // of each rank
  std::vector<std::unique_ptr<CpuModel>> ranks;
  std::deque<CpuWeightPlacer> placers;  // by rank
  MemoryPlan plan;
  size_t token_bytes = 0;  // of activations, of the rank that takes most

  int threads() const { return device.threads > 0 ? device.threads : UsableCores(); }
};

// Checks the settings of a model whose files are open; they outlive what is returned.
absl::StatusOr<Loading> Begin(const OpenedModel& opened, const CpuSpec& device,
                              const Kernels& kernels, LocalRanks local) {
  MILLRACE_RETURN_IF_ERROR(CheckBlockSize(device));
  MILLRACE_RETURN_IF_ERROR(CheckExpertParallel(opened.config, device));
  MILLRACE_ASSIGN_OR_RETURN(StepLimits limits, MakeStepLimits(opened.config, device));
  return Loading{.device = device,
                 .kernels = kernels,
                 .local = std::move(local),
                 .opened = opened,
                 .limits = std::move(limits),
                 .state = {},
                 .ranks = {},
                 .placers = {},
                 .plan = {}};
}

// Notes the weights of one more rank, and calls every op of a step without tokens: adds what the
// rank takes to the plan, or returns what an op refused.
absl::Status PlanRank(Loading& loading) {
  const CpuSpec& device = loading.device;
  const auto index = static_cast<int>(loading.ranks.size());
  const RankSpec rank{.rank = loading.local.first + index,
                      .size = device.tensor_parallel_size,
                      .expert_parallel = device.expert_parallel};
  CpuModel& model = *loading.ranks.emplace_back(std::make_unique<CpuModel>());
  CpuWeightPlacer& placer = loading.placers.emplace_back(*loading.opened.tensors, loading.kernels,
                                                         device.weight_bits, rank);
  MILLRACE_ASSIGN_OR_RETURN(
      model.model, LoadAnyModel(loading.opened.config, loading.limits.max_model_len, placer));
  ThreadPool pool(1);
  const KvArena kv;
  CpuOps ops(loading.kernels, pool, placer.shapes(), kv);
  Forward(model.model, ops, CpuStepInput());
  MILLRACE_RETURN_IF_ERROR(ops.TakeStatus());
  loading.token_bytes = std::max(loading.token_bytes, ops.token_bytes());
  const PageSpec pages =
      CpuPages(device.block_size, device.kv_cache_float32, loading.limits.max_model_len);
  int head_size = 0;
  for (const LayerConfig& layer : loading.opened.config.layers) {
    const SoftmaxAttention* const softmax = layer.FindSoftmax();
    if (softmax != nullptr) head_size = std::max(head_size, pages.FilledHead(softmax->head_size));
  }
  loading.plan.weights += static_cast<int64_t>(placer.bytes());
  loading.plan.workspaces += static_cast<int64_t>(ops.WorkspaceBytes(
      loading.limits, ThreadsOf(loading.threads(), index, loading.local.count), head_size));
  if (index == 0) loading.state = StateOf(loading.opened.config, StateHeads(model.model), pages);
  return absl::OkStatus();
}

// Plans the memory of all ranks, which have as many heads each. Reads no weights.
absl::Status Plan(Loading& loading) {
  const CpuSpec& device = loading.device;
  StepLimits& limits = loading.limits;
  MemoryPlan& plan = loading.plan;
  for (int i = 0; i < loading.local.count; ++i) MILLRACE_RETURN_IF_ERROR(PlanRank(loading));
  plan.activations = static_cast<int64_t>(loading.token_bytes * loading.local.count) *
                     limits.max_num_batched_tokens;
  plan.state = Together(loading.state.layout, loading.local.count);
  plan.use = {.max_num_seqs = limits.max_num_seqs,
              .max_num_batched_tokens = limits.max_num_batched_tokens,
              .max_model_len = limits.max_model_len,
              .checkpoint_bytes = device.state_cache_memory};
  if (loading.opened.config.encoder.has_value()) {
    // Nothing stays in the blocks from step to step: as many as the steps in flight may use.
    plan.most_blocks = kMaxStepsInFlight *
                       (limits.max_num_batched_tokens / device.block_size + limits.max_num_seqs);
  }
  limits.state = plan.state;
  return absl::OkStatus();
}

// Divides the memory for keys and values, where blocks are of all ranks of this process.
absl::Status DivideMemory(Loading& loading) {
  const CpuSpec& device = loading.device;
  MemoryPlan& plan = loading.plan;
  plan.num_blocks = plan.Divide(device.kv_cache_memory);
  if (plan.num_blocks[plan.state.ContextGroup(plan.num_blocks)] < 1) {
    return TooLittleStateMemory(plan.state, device.kv_cache_memory, loading.limits.max_num_seqs);
  }
  loading.limits.num_blocks = plan.num_blocks;
  return absl::OkStatus();
}

// Reads the weights once and deals them to the ranks.
absl::Status PlaceWeights(Loading& loading, LoadProgress* progress) {
  const CpuSpec& device = loading.device;
  std::vector<CpuWeightPlacer*> pointers;
  for (CpuWeightPlacer& placer : loading.placers) {
    CpuModel& model = *loading.ranks[pointers.size()];
    model.pool = std::make_unique<ThreadPool>(
        ThreadsOf(loading.threads(), static_cast<int>(pointers.size()), loading.local.count));
    pointers.push_back(&placer);
  }
  if (loading.placers.front().has_fp8()) {
    kLog.Info("FP8 weights are kept as ",
              device.weight_bits == 0 ? "BF16 (twice the file's bytes)"
                                      : StrCat("int", device.weight_bits),
              "; inputs are not rounded to FP8");
  }
  std::optional<ThreadPool> all;
  if (pointers.size() > 1) all.emplace(loading.threads());
  ThreadPool& pool = all.has_value() ? *all : *loading.ranks[0]->pool;
  MILLRACE_ASSIGN_OR_RETURN(std::vector<CpuWeights> weights,
                            CpuWeightPlacer::FinishRanks(pointers, pool, progress));
  for (size_t i = 0; i < weights.size(); ++i) loading.ranks[i]->weights = std::move(weights[i]);
  return absl::OkStatus();
}

absl::Status TakeMemory(Loading& loading, int rank) {
  const ModelConfig& config = loading.opened.config;
  CpuModel& model = *loading.ranks[rank];
  OpsMemory memory;
  MILLRACE_ASSIGN_OR_RETURN(
      model.kv, KvArena::Make(config, loading.state, loading.limits.num_blocks,
                              loading.limits.max_num_seqs, loading.device.kv_cache_float32));
  MILLRACE_ASSIGN_OR_RETURN(
      memory.activations,
      Memory::Reserve(loading.token_bytes * loading.device.max_num_batched_tokens, "activations"));
  MILLRACE_ASSIGN_OR_RETURN(memory.logits,
                            Memory::Reserve(CpuOps::LogitBytes(config.vocab_size), "logits"));
  const std::vector<Collective*>& collectives = loading.local.collectives;
  Collective* const collective = collectives.empty() ? nullptr : collectives[rank];
  model.ops = std::make_unique<CpuOps>(loading.kernels, *model.pool, model.weights, model.kv,
                                       std::move(memory), loading.limits.max_model_len, collective);
  return absl::OkStatus();
}

// Returns the description of the whole model, which this process's ranks hold together.
ModelInfo Describe(const Loading& loading) {
  const ModelConfig& config = loading.opened.config;
  const CpuModel& first = *loading.ranks[0];
  ModelInfo info{.architecture = config.architecture,
                 .digest = std::string(first.weights.digest.begin(), first.weights.digest.end()),
                 .weight_bytes = 0,
                 .end_tokens = config.end_tokens,
                 .tensor_parallel_size = loading.device.tensor_parallel_size,
                 .expert_parallel = loading.device.expert_parallel,
                 .limits = loading.limits,
                 .kv_type = first.kv.float32 ? "float32" : "float16",
                 .score = ScoreFunctionOf(config),
                 .embedding = EmbeddingTraitsOf(config)};
  for (const auto& rank : loading.ranks) {
    info.weight_bytes += static_cast<int64_t>(rank->weights.memory.bytes());
  }
  return info;
}

}  // namespace

absl::Status CpuModel::CheckMemory() const {
  if (!ops->exceeded()) return absl::OkStatus();
  return absl::ResourceExhaustedError(StrCat("a step takes more memory for activations than the ",
                                             ops->memory().activations.bytes(),
                                             " bytes that were planned"));
}

absl::StatusOr<MemoryPlan> PlanCpuMemory(const OpenedModel& model, const CpuSpec& device,
                                         const Kernels& kernels, int nodes) {
  MILLRACE_ASSIGN_OR_RETURN(
      Loading loading,
      Begin(model, device, kernels,
            {.first = 0, .count = device.tensor_parallel_size / nodes, .collectives = {}}));
  MILLRACE_RETURN_IF_ERROR(Plan(loading));
  if (device.kv_cache_memory != 0) MILLRACE_RETURN_IF_ERROR(DivideMemory(loading));
  return std::move(loading.plan);
}

absl::StatusOr<std::vector<std::unique_ptr<CpuModel>>> LoadCpuRanks(const ModelSpec& model,
                                                                    const CpuSpec& device,
                                                                    const Kernels& kernels,
                                                                    const LocalRanks& ranks,
                                                                    PhaseTimer& phases) {
  MILLRACE_ASSIGN_OR_RETURN(const OpenedModel opened, OpenModel(model.path, model.runner));
  if (!opened.tensors->has_data()) {
    return absl::UnimplementedError(StrCat(opened.tensors->base_name(),
                                           ": has no .safetensors files; allowed on the CPU: a "
                                           "model with its weights"));
  }
  MILLRACE_ASSIGN_OR_RETURN(Loading loading, Begin(opened, device, kernels, ranks));
  phases.End("open the model's files");

  MILLRACE_RETURN_IF_ERROR(Plan(loading));
  MILLRACE_RETURN_IF_ERROR(DivideMemory(loading));
  MILLRACE_RETURN_IF_ERROR(PlaceWeights(loading, model.progress));
  phases.End("place the weights");

  for (int rank = 0; rank < ranks.count; ++rank) {
    MILLRACE_RETURN_IF_ERROR(TakeMemory(loading, rank));
  }
  loading.ranks[0]->info = Describe(loading);
  const MemoryPlan& plan = loading.ranks[0]->plan = std::move(loading.plan);
  kLog.Info("memory in MiB: weights ", plan.weights >> 20, ", and as they are used KV cache ",
            plan.StateBytes() >> 20, ", activations ", plan.activations >> 20, ", workspaces ",
            plan.workspaces >> 20);
  phases.End("take memory");
  return std::move(loading.ranks);
}

absl::StatusOr<std::unique_ptr<CpuModel>> LoadCpuModel(const ModelSpec& model,
                                                       const CpuSpec& device,
                                                       const Kernels& kernels) {
  PhaseTimer phases;
  MILLRACE_ASSIGN_OR_RETURN(auto ranks, LoadCpuRanks(model, device, kernels, LocalRanks(), phases));
  std::unique_ptr<CpuModel> loaded = std::move(ranks[0]);
  // So that the first request finds code and memory in place.
  MILLRACE_RETURN_IF_ERROR(loaded->Run(WarmUpStep(loaded->info.limits).input));
  MILLRACE_RETURN_IF_ERROR(loaded->CheckMemory());
  phases.End("warm up");
  loaded->info.load_phases = phases.Take();
  return loaded;
}

}  // namespace millrace::cpu
