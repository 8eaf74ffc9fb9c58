// The parts that families are made of: their weights, which a placer gives as a config says.
#ifndef MILLRACE_EXECUTORS_MODELS_PARTS_H_
#define MILLRACE_EXECUTORS_MODELS_PARTS_H_

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "executors/decoder_ops.h"
#include "executors/weights/shares.h"
#include "formats/model_config.h"

namespace millrace {

// Returns the rank's heads of an attention layer with these weights.
absl::StatusOr<HeadShares> ShareHeads(const WeightPlacer& placer, const AttentionSpec& spec,
                                      const std::vector<std::string>& qkv,
                                      const std::string& output);

// Return the shards of the qkv linear and of the output linear on a rank with these heads.
Shard QkvShard(const HeadShares& heads, int head_size);
Shard OutputShard(const HeadShares& heads, int head_size);

// Returns the rank's share of the `size` values between the linears `up` and `down`.
absl::StatusOr<Share> ShareFeedForward(const WeightPlacer& placer, int size,
                                       const std::vector<std::string>& up, const std::string& down);

// Returns `rope`, one of the config's, for a server of sequences of up to `max_model_len`
// positions.
RopeSpec RopeSpecOf(const RopeConfig& rope, int max_model_len);

// Returns the attention of each layer, in a server of sequences of up to `max_model_len` positions.
std::vector<AttentionSpec> AttentionSpecs(const ModelConfig& config, int max_model_len);

struct AttentionWeights {
  LinearId qkv;
  std::optional<HeadNorms> norms;
  LinearId output;
};

struct GatedWeights {
  LinearId gate_up;
  LinearId down;
};

struct Mixture {
  MixtureWeights weights;
  MixtureSpec spec;
};

struct FeedForward {
  std::variant<GatedWeights, Mixture> weights;
  GateFunction function;
  std::vector<LinearId> inputs;  // the linears that read the layer's input
};

// The parts before the first layer and after the last one.
struct Ends {
  EmbeddingId embedding;
  float embedding_factor;
  NormId output_norm;
  LinearId head{};  // placed unless the model has a pooler
  LogitSpec logits;
};

// Names are GGUF's, a layer's begin with "blk.N.".
class PartLoader {
 public:
  // Both outlive it.
  PartLoader(const ModelConfig& config, DecoderPlacer& placer) : config_(config), placer_(placer) {}

  absl::StatusOr<NormId> Norm(int layer, const char* name,
                              const std::optional<Share>& share = std::nullopt,
                              bool counted = true);
  // Leaves the rank's heads in `spec`.
  absl::StatusOr<AttentionWeights> Attention(int layer, AttentionSpec& spec);
  absl::StatusOr<FeedForward> LayerFeedForward(int layer);
  absl::StatusOr<Ends> OutsideLayers();

 private:
  // Loads a gated network of `size`, whose tensors' names end in `suffix`.
  absl::StatusOr<GatedWeights> Gated(int layer, int size, bool fused, const char* suffix);
  absl::StatusOr<MixtureWeights> Experts(int layer, const ExpertsFeedForward& ffn);

  const ModelConfig& config_;
  DecoderPlacer& placer_;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_MODELS_PARTS_H_
