// Reads a config.json's fields for the families of transformers, which share most of them.
#ifndef MILLRACE_FORMATS_FAMILIES_HF_READER_H_
#define MILLRACE_FORMATS_FAMILIES_HF_READER_H_

#include <functional>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "formats/families/hf_rope.h"
#include "formats/json/json_fields.h"
#include "formats/model/model_config.h"

namespace millrace {

// The values that a family's configuration class has where a config leaves them out.
struct HfDefaults {
  int head_size = 0;   // 0: hidden_size / heads
  int kv_heads = 0;    // 0: as many as heads
  int context = 2048;  // max_position_embeddings
  double epsilon = 1e-6;
  std::string_view epsilon_name = "rms_norm_eps";
  bool tied = false;
  bool experts = false;  // every layer is a mixture, and there is no intermediate_size
  HfRopeDefaults rope = {};
};

// Errors name the field: INVALID_ARGUMENT for a value out of range, UNIMPLEMENTED for one that
// changes the maths and is not built.
class HfReader {
 public:
  // `fields` outlives this.
  explicit HfReader(const JsonFields& fields) : fields_(fields) {}

  const JsonFields& fields() const { return fields_; }

  // Reads what all decoders have in common. Every layer is Llama's: norms before its blocks, full
  // attention, and a feed-forward network gated by SiLU. `window_rope`, if not null, takes the
  // rotation of layers with a window.
  absl::StatusOr<ModelConfig> Decoder(const HfDefaults& defaults,
                                      std::optional<RopeConfig>* window_rope = nullptr) const;

  absl::StatusOr<int> Int(std::string_view name, int max) const;
  absl::StatusOr<int> IntOr(std::string_view name, int max, int otherwise) const;
  absl::StatusOr<double> FactorOr(std::string_view name, double otherwise) const;
  // Reads a soft cap. As FactorOr, but null means 0, no cap.
  absl::StatusOr<double> SoftCap(std::string_view name, double otherwise) const;

  // Refuses functions other than SiLU.
  absl::Status RefuseOtherFunctions() const;
  // Read the fields that add biases to attention's linears, and to those of the feed-forward
  // network. Only families that have these fields in transformers read them.
  absl::Status ReadAttentionBias(ModelConfig* model) const;
  absl::Status ReadFeedForwardBias(ModelConfig* model) const;

  // Reads sliding_window; null means 0, no window.
  absl::StatusOr<int> Window(int otherwise) const;
  // Sets the window of each layer: `layer_types` says which have one, or where it is missing
  // `otherwise`.
  absl::Status SetWindows(int window, const std::function<bool(int layer)>& otherwise,
                          ModelConfig* model) const;

 private:
  absl::Status RefuseBidirectional() const;
  absl::StatusOr<SoftmaxAttention> Attention(int hidden_size, const HfDefaults& defaults) const;

  const JsonFields& fields_;
};

// Returns the tokens that end an answer, `eos_token_id`, a number or a list of them; empty where it
// names none.
absl::StatusOr<std::vector<int32_t>> EndTokens(const JsonFields& fields);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_FAMILIES_HF_READER_H_
