// A decoder: its forward pass, written once for every device.
#ifndef MILLRACE_EXECUTORS_MODELS_MODEL_H_
#define MILLRACE_EXECUTORS_MODELS_MODEL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "executors/decoder_ops.h"
#include "formats/model/model_config.h"

namespace millrace {

class Model {
 public:
  virtual ~Model() = default;

  // Return the most query heads of a layer, and the most kv heads of a layer's pages, on this rank.
  virtual int32_t heads() const = 0;
  virtual int32_t kv_heads() const = 0;
  // Returns the heads of each layer's state on this rank: the kv heads of its pages, the value
  // heads of a gated delta rule, the channels of a short convolution, or 0 without a mixer.
  virtual std::vector<int32_t> layer_state_heads() const = 0;

  // Computes one step, from the input's tokens to its samples.
  virtual void Forward(DecoderOps& ops, const StepInput& input) const = 0;
};

// Loads the decoder that `config` describes, for sequences of up to `max_model_len` positions, its
// weights from `placer`.
// UNIMPLEMENTED for models that make embeddings.
absl::StatusOr<std::unique_ptr<Model>> LoadModel(const ModelConfig& config, int max_model_len,
                                                 DecoderPlacer& placer);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_MODELS_MODEL_H_
