// ModernBERT (arXiv:2412.13663), and the models of embeddings and rerankers made of it (GTE,
// nomic's modernbert-embed, Granite): an encoder that norms what its blocks read, rotates by
// positions, and gates its feed-forward networks. Every third layer sees the whole text, the others
// a window on both sides, with a rotation of their own. No linear and no norm has a bias.
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "formats/families/classifier_config.h"
#include "formats/families/encoder.h"
#include "formats/families/families.h"

namespace millrace {
namespace {

constexpr int kDefaultPeriod = 3;
constexpr int kDefaultWindow = 128;  // both sides together
constexpr double kGlobalTheta = 160000;
constexpr double kLocalTheta = 10000;
constexpr double kMaxTheta = 1e12;

// The layers' attention: `window` tokens on both sides together where `local`.
struct Attentions {
  int window = kDefaultWindow;
  double global_theta = kGlobalTheta;
  double local_theta = kLocalTheta;
  std::vector<bool> local;  // by layer
};

absl::Status SetLayers(const Attentions& attentions, GateFunction function, ModelConfig* model) {
  model->encoder->norm_bias = false;
  for (int i = 0; i < model->num_layers(); ++i) {
    LayerConfig& layer = model->layers[i];
    SoftmaxAttention& attention = layer.softmax();
    attention.qkv_bias = attention.output_bias = false;
    attention.fused_qkv = true;
    if (attentions.local[i]) attention.window = attentions.window / 2 + 1;
    layer.norms = NormPlacement::kPre;
    layer.feed_forward =
        GatedFeedForward{.size = layer.ffn_size(), .function = function, .fused_gate_up = true};
  }
  return SetRotations(
      [&](int i) { return attentions.local[i] ? attentions.local_theta : attentions.global_theta; },
      model);
}

std::vector<bool> EveryLayerBut(int period, int layers) {
  std::vector<bool> local(layers);
  for (int i = 0; i < layers; ++i) local[i] = i % period != 0;
  return local;
}

absl::StatusOr<GateFunction> FunctionOf(std::string_view name, const JsonFields& fields,
                                        const char* field) {
  if (name == "gelu") return GateFunction::kGelu;
  if (name == "silu" || name == "swish") return GateFunction::kSilu;
  return fields.Unsupported(
      field, StrCat("\"", Printable(name), "\" is not supported (supported: gelu, silu)"));
}

absl::StatusOr<double> ThetaOr(const JsonFields& fields, const char* name, double otherwise) {
  if (fields.Find(name) == nullptr) return otherwise;
  return fields.Float(name, 1, kMaxTheta);
}

// Reads the bases of both kinds of layers: of rope_parameters, or in older configs of fields of
// their own.
absl::Status ReadThetas(const JsonFields& fields, Attentions* attentions) {
  MILLRACE_RETURN_IF_ERROR(fields.Refuse("rope_scaling", Json::array()));
  MILLRACE_ASSIGN_OR_RETURN(attentions->global_theta,
                            ThetaOr(fields, "global_rope_theta", kGlobalTheta));
  MILLRACE_ASSIGN_OR_RETURN(attentions->local_theta,
                            ThetaOr(fields, "local_rope_theta", kLocalTheta));
  if (fields.Find("rope_parameters") == nullptr) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(const JsonFields both, fields.Object("rope_parameters"));
  for (const auto& [name, theta] : {std::pair("full_attention", &attentions->global_theta),
                                    std::pair("sliding_attention", &attentions->local_theta)}) {
    if (both.Find(name) == nullptr) continue;
    MILLRACE_ASSIGN_OR_RETURN(const JsonFields rope, both.Object(name));
    MILLRACE_RETURN_IF_ERROR(rope.Refuse("rope_type", Json::array({"default"})));
    MILLRACE_ASSIGN_OR_RETURN(*theta, ThetaOr(rope, "rope_theta", *theta));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<bool>> ReadLocal(const HfReader& config, int layers) {
  constexpr char kTypes[] = "layer_types";
  const JsonFields& fields = config.fields();
  if (fields.Find(kTypes) == nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(
        const int period, config.IntOr("global_attn_every_n_layers", kMaxLayers, kDefaultPeriod));
    return EveryLayerBut(period, layers);
  }
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<std::string> types, fields.Strings(kTypes));
  std::vector<bool> local;
  for (const std::string& type : types) {
    if (type != "full_attention" && type != "sliding_attention") {
      return fields.Unsupported(kTypes, StrCat("\"", Printable(type), "\" is not supported"));
    }
    local.push_back(type == "sliding_attention");
  }
  if (static_cast<int>(local.size()) == layers) return local;
  return fields.Bad(kTypes, StrCat("has ", local.size(), " entries, must have ", layers));
}

absl::StatusOr<ModelConfig> ReadHf(const HfReader& config) {
  const JsonFields& fields = config.fields();
  MILLRACE_ASSIGN_OR_RETURN(
      ModelConfig model,
      ReadHfEncoder(config, {.epsilon = "norm_eps", .context = 8192, .norm_epsilon = 1e-5}));
  Attentions attentions;
  MILLRACE_ASSIGN_OR_RETURN(attentions.window,
                            config.IntOr("local_attention", kMaxContext, kDefaultWindow));
  MILLRACE_RETURN_IF_ERROR(ReadThetas(fields, &attentions));
  MILLRACE_ASSIGN_OR_RETURN(attentions.local, ReadLocal(config, model.num_layers()));
  for (const char* bias : {"norm_bias", "attention_bias", "mlp_bias"}) {
    MILLRACE_RETURN_IF_ERROR(fields.Refuse(bias, Json::array({false})));
  }
  GateFunction function = GateFunction::kGelu;
  if (constexpr char kField[] = "hidden_activation"; fields.Find(kField) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(const std::string_view name, fields.String(kField));
    MILLRACE_ASSIGN_OR_RETURN(function, FunctionOf(name, fields, kField));
  }
  MILLRACE_RETURN_IF_ERROR(SetLayers(attentions, function, &model));
  return model;
}

absl::StatusOr<ModelConfig> ReadClassifier(const HfReader& config) {
  constexpr char kPooling[] = "classifier_pooling";
  const JsonFields& fields = config.fields();
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, ReadHf(config));
  MILLRACE_ASSIGN_OR_RETURN(ClassifierHead head, ReadClassifierHead(fields));
  MILLRACE_RETURN_IF_ERROR(fields.Refuse("classifier_activation", Json::array({"gelu"})));
  MILLRACE_RETURN_IF_ERROR(fields.Refuse(kPooling, Json::array({"cls", "mean"})));
  if (fields.Find(kPooling) != nullptr && *fields.Find(kPooling) == "mean") {
    head.pooling = Pooling::kMean;
  }
  MILLRACE_ASSIGN_OR_RETURN(head.dense_bias, fields.BoolOr("classifier_bias", false));
  head.function = HeadFunction::kGelu;
  head.norm = true;
  model.encoder->classifier = head;
  return model;
}

// Windows, their period and both bases as llama.cpp has them, and of a ranking head what its graph
// makes of the tensors: the mean, GELU and the norm.
absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& reader) {
  MILLRACE_RETURN_IF_ERROR(RefuseRopeScaling(reader));
  MILLRACE_ASSIGN_OR_RETURN(
      ModelConfig model,
      ReadEncoderGguf(reader, {.pooling = Pooling::kMean, .function = HeadFunction::kGelu}));
  Attentions attentions;
  MILLRACE_ASSIGN_OR_RETURN(attentions.global_theta,
                            reader.FloatOr("rope.freq_base", kGlobalTheta, 1, kMaxTheta));
  MILLRACE_ASSIGN_OR_RETURN(attentions.local_theta,
                            reader.FloatOr("rope.freq_base_swa", kLocalTheta, 1, kMaxTheta));
  MILLRACE_ASSIGN_OR_RETURN(attentions.window,
                            reader.IntOr("attention.sliding_window", kMaxContext, kDefaultWindow));
  MILLRACE_ASSIGN_OR_RETURN(const int period, reader.IntOr("attention.sliding_window_pattern",
                                                           kMaxLayers, kDefaultPeriod));
  attentions.local = EveryLayerBut(period, model.num_layers());
  GateFunction function = GateFunction::kGelu;
  if (const std::string key = reader.Key("hidden_activation"); reader.file().Find(key) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(const std::string_view value, reader.file().String(key));
    if (value != "gelu" && value != "silu") {
      return reader.Unsupported(
          key, StrCat("\"", Printable(value), "\" is not supported (supported: gelu, silu)"));
    }
    if (value == "silu") function = GateFunction::kSilu;
  }
  MILLRACE_RETURN_IF_ERROR(SetLayers(attentions, function, &model));
  return model;
}

constexpr HfArchitecture kArchitectures[] = {
    {"ModernBertModel", ReadHf},
    {"ModernBertForMaskedLM", ReadHf},
    {"ModernBertForSequenceClassification", ReadClassifier}};

constexpr Spelling kSpellings[] = {
    {"token_embd", "embeddings.tok_embeddings"},
    {"token_embd_norm", "embeddings.norm"},
    {"output_norm", "final_norm"},
    {"blk.#.attn_norm", "layers.#.attn_norm"},
    {"blk.#.attn_qkv", "layers.#.attn.Wqkv"},
    {"blk.#.attn_output", "layers.#.attn.Wo"},
    {"blk.#.ffn_norm", "layers.#.mlp_norm"},
    {"blk.#.ffn_up", "layers.#.mlp.Wi"},
    {"blk.#.ffn_down", "layers.#.mlp.Wo"},
    {"cls", "head.dense"},
    {"cls.norm", "head.norm"},
    {"cls.output", "classifier"},
};
constexpr std::string_view kPrefixes[] = {"", "model."};
// Heads of models that guess words.
constexpr std::string_view kIgnored[] = {"head.", "decoder.", "cls."};

constexpr std::string_view kTwins = R"([
{"name": "modern_bert", "spread": 0.2, "pooling": "mean_tokens", "normalize": true,
 "config": {"architectures": ["ModernBertModel"], "model_type": "modernbert", "hidden_size": 64,
   "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 128,
   "max_position_embeddings": 256, "local_attention": 16, "global_attn_every_n_layers": 3,
   "global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "norm_eps": 1e-5,
   "hidden_activation": "gelu", "pad_token_id": 0, "torch_dtype": "float32"},
 "mutations": [{"norm_eps": 0.09}, {"local_attention": 18}, {"global_attn_every_n_layers": 2},
               {"global_rope_theta": 500.0}, {"local_rope_theta": 500.0},
               {"hidden_activation": "silu"}]},
{"name": "modern_bert_silu", "spread": 0.2, "pooling": "cls_token", "in_gguf": false,
 "config": {"architectures": ["ModernBertModel"], "model_type": "modernbert", "hidden_size": 64,
   "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 128,
   "max_position_embeddings": 256, "local_attention": 16, "pad_token_id": 0,
   "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
   "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 8000.0},
                       "sliding_attention": {"rope_type": "default", "rope_theta": 900.0}},
   "hidden_activation": "silu", "torch_dtype": "float32"},
 "mutations": [{"rope_parameters": {"full_attention": {"rope_theta": 500.0}}},
               {"rope_parameters": {"sliding_attention": {"rope_theta": 100.0}}},
               {"layer_types": ["full_attention", "full_attention", "sliding_attention",
                                "full_attention"]}]},
{"name": "modern_bert_pairs", "spread": 0.2, "classifier": "model.",
 "config": {"architectures": ["ModernBertForSequenceClassification"], "model_type": "modernbert",
   "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
   "vocab_size": 128, "max_position_embeddings": 256, "local_attention": 16, "pad_token_id": 0,
   "classifier_pooling": "mean", "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0},
   "hidden_activation": "gelu", "torch_dtype": "float32"},
 "mutations": [{"classifier_pooling": "cls"}, {"local_attention": 18}]}
])";

}  // namespace

constexpr Family kModernBert = {.name = "modern-bert",
                                .hf = kArchitectures,
                                .read_gguf = ReadGguf,
                                .tensors = EncoderTensors,
                                .spellings = kSpellings,
                                .hf_prefixes = kPrefixes,
                                .ignored = kIgnored,
                                .twins = kTwins};

}  // namespace millrace
