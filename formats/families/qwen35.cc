// Qwen3.5 and its successors of the same shape: of each few layers most are gated delta rules, and
// the others have attention with gates of its output, norms of q and k, and rotations of a part of
// each head. Norms store w - 1, but for those within gated delta rules. Models that also see images
// are served as what they are without them. Tensors behind the layers, mtp.*, predict further
// tokens: not ours.
#include <string>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "formats/families/decoder.h"
#include "formats/families/families.h"
#include "formats/families/qwen35.h"

namespace millrace {
namespace {

// Sets which layers are gated delta rules: `layer_types` says so, or else all but every
// full_attention_interval-th are.
absl::Status SetLayerKinds(const HfReader& config, const GatedDelta& delta, ModelConfig* model) {
  constexpr char kName[] = "layer_types";
  const JsonFields& fields = config.fields();
  MILLRACE_ASSIGN_OR_RETURN(const int interval,
                            config.IntOr("full_attention_interval", kMaxLayers, 4));
  std::vector<std::string> types;
  for (int i = 0; i < model->num_layers(); ++i) {
    types.push_back((i + 1) % interval == 0 ? "full_attention" : "linear_attention");
  }
  if (fields.Find(kName) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(types, fields.Strings(kName));
  }
  if (types.size() != model->layers.size()) {
    return fields.Bad(kName, StrCat("has ", types.size(), " items, must have ", model->num_layers(),
                                    ", one a layer"));
  }
  bool attends = false;
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] == "linear_attention") {
      model->layers[i].attention = delta;
    } else if (types[i] == "full_attention") {
      attends = true;
    } else {
      return fields.Unsupported(kName, StrCat("\"", Printable(types[i]),
                                              "\" is not supported (supported: full_attention, "
                                              "linear_attention)"));
    }
  }
  if (attends) return absl::OkStatus();
  return fields.Unsupported(kName, "has no full_attention, of which at least one is supported");
}

absl::StatusOr<GatedDelta> ReadDelta(const HfReader& config) {
  GatedDelta delta;
  MILLRACE_ASSIGN_OR_RETURN(delta.key_heads, config.IntOr("linear_num_key_heads", kMaxHeads, 16));
  MILLRACE_ASSIGN_OR_RETURN(delta.value_heads,
                            config.IntOr("linear_num_value_heads", kMaxHeads, 32));
  MILLRACE_ASSIGN_OR_RETURN(delta.key_size, config.IntOr("linear_key_head_dim", kMaxHeadSize, 128));
  MILLRACE_ASSIGN_OR_RETURN(delta.value_size,
                            config.IntOr("linear_value_head_dim", kMaxHeadSize, 128));
  if (delta.value_heads % delta.key_heads != 0) {
    return config.fields().Bad("linear_num_value_heads",
                               StrCat(delta.value_heads, " must be a multiple of the ",
                                      delta.key_heads, " of linear_num_key_heads"));
  }
  MILLRACE_RETURN_IF_ERROR(
      config.fields().Refuse("linear_conv_kernel_dim", Json::array({kConvolutionWidth})));
  return delta;
}

}  // namespace

// The parts of a position that mrope_section tells apart are the same number in a text alone.
absl::StatusOr<ModelConfig> ReadHfQwen35(const HfReader& config, HfDefaults defaults) {
  defaults.head_size = 256;
  defaults.context = 32768;
  defaults.rope.partial = 0.25;
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, config.Decoder(defaults));
  MILLRACE_RETURN_IF_ERROR(config.RefuseOtherFunctions());
  MILLRACE_RETURN_IF_ERROR(config.fields().Refuse("attn_output_gate", Json::array({true})));
  MILLRACE_RETURN_IF_ERROR(config.ReadAttentionBias(&model));
  model.norm_offset = 1;
  for (LayerConfig& layer : model.layers) {
    layer.softmax().qk_norm = QkNorm::kHead;
    layer.softmax().output_gate = true;
  }
  MILLRACE_ASSIGN_OR_RETURN(const GatedDelta delta, ReadDelta(config));
  MILLRACE_RETURN_IF_ERROR(SetLayerKinds(config, delta, &model));
  return model;
}

// Of positions in sections (rope.dimension_sections) a text's are all the same, as in folders.
// Layers behind the last predict further tokens.
absl::StatusOr<ModelConfig> ReadGgufQwen35(const GgufReader& file, bool experts) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, file.Decoder({.experts = experts}));
  MILLRACE_RETURN_IF_ERROR(file.RefuseWindows());
  MILLRACE_ASSIGN_OR_RETURN(const int further,
                            file.IntOr("nextn_predict_layers", model.num_layers() - 1, 0, 0));
  model.layers.resize(model.layers.size() - further);
  GatedDelta delta{.converted = true, .in_turns = true};
  MILLRACE_ASSIGN_OR_RETURN(delta.key_size, file.Int("ssm.state_size", kMaxHeadSize));
  MILLRACE_ASSIGN_OR_RETURN(delta.key_heads, file.Int("ssm.group_count", kMaxHeads));
  MILLRACE_ASSIGN_OR_RETURN(delta.value_heads, file.Int("ssm.time_step_rank", kMaxHeads));
  MILLRACE_ASSIGN_OR_RETURN(const int values, file.Int("ssm.inner_size", kMaxWidth));
  delta.value_size = values / delta.value_heads;
  if (delta.value_heads % delta.key_heads != 0 || delta.value_size > kMaxHeadSize ||
      delta.value_size * delta.value_heads != values) {
    return file.Lies(StrCat("key ", file.Key("ssm.time_step_rank")),
                     StrCat(delta.value_heads, " must divide ssm.inner_size, ", values,
                            ", and be a multiple of ssm.group_count, ", delta.key_heads));
  }
  MILLRACE_ASSIGN_OR_RETURN(const int width, file.Int("ssm.conv_kernel", kMaxWidth));
  if (width != kConvolutionWidth) {
    return file.Unsupported(file.Key("ssm.conv_kernel"),
                            StrCat(width, " is not supported, only ", kConvolutionWidth));
  }
  MILLRACE_ASSIGN_OR_RETURN(const int interval,
                            file.IntOr("full_attention_interval", kMaxLayers, 4));
  if (interval > model.num_layers()) {
    return file.Unsupported(file.Key("full_attention_interval"),
                            StrCat(interval, " is not supported of ", model.num_layers(),
                                   " layers: at least one must have full attention"));
  }
  for (int i = 0; i < model.num_layers(); ++i) {
    LayerConfig& layer = model.layers[i];
    layer.softmax().qk_norm = QkNorm::kHead;
    layer.softmax().output_gate = true;
    if ((i + 1) % interval != 0) layer.attention = delta;
  }
  return model;
}

absl::StatusOr<ModelConfig> ReadHfNested(
    const HfReader& config, absl::StatusOr<ModelConfig> (*read)(const HfReader& config)) {
  constexpr char kTied[] = "tie_word_embeddings";
  MILLRACE_ASSIGN_OR_RETURN(const JsonFields text, config.fields().Object("text_config"));
  Json merged = text.object();
  if (const Json* tied = config.fields().Find(kTied)) merged[kTied] = *tied;
  const JsonFields fields = text.With(merged);
  return read(HfReader(fields));
}

namespace {

absl::StatusOr<ModelConfig> ReadHf(const HfReader& config) {
  return ReadHfQwen35(config, {.kv_heads = 4});
}

absl::StatusOr<ModelConfig> ReadHfOfImages(const HfReader& config) {
  return ReadHfNested(config, ReadHf);
}

absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& file) {
  return ReadGgufQwen35(file, /*experts=*/false);
}

constexpr HfArchitecture kArchitectures[] = {{"Qwen3_5ForCausalLM", ReadHf},
                                             {"Qwen3_5ForConditionalGeneration", ReadHfOfImages}};

constexpr auto kSpellings = Joined(kDeltaSpellings, kPreNormSpellings);

constexpr std::string_view kTwins = R"([
{"name": "qwen3_5",
 "changes": {"model_type": "qwen3_5_text", "num_hidden_layers": 5, "full_attention_interval": 2,
   "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
   "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4, "max_position_embeddings": 512,
   "partial_rotary_factor": 0.25},
 "mutations": [{"partial_rotary_factor": 0.5}]},
{"name": "qwen3_5_tied", "in_gguf": false,
 "changes": {"model_type": "qwen3_5_text", "num_hidden_layers": 2, "full_attention_interval": 2,
   "linear_num_key_heads": 3, "linear_num_value_heads": 3, "linear_key_head_dim": 48,
   "linear_value_head_dim": 32, "max_position_embeddings": 512, "partial_rotary_factor": 0.5,
   "tie_word_embeddings": true, "attention_bias": true},
 "mutations": [{"partial_rotary_factor": 0.25}]}
])";

}  // namespace

constexpr Family kQwen35 = Qwen35Family({.name = "qwen35",
                                         .hf = kArchitectures,
                                         .read_gguf = ReadGguf,
                                         .spellings = kSpellings,
                                         .twins = kTwins});

}  // namespace millrace
