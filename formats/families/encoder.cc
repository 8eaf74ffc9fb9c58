#include "formats/families/encoder.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

// The kinds of pooling that llama.cpp numbers, but for 0, none, and 3, the last token's.
constexpr int64_t kMeanType = 1;
constexpr int64_t kFirstType = 2;
constexpr int64_t kRankType = 4;

// Reads the rows of a table; 0 where the file has none.
absl::StatusOr<int> ReadRows(const GgufReader& reader, const char* name, int max) {
  const TensorInfo* tensor = reader.file().FindTensor(name);
  if (tensor == nullptr) return 0;
  if (tensor->shape.empty() || tensor->shape[0] > max) {
    return reader.Lies(StrCat("tensor ", name), "has too many rows");
  }
  return static_cast<int>(tensor->shape[0]);
}

// Reads what the file's keys and tensors say of a head that scores pairs: a dense layer or the
// output alone. `head` has what the family does where there is no key.
absl::StatusOr<ClassifierHead> ReadRankHead(const GgufReader& reader, ClassifierHead head) {
  constexpr char kActivation[] = "classifier.activation";
  constexpr char kPooling[] = "classifier.pooling_type";
  const GgufFile& file = reader.file();
  const auto has = [&](const char* name) { return file.FindTensor(name) != nullptr; };
  if (const std::string key = reader.Key(kActivation); file.Find(key) != nullptr) {
    constexpr std::pair<std::string_view, HeadFunction> kFunctions[] = {
        {"tanh", HeadFunction::kTanh},
        {"gelu", HeadFunction::kGelu},
        {"silu", HeadFunction::kSilu}};
    MILLRACE_ASSIGN_OR_RETURN(const std::string_view name, file.String(key));
    const auto* const known = std::find_if(std::begin(kFunctions), std::end(kFunctions),
                                           [&](const auto& entry) { return entry.first == name; });
    if (known == std::end(kFunctions)) {
      return reader.Unsupported(
          key, StrCat("\"", Printable(name), "\" is not supported (supported: tanh, gelu, silu)"));
    }
    head.function = known->second;
  }
  if (file.Find(reader.Key(kPooling)) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(const int type, reader.Int(kPooling, 1 << 16, 0));
    if (type != kMeanType && type != kFirstType) {
      return reader.Unsupported(
          reader.Key(kPooling),
          StrCat(type, " is not supported (supported: 1, the mean, and 2, the first token's)"));
    }
    head.pooling = type == kMeanType ? Pooling::kMean : Pooling::kFirst;
  }
  head.sigmoid = false;
  head.dense = has("cls.weight");
  head.dense_bias = has("cls.bias");
  head.norm = has("cls.norm.weight");
  head.output = has("cls.output.weight");
  head.output_bias = has("cls.output.bias");
  if (!head.dense && !head.output) {
    return reader.Lies(StrCat("key ", reader.Key("pooling_type")),
                       "is 4, ranks, but the file has neither cls.weight nor cls.output.weight");
  }
  return head;
}

// A file with a head and no key ranks: llama.cpp's converter writes none for rerankers.
absl::Status ReadPooling(const GgufReader& reader, const ClassifierHead& head,
                         EncoderConfig* encoder) {
  const GgufFile& file = reader.file();
  const std::string key = reader.Key("pooling_type");
  const bool has_head =
      file.FindTensor("cls.weight") != nullptr || file.FindTensor("cls.output.weight") != nullptr;
  int64_t type = has_head ? kRankType : kMeanType;
  if (file.Find(key) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(type, file.Int(key, 0, 1 << 16));
  }
  if (type == kRankType) {
    MILLRACE_ASSIGN_OR_RETURN(encoder->classifier, ReadRankHead(reader, head));
    return absl::OkStatus();
  }
  if (type != kMeanType && type != kFirstType) {
    return reader.Unsupported(
        key, StrCat(type,
                    " is not supported (supported: 1, the mean, 2, the first token's, and 4, a "
                    "score of a pair)"));
  }
  encoder->pooling = type == kMeanType ? Pooling::kMean : Pooling::kFirst;
  return absl::OkStatus();
}

class TensorLister {
 public:
  explicit TensorLister(const ModelConfig& config)
      : config_(config), encoder_(*config.encoder), hidden_(config.hidden_size) {}

  std::vector<ModelTensor> List() {
    Table("token_embd.weight", config_.vocab_size);
    if (encoder_.positions > 0) Table("position_embd.weight", encoder_.positions);
    if (encoder_.token_types > 0) Table("token_types.weight", encoder_.token_types);
    Norm("token_embd_norm");
    if (encoder_.position_buckets > 0) {
      tensors_.push_back({"attn_rel_b.weight",
                          {encoder_.position_buckets, config_.layers[0].softmax().heads},
                          TensorRole::kTable});
    }
    for (size_t i = 0; i < config_.layers.size(); ++i) Layer(i);
    if (config_.layers[0].norms == NormPlacement::kPre) Norm("output_norm");
    if (encoder_.classifier.has_value()) Head(*encoder_.classifier);
    for (size_t i = 0; i < encoder_.dense.size(); ++i) {
      const DenseLayer& dense = encoder_.dense[i];
      Linear(StrCat("dense.", i), dense.out, dense.in, dense.bias);
    }
    return std::move(tensors_);
  }

 private:
  void Table(const char* name, int64_t rows) {
    tensors_.push_back({name, {rows, hidden_}, TensorRole::kTable});
  }
  void Linear(const std::string& name, int64_t out, int64_t in, bool bias) {
    tensors_.push_back({name + ".weight", {out, in}, TensorRole::kLinear});
    if (bias) tensors_.push_back({name + ".bias", {out}, TensorRole::kVector});
  }
  void Norm(const std::string& name) {
    tensors_.push_back({name + ".weight", {hidden_}, TensorRole::kVector});
    if (encoder_.norm_bias) tensors_.push_back({name + ".bias", {hidden_}, TensorRole::kVector});
  }

  void Layer(size_t index) {
    const LayerConfig& layer = config_.layers[index];
    const SoftmaxAttention& attention = layer.softmax();
    const std::string block = StrCat("blk.", index, ".");
    const bool pre = layer.norms == NormPlacement::kPre;
    if (pre && index > 0) Norm(block + "attn_norm");
    if (attention.fused_qkv) {
      Linear(block + "attn_qkv", 3 * hidden_, hidden_, attention.qkv_bias);
    } else {
      for (const char* name : {"attn_q", "attn_k", "attn_v"}) {
        Linear(block + name, hidden_, hidden_, attention.qkv_bias);
      }
    }
    Linear(block + "attn_output", hidden_, hidden_, attention.output_bias);
    Norm(block + (pre ? "ffn_norm" : "attn_output_norm"));
    const int64_t size = layer.ffn_size();
    const auto* gated = std::get_if<GatedFeedForward>(&layer.feed_forward);
    if (gated != nullptr && !gated->fused_gate_up) Linear(block + "ffn_gate", size, hidden_, false);
    const bool both = gated != nullptr && gated->fused_gate_up;
    Linear(block + "ffn_up", both ? 2 * size : size, hidden_, gated == nullptr);
    Linear(block + "ffn_down", hidden_, size, gated == nullptr);
    if (!pre) Norm(block + "layer_output_norm");
  }

  void Head(const ClassifierHead& head) {
    if (head.dense) Linear("cls", head.output ? hidden_ : 1, hidden_, head.dense_bias);
    if (head.norm) Norm("cls.norm");
    if (head.output) Linear("cls.output", 1, hidden_, head.output_bias);
  }

  const ModelConfig& config_;
  const EncoderConfig& encoder_;
  const int64_t hidden_;
  std::vector<ModelTensor> tensors_;
};

}  // namespace

absl::StatusOr<std::vector<LayerConfig>> MakeEncoderLayers(const EncoderLayers& numbers,
                                                           int hidden_size) {
  const int heads = numbers.heads;
  if (hidden_size % heads != 0 || hidden_size / heads > kMaxHeadSize) {
    return absl::InvalidArgumentError(StrCat(numbers.heads_field, ": ", heads,
                                             " must divide the hidden size ", hidden_size,
                                             " into heads of at most ", kMaxHeadSize));
  }
  SoftmaxAttention attention;
  attention.heads = attention.kv_heads = heads;
  attention.head_size = hidden_size / heads;
  attention.scale = 1 / std::sqrt(attention.head_size);
  attention.qkv_bias = attention.output_bias = true;
  return std::vector<LayerConfig>(numbers.layers,
                                  {.attention = attention,
                                   .feed_forward = GeluFeedForward{.size = numbers.ffn_size},
                                   .norms = NormPlacement::kPost});
}

absl::StatusOr<ModelConfig> ReadHfEncoder(const HfReader& config, const HfEncoderNames& names) {
  const JsonFields& fields = config.fields();
  ModelConfig model;
  model.encoder.emplace();
  const std::string heads_field = StrCat("config.json: ", names.heads);
  EncoderLayers numbers{.heads_field = heads_field};
  MILLRACE_ASSIGN_OR_RETURN(numbers.layers, config.Int(names.layers, kMaxLayers));
  MILLRACE_ASSIGN_OR_RETURN(model.hidden_size, config.Int(names.hidden_size, kMaxWidth));
  MILLRACE_ASSIGN_OR_RETURN(numbers.ffn_size, config.Int(names.ffn_size, kMaxWidth));
  MILLRACE_ASSIGN_OR_RETURN(numbers.heads, config.Int(names.heads, kMaxHeads));
  MILLRACE_ASSIGN_OR_RETURN(model.vocab_size, config.Int("vocab_size", kMaxVocab));
  MILLRACE_ASSIGN_OR_RETURN(model.context_length,
                            names.context == 0
                                ? config.Int(names.positions, kMaxContext)
                                : config.IntOr(names.positions, kMaxContext, names.context));
  model.norm_epsilon = names.norm_epsilon;
  if (names.epsilon != nullptr && fields.Find(names.epsilon) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(
        model.norm_epsilon,
        fields.Float(names.epsilon, kLeastLayerNormEpsilon, kMostLayerNormEpsilon));
  }
  MILLRACE_ASSIGN_OR_RETURN(model.layers, MakeEncoderLayers(numbers, model.hidden_size));
  MILLRACE_RETURN_IF_ERROR(fields.Refuse("quantization_config", Json::array()));
  return model;
}

absl::Status SetRotations(const std::function<double(int layer)>& theta, ModelConfig* model) {
  for (int i = 0; i < model->num_layers(); ++i) {
    SoftmaxAttention& attention = model->layers[i].softmax();
    if (attention.head_size % 2 != 0) {
      return absl::InvalidArgumentError(StrCat("config.json: heads are of ", attention.head_size,
                                               " elements, must be even to be rotated"));
    }
    attention.rope =
        RopeConfig{.dimensions = attention.head_size, .interleaved = false, .theta = theta(i)};
  }
  return absl::OkStatus();
}

absl::Status RefuseRopeScaling(const GgufReader& reader) {
  const std::string key = reader.Key("rope.scaling.type");
  if (reader.file().Find(key) == nullptr) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view type, reader.file().String(key));
  if (type == "none") return absl::OkStatus();
  return reader.Unsupported(key, StrCat("\"", Printable(type), "\" is not supported, only none"));
}

absl::StatusOr<ModelConfig> ReadEncoderGguf(const GgufReader& reader, const ClassifierHead& head) {
  const GgufFile& file = reader.file();
  ModelConfig model;
  EncoderConfig& encoder = model.encoder.emplace();
  EncoderLayers numbers;
  MILLRACE_ASSIGN_OR_RETURN(numbers.layers, reader.Int("block_count", kMaxLayers));
  MILLRACE_ASSIGN_OR_RETURN(model.hidden_size, reader.Int("embedding_length", kMaxWidth));
  MILLRACE_ASSIGN_OR_RETURN(numbers.ffn_size, reader.Int("feed_forward_length", kMaxWidth));
  MILLRACE_ASSIGN_OR_RETURN(numbers.heads, reader.Int("attention.head_count", kMaxHeads));
  MILLRACE_ASSIGN_OR_RETURN(model.context_length, reader.Int("context_length", kMaxContext));
  const std::string heads_field =
      StrCat(file.base_name(), ": key ", reader.Key("attention.head_count"));
  numbers.heads_field = heads_field;
  MILLRACE_ASSIGN_OR_RETURN(model.layers, MakeEncoderLayers(numbers, model.hidden_size));
  const std::string epsilon = reader.Key("attention.layer_norm_epsilon");
  MILLRACE_ASSIGN_OR_RETURN(model.norm_epsilon, file.Float(epsilon));
  if (!(model.norm_epsilon >= kLeastLayerNormEpsilon &&
        model.norm_epsilon <= kMostLayerNormEpsilon)) {
    return reader.Lies(StrCat("key ", epsilon),
                       StrCat(model.norm_epsilon, " is outside of ", kLeastLayerNormEpsilon, " to ",
                              kMostLayerNormEpsilon));
  }
  if (const std::string key = reader.Key("attention.causal"); file.Find(key) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(const bool causal, file.Bool(key));
    if (causal) return reader.Unsupported(key, "true is not supported, only false");
  }
  MILLRACE_RETURN_IF_ERROR(ReadPooling(reader, head, &encoder));
  encoder.normalize = true;
  MILLRACE_ASSIGN_OR_RETURN(model.vocab_size, ReadRows(reader, "token_embd.weight", kMaxVocab));
  if (model.vocab_size == 0) return reader.Lies("tensor token_embd.weight", "is missing");
  MILLRACE_ASSIGN_OR_RETURN(encoder.positions,
                            ReadRows(reader, "position_embd.weight", kMaxContext));
  MILLRACE_ASSIGN_OR_RETURN(encoder.token_types,
                            ReadRows(reader, "token_types.weight", kMaxTokenTypes));
  const bool fused = file.FindTensor("blk.0.attn_qkv.weight") != nullptr;
  for (LayerConfig& layer : model.layers) layer.softmax().fused_qkv = fused;
  if (encoder.positions > 0) {
    model.context_length = std::min(model.context_length, encoder.positions);
  }
  return model;
}

std::vector<ModelTensor> EncoderTensors(const ModelConfig& config) {
  return TensorLister(config).List();
}

}  // namespace millrace
