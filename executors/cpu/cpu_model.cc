#include "executors/cpu/cpu_model.h"

#include <sched.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "executors/phase_timer.h"
#include "executors/step_limits.h"
#include "formats/model_config.h"
#include "formats/open_model.h"

namespace millrace::cpu {
namespace {

absl::Status CheckConfig(const ModelConfig& config, const DeviceSpec& device) {
  if (config.head_size % kTileRows != 0) {
    return absl::UnimplementedError(StrCat("the model's heads have ", config.head_size,
                                           " elements; allowed on the CPU: multiples of ",
                                           kTileRows));
  }
  if (device.block_size < kTileRows || device.block_size % kTileRows != 0) {
    return absl::InvalidArgumentError(StrCat("block_size is ", device.block_size,
                                             "; allowed on the CPU: multiples of ", kTileRows));
  }
  return absl::OkStatus();
}

absl::StatusOr<KvArena> MakeKvArena(const ModelConfig& config, const DeviceSpec& device,
                                    int32_t* num_blocks) {
  KvArena kv;
  kv.block_size = device.block_size;
  kv.head_size = config.head_size;
  kv.float32 = device.kv_cache_float32;
  kv.page_bytes = KvArena::PageBytes(device.block_size, config.head_size, kv.float32);
  kv.layer_bytes = config.kv_heads * kv.page_bytes;
  kv.block_bytes = config.layers * kv.layer_bytes;
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

// A step whose result nobody sees, so that the first that somebody waits for finds its code and
// memory in place. What it leaves in block 0 is overwritten before it is read.
void WarmUp(const CpuModel& model) {
  const BlockId block = 0;
  const SamplingParams greedy{.temperature = 0};
  CpuStepInput input;
  input.rows = {{.first_token = 0, .num_tokens = 1, .block_table = &block}};
  input.tokens = {0};
  input.positions = {0};
  input.row_of = {0};
  if (model.info.limits.embedding_size == 0) {
    input.wanted = {0};
    input.samples = {{.params = &greedy, .position = 1, .target = std::nullopt}};
  }
  model.Run(input);
}

}  // namespace

int UsableCores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? std::max(1, CPU_COUNT(&cores)) : 1;
}

absl::StatusOr<std::unique_ptr<CpuModel>> LoadCpuModel(const ModelSpec& model,
                                                       const DeviceSpec& device,
                                                       const Kernels& kernels) {
  PhaseTimer phases;
  MILLRACE_ASSIGN_OR_RETURN(const OpenedModel opened, OpenModel(model.path));
  const ModelConfig& config = opened.config;
  if (!opened.tensors->has_data()) {
    return absl::UnimplementedError(StrCat(opened.tensors->base_name(),
                                           ": has no .safetensors files; allowed on the CPU: a "
                                           "model with its weights"));
  }
  MILLRACE_RETURN_IF_ERROR(CheckConfig(config, device));
  MILLRACE_ASSIGN_OR_RETURN(StepLimits limits, MakeStepLimits(config, device));

  phases.End("open the model's files");

  auto loaded = std::make_unique<CpuModel>();
  loaded->pool = std::make_unique<ThreadPool>(device.threads > 0 ? device.threads : UsableCores());
  CpuWeightPlacer placer(*opened.tensors, kernels, device.weight_bits);
  MILLRACE_ASSIGN_OR_RETURN(loaded->model, LoadAnyModel(config, limits.max_model_len, placer));
  MILLRACE_ASSIGN_OR_RETURN(loaded->weights, placer.Finish(*loaded->pool));
  phases.End("place the weights");

  MILLRACE_ASSIGN_OR_RETURN(loaded->kv, MakeKvArena(config, device, &limits.num_blocks));
  MILLRACE_ASSIGN_OR_RETURN(
      Memory activations,
      Memory::Reserve(CpuOps::ActivationBytes(loaded->weights, device.max_num_batched_tokens),
                      "activations"));
  MILLRACE_ASSIGN_OR_RETURN(Memory logits,
                            Memory::Reserve(CpuOps::LogitBytes(config.vocab_size), "logits"));
  loaded->ops =
      std::make_unique<CpuOps>(kernels, *loaded->pool, loaded->weights, loaded->kv,
                               std::move(activations), std::move(logits), limits.max_model_len);
  loaded->info = {
      .architecture = config.architecture,
      .digest = std::string(loaded->weights.digest.begin(), loaded->weights.digest.end()),
      .weight_bytes = static_cast<int64_t>(loaded->weights.memory.bytes()),
      .end_tokens = config.end_tokens,
      .limits = limits,
      .kv = {.block_size = limits.block_size,
             .num_blocks = limits.num_blocks,
             .type = loaded->kv.float32 ? "float32" : "float16",
             .groups = {{.num_layers = config.layers,
                         .bytes_per_block = static_cast<int64_t>(loaded->kv.block_bytes)}}}};
  phases.End("take memory");
  WarmUp(*loaded);
  phases.End("warm up");
  loaded->info.load_phases = phases.Take();
  return loaded;
}

}  // namespace millrace::cpu
