// The parts that families are made of: their weights, which a placer gives as a config says.
#ifndef MILLRACE_EXECUTORS_MODELS_PARTS_H_
#define MILLRACE_EXECUTORS_MODELS_PARTS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "executors/decoder_ops.h"
#include "executors/models/layer.h"
#include "executors/weights/shares.h"
#include "formats/model/model_config.h"

namespace millrace {

// Returns the rank's heads of an attention layer with these weights.
absl::StatusOr<HeadShares> ShareHeads(const WeightPlacer& placer, const AttentionSpec& spec,
                                      const std::vector<std::string>& qkv,
                                      const std::string& output);

// Return the shards of the qkv linear and of the output linear on a rank with these heads. With
// gates of the output, a query's head has twice as many rows.
Shard QkvShard(const HeadShares& heads, int head_size, bool output_gate = false);
Shard OutputShard(const HeadShares& heads, int head_size);

// Returns the rank's share of the `size` values between the linears `up` and `down`.
absl::StatusOr<Share> ShareFeedForward(const WeightPlacer& placer, int size,
                                       const std::vector<std::string>& up, const std::string& down);

// Returns `rope`, one of the config's, for a server of sequences of up to `max_model_len`
// positions.
RopeSpec RopeSpecOf(const RopeConfig& rope, int max_model_len);

// Returns a layer's attention, all of its heads, in a server of sequences of up to `max_model_len`
// positions.
AttentionSpec AttentionSpecOf(const SoftmaxAttention& attention, int max_model_len);

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
  // Return the layer's parts on this rank, of the kinds that its config says, where it has them.
  absl::StatusOr<Mixer> LayerMixer(int layer, int max_model_len);
  absl::StatusOr<FeedForward> LayerFeedForward(int layer);
  absl::StatusOr<Ends> OutsideLayers();

 private:
  absl::StatusOr<Mixer> Softmax(int layer, const SoftmaxAttention& attention, int max_model_len);
  absl::StatusOr<Mixer> Delta(int layer, const GatedDelta& delta);
  absl::StatusOr<Mixer> Convolution(int layer, const ShortConvolution& convolution);
  absl::StatusOr<Mixer> StateSpace(int layer, const Mamba2& mixer);
  // Loads a network whose tensors' names end in `suffix`.
  absl::StatusOr<GatedNetwork> Gated(int layer, const GatedFeedForward& ffn, const char* suffix);
  absl::StatusOr<MixtureWeights> Experts(int layer, const ExpertsFeedForward& ffn);

  const ModelConfig& config_;
  DecoderPlacer& placer_;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_MODELS_PARTS_H_
