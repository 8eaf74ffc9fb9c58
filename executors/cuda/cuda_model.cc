#include "executors/cuda/cuda_model.h"

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "executors/cuda/model_memory.h"
#include "executors/cuda/rank_joining.h"
#include "executors/models/model_state.h"
#include "executors/phase_timer.h"
#include "executors/step_limits.h"
#include "executors/weights/shares.h"
#include "formats/open_model.h"
#include "kernels/collective/all_reduce.h"
#include "kernels/kernel_table.h"

namespace millrace::cuda {
namespace {

constexpr Logger kLog(LogComponent::kExecutors);

// StepLimits::token_tile. The kernels for long steps have tiles of 128 tokens and more.
constexpr int32_t kTokenTile = 128;

// Capacity for what one rank sends to another at once: a step of 256 tokens of 8,192 values.
constexpr int64_t kSlotBytes = int64_t{4} << 20;

bool HasExperts(const ModelConfig& config) {
  return std::any_of(config.layers.begin(), config.layers.end(), [](const LayerConfig& layer) {
    return std::holds_alternative<ExpertsFeedForward>(layer.feed_forward);
  });
}

bool HasMamba2(const ModelConfig& config) {
  return std::any_of(config.layers.begin(), config.layers.end(), [](const LayerConfig& layer) {
    return std::holds_alternative<Mamba2>(layer.attention);
  });
}

// Checks what no device decides.
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
  if (device.skewed_routers && !HasExperts(config)) {
    return absl::InvalidArgumentError(
        "routing is real, but the model has no mixture of experts; allowed here: uniform");
  }
  if (device.expert_parallel && !HasExperts(config)) {
    return absl::InvalidArgumentError(StrCat("enable_expert_parallel is true, but ",
                                             config.architecture,
                                             " is no mixture of experts; allowed: false"));
  }
  // Several ranks differ from one rank by more on the twin with both than on any other twin.
  if (device.tensor_parallel_size > 1 && HasExperts(config) && HasMamba2(config)) {
    return absl::UnimplementedError(
        StrCat("tensor_parallel_size is ", device.tensor_parallel_size,
               ", allowed on GPUs with both Mamba-2 mixers and experts: 1"));
  }
  if (device.max_num_batched_tokens < device.max_num_seqs) {
    return absl::InvalidArgumentError(
        StrCat("max_num_batched_tokens is ", device.max_num_batched_tokens,
               ", allowed on the GPU: at least max_num_seqs, ", device.max_num_seqs));
  }
  return absl::OkStatus();
}

// Checks that the GPU has kernels for the model.
absl::Status CheckKernels(const ModelConfig& config, const CudaSpec& device) {
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
  return absl::OkStatus();
}

// Returns the GPU of each rank of this node.
absl::StatusOr<std::vector<int>> RankDevices(const CudaSpec& device, int nodes) {
  const int ranks = device.tensor_parallel_size / nodes;
  if (ranks > kernels::kMaxRanks) {
    return absl::InvalidArgumentError(
        StrCat("tensor_parallel_size is ", ranks, "; allowed on GPUs: 1 to ", kernels::kMaxRanks));
  }
  std::vector<int> devices = device.devices;
  if (device.lone_rank) return std::vector<int>(1, devices.empty() ? 0 : devices[0]);
  if (device.virtual_ranks) {
    if (devices.size() > 1) {
      return absl::InvalidArgumentError(
          StrCat("devices are ", devices.size(), ", but virtual_ranks puts all ranks on one"));
    }
    return std::vector<int>(ranks, devices.empty() ? 0 : devices[0]);
  }
  if (devices.empty()) {
    devices.resize(ranks);
    std::iota(devices.begin(), devices.end(), 0);
  }
  if (std::ssize(devices) != ranks) {
    return absl::InvalidArgumentError(StrCat("devices are ", devices.size(),
                                             ", but tensor_parallel_size is ", ranks,
                                             "; allowed: one for each rank"));
  }
  for (auto at = devices.begin(); at != devices.end(); ++at) {
    if (std::find(devices.begin(), at, *at) == at) continue;
    return absl::InvalidArgumentError(
        StrCat("devices name GPU ", *at, " twice; allowed: one rank a GPU, or virtual_ranks"));
  }
  return devices;
}

// Opened files, and each rank's model as far as it is made of them.
struct Loading {
  const CudaSpec& device;
  Nodes* nodes;              // null: this process has all ranks
  bool by_nccl;              // ranks do not reach one another's memory
  std::vector<int> devices;  // by rank of this node, as all that follows
  const OpenedModel& opened;
  LoadProgress* progress;  // null: nobody asks
  StepLimits limits;
  std::vector<std::unique_ptr<CudaModel>> ranks;
  std::vector<CudaOpsContext> contexts;

  int size() const { return static_cast<int>(devices.size()); }
  int num_ranks() const { return device.tensor_parallel_size; }  // on all nodes
  int first_rank() const { return nodes == nullptr ? 0 : nodes->node() * size(); }
  RankSpec SpecOf(int rank) const {
    return {.rank = first_rank() + rank,
            .size = num_ranks(),
            .expert_parallel = device.expert_parallel};
  }
  // Returns how many ranks a GPU has.
  int sharers() const { return device.virtual_ranks ? size() : 1; }
};

// The logits of a row that each rank computes, 0 with one rank, and the length of a whole row.
struct LogitSizes {
  int64_t share;
  int64_t stride;
};
LogitSizes LogitSizesOf(const Loading& loading) {
  const int64_t vocab = loading.opened.config.vocab_size;
  if (loading.num_ranks() == 1) return {0, RoundUp(vocab, kRowMultiple)};
  const int64_t unit = loading.device.quantize_head ? int64_t{kFp8Block} : kShareMultiple;
  const int64_t share = RoundUp(DivideUnits(vocab, unit, loading.SpecOf(0)).size, kRowMultiple);
  return {share, share * loading.num_ranks()};
}

absl::Status OpenRank(Loading& loading, int rank) {
  const CudaSpec& device = loading.device;
  auto m = std::make_unique<CudaModel>();
  MILLRACE_ASSIGN_OR_RETURN(m->device, OpenDevice(loading.devices[rank]));
  MILLRACE_ASSIGN_OR_RETURN(m->stream, MakeStream());
  MILLRACE_ASSIGN_OR_RETURN(m->mask_stream, MakeStream());
  std::string error;
  m->cublaslt = kernels::CublasLt::Open(&error);
  if (m->cublaslt == nullptr) return absl::UnavailableError(StrCat("device: cuda: ", error));
  const bool only_cublaslt = device.portable_kernels || device.cublaslt_linears;
  const kernels::LinearOptions options{
      .gemm = only_cublaslt ? kernels::Gemm::kCublasLt : kernels::Gemm::kAuto,
      .exact = device.exact,
      .max_tokens = device.max_num_batched_tokens};
  m->planner = std::make_unique<kernels::LinearPlanner>(*m->cublaslt, options);
  m->info.limits = loading.limits;
  loading.ranks[rank] = std::move(m);
  return absl::OkStatus();
}

// Returns the bytes that a rank sends at once. Each sum fits with one token at least, and logits
// with one row.
int64_t SlotBytes(const Loading& loading) {
  return std::max(
      {kSlotBytes,
       RoundUp(int64_t{sizeof(float)} * LogitSizesOf(loading).share, kernels::kSlotAlignment),
       RoundUp(int64_t{sizeof(kernels::Bf16)} * loading.opened.config.hidden_size,
               kernels::kSlotAlignment)});
}

WeightOptions WeightOptionsOf(const CudaSpec& device, bool four_bit) {
  return {.quantize_fp8 = device.quantize_fp8,
          .quantize_int4 = device.quantize_int4,
          .four_bit = four_bit,
          .quantize_head = device.quantize_head,
          .dummy = device.dummy_weights,
          .skewed_routers = device.skewed_routers};
}

// Returns the memory of a rank, whose weights the placer has noted.
absl::StatusOr<MemoryPlan> PlanOf(const Loading& loading, const Model& model,
                                  const CudaWeightPlacer& placer) {
  const LogitSizes logits = LogitSizesOf(loading);
  const int ranks = loading.num_ranks();
  const int64_t slot = SlotBytes(loading);
  return PlanRank(
      {.device = loading.device,
       .config = loading.opened.config,
       .limits = loading.limits,
       .model = model,
       .placer = placer,
       .logits_stride = logits.stride,
       .logits_share = logits.share,
       .mailbox_bytes = ranks == 1 ? 0
                        : loading.by_nccl
                            ? slot * (1 + ranks)
                            : static_cast<int64_t>(kernels::CommunicatorBytes(ranks, slot))});
}

// Reads the weights once and deals them to the ranks.
absl::Status PlaceWeights(Loading& loading) {
  const CudaSpec& device = loading.device;
  const ModelConfig& config = loading.opened.config;
  const WeightOptions options = WeightOptionsOf(
      device, kernels::MayRun(kernels::Kernel::kGroupedLinear, device.portable_kernels));
  std::deque<CudaWeightPlacer> placers;
  std::vector<CudaWeightPlacer::RankTarget> targets;
  for (int rank = 0; rank < loading.size(); ++rank) {
    CudaModel& m = *loading.ranks[rank];
    MILLRACE_RETURN_IF_ERROR(UseDevice(m.device.index));
    CudaWeightPlacer& placer =
        placers.emplace_back(*loading.opened.tensors, config, options, loading.SpecOf(rank));
    MILLRACE_ASSIGN_OR_RETURN(m.model, LoadModel(config, loading.limits.max_model_len, placer));
    MILLRACE_ASSIGN_OR_RETURN(const MemoryPlan plan, PlanOf(loading, *m.model, placer));
    m.kv = DescribeKv(config, *m.model, device, loading.limits.max_model_len);
    if (rank == 0) loading.limits.state = m.kv.state.layout;
    MILLRACE_ASSIGN_OR_RETURN(const MemoryUse memory, ReadMemory());
    MILLRACE_RETURN_IF_ERROR(CheckMemory(device, memory, plan, loading.sharers()));
    targets.push_back({&placer, m.planner.get(), m.device.index});
  }
  MILLRACE_ASSIGN_OR_RETURN(std::vector<CudaWeights> weights,
                            CudaWeightPlacer::FinishRanks(targets, loading.progress));
  for (int rank = 0; rank < loading.size(); ++rank) {
    loading.ranks[rank]->weights = std::move(weights[rank]);
  }
  return absl::OkStatus();
}

// Takes a rank's memory, but for its KV cache.
absl::Status TakeMemory(Loading& loading, CudaModel& m) {
  const CudaSpec& device = loading.device;
  const ModelConfig& config = loading.opened.config;
  const StepLimits& limits = loading.limits;
  const LogitSizes logits = LogitSizesOf(loading);
  MILLRACE_RETURN_IF_ERROR(UseDevice(m.device.index));
  MILLRACE_RETURN_IF_ERROR(MakeRotations(config, m));
  MILLRACE_ASSIGN_OR_RETURN(
      m.linear_workspace, DeviceMemory::Allocate(m.planner->options().workspace_bytes, "linears"));
  MILLRACE_ASSIGN_OR_RETURN(m.linear_tile_counter,
                            DeviceMemory::Allocate(sizeof(unsigned), "linears"));
  MILLRACE_RETURN_IF_ERROR(
      ToStatus(cudaMemset(m.linear_tile_counter.data(), 0, sizeof(unsigned)), "setting memory"));
  MILLRACE_ASSIGN_OR_RETURN(m.buffers, StepBuffers::Make(limits, logits.stride, logits.share));
  m.buffers.mask_timeout_ns = static_cast<uint64_t>(ToSeconds(loading.device.step_timeout) * 1e9);
  CudaOpsContext& context = loading.contexts.emplace_back(
      DescribeContext(config, limits.max_model_len, m.weights, m.buffers));
  context.peers = m.peers.get();
  context.kv = m.kv;
  context.rotations = m.rotations.As<float2>();
  context.linear_workspace = m.linear_workspace.data();
  context.linear_tile_counter = m.linear_tile_counter.As<unsigned>();
  context.portable_kernels = device.portable_kernels;
  m.mixtures = DescribeMixtures(*m.model, context);
  if (!m.mixtures.empty()) MILLRACE_RETURN_IF_ERROR(MakeRoutingMemory(m, context));
  // Before there are blocks: what attention takes does not depend on how many.
  MILLRACE_RETURN_IF_ERROR(MakeAttentionMemory(config, m, context));
  MILLRACE_ASSIGN_OR_RETURN(const size_t activation_bytes,
                            MostActivationBytes(*m.model, limits, context));
  MILLRACE_ASSIGN_OR_RETURN(m.activation_memory,
                            DeviceMemory::Allocate(activation_bytes, "activations"));
  for (int i = 0; i < kMaxStepsInFlight; ++i) {
    MILLRACE_ASSIGN_OR_RETURN(m.lanes[i], StepLane::Make(limits, i));
  }
  return absl::OkStatus();
}

// Takes the memory that is left, the same numbers of blocks on every rank. The block behind the
// last of a group is that of rows that fill a batch up.
absl::Status TakeCache(Loading& loading) {
  std::vector<int32_t> blocks(loading.limits.state.num_groups(),
                              std::numeric_limits<int32_t>::max());
  for (const auto& m : loading.ranks) {
    MILLRACE_RETURN_IF_ERROR(UseDevice(m->device.index));
    MILLRACE_ASSIGN_OR_RETURN(
        const std::vector<int32_t> of_rank,
        CountBlocks(loading.device, loading.limits, m->kv,
                    GraphBytes(loading.opened.config.layers.size(), loading.limits, loading.device),
                    loading.sharers()));
    for (size_t group = 0; group < blocks.size(); ++group) {
      blocks[group] = std::min(blocks[group], of_rank[group]);
    }
  }
  if (loading.nodes != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(blocks, LeastOfNodes(*loading.nodes, std::move(blocks)));
  }
  loading.limits.num_blocks = std::move(blocks);
  for (int rank = 0; rank < loading.size(); ++rank) {
    CudaModel& m = *loading.ranks[rank];
    m.info.limits = loading.limits;
    MILLRACE_RETURN_IF_ERROR(UseDevice(m.device.index));
    MILLRACE_RETURN_IF_ERROR(m.buffers.SetPaddingBlocks(loading.limits));
    MILLRACE_RETURN_IF_ERROR(MakeKv(loading.device, m));
    loading.contexts[rank].kv = m.kv;
    m.ops = std::make_unique<CudaOps>(loading.contexts[rank], m.activation_memory.data(),
                                      m.activation_memory.bytes(), m.stream.get());
    // Waits for copies and fills on other streams than the model's own.
    MILLRACE_RETURN_IF_ERROR(ToStatus(cudaDeviceSynchronize(), "loading"));
  }
  return absl::OkStatus();
}

// Describes all ranks together.
void Describe(const Loading& loading) {
  const ModelConfig& config = loading.opened.config;
  ModelInfo& info = loading.ranks[0]->info;
  const CudaWeights& weights = loading.ranks[0]->weights;
  info.architecture = config.architecture;
  info.end_tokens = config.end_tokens;
  info.digest = std::string(weights.digest.begin(), weights.digest.end());
  info.batch_invariant = loading.device.exact && !loading.device.nccl_all_reduce;
  info.tensor_parallel_size = loading.num_ranks();
  info.expert_parallel = loading.device.expert_parallel;
  info.takes_masks = true;
  info.takes_late_masks = true;
  info.weight_bytes = 0;
  for (const auto& rank : loading.ranks) {
    info.weight_bytes += static_cast<int64_t>(rank->weights.bytes());
  }
  info.limits.state = Together(loading.limits.state, loading.size());
  if (loading.device.kv_cache_fp8 && !weights.has_kv_scales) {
    kLog.Warning("kv_cache_dtype is fp8 and the model has no k_scale and v_scale: 1 is taken");
  }
}

// Ranks on one GPU that wait for one another must neither share a hardware queue nor wait for a
// kernel that is being loaded. Ranks with a GPU each load kernels when they are used: loading one
// waits for that GPU alone, and no collective that it may wait in lacks a peer, since ranks meet
// when each has launched it (CudaOps::Meet). CUDA reads these when it is first used.
void PrepareEnvironment(const CudaSpec& device) {
  if (!device.virtual_ranks) return;
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/1);
  setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/1);
}

}  // namespace

absl::StatusOr<MemoryPlan> PlanCudaMemory(const OpenedModel& model, const CudaSpec& device,
                                          int nodes) {
  const ModelConfig& config = model.config;
  MILLRACE_RETURN_IF_ERROR(CheckSettings(config, device));
  MILLRACE_ASSIGN_OR_RETURN(StepLimits limits, MakeStepLimits(config, device));
  limits.token_tile = kTokenTile;
  const int sharers = device.virtual_ranks ? device.tensor_parallel_size / nodes : 1;
  const Loading loading{.device = device,
                        .nodes = nullptr,
                        .by_nccl = nodes > 1 || device.nccl_all_reduce,
                        .devices = {},
                        .opened = model,
                        .progress = nullptr,
                        .limits = std::move(limits),
                        .ranks = {},
                        .contexts = {}};
  CudaWeightPlacer placer(*model.tensors, config, WeightOptionsOf(device, !device.portable_kernels),
                          loading.SpecOf(0));
  MILLRACE_ASSIGN_OR_RETURN(const std::unique_ptr<Model> placed,
                            LoadModel(config, loading.limits.max_model_len, placer));
  MILLRACE_ASSIGN_OR_RETURN(MemoryPlan plan, PlanOf(loading, *placed, placer));
  for (int64_t* const part : {&plan.weights, &plan.activations, &plan.workspaces, &plan.graphs,
                              &plan.use.checkpoint_bytes}) {
    *part *= sharers;
  }
  plan.state = Together(plan.state, sharers);
  return plan;
}

absl::StatusOr<std::vector<std::unique_ptr<CudaModel>>> LoadCudaRanks(const ModelSpec& model,
                                                                      const CudaSpec& device,
                                                                      Nodes* nodes) {
  PhaseTimer phases;
  MILLRACE_ASSIGN_OR_RETURN(std::vector<int> devices,
                            RankDevices(device, nodes == nullptr ? 1 : nodes->size()));
  PrepareEnvironment(device);
  const int size = static_cast<int>(devices.size());
  MILLRACE_RETURN_IF_ERROR(
      OnAllRanks(size, [&](int rank) { return OpenDevice(devices[rank]).status(); }));
  MILLRACE_ASSIGN_OR_RETURN(const bool by_nccl, NeedsNccl(device, devices, nodes));
  MILLRACE_ASSIGN_OR_RETURN(const OpenedModel opened, OpenModel(model.path, model.runner));
  MILLRACE_RETURN_IF_ERROR(CheckSettings(opened.config, device));
  MILLRACE_RETURN_IF_ERROR(CheckKernels(opened.config, device));
  MILLRACE_ASSIGN_OR_RETURN(StepLimits limits, MakeStepLimits(opened.config, device));
  limits.token_tile = kTokenTile;
  if (!device.dummy_weights && !opened.tensors->has_data()) {
    return absl::NotFoundError(
        StrCat(opened.tensors->base_name(), " has no weights; without them: load_format dummy"));
  }
  Loading loading{.device = device,
                  .nodes = nodes,
                  .by_nccl = by_nccl,
                  .devices = std::move(devices),
                  .opened = opened,
                  .progress = model.progress,
                  .limits = limits,
                  .ranks = {},
                  .contexts = {}};
  phases.End("open the GPU and the model's files");
  loading.ranks.resize(size);
  MILLRACE_RETURN_IF_ERROR(OnAllRanks(size, [&](int rank) { return OpenRank(loading, rank); }));
  phases.End("open cuBLASLt");
  MILLRACE_RETURN_IF_ERROR(PlaceWeights(loading));
  phases.End("place the weights");
  MILLRACE_RETURN_IF_ERROR(JoinRanks({.device = device,
                                      .nodes = nodes,
                                      .first_rank = loading.first_rank(),
                                      .slot_bytes = SlotBytes(loading),
                                      .by_nccl = by_nccl},
                                     loading.devices, loading.ranks));
  for (const auto& rank : loading.ranks) MILLRACE_RETURN_IF_ERROR(TakeMemory(loading, *rank));
  MILLRACE_RETURN_IF_ERROR(TakeCache(loading));
  Describe(loading);
  phases.End("take memory");
  if (nodes != nullptr) {
    const CudaModel& first = *loading.ranks[0];
    MILLRACE_RETURN_IF_ERROR(
        JoinInfos(*nodes, {{"GPU", first.device.name}}, loading.ranks[0]->info));
    phases.End("wait for the other nodes");
  }
  loading.ranks[0]->info.load_phases = phases.Take();
  return std::move(loading.ranks);
}

absl::StatusOr<std::unique_ptr<CudaModel>> LoadCudaModel(const ModelSpec& model,
                                                         const CudaSpec& device) {
  MILLRACE_ASSIGN_OR_RETURN(auto ranks, LoadCudaRanks(model, device));
  return std::move(ranks[0]);
}

}  // namespace millrace::cuda
