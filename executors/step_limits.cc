#include "executors/step_limits.h"

#include <variant>

#include "base/strings.h"

namespace millrace {

namespace {

int32_t EmbeddingSize(const ModelConfig& config) {
  if (config.pooler.has_value()) return config.hidden_size;
  if (!config.encoder.has_value()) return 0;
  if (config.encoder->classifier.has_value()) return 1;
  return config.encoder->dense.empty() ? config.hidden_size : config.encoder->dense.back().out;
}

}  // namespace

std::optional<ScoreFunction> ScoreFunctionOf(const ModelConfig& config) {
  if (!config.encoder.has_value() || !config.encoder->classifier.has_value()) return std::nullopt;
  return config.encoder->classifier->sigmoid ? ScoreFunction::kSigmoid : ScoreFunction::kIdentity;
}

EmbeddingTraits EmbeddingTraitsOf(const ModelConfig& config) {
  EmbeddingTraits traits{.prompt = config.embedding_prompt};
  if (config.encoder.has_value()) traits.normalized = config.encoder->normalize;
  if (config.pooler.has_value()) traits.normalized = config.pooler->normalize;
  if (!config.matryoshka.has_value()) return traits;
  traits.matryoshka = true;
  traits.sizes.assign(config.matryoshka->sizes.begin(), config.matryoshka->sizes.end());
  return traits;
}

absl::StatusOr<StepLimits> MakeStepLimits(const ModelConfig& config, const CommonSpec& device) {
  if (device.max_model_len > config.context_length) {
    return absl::InvalidArgumentError(StrCat("max_model_len is ", device.max_model_len,
                                             ", allowed: up to the model's ",
                                             config.context_length));
  }
  const RouterConfig* largest = nullptr;
  for (const LayerConfig& layer : config.layers) {
    const auto* const experts = std::get_if<ExpertsFeedForward>(&layer.feed_forward);
    if (experts == nullptr) continue;
    if (largest == nullptr || experts->router.experts > largest->experts)
      largest = &experts->router;
  }
  return StepLimits{
      .max_num_seqs = device.max_num_seqs,
      .max_num_batched_tokens = device.max_num_batched_tokens,
      .max_model_len = device.max_model_len > 0 ? device.max_model_len : config.context_length,
      .num_blocks = {},
      .state = {.block_size = device.block_size, .groups = {}},
      .vocab_size = config.vocab_size,
      .num_experts = largest == nullptr ? 0 : largest->experts,
      .experts_a_token = largest == nullptr ? 0 : largest->chosen,
      .embedding_size = EmbeddingSize(config),
      .embeds_parts = config.pooler.has_value() && config.pooler->pooling == Pooling::kLast};
}

}  // namespace millrace
