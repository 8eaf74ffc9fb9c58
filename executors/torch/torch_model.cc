#include "executors/torch/torch_model.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <exception>
#include <string>
#include <utility>

#include "base/control_group.h"
#include "base/status.h"
#include "base/strings.h"
#include "executors/models/any_model.h"
#include "executors/phase_timer.h"
#include "executors/step_limits.h"
#include "executors/torch/exceptions.h"
#include "executors/torch/package_lm.h"
#include "executors/torch/torch_ops.h"
#include "formats/open_model.h"

namespace millrace::aten {
namespace {

struct TorchModel : HostModel {
  const ModelInfo& info() const override { return model_info; }

  absl::Status Move(absl::Span<const StateMove> moves) override {
    kv.Move(moves);
    return absl::OkStatus();
  }

  absl::StatusOr<absl::Span<const Sampled>> Run(const CpuStepInput& input) override {
    try {
      const c10::InferenceMode inference;
      Forward(family, *ops, input);
      MILLRACE_RETURN_IF_ERROR(ops->TakeStatus());
      return ops->sampled();
    } catch (const std::exception& error) {
      return FromException(absl::StatusCode::kUnavailable, error);
    }
  }

  absl::Span<const float> embeddings() const override { return ops->embeddings(); }

  std::unique_ptr<ThreadPool> pool;
  TorchWeights weights;
  TorchKv kv;
  AnyModel family;
  std::unique_ptr<TorchOps> ops;
  ModelInfo model_info;
};

absl::StatusOr<std::unique_ptr<HostModel>> Load(const ModelSpec& model, const TorchSpec& device) {
  PhaseTimer phases;
  MILLRACE_ASSIGN_OR_RETURN(const OpenedModel opened, OpenModel(model.path, model.runner));
  const ModelConfig& config = opened.config;
  if (config.pooler.has_value()) {
    return absl::UnimplementedError(StrCat("the model, ", config.architecture,
                                           ", makes embeddings; allowed with --device torch: "
                                           "encoders, and decoders that generate (--runner "
                                           "generate)"));
  }
  if (!opened.tensors->has_data()) {
    return absl::UnimplementedError(StrCat(opened.tensors->base_name(),
                                           ": has no .safetensors files; allowed with --device "
                                           "torch: a model with its weights"));
  }
  MILLRACE_ASSIGN_OR_RETURN(StepLimits limits, MakeStepLimits(config, device));
  phases.End("open the model's files");

  const int threads = device.threads > 0 ? device.threads : UsableCores();
  at::set_num_threads(threads);
  const at::ScalarType dtype = device.bfloat16 ? at::kBFloat16 : at::kFloat;
  auto loaded = std::make_unique<TorchModel>();
  loaded->pool = std::make_unique<ThreadPool>(threads);
  TorchWeightPlacer placer(*opened.tensors, dtype, *loaded->pool);
  MILLRACE_ASSIGN_OR_RETURN(loaded->family, LoadAnyModel(config, limits.max_model_len, placer));
  loaded->weights = placer.Finish();
  phases.End("expand the weights");

  MILLRACE_ASSIGN_OR_RETURN(loaded->kv, MakeKv(config, device, dtype, /*more_places=*/0, &limits));
  loaded->ops = std::make_unique<TorchOps>(loaded->weights, loaded->kv, *loaded->pool);
  loaded->model_info = {
      .architecture = config.architecture,
      .digest = std::string(loaded->weights.digest.begin(), loaded->weights.digest.end()),
      .weight_bytes = loaded->weights.bytes,
      .end_tokens = config.end_tokens,
      .batch_invariant = false,  // ATen chooses its kernels by the batch's shape
      .limits = limits,
      .kv_type = device.bfloat16 ? "bfloat16" : "float32",
      .score = ScoreFunctionOf(config),
      .embedding = EmbeddingTraitsOf(config)};
  phases.End("take memory");
  // An op that cannot do what the model asks for says so now.
  MILLRACE_RETURN_IF_ERROR(loaded->Run(WarmUpStep(limits).input).status());
  phases.End("warm up");
  loaded->model_info.load_phases = phases.Take();
  return loaded;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostModel>> LoadTorchModel(const ModelSpec& model,
                                                          const TorchSpec& device) {
  if (IsPackage(model.path)) return LoadPackageLm(model, device);
  try {
    return Load(model, device);
  } catch (const std::exception& error) {
    return FromException(absl::StatusCode::kResourceExhausted, error);
  }
}

}  // namespace millrace::aten
