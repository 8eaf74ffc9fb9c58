// BERT (arXiv:1810.04805) and what is trained from it to embed texts (Sentence-BERT,
// arXiv:1908.10084; MiniLM, BGE, GTE, E5): an encoder whose layers norm the sum of the residual and
// what a block adds, with biases everywhere. RoBERTa (arXiv:1907.11692) and XLM-R
// (arXiv:1911.02116) differ in the row of the first position. Both are read with a head that scores
// a pair of texts, too.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "formats/classifier_config.h"
#include "formats/families/families.h"

namespace millrace {
namespace {

constexpr int kMaxTokenTypes = 1024;
constexpr double kLeastEpsilon = 1e-15;
constexpr double kMostEpsilon = 0.1;

// `field` is how the file calls the heads.
absl::Status MakeLayers(int layers, int heads, int ffn_size, std::string_view field,
                        ModelConfig* model) {
  if (model->hidden_size % heads != 0 || model->hidden_size / heads > kMaxHeadSize) {
    return absl::InvalidArgumentError(StrCat(field, ": ", heads, " must divide the hidden size ",
                                             model->hidden_size, " into heads of at most ",
                                             kMaxHeadSize));
  }
  SoftmaxAttention attention;
  attention.heads = attention.kv_heads = heads;
  attention.head_size = model->hidden_size / heads;
  attention.scale = 1 / std::sqrt(attention.head_size);
  attention.qkv_bias = true;
  model->layers.assign(layers, {.attention = attention,
                                .feed_forward = GeluFeedForward{.size = ffn_size},
                                .norms = NormPlacement::kPost});
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ReadHf(const HfReader& config) {
  const JsonFields& fields = config.fields();
  ModelConfig model;
  EncoderConfig& encoder = model.encoder.emplace();
  MILLRACE_ASSIGN_OR_RETURN(const int layers, config.Int("num_hidden_layers", kMaxLayers));
  MILLRACE_ASSIGN_OR_RETURN(model.hidden_size, config.Int("hidden_size", kMaxWidth));
  MILLRACE_ASSIGN_OR_RETURN(const int ffn_size, config.Int("intermediate_size", kMaxWidth));
  MILLRACE_ASSIGN_OR_RETURN(const int heads, config.Int("num_attention_heads", kMaxHeads));
  MILLRACE_ASSIGN_OR_RETURN(model.vocab_size, config.Int("vocab_size", kMaxVocab));
  MILLRACE_ASSIGN_OR_RETURN(encoder.positions, config.Int("max_position_embeddings", kMaxContext));
  model.context_length = encoder.positions;
  MILLRACE_ASSIGN_OR_RETURN(encoder.token_types,
                            config.IntOr("type_vocab_size", kMaxTokenTypes, 2));
  model.norm_epsilon = 1e-12;
  if (fields.Find("layer_norm_eps") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(model.norm_epsilon,
                              fields.Float("layer_norm_eps", kLeastEpsilon, kMostEpsilon));
  }
  MILLRACE_RETURN_IF_ERROR(
      MakeLayers(layers, heads, ffn_size, "config.json: num_attention_heads", &model));
  const std::pair<const char*, Json> neutral[] = {
      {"hidden_act", Json::array({"gelu"})},
      {"position_embedding_type", Json::array({"absolute"})},
      {"is_decoder", Json::array({false})},
      {"add_cross_attention", Json::array({false})},
      {"quantization_config", Json::array()}};
  for (const auto& [name, values] : neutral) {
    MILLRACE_RETURN_IF_ERROR(fields.Refuse(name, values));
  }
  return model;
}

// RoBERTa's positions begin behind the padding token's id.
absl::StatusOr<ModelConfig> ReadRoberta(const HfReader& config) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, ReadHf(config));
  int64_t padding = 1;
  if (config.fields().Find("pad_token_id") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(padding, config.fields().Int("pad_token_id", 0, kMaxVocab));
  }
  EncoderConfig& encoder = *model.encoder;
  encoder.first_position = static_cast<int>(padding) + 1;
  model.context_length = encoder.positions - encoder.first_position;
  if (model.context_length < 1) {
    return config.fields().Bad("max_position_embeddings",
                               StrCat("is ", encoder.positions, ", must be more than ",
                                      encoder.first_position, ", pad_token_id + 1"));
  }
  return model;
}

template <absl::StatusOr<ModelConfig> (*kRead)(const HfReader&)>
absl::StatusOr<ModelConfig> ReadClassifier(const HfReader& config) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, kRead(config));
  MILLRACE_ASSIGN_OR_RETURN(model.encoder->classifier, ReadClassifierHead(config.fields()));
  return model;
}

absl::StatusOr<Pooling> ReadPooling(const GgufReader& reader) {
  const std::string key = reader.Key("pooling_type");
  if (reader.file().Find(key) == nullptr) return Pooling::kMean;
  // llama.cpp's other kinds are none, last and rank.
  MILLRACE_ASSIGN_OR_RETURN(const int64_t type, reader.file().Int(key, 0, 1 << 16));
  if (type == 1) return Pooling::kMean;
  if (type == 2) return Pooling::kFirst;
  return reader.Unsupported(
      key, StrCat(type, " is not supported (supported: 1, the mean, and 2, the first token's)"));
}

// Reads the rows of a table.
absl::StatusOr<int> ReadRows(const GgufReader& reader, const char* name, int max) {
  const TensorInfo* tensor = reader.file().FindTensor(name);
  if (tensor == nullptr || tensor->shape.empty() || tensor->shape[0] > max) {
    return reader.Lies(StrCat("tensor ", name),
                       tensor == nullptr ? "is missing" : "has too many rows");
  }
  return static_cast<int>(tensor->shape[0]);
}

// Embeddings are normalized, as llama.cpp's server does, which no key of the file says.
absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& reader) {
  const GgufFile& file = reader.file();
  ModelConfig model;
  EncoderConfig& encoder = model.encoder.emplace();
  MILLRACE_ASSIGN_OR_RETURN(const int layers, reader.Int("block_count", kMaxLayers));
  MILLRACE_ASSIGN_OR_RETURN(model.hidden_size, reader.Int("embedding_length", kMaxWidth));
  MILLRACE_ASSIGN_OR_RETURN(const int ffn_size, reader.Int("feed_forward_length", kMaxWidth));
  MILLRACE_ASSIGN_OR_RETURN(const int heads, reader.Int("attention.head_count", kMaxHeads));
  MILLRACE_ASSIGN_OR_RETURN(model.context_length, reader.Int("context_length", kMaxContext));
  MILLRACE_RETURN_IF_ERROR(
      Annotate(MakeLayers(layers, heads, ffn_size,
                          StrCat("key ", reader.Key("attention.head_count")), &model),
               file.base_name()));
  const std::string epsilon = reader.Key("attention.layer_norm_epsilon");
  MILLRACE_ASSIGN_OR_RETURN(model.norm_epsilon, file.Float(epsilon));
  if (!(model.norm_epsilon >= kLeastEpsilon && model.norm_epsilon <= kMostEpsilon)) {
    return reader.Lies(StrCat("key ", epsilon), StrCat(model.norm_epsilon, " is outside of ",
                                                       kLeastEpsilon, " to ", kMostEpsilon));
  }
  if (const std::string key = reader.Key("attention.causal"); file.Find(key) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(const bool causal, file.Bool(key));
    if (causal) return reader.Unsupported(key, "true is not supported, only false");
  }
  MILLRACE_ASSIGN_OR_RETURN(encoder.pooling, ReadPooling(reader));
  encoder.normalize = true;
  MILLRACE_ASSIGN_OR_RETURN(model.vocab_size, ReadRows(reader, "token_embd.weight", kMaxVocab));
  MILLRACE_ASSIGN_OR_RETURN(encoder.positions,
                            ReadRows(reader, "position_embd.weight", kMaxContext));
  MILLRACE_ASSIGN_OR_RETURN(encoder.token_types,
                            ReadRows(reader, "token_types.weight", kMaxTokenTypes));
  model.context_length = std::min(model.context_length, encoder.positions);
  return model;
}

// Each linear and norm has a .bias beside its .weight, [out] or [hidden].
std::vector<ModelTensor> Tensors(const ModelConfig& config) {
  const int64_t hidden = config.hidden_size;
  std::vector<ModelTensor> tensors;
  const auto linear = [&](const std::string& name, int64_t out, int64_t in) {
    tensors.push_back({name + ".weight", {out, in}, TensorRole::kLinear});
    tensors.push_back({name + ".bias", {out}, TensorRole::kVector});
  };
  const auto norm = [&](const std::string& name) {
    tensors.push_back({name + ".weight", {hidden}, TensorRole::kVector});
    tensors.push_back({name + ".bias", {hidden}, TensorRole::kVector});
  };
  const auto table = [&](const char* name, int64_t rows) {
    tensors.push_back({name, {rows, hidden}, TensorRole::kTable});
  };
  table("token_embd.weight", config.vocab_size);
  table("position_embd.weight", config.encoder->positions);
  table("token_types.weight", config.encoder->token_types);
  norm("token_embd_norm");
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const std::string block = StrCat("blk.", i, ".");
    const int64_t ffn = config.layers[i].ffn_size();
    for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"}) {
      linear(block + name, hidden, hidden);
    }
    norm(block + "attn_output_norm");
    linear(block + "ffn_up", ffn, hidden);
    linear(block + "ffn_down", hidden, ffn);
    norm(block + "layer_output_norm");
  }
  if (config.encoder->classifier.has_value()) {
    linear("cls", hidden, hidden);
    linear("cls.output", 1, hidden);
  }
  return tensors;
}

constexpr HfArchitecture kArchitectures[] = {
    {"BertModel", ReadHf},
    {"BertForMaskedLM", ReadHf},
    {"BertForSequenceClassification", ReadClassifier<ReadHf>},
    {"XLMRobertaModel", ReadRoberta},
    {"XLMRobertaForSequenceClassification", ReadClassifier<ReadRoberta>},
    {"RobertaForSequenceClassification", ReadClassifier<ReadRoberta>}};

constexpr Spelling kSpellings[] = {
    {"token_embd", "embeddings.word_embeddings"},
    {"position_embd", "embeddings.position_embeddings"},
    {"token_types", "embeddings.token_type_embeddings"},
    {"token_embd_norm", "embeddings.LayerNorm"},
    {"blk.#.attn_q", "encoder.layer.#.attention.self.query"},
    {"blk.#.attn_k", "encoder.layer.#.attention.self.key"},
    {"blk.#.attn_v", "encoder.layer.#.attention.self.value"},
    {"blk.#.attn_output", "encoder.layer.#.attention.output.dense"},
    {"blk.#.attn_output_norm", "encoder.layer.#.attention.output.LayerNorm"},
    {"blk.#.ffn_up", "encoder.layer.#.intermediate.dense"},
    {"blk.#.ffn_down", "encoder.layer.#.output.dense"},
    {"blk.#.layer_output_norm", "encoder.layer.#.output.LayerNorm"},
    {"cls", "pooler.dense"},
    {"cls", "classifier.dense"},  // RoBERTa's
    {"cls.output", "classifier"},
    {"cls.output", "classifier.out_proj"},
};
// The others are of models with a head.
constexpr std::string_view kPrefixes[] = {"", "bert.", "roberta."};
constexpr std::string_view kIgnored[] = {"pooler.", "bert.pooler.", "roberta.pooler.", "cls."};

constexpr std::string_view kTwins = R"([
{"name": "bert_mean", "pooling": "mean_tokens", "normalize": true,
 "config": {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": 64,
   "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 128,
   "max_position_embeddings": 64, "type_vocab_size": 2, "layer_norm_eps": 1e-5,
   "hidden_act": "gelu", "torch_dtype": "float32"},
 "mutations": [{"layer_norm_eps": 0.09}, {"num_attention_heads": 2}]},
{"name": "bert_first", "pooling": "cls_token", "in_gguf": false,
 "config": {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": 64,
   "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4, "vocab_size": 128,
   "max_position_embeddings": 64, "type_vocab_size": 2, "layer_norm_eps": 1e-5,
   "hidden_act": "gelu", "torch_dtype": "float32"},
 "mutations": [{"layer_norm_eps": 0.09}, {"num_attention_heads": 2}]},
{"name": "bert_pairs", "classifier": "bert.", "in_gguf": false,
 "config": {"architectures": ["BertForSequenceClassification"], "model_type": "bert",
   "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
   "vocab_size": 128, "max_position_embeddings": 64, "type_vocab_size": 2, "layer_norm_eps": 1e-5,
   "hidden_act": "gelu", "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0},
   "torch_dtype": "float32"},
 "mutations": [{"layer_norm_eps": 0.09}, {"num_attention_heads": 2}]},
{"name": "xlm_roberta_pairs", "classifier": "roberta.", "in_gguf": false,
 "config": {"architectures": ["XLMRobertaForSequenceClassification"], "model_type": "xlm-roberta",
   "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
   "vocab_size": 128, "max_position_embeddings": 66, "type_vocab_size": 1, "layer_norm_eps": 1e-5,
   "pad_token_id": 1, "hidden_act": "gelu", "id2label": {"0": "LABEL_0"},
   "label2id": {"LABEL_0": 0}, "torch_dtype": "float32"},
 "mutations": [{"layer_norm_eps": 0.09}, {"pad_token_id": 0}]}
])";

}  // namespace

constexpr Family kBert = {.name = "bert",
                          .hf = kArchitectures,
                          .read_gguf = ReadGguf,
                          .tensors = Tensors,
                          .spellings = kSpellings,
                          .hf_prefixes = kPrefixes,
                          .ignored = kIgnored,
                          .twins = kTwins};

}  // namespace millrace
