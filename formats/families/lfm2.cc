// LFM2 and LFM2.5 (arXiv:2511.23404): most layers are gated short convolutions, and the others have
// attention with norms of q and k.
#include "formats/families/lfm2.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "formats/families/decoder.h"
#include "formats/families/families.h"

namespace millrace {
namespace {

// Returns the size of feed-forward networks: intermediate_size, or block_ff_dim where it is there;
// two thirds of it times block_ffn_dim_multiplier, rounded up to a multiple of block_multiple_of,
// if block_auto_adjust_ff_dim says so.
absl::StatusOr<int> ReadSize(const HfReader& config, bool adjusts) {
  const JsonFields& fields = config.fields();
  constexpr char kMultiplier[] = "block_ffn_dim_multiplier";
  const char* const name =
      adjusts && fields.Find("block_ff_dim") != nullptr ? "block_ff_dim" : "intermediate_size";
  MILLRACE_ASSIGN_OR_RETURN(const int said, config.Int(name, kMaxWidth));
  if (!adjusts) return said;
  MILLRACE_ASSIGN_OR_RETURN(const bool adjust, fields.BoolOr("block_auto_adjust_ff_dim", true));
  if (!adjust) return said;
  double size = std::floor(2.0 * said / 3);
  // Without a multiplier nothing is rounded, either.
  if (fields.Find(kMultiplier) != nullptr || !fields.object().contains(kMultiplier)) {
    MILLRACE_ASSIGN_OR_RETURN(const double factor, config.FactorOr(kMultiplier, 1));
    MILLRACE_ASSIGN_OR_RETURN(const int multiple,
                              config.IntOr("block_multiple_of", kMaxWidth, 256));
    size = std::ceil(std::floor(factor * size) / multiple) * multiple;
  }
  if (size >= 1 && size <= kMaxWidth) return static_cast<int>(size);
  return fields.Bad(name, StrCat("is ", said, ", of which block_auto_adjust_ff_dim makes ", size,
                                 "; allowed: what makes 1 to ", kMaxWidth));
}

// Returns which layers have attention: `layer_types` says so, or full_attn_idxs, or else all do.
absl::StatusOr<std::vector<bool>> ReadLayerKinds(const HfReader& config, int layers) {
  constexpr char kTypes[] = "layer_types";
  constexpr char kAttention[] = "full_attn_idxs";
  const JsonFields& fields = config.fields();
  const bool listed = fields.Find(kAttention) != nullptr;
  if (fields.Find(kTypes) == nullptr) {
    std::vector<bool> attends(layers, !listed);
    if (!listed) return attends;
    MILLRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> indices,
                              fields.Ints(kAttention, 0, layers - 1));
    if (indices.empty()) {
      return fields.Unsupported(kAttention, "is empty; at least one layer must have attention");
    }
    for (const int64_t index : indices) attends[index] = true;
    return attends;
  }
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<std::string> types, fields.Strings(kTypes));
  if (static_cast<int>(types.size()) != layers) {
    return fields.Bad(kTypes,
                      StrCat("has ", types.size(), " items, must have ", layers, ", one a layer"));
  }
  std::vector<bool> attends;
  for (const std::string& type : types) {
    if (type != "full_attention" && type != "conv") {
      return fields.Unsupported(kTypes, StrCat("\"", Printable(type),
                                               "\" is not supported (supported: full_attention, "
                                               "conv)"));
    }
    attends.push_back(type == "full_attention");
  }
  if (std::find(attends.begin(), attends.end(), true) != attends.end()) return attends;
  return fields.Unsupported(kTypes, "has no full_attention, of which at least one is supported");
}

// Makes short convolutions of the layers without attention.
void SetMixers(const ShortConvolution& mixer, const std::vector<bool>& attends,
               ModelConfig* model) {
  for (int i = 0; i < model->num_layers(); ++i) {
    LayerConfig& layer = model->layers[i];
    if (attends[i]) {
      layer.softmax().qk_norm = QkNorm::kHead;
    } else {
      layer.attention = mixer;
    }
  }
}

}  // namespace

absl::StatusOr<ModelConfig> ReadHfLfm2(const HfReader& config, bool adjusts_size) {
  constexpr char kTied[] = "tie_word_embeddings";
  constexpr char kOtherTied[] = "tie_embedding";  // which counts where both are there
  constexpr char kWidth[] = "conv_L_cache";
  const JsonFields& fields = config.fields();
  MILLRACE_ASSIGN_OR_RETURN(const int size, ReadSize(config, adjusts_size));
  MILLRACE_ASSIGN_OR_RETURN(bool tied, fields.BoolOr(kTied, true));
  MILLRACE_ASSIGN_OR_RETURN(tied, fields.BoolOr(kOtherTied, tied));
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, config.Decoder({.kv_heads = 8,
                                                               .context = 128000,
                                                               .epsilon = 1e-5,
                                                               .epsilon_name = "norm_eps",
                                                               .experts = true,  // the size is read
                                                               .rope = {.theta = 1e6}}));
  // transformers prefers this name for a dense model's base.
  if (adjusts_size) {
    const Json neutral = Json::array({model.layers.front().softmax().rope->theta});
    MILLRACE_RETURN_IF_ERROR(fields.Refuse("theta", neutral));
  }
  model.tied_embeddings = tied;
  for (LayerConfig& layer : model.layers) layer.gated().size = size;
  ShortConvolution mixer{.channels = model.hidden_size};
  MILLRACE_ASSIGN_OR_RETURN(mixer.width, config.IntOr(kWidth, kMaxConvolutionWidth, 3));
  if (mixer.width < 2) {
    return fields.Unsupported(
        kWidth, StrCat("is ", mixer.width, "; supported: 2 to ", kMaxConvolutionWidth));
  }
  MILLRACE_ASSIGN_OR_RETURN(mixer.bias, fields.BoolOr("conv_bias", false));
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<bool> attends,
                            ReadLayerKinds(config, model.num_layers()));
  SetMixers(mixer, attends, &model);
  return model;
}

absl::StatusOr<ModelConfig> ReadGgufLfm2(const GgufReader& file, bool experts) {
  MILLRACE_ASSIGN_OR_RETURN(const KvHeads kv, file.ReadKvHeads());
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model,
                            file.Decoder({.experts = experts, .kv_heads = kv.heads}));
  MILLRACE_RETURN_IF_ERROR(file.RefuseWindows());
  ShortConvolution mixer{.channels = model.hidden_size, .converted = true};
  MILLRACE_ASSIGN_OR_RETURN(mixer.width, file.Int("shortconv.l_cache", kMaxConvolutionWidth, 2));
  SetMixers(mixer, kv.attends, &model);
  return model;
}

namespace {

absl::StatusOr<ModelConfig> ReadHf(const HfReader& config) {
  return ReadHfLfm2(config, /*adjusts_size=*/true);
}

absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& file) {
  return ReadGgufLfm2(file, /*experts=*/false);
}

constexpr HfArchitecture kArchitectures[] = {{"Lfm2ForCausalLM", ReadHf}};

constexpr std::string_view kTwins = R"([
{"name": "lfm2",
 "changes": {"head_dim": null, "rms_norm_eps": null, "norm_eps": 1e-5, "hidden_act": null,
   "num_hidden_layers": 5, "intermediate_size": 136, "block_auto_adjust_ff_dim": true,
   "block_multiple_of": 32, "block_ffn_dim_multiplier": 1.0, "conv_L_cache": 3, "conv_bias": false,
   "full_attn_idxs": [1, 4], "max_position_embeddings": 512}},
{"name": "lfm2_biased", "in_gguf": false,
 "changes": {"head_dim": null, "rms_norm_eps": null, "norm_eps": 1e-5, "hidden_act": null,
   "num_hidden_layers": 4, "intermediate_size": null, "block_ff_dim": 80,
   "block_auto_adjust_ff_dim": false, "conv_L_cache": 4, "conv_bias": true,
   "layer_types": ["conv", "conv", "full_attention", "conv"], "max_position_embeddings": 512,
   "tie_embedding": true}}
])";

}  // namespace

constexpr Family kLfm2 = {.name = "lfm2",
                          .hf = kArchitectures,
                          .read_gguf = ReadGguf,
                          .tensors = DecoderTensors,
                          .spellings = kLfm2Spellings,
                          .shared_spellings = kDecoderSpellings,
                          .gguf_spellings = kLfm2GgufSpellings,
                          .twins = kTwins};

}  // namespace millrace
