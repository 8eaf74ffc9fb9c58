// A decoder or an encoder, for devices that have the operations of both.
#ifndef MILLRACE_EXECUTORS_MODELS_ANY_MODEL_H_
#define MILLRACE_EXECUTORS_MODELS_ANY_MODEL_H_

#include <memory>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "executors/decoder_ops.h"
#include "executors/encoder_ops.h"
#include "executors/models/decoder.h"
#include "executors/models/encoder.h"
#include "executors/models/model.h"
#include "formats/model/model_config.h"

namespace millrace {

using AnyModel = std::variant<std::unique_ptr<Model>, std::unique_ptr<Encoder>>;

// Loads what LoadModel does (model.h), and models that make embeddings. `Placer` is a DecoderPlacer
// and an EncoderPlacer.
template <typename Placer>
absl::StatusOr<AnyModel> LoadAnyModel(const ModelConfig& config, int max_model_len,
                                      Placer& placer) {
  if (config.encoder.has_value()) return LoadEncoder(config, max_model_len, placer);
  return LoadDecoder(config, max_model_len, placer);
}

// Returns the heads of each layer's state on this rank (Model::layer_state_heads).
inline std::vector<int32_t> StateHeads(const AnyModel& model) {
  return std::visit([](const auto& kind) { return kind->layer_state_heads(); }, model);
}

// Runs one step. `AllOps` are DecoderOps and EncoderOps.
template <typename AllOps>
void Forward(const AnyModel& model, AllOps& ops, const StepInput& input) {
  std::visit([&](const auto& kind) { kind->Forward(ops, input); }, model);
}

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_MODELS_ANY_MODEL_H_
