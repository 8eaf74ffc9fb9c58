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
#include "executors/step_limits.h"
#include "formats/model_config.h"
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

// A rank's part of the memory for keys and values.
absl::StatusOr<KvArena> MakeKvArena(const ModelConfig& config, int head_size, int32_t kv_heads,
                                    const CpuSpec& device, int num_ranks, int32_t* num_blocks) {
  KvArena kv;
  kv.block_size = device.block_size;
  kv.head_size = (head_size + kTileRows - 1) / kTileRows * kTileRows;
  kv.float32 = device.kv_cache_float32;
  kv.page_bytes = KvArena::PageBytes(device.block_size, kv.head_size, kv.float32);
  kv.layer_bytes = kv_heads * kv.page_bytes;
  kv.block_bytes = config.layers.size() * kv.layer_bytes;
  const int64_t whole_block_bytes = static_cast<int64_t>(kv.block_bytes) * num_ranks;
  int64_t blocks = device.kv_cache_memory / whole_block_bytes;
  if (blocks < 1) {
    return absl::InvalidArgumentError(StrCat("kv_cache_memory is ", device.kv_cache_memory,
                                             " bytes, allowed: at least one block's ",
                                             whole_block_bytes));
  }
  if (config.encoder.has_value()) {
    // Nothing stays in it from step to step: as much as the steps in flight may use.
    const int64_t step = device.max_num_batched_tokens / device.block_size + device.max_num_seqs;
    blocks = std::min(blocks, kMaxStepsInFlight * step);
  }
  *num_blocks = static_cast<int32_t>(std::min<int64_t>(blocks, int64_t{1} << 30));
  MILLRACE_ASSIGN_OR_RETURN(kv.memory,
                            Memory::Reserve(*num_blocks * kv.block_bytes, "the KV cache"));
  return kv;
}

// Calls every op of a step without tokens. Returns the bytes of activations that a step takes for
// each token, or what an op refused.
absl::StatusOr<size_t> DryRun(const AnyModel& model, const Kernels& kernels, ThreadPool& pool,
                              const CpuWeights& shapes) {
  const KvArena kv;
  CpuOps ops(kernels, pool, shapes, kv);
  Forward(model, ops, CpuStepInput());
  MILLRACE_RETURN_IF_ERROR(ops.TakeStatus());
  return ops.token_bytes();
}

// Returns how many of `threads` belong to rank `index` of `count`.
int ThreadsOf(int threads, int index, int count) {
  return std::max(1, threads / count + (index < threads % count ? 1 : 0));
}

// Opened files, and each rank's model as far as it is made of them.
struct Loading {
  const CpuSpec& device;
  const Kernels& kernels;
  const LocalRanks& local;
  const OpenedModel opened;
  LoadProgress* progress;  // null: nobody asks
  StepLimits limits;
  std::vector<std::unique_ptr<CpuModel>> ranks;
  std::vector<OpsMemory> memory;  // by rank
};

// Reads the weights once and deals them to the ranks.
absl::Status PlaceWeights(Loading& loading) {
  const CpuSpec& device = loading.device;
  const int threads = device.threads > 0 ? device.threads : UsableCores();
  std::deque<CpuWeightPlacer> placers;
  std::vector<CpuWeightPlacer*> pointers;
  for (int i = 0; i < loading.local.count; ++i) {
    const RankSpec rank{.rank = loading.local.first + i,
                        .size = device.tensor_parallel_size,
                        .expert_parallel = device.expert_parallel};
    CpuModel& model = *loading.ranks.emplace_back(std::make_unique<CpuModel>());
    model.pool = std::make_unique<ThreadPool>(ThreadsOf(threads, i, loading.local.count));
    CpuWeightPlacer& placer =
        placers.emplace_back(*loading.opened.tensors, loading.kernels, device.weight_bits, rank);
    pointers.push_back(&placer);
    MILLRACE_ASSIGN_OR_RETURN(
        model.model, LoadAnyModel(loading.opened.config, loading.limits.max_model_len, placer));
    MILLRACE_ASSIGN_OR_RETURN(loading.memory.emplace_back().token_bytes,
                              DryRun(model.model, loading.kernels, *model.pool, placer.shapes()));
  }
  if (placers.front().has_fp8()) {
    kLog.Info("FP8 weights are kept as ",
              device.weight_bits == 0 ? "BF16 (twice the file's bytes)"
                                      : StrCat("int", device.weight_bits),
              "; inputs are not rounded to FP8");
  }
  std::optional<ThreadPool> all;
  if (placers.size() > 1) all.emplace(threads);
  ThreadPool& pool = all.has_value() ? *all : *loading.ranks[0]->pool;
  MILLRACE_ASSIGN_OR_RETURN(std::vector<CpuWeights> weights,
                            CpuWeightPlacer::FinishRanks(pointers, pool, loading.progress));
  for (size_t i = 0; i < weights.size(); ++i) loading.ranks[i]->weights = std::move(weights[i]);
  return absl::OkStatus();
}

absl::Status TakeMemory(Loading& loading, int rank, int head_size) {
  const ModelConfig& config = loading.opened.config;
  CpuModel& model = *loading.ranks[rank];
  OpsMemory& memory = loading.memory[rank];
  MILLRACE_ASSIGN_OR_RETURN(model.kv,
                            MakeKvArena(config, head_size, KvHeads(model.model), loading.device,
                                        loading.local.count, &loading.limits.num_blocks));
  MILLRACE_ASSIGN_OR_RETURN(
      memory.activations,
      Memory::Reserve(memory.token_bytes * loading.device.max_num_batched_tokens, "activations"));
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
                 .score = ScoreFunctionOf(config),
                 .embedding = EmbeddingTraitsOf(config),
                 .kv = {.block_size = loading.limits.block_size,
                        .num_blocks = loading.limits.num_blocks,
                        .type = first.kv.float32 ? "float32" : "float16",
                        .groups = {{.num_layers = config.num_layers(), .bytes_per_block = 0}}}};
  for (const auto& rank : loading.ranks) {
    info.weight_bytes += static_cast<int64_t>(rank->weights.memory.bytes());
    info.kv.groups[0].bytes_per_block += static_cast<int64_t>(rank->kv.block_bytes);
  }
  return info;
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<CpuModel>>> LoadCpuRanks(const ModelSpec& model,
                                                                    const CpuSpec& device,
                                                                    const Kernels& kernels,
                                                                    const LocalRanks& ranks,
                                                                    PhaseTimer& phases) {
  MILLRACE_ASSIGN_OR_RETURN(OpenedModel opened, OpenModel(model.path, model.runner));
  if (!opened.tensors->has_data()) {
    return absl::UnimplementedError(StrCat(opened.tensors->base_name(),
                                           ": has no .safetensors files; allowed on the CPU: a "
                                           "model with its weights"));
  }
  MILLRACE_RETURN_IF_ERROR(CheckBlockSize(device));
  MILLRACE_RETURN_IF_ERROR(CheckExpertParallel(opened.config, device));
  MILLRACE_ASSIGN_OR_RETURN(const HeadShape heads, SharedHeadShape(opened.config));
  MILLRACE_ASSIGN_OR_RETURN(const StepLimits limits, MakeStepLimits(opened.config, device));
  phases.End("open the model's files");

  Loading loading{.device = device,
                  .kernels = kernels,
                  .local = ranks,
                  .opened = std::move(opened),
                  .progress = model.progress,
                  .limits = limits,
                  .ranks = {},
                  .memory = {}};
  MILLRACE_RETURN_IF_ERROR(PlaceWeights(loading));
  phases.End("place the weights");

  for (int rank = 0; rank < ranks.count; ++rank) {
    MILLRACE_RETURN_IF_ERROR(TakeMemory(loading, rank, heads.head_size));
  }
  loading.ranks[0]->info = Describe(loading);
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
  loaded->Run(WarmUpStep(loaded->info.limits).input);
  phases.End("warm up");
  loaded->info.load_phases = phases.Take();
  return loaded;
}

}  // namespace millrace::cpu
