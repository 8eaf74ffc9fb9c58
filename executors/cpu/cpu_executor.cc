#include "executors/cpu/cpu_executor.h"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "executors/cpu/cpu_ops.h"
#include "executors/cpu/slots.h"
#include "executors/models/model.h"
#include "executors/plan_checker.h"
#include "executors/step_worker.h"
#include "formats/gguf.h"
#include "formats/model_config.h"

namespace millrace::cpu {
namespace {

constexpr Logger kLog(LogComponent::kExecutors);

// What the executor is made of, in the order in which it is needed.
struct Parts {
  std::unique_ptr<ThreadPool> pool;
  CpuWeights weights;
  KvArena kv;
  std::unique_ptr<Model> model;
  std::unique_ptr<CpuOps> ops;
  ModelInfo info;
};

class CpuExecutor : public Executor {
 public:
  explicit CpuExecutor(std::unique_ptr<Parts> parts)
      : parts_(std::move(parts)),
        checker_(parts_->info.limits),
        slots_(parts_->info.limits),
        worker_([this](const StepPlan& plan) { return Run(plan); }) {}

  const ModelInfo& info() const override { return parts_->info; }
  void OnResult(std::function<void()> wake) override { worker_.OnResult(std::move(wake)); }

  absl::Status Submit(StepPlan plan) override {
    MILLRACE_RETURN_IF_ERROR(worker_.Ready());
    MILLRACE_RETURN_IF_ERROR(checker_.Check(plan));
    return worker_.Submit(std::move(plan));
  }

  std::optional<StepResult> Poll() override { return worker_.Poll(); }
  std::optional<StepResult> Wait() override { return worker_.Wait(); }

 private:
  StepResult Run(const StepPlan& plan) {
    const KvArena& kv = parts_->kv;
    for (const BlockCopy& copy : plan.copies) {
      std::memcpy(kv.Page(copy.dst, 0, 0), kv.Page(copy.src, 0, 0), kv.block_bytes);
    }
    slots_.Begin(plan, &input_);
    if (!input_.tokens.empty()) {
      parts_->ops->BeginStep();
      parts_->model->Forward(*parts_->ops, input_);
    }
    return slots_.End(plan, parts_->ops->sampled());
  }

  std::unique_ptr<Parts> parts_;
  PlanChecker checker_;
  Slots slots_;
  CpuStepInput input_;
  StepWorker worker_;  // last: it uses what is above
};

int UsableCores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? std::max(1, CPU_COUNT(&cores)) : 1;
}

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
  if (device.max_model_len > config.context_length) {
    return absl::InvalidArgumentError(StrCat("max_model_len is ", device.max_model_len,
                                             ", allowed: up to the model's ",
                                             config.context_length));
  }
  return absl::OkStatus();
}

absl::StatusOr<KvArena> MakeKvArena(const ModelConfig& config, const DeviceSpec& device,
                                    int32_t* num_blocks) {
  KvArena kv;
  kv.block_size = device.block_size;
  kv.head_size = config.head_size;
  kv.page_bytes = KvArena::PageBytes(device.block_size, config.head_size);
  kv.layer_bytes = config.kv_heads * kv.page_bytes;
  kv.block_bytes = config.layers * kv.layer_bytes;
  const int64_t blocks = device.kv_cache_memory / static_cast<int64_t>(kv.block_bytes);
  if (blocks < 1) {
    return absl::InvalidArgumentError(StrCat("kv_cache_memory is ", device.kv_cache_memory,
                                             " bytes, allowed: at least one block's ",
                                             kv.block_bytes));
  }
  *num_blocks = static_cast<int32_t>(std::min<int64_t>(blocks, int64_t{1} << 30));
  MILLRACE_ASSIGN_OR_RETURN(kv.memory,
                            Memory::Reserve(*num_blocks * kv.block_bytes, "the KV cache"));
  return kv;
}

absl::StatusOr<std::unique_ptr<Parts>> LoadParts(const ModelSpec& model, const DeviceSpec& device,
                                                 const Kernels& kernels) {
  MILLRACE_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(model.path));
  MILLRACE_ASSIGN_OR_RETURN(const ModelConfig config, ReadModelConfig(file));
  MILLRACE_RETURN_IF_ERROR(CheckConfig(config, device));

  auto parts = std::make_unique<Parts>();
  parts->pool = std::make_unique<ThreadPool>(device.threads > 0 ? device.threads : UsableCores());
  CpuWeightPlacer placer(file, kernels);
  MILLRACE_ASSIGN_OR_RETURN(parts->model, LoadModel(config, placer));
  MILLRACE_ASSIGN_OR_RETURN(parts->weights, placer.Finish(*parts->pool));

  int32_t num_blocks = 0;
  MILLRACE_ASSIGN_OR_RETURN(parts->kv, MakeKvArena(config, device, &num_blocks));
  const int32_t max_model_len =
      device.max_model_len > 0 ? device.max_model_len : config.context_length;
  MILLRACE_ASSIGN_OR_RETURN(
      Memory activations,
      Memory::Reserve(CpuOps::ActivationBytes(parts->weights, device.max_num_batched_tokens),
                      "activations"));
  MILLRACE_ASSIGN_OR_RETURN(Memory logits,
                            Memory::Reserve(CpuOps::LogitBytes(config.vocab_size), "logits"));
  parts->ops = std::make_unique<CpuOps>(kernels, *parts->pool, parts->weights, parts->kv,
                                        std::move(activations), std::move(logits), max_model_len);
  parts->info = {
      .architecture = config.architecture,
      .digest = std::string(parts->weights.digest.begin(), parts->weights.digest.end()),
      .weight_bytes = static_cast<int64_t>(parts->weights.memory.bytes()),
      .limits = {.max_num_seqs = device.max_num_seqs,
                 .max_num_batched_tokens = device.max_num_batched_tokens,
                 .max_model_len = max_model_len,
                 .num_blocks = num_blocks,
                 .block_size = device.block_size,
                 .vocab_size = config.vocab_size},
      .kv = {.block_size = device.block_size,
             .num_blocks = num_blocks,
             .type = "float16",
             .groups = {{.num_layers = config.layers,
                         .bytes_per_block = static_cast<int64_t>(parts->kv.block_bytes)}}}};
  return parts;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> LoadCpuExecutor(const ModelSpec& model,
                                                          const DeviceSpec& device,
                                                          const Kernels& kernels) {
  MILLRACE_ASSIGN_OR_RETURN(std::unique_ptr<Parts> parts, LoadParts(model, device, kernels));
  kLog.Info("cpu executor: ", kernels.name, ", ", parts->pool->num_threads(), " threads, ",
            parts->info.weight_bytes >> 20, " MiB of weights, ", parts->info.kv.num_blocks,
            " KV blocks of ", parts->info.kv.block_size, " tokens");
  return std::make_unique<CpuExecutor>(std::move(parts));
}

}  // namespace millrace::cpu
