// What families are made of: the weights of their parts, asked of a placer by a config.
#ifndef MILLRACE_EXECUTORS_MODELS_PARTS_H_
#define MILLRACE_EXECUTORS_MODELS_PARTS_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "executors/ops.h"
#include "formats/model_config.h"

namespace millrace {

// Of each layer, in a server of sequences of up to `max_model_len` positions.
std::vector<AttentionSpec> AttentionSpecs(const ModelConfig& config, int max_model_len);

struct AttentionWeights {
  LinearId qkv;
  std::optional<HeadNorms> norms;
  LinearId output;
};

struct FeedForwardWeights {
  LinearId gate_up;
  LinearId down;
};

// What stands before the first layer and after the last one.
struct Ends {
  EmbeddingId embedding;
  float embedding_factor;
  NormId output_norm;
  LinearId head;
  LogitSpec logits;
};

// Names are GGUF's, a layer's begin with "blk.N.".
class PartLoader {
 public:
  // Both outlive it.
  PartLoader(const ModelConfig& config, WeightPlacer& placer) : config_(config), placer_(placer) {}

  absl::StatusOr<NormId> Norm(int layer, const char* name);
  absl::StatusOr<AttentionWeights> Attention(int layer);
  absl::StatusOr<FeedForwardWeights> FeedForward(int layer);
  absl::StatusOr<Ends> OutsideLayers();

 private:
  const ModelConfig& config_;
  WeightPlacer& placer_;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_MODELS_PARTS_H_
