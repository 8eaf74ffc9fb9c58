#include "executors/cpu/cpu_model.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "executors/host/processor.h"
#include "executors/phase_timer.h"
#include "executors/step_limits.h"
#include "formats/model_config.h"
#include "formats/open_model.h"

namespace millrace::cpu {
namespace {

absl::Status CheckBlockSize(const CpuSpec& device) {
  if (device.block_size < kTileRows || device.block_size % kTileRows != 0) {
    return absl::InvalidArgumentError(StrCat("block_size is ", device.block_size,
                                             "; allowed on the CPU: multiples of ", kTileRows));
  }
  return absl::OkStatus();
}

absl::StatusOr<KvArena> MakeKvArena(const ModelConfig& config, int head_size, int32_t kv_heads,
                                    const CpuSpec& device, int32_t* num_blocks) {
  KvArena kv;
  kv.block_size = device.block_size;
  kv.head_size = (head_size + kTileRows - 1) / kTileRows * kTileRows;
  kv.float32 = device.kv_cache_float32;
  kv.page_bytes = KvArena::PageBytes(device.block_size, kv.head_size, kv.float32);
  kv.layer_bytes = kv_heads * kv.page_bytes;
  kv.block_bytes = config.layers.size() * kv.layer_bytes;
  int64_t blocks = device.kv_cache_memory / static_cast<int64_t>(kv.block_bytes);
  if (blocks < 1) {
    return absl::InvalidArgumentError(StrCat("kv_cache_memory is ", device.kv_cache_memory,
                                             " bytes, allowed: at least one block's ",
                                             kv.block_bytes));
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

}  // namespace

absl::StatusOr<std::unique_ptr<CpuModel>> LoadCpuModel(const ModelSpec& model,
                                                       const CpuSpec& device,
                                                       const Kernels& kernels, RankSpec rank,
                                                       Collective* collective) {
  PhaseTimer phases;
  MILLRACE_ASSIGN_OR_RETURN(const OpenedModel opened, OpenModel(model.path));
  const ModelConfig& config = opened.config;
  if (!opened.tensors->has_data()) {
    return absl::UnimplementedError(StrCat(opened.tensors->base_name(),
                                           ": has no .safetensors files; allowed on the CPU: a "
                                           "model with its weights"));
  }
  MILLRACE_RETURN_IF_ERROR(CheckBlockSize(device));
  MILLRACE_ASSIGN_OR_RETURN(const HeadShape heads, SharedHeadShape(config));
  MILLRACE_ASSIGN_OR_RETURN(StepLimits limits, MakeStepLimits(config, device));

  phases.End("open the model's files");

  auto loaded = std::make_unique<CpuModel>();
  loaded->pool = std::make_unique<ThreadPool>(device.threads > 0 ? device.threads : UsableCores());
  CpuWeightPlacer placer(*opened.tensors, kernels, device.weight_bits, rank);
  MILLRACE_ASSIGN_OR_RETURN(loaded->model, LoadAnyModel(config, limits.max_model_len, placer));
  OpsMemory memory;
  MILLRACE_ASSIGN_OR_RETURN(memory.token_bytes,
                            DryRun(loaded->model, kernels, *loaded->pool, placer.shapes()));
  MILLRACE_ASSIGN_OR_RETURN(loaded->weights, placer.Finish(*loaded->pool));
  phases.End("place the weights");

  MILLRACE_ASSIGN_OR_RETURN(loaded->kv, MakeKvArena(config, heads.head_size, KvHeads(loaded->model),
                                                    device, &limits.num_blocks));
  MILLRACE_ASSIGN_OR_RETURN(
      memory.activations,
      Memory::Reserve(memory.token_bytes * device.max_num_batched_tokens, "activations"));
  MILLRACE_ASSIGN_OR_RETURN(memory.logits,
                            Memory::Reserve(CpuOps::LogitBytes(config.vocab_size), "logits"));
  loaded->ops = std::make_unique<CpuOps>(kernels, *loaded->pool, loaded->weights, loaded->kv,
                                         std::move(memory), limits.max_model_len, collective);
  loaded->info = {
      .architecture = config.architecture,
      .digest = std::string(loaded->weights.digest.begin(), loaded->weights.digest.end()),
      .weight_bytes = static_cast<int64_t>(loaded->weights.memory.bytes()),
      .end_tokens = config.end_tokens,
      .limits = limits,
      .kv = {.block_size = limits.block_size,
             .num_blocks = limits.num_blocks,
             .type = loaded->kv.float32 ? "float32" : "float16",
             .groups = {{.num_layers = config.num_layers(),
                         .bytes_per_block = static_cast<int64_t>(loaded->kv.block_bytes)}}}};
  phases.End("take memory");
  // So that the first request finds code and memory in place.
  loaded->Run(WarmUpStep(limits).input);
  phases.End("warm up");
  loaded->info.load_phases = phases.Take();
  return loaded;
}

}  // namespace millrace::cpu
