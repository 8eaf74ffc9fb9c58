#include "formats/families/gguf_reader.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "formats/families/family.h"
#include "formats/families/model_tensors.h"

namespace millrace {

std::string GgufReader::Key(std::string_view name) const { return StrCat(family_.name, ".", name); }

absl::Status GgufReader::Unsupported(std::string_view key, std::string_view what) const {
  return absl::UnimplementedError(StrCat(file_.base_name(), ": key ", key, ": ", what));
}

absl::Status GgufReader::Lies(std::string_view field, std::string_view what) const {
  return absl::InvalidArgumentError(StrCat(file_.base_name(), ": ", field, ": ", what));
}

absl::StatusOr<int> GgufReader::Int(std::string_view name, int max, int min) const {
  const std::string key = Key(name);
  const GgufValue* value = file_.Find(key);
  if (value == nullptr || !std::holds_alternative<GgufArray>(*value)) {
    MILLRACE_ASSIGN_OR_RETURN(const int64_t number, file_.Int(key, min, max));
    return static_cast<int>(number);
  }
  MILLRACE_ASSIGN_OR_RETURN(const int64_t number, NumberOfAllLayers(name));
  if (number >= min && number <= max) return static_cast<int>(number);
  return Lies(StrCat("key ", key), StrCat(number, " is outside of ", min, " to ", max));
}

absl::StatusOr<std::vector<int64_t>> GgufReader::IntsOfLayers(std::string_view name,
                                                              int64_t max) const {
  const std::string key = Key(name);
  MILLRACE_ASSIGN_OR_RETURN(const int64_t layers, file_.Int(Key("block_count"), 1, kMaxLayers));
  const GgufValue* value = file_.Find(key);
  if (value == nullptr || !std::holds_alternative<GgufArray>(*value)) {
    MILLRACE_ASSIGN_OR_RETURN(const int64_t number, file_.Int(key, 0, max));
    return std::vector<int64_t>(layers, number);
  }
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> numbers, file_.Ints(key));
  if (static_cast<int64_t>(numbers.size()) != layers) {
    return Lies(StrCat("key ", key), StrCat("is an array of ", numbers.size(),
                                            " numbers, must have ", layers, ", one a layer"));
  }
  for (const int64_t number : numbers) {
    if (number >= 0 && number <= max) continue;
    return Lies(StrCat("key ", key), StrCat(number, " is outside of 0 to ", max));
  }
  return numbers;
}

absl::StatusOr<KvHeads> GgufReader::ReadKvHeads() const {
  constexpr char kHeads[] = "attention.head_count_kv";
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> heads, IntsOfLayers(kHeads));
  const int64_t most = *std::max_element(heads.begin(), heads.end());
  KvHeads kv;
  for (const int64_t count : heads) {
    if (count != 0 && count != most) {
      return Unsupported(Key(kHeads), StrCat("layers have ", count, " and ", most,
                                             " heads, which is not supported; supported: 0, and "
                                             "one other number"));
    }
    kv.attends.push_back(count != 0);
  }
  if (most < 1 || most > kMaxHeads) {
    return Lies(StrCat("key ", Key(kHeads)),
                StrCat("the most is ", most, ", must be from 1 to ", kMaxHeads));
  }
  kv.heads = static_cast<int>(most);
  return kv;
}

absl::StatusOr<int64_t> GgufReader::NumberOfAllLayers(std::string_view name) const {
  constexpr size_t kShown = 32;
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> numbers, IntsOfLayers(name));
  const auto differs = [&](int64_t number) { return number != numbers[0]; };
  if (std::none_of(numbers.begin(), numbers.end(), differs)) return numbers[0];
  std::vector<std::string> shown;
  for (const int64_t number : numbers) {
    shown.push_back(shown.size() < kShown ? StrCat(number) : "…");
    if (shown.size() > kShown) break;
  }
  return Unsupported(Key(name), StrCat("layers differ, which is not supported: ", JoinList(shown)));
}

absl::StatusOr<int> GgufReader::IntOr(std::string_view name, int max, int otherwise,
                                      int min) const {
  if (file_.Find(Key(name)) == nullptr) return otherwise;
  return Int(name, max, min);
}

absl::StatusOr<double> GgufReader::FloatOr(std::string_view name, double otherwise, double min,
                                           double max) const {
  const std::string key = Key(name);
  if (file_.Find(key) == nullptr) return otherwise;
  MILLRACE_ASSIGN_OR_RETURN(const double value, file_.Float(key));
  if (value == 0) return otherwise;
  if (!(value >= min && value <= max)) {
    return Lies(StrCat("key ", key), StrCat(value, " is outside of ", min, " to ", max));
  }
  return value;
}

absl::Status GgufReader::RefuseFloat(std::string_view name, double neutral) const {
  const std::string key = Key(name);
  if (file_.Find(key) == nullptr) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(const double value, file_.Float(key));
  if (value == neutral || value == 0) return absl::OkStatus();
  return Unsupported(key, StrCat(value, " is not supported, only ", neutral));
}

absl::Status GgufReader::SetWindows(int otherwise, const std::function<bool(int layer)>& has_window,
                                    ModelConfig* model) const {
  MILLRACE_ASSIGN_OR_RETURN(const int window,
                            IntOr("attention.sliding_window", kMaxContext, otherwise, 0));
  for (int i = 0; i < model->num_layers(); ++i) {
    model->layers[i].softmax().window = has_window(i) ? window : 0;
  }
  return absl::OkStatus();
}

absl::Status GgufReader::RefuseWindows() const {
  constexpr char kWindow[] = "attention.sliding_window";
  MILLRACE_ASSIGN_OR_RETURN(const int window, IntOr(kWindow, kMaxContext, 0, 0));
  if (window == 0) return absl::OkStatus();
  return Unsupported(Key(kWindow), StrCat(window, " is not supported, only 0"));
}

absl::StatusOr<ModelConfig> GgufReader::Decoder(const GgufReads& reads) const {
  MILLRACE_RETURN_IF_ERROR(RefuseUnsupported(reads));
  ModelConfig model;
  LayerConfig layer;
  MILLRACE_ASSIGN_OR_RETURN(const int layers, Int("block_count", kMaxLayers));
  MILLRACE_ASSIGN_OR_RETURN(model.hidden_size, Int("embedding_length", kMaxWidth));
  if (!reads.sizes) {
    // Where all layers are mixtures, a file may say but an expert's.
    MILLRACE_ASSIGN_OR_RETURN(layer.gated().size, reads.experts
                                                      ? IntOr("feed_forward_length", kMaxWidth, 1)
                                                      : Int("feed_forward_length", kMaxWidth));
  }
  MILLRACE_ASSIGN_OR_RETURN(model.context_length, Int("context_length", kMaxContext));
  MILLRACE_ASSIGN_OR_RETURN(layer.softmax(), Attention(model.hidden_size, reads.kv_heads));
  MILLRACE_ASSIGN_OR_RETURN(model.norm_epsilon, Epsilon());
  MILLRACE_RETURN_IF_ERROR(ReadVocabulary(&model));
  MILLRACE_ASSIGN_OR_RETURN(layer.softmax().rope, Rope(layer.softmax().head_size, reads.rounds_yarn,
                                                       &model.context_length));
  model.layers.assign(layers, layer);
  FindBiases(&model);
  return model;
}

// No key says which linears have biases: the tensors do. As in llama.cpp each may have one or not.
void GgufReader::FindBiases(ModelConfig* model) const {
  model->optional_biases = true;
  for (int i = 0; i < model->num_layers(); ++i) {
    const auto has = [&](std::initializer_list<const char*> linears) {
      return std::any_of(linears.begin(), linears.end(), [&](const char* linear) {
        return file_.FindTensor(StrCat("blk.", i, ".", linear, ".bias")) != nullptr;
      });
    };
    LayerConfig& layer = model->layers[static_cast<size_t>(i)];
    layer.softmax().qkv_bias = has({"attn_q", "attn_k", "attn_v"});
    layer.softmax().output_bias = has({"attn_output"});
    layer.gated().biases = has({"ffn_gate", "ffn_up", "ffn_down"});
  }
}

// Keys that change the maths. Each is fine where its value changes nothing.
absl::Status GgufReader::RefuseUnsupported(const GgufReads& reads) const {
  for (const char* name : {"expert_count", "expert_used_count"}) {
    if (reads.experts) continue;
    MILLRACE_ASSIGN_OR_RETURN(const int value, IntOr(name, 1 << 30, 0, 0));
    if (value != 0) return Unsupported(Key(name), StrCat(value, " is not supported, only 0"));
  }
  MILLRACE_RETURN_IF_ERROR(RefuseFloat("attention.clamp_kqv", 0));
  MILLRACE_RETURN_IF_ERROR(RefuseFloat("attention.max_alibi_bias", 0));
  for (const char* name : {"attention.scale", "logit_scale", "embedding_scale", "residual_scale"}) {
    if (reads.scales) break;
    MILLRACE_RETURN_IF_ERROR(RefuseFloat(name, 0));
  }
  if (const std::string key = Key("attention.causal"); file_.Find(key) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(const bool causal, file_.Bool(key));
    if (!causal) return Unsupported(key, "only causal attention is supported");
  }
  return absl::OkStatus();
}

absl::StatusOr<SoftmaxAttention> GgufReader::Attention(int hidden_size, int kv_heads) const {
  SoftmaxAttention attention;
  MILLRACE_ASSIGN_OR_RETURN(attention.heads, Int("attention.head_count", kMaxHeads));
  attention.kv_heads = kv_heads;
  if (kv_heads == 0) {
    MILLRACE_ASSIGN_OR_RETURN(attention.kv_heads,
                              IntOr("attention.head_count_kv", kMaxHeads, attention.heads));
  }
  if (attention.heads % attention.kv_heads != 0) {
    return Lies(StrCat("key ", Key("attention.head_count_kv")),
                StrCat(attention.kv_heads, " does not divide the ", attention.heads, " heads"));
  }
  if (file_.Find(Key("attention.key_length")) == nullptr && hidden_size % attention.heads != 0) {
    return Lies(StrCat("key ", Key("attention.head_count")),
                StrCat(attention.heads, " does not divide the hidden size ", hidden_size));
  }
  MILLRACE_ASSIGN_OR_RETURN(attention.head_size, IntOr("attention.key_length", kMaxHeadSize,
                                                       hidden_size / attention.heads));
  MILLRACE_ASSIGN_OR_RETURN(const int value_size,
                            IntOr("attention.value_length", kMaxHeadSize, attention.head_size));
  if (value_size != attention.head_size) {
    return Unsupported(Key("attention.value_length"),
                       StrCat(value_size, " differs from the key length ", attention.head_size));
  }
  if (attention.head_size > kMaxHeadSize || attention.head_size < 2 ||
      attention.head_size % 2 != 0) {
    return Lies("head size",
                StrCat(attention.head_size, " must be even and at most ", kMaxHeadSize));
  }
  attention.scale = 1 / std::sqrt(attention.head_size);
  return attention;
}

absl::StatusOr<double> GgufReader::Epsilon() const {
  const std::string key = Key("attention.layer_norm_rms_epsilon");
  MILLRACE_ASSIGN_OR_RETURN(const double epsilon, file_.Float(key));
  if (epsilon > 0 && epsilon <= 0.1) return epsilon;
  return Lies(StrCat("key ", key), StrCat(epsilon, " is outside of 0 to 0.1 (0 excluded)"));
}

absl::Status GgufReader::ReadVocabulary(ModelConfig* model) const {
  const TensorInfo* embedding = file_.FindTensor("token_embd.weight");
  if (embedding == nullptr) return Lies("tensor token_embd.weight", "is missing");
  if (embedding->shape[0] > kMaxVocab) {
    return Lies("tensor token_embd.weight",
                StrCat(embedding->shape[0], " rows, must be at most ", kMaxVocab));
  }
  MILLRACE_ASSIGN_OR_RETURN(model->vocab_size,
                            IntOr("vocab_size", kMaxVocab, static_cast<int>(embedding->shape[0])));
  model->tied_embeddings = file_.FindTensor("output.weight") == nullptr;
  return absl::OkStatus();
}

absl::StatusOr<double> GgufReader::Theta() const {
  const std::string key = Key("rope.freq_base");
  if (file_.Find(key) == nullptr) return 10000.0;
  MILLRACE_ASSIGN_OR_RETURN(const double theta, file_.Float(key));
  if (theta >= 1 && theta <= 1e12) return theta;
  return Lies(StrCat("key ", key), StrCat(theta, " is outside of 1 to 1e12"));
}

// The factors of a tensor of F32 [dimensions / 2]; empty where the file has none.
absl::StatusOr<std::vector<float>> GgufReader::RopeFactors(const char* name, int dimensions) const {
  const TensorInfo* tensor = file_.FindTensor(name);
  if (tensor == nullptr) return std::vector<float>();
  const std::vector<int64_t> shape = {dimensions / 2};
  if (tensor->type != TensorType::kF32 || tensor->shape != shape) {
    return Lies(StrCat("tensor ", name),
                StrCat("is ", Traits(tensor->type).name, " ", ShapeString(tensor->shape),
                       ", must be F32 ", ShapeString(shape)));
  }
  std::vector<float> factors(shape[0]);
  std::memcpy(factors.data(), file_.Data(*tensor).data(), tensor->bytes);
  for (const float factor : factors) {
    if (!(factor > 0 && factor <= 1e6f)) {
      return Lies(StrCat("tensor ", name),
                  StrCat("holds ", factor, ", must be above 0 and at most 1e6"));
    }
  }
  return factors;
}

// Factors are tensors where they are Llama 3.1's or LongRoPE's, and made from rope.scaling.type
// else.
absl::StatusOr<RopeConfig> GgufReader::Rope(int head_size, bool rounds_yarn,
                                            int* context_length) const {
  RopeConfig rope;
  rope.interleaved = family_.interleaved_in_gguf;
  MILLRACE_ASSIGN_OR_RETURN(rope.dimensions, IntOr("rope.dimension_count", head_size, head_size));
  if (rope.dimensions % 2 != 0) {
    return Lies(StrCat("key ", Key("rope.dimension_count")),
                StrCat(rope.dimensions, " is not even"));
  }
  MILLRACE_ASSIGN_OR_RETURN(rope.theta, Theta());
  MILLRACE_ASSIGN_OR_RETURN(rope.factors, RopeFactors(kRopeFactors, rope.dimensions));
  MILLRACE_ASSIGN_OR_RETURN(std::vector<float> shorts,
                            RopeFactors(kShortRopeFactors, rope.dimensions));
  MILLRACE_ASSIGN_OR_RETURN(rope.long_factors, RopeFactors(kLongRopeFactors, rope.dimensions));
  MILLRACE_ASSIGN_OR_RETURN(rope.magnitude, FloatOr("rope.scaling.attn_factor", 1, 1e-3, 1e3));
  MILLRACE_ASSIGN_OR_RETURN(const int trained, IntOr("rope.scaling.original_context_length",
                                                     kMaxContext, *context_length));
  if (shorts.empty() != rope.long_factors.empty()) {
    return Lies("rope factors", "there are short ones or long ones, must be both");
  }
  if (!shorts.empty()) {
    rope.factors = std::move(shorts);
    rope.trained = trained;
    return rope;
  }
  // The older name first.
  MILLRACE_ASSIGN_OR_RETURN(double factor, FloatOr("rope.scale_linear", 1, 1, 1e6));
  MILLRACE_ASSIGN_OR_RETURN(factor, FloatOr("rope.scaling.factor", factor, 1, 1e6));
  const std::string key = Key("rope.scaling.type");
  std::string_view type = "linear";  // where only a factor stands
  if (file_.Find(key) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(type, file_.String(key));
  }
  if (type == "yarn") {
    MILLRACE_RETURN_IF_ERROR(ReadYarn(
        {.factor = factor, .truncate = rounds_yarn, .trained = trained}, &rope, context_length));
    return rope;
  }
  if (rope.magnitude != 1 || (type != "none" && type != "linear")) {
    return Unsupported(key, StrCat("\"", Printable(type), "\" is not supported (supported: none, ",
                                   "linear, yarn, and LongRoPE's factors as tensors)"));
  }
  if (type == "linear" && factor != 1) {
    if (!rope.factors.empty()) return Lies(StrCat("key ", key), "there are rope factors as well");
    rope.factors = LinearFactors(factor, rope.dimensions);
  }
  return rope;
}

absl::Status GgufReader::ReadYarn(const YarnStretch& said, RopeConfig* rope,
                                  int* context_length) const {
  MILLRACE_RETURN_IF_ERROR(RefuseFloat("rope.scaling.yarn_ext_factor", 1));
  MILLRACE_RETURN_IF_ERROR(RefuseFloat("rope.scaling.yarn_attn_factor", 1));
  MILLRACE_RETURN_IF_ERROR(RefuseFloat("rope.scaling.yarn_log_multiplier", 0));
  YarnStretch stretch = said;
  MILLRACE_ASSIGN_OR_RETURN(stretch.fast, FloatOr("rope.scaling.yarn_beta_fast", 32, 1e-3, 1e6));
  MILLRACE_ASSIGN_OR_RETURN(stretch.slow, FloatOr("rope.scaling.yarn_beta_slow", 1, 1e-3, 1e6));
  if (!rope->factors.empty() || !(rope->theta > 1)) {
    return Lies(StrCat("key ", Key("rope.scaling.type")),
                "yarn with factors of its own, or with a base of 1");
  }
  rope->factors = YarnFactors(stretch, rope->theta, rope->dimensions);
  rope->magnitude *= YarnMagnitude(stretch.factor);
  const double stretched = std::min<double>(stretch.factor * stretch.trained, kMaxContext);
  *context_length = std::max(*context_length, static_cast<int>(stretched));
  return absl::OkStatus();
}

}  // namespace millrace
