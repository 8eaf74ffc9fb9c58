// BERT (arXiv:1810.04805) and what is trained from it to embed texts (Sentence-BERT,
// arXiv:1908.10084; MiniLM, BGE, GTE, E5): an encoder whose layers norm the sum of the residual and
// what a block adds, with biases everywhere. RoBERTa (arXiv:1907.11692), CamemBERT
// (arXiv:1911.03894) and XLM-R (arXiv:1911.02116) differ in the row of the first position; so does
// MPNet (arXiv:2004.09297), which adds a bias of the distance to each score and has no types of
// tokens. DistilBERT (arXiv:1910.01108) has no types either. All are read with a head that scores a
// pair of texts, too.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "formats/families/bert_twins.h"
#include "formats/families/classifier_config.h"
#include "formats/families/encoder.h"
#include "formats/families/families.h"

namespace millrace {
namespace {

constexpr int kMpNetBuckets = 32;  // whatever the config says

// Reads all but the types of tokens.
absl::StatusOr<ModelConfig> ReadBody(const HfReader& config, const HfEncoderNames& names = {},
                                     const char* function_field = "hidden_act") {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, ReadHfEncoder(config, names));
  model.encoder->positions = model.context_length;
  const std::pair<const char*, Json> neutral[] = {
      {function_field, Json::array({"gelu"})},
      {"position_embedding_type", Json::array({"absolute"})},
      {"is_decoder", Json::array({false})},
      {"add_cross_attention", Json::array({false})}};
  for (const auto& [name, values] : neutral) {
    MILLRACE_RETURN_IF_ERROR(config.fields().Refuse(name, values));
  }
  return model;
}

absl::StatusOr<ModelConfig> ReadHf(const HfReader& config) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, ReadBody(config));
  MILLRACE_ASSIGN_OR_RETURN(model.encoder->token_types,
                            config.IntOr("type_vocab_size", kMaxTokenTypes, 2));
  return model;
}

// Begins positions behind the row of padding.
absl::Status BeginBehind(int padding, const JsonFields& fields, ModelConfig* model) {
  EncoderConfig& encoder = *model->encoder;
  encoder.first_position = padding + 1;
  model->context_length = encoder.positions - encoder.first_position;
  if (model->context_length >= 1) return absl::OkStatus();
  return fields.Bad("max_position_embeddings",
                    StrCat("is ", encoder.positions, ", must be more than ", encoder.first_position,
                           ", pad_token_id + 1"));
}

// RoBERTa's positions begin behind the padding token's id.
absl::StatusOr<ModelConfig> ReadRoberta(const HfReader& config) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, ReadHf(config));
  int64_t padding = 1;
  if (config.fields().Find("pad_token_id") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(padding, config.fields().Int("pad_token_id", 0, kMaxVocab));
  }
  MILLRACE_RETURN_IF_ERROR(BeginBehind(static_cast<int>(padding), config.fields(), &model));
  return model;
}

// MPNet's row of padding is 1, whatever the config says.
absl::StatusOr<ModelConfig> ReadMpNet(const HfReader& config) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, ReadBody(config));
  MILLRACE_RETURN_IF_ERROR(
      config.fields().Refuse("relative_attention_num_buckets", Json::array({kMpNetBuckets})));
  model.encoder->position_buckets = kMpNetBuckets;
  MILLRACE_RETURN_IF_ERROR(BeginBehind(/*padding=*/1, config.fields(), &model));
  return model;
}

absl::StatusOr<ModelConfig> ReadDistilBert(const HfReader& config) {
  return ReadBody(config,
                  {.layers = "n_layers",
                   .hidden_size = "dim",
                   .ffn_size = "hidden_dim",
                   .heads = "n_heads",
                   .epsilon = nullptr,
                   .context = 512},
                  "activation");
}

template <absl::StatusOr<ModelConfig> (*kRead)(const HfReader&)>
absl::StatusOr<ModelConfig> ReadClassifier(const HfReader& config) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, kRead(config));
  MILLRACE_ASSIGN_OR_RETURN(model.encoder->classifier, ReadClassifierHead(config.fields()));
  return model;
}

absl::StatusOr<ModelConfig> ReadDistilBertClassifier(const HfReader& config) {
  MILLRACE_ASSIGN_OR_RETURN(ModelConfig model, ReadClassifier<ReadDistilBert>(config));
  model.encoder->classifier->function = HeadFunction::kRelu;
  return model;
}

absl::StatusOr<ModelConfig> ReadGguf(const GgufReader& reader) { return ReadEncoderGguf(reader); }

constexpr HfArchitecture kArchitectures[] = {
    {"BertModel", ReadHf},
    {"BertForMaskedLM", ReadHf},
    {"BertForPreTraining", ReadHf},
    {"BertForSequenceClassification", ReadClassifier<ReadHf>},
    {"XLMRobertaModel", ReadRoberta},
    {"XLMRobertaForMaskedLM", ReadRoberta},
    {"XLMRobertaForSequenceClassification", ReadClassifier<ReadRoberta>},
    {"RobertaModel", ReadRoberta},
    {"RobertaForMaskedLM", ReadRoberta},
    {"RobertaForSequenceClassification", ReadClassifier<ReadRoberta>},
    {"CamembertModel", ReadRoberta},
    {"CamembertForMaskedLM", ReadRoberta},
    {"CamembertForSequenceClassification", ReadClassifier<ReadRoberta>},
    {"MPNetModel", ReadMpNet},
    {"MPNetForMaskedLM", ReadMpNet},
    {"MPNetForSequenceClassification", ReadClassifier<ReadMpNet>},
    {"DistilBertModel", ReadDistilBert},
    {"DistilBertForMaskedLM", ReadDistilBert},
    {"DistilBertForSequenceClassification", ReadDistilBertClassifier}};

// A module's spellings are BERT's, then MPNet's and DistilBERT's.
constexpr Spelling kSpellings[] = {
    {"token_embd", "embeddings.word_embeddings"},
    {"position_embd", "embeddings.position_embeddings"},
    {"token_types", "embeddings.token_type_embeddings"},
    {"token_embd_norm", "embeddings.LayerNorm"},
    {"attn_rel_b", "encoder.relative_attention_bias"},
    {"blk.#.attn_q", "encoder.layer.#.attention.self.query"},
    {"blk.#.attn_q", "encoder.layer.#.attention.attn.q"},
    {"blk.#.attn_q", "transformer.layer.#.attention.q_lin"},
    {"blk.#.attn_k", "encoder.layer.#.attention.self.key"},
    {"blk.#.attn_k", "encoder.layer.#.attention.attn.k"},
    {"blk.#.attn_k", "transformer.layer.#.attention.k_lin"},
    {"blk.#.attn_v", "encoder.layer.#.attention.self.value"},
    {"blk.#.attn_v", "encoder.layer.#.attention.attn.v"},
    {"blk.#.attn_v", "transformer.layer.#.attention.v_lin"},
    {"blk.#.attn_output", "encoder.layer.#.attention.output.dense"},
    {"blk.#.attn_output", "encoder.layer.#.attention.attn.o"},
    {"blk.#.attn_output", "transformer.layer.#.attention.out_lin"},
    {"blk.#.attn_output_norm", "encoder.layer.#.attention.output.LayerNorm"},
    {"blk.#.attn_output_norm", "encoder.layer.#.attention.LayerNorm"},
    {"blk.#.attn_output_norm", "transformer.layer.#.sa_layer_norm"},
    {"blk.#.ffn_up", "encoder.layer.#.intermediate.dense"},
    {"blk.#.ffn_up", "transformer.layer.#.ffn.lin1"},
    {"blk.#.ffn_down", "encoder.layer.#.output.dense"},
    {"blk.#.ffn_down", "transformer.layer.#.ffn.lin2"},
    {"blk.#.layer_output_norm", "encoder.layer.#.output.LayerNorm"},
    {"blk.#.layer_output_norm", "transformer.layer.#.output_layer_norm"},
    {"cls", "pooler.dense"},
    {"cls", "classifier.dense"},  // RoBERTa's and MPNet's
    {"cls", "pre_classifier"},    // DistilBERT's
    {"cls.output", "classifier"},
    {"cls.output", "classifier.out_proj"},
};
// The others are of models with a head.
constexpr std::string_view kPrefixes[] = {"", "bert.", "roberta.", "mpnet.", "distilbert."};
// Heads that make no embeddings, poolers, and numbers from 0 on that old files store.
constexpr std::string_view kIgnored[] = {"pooler.",
                                         "bert.pooler.",
                                         "roberta.pooler.",
                                         "mpnet.pooler.",
                                         "cls.",
                                         "lm_head.",
                                         "vocab_transform.",
                                         "vocab_layer_norm.",
                                         "vocab_projector.",
                                         "embeddings.position_ids",
                                         "bert.embeddings.position_ids",
                                         "roberta.embeddings.position_ids",
                                         "mpnet.embeddings.position_ids"};

}  // namespace

constexpr Family kBert = {.name = "bert",
                          .hf = kArchitectures,
                          .read_gguf = ReadGguf,
                          .tensors = EncoderTensors,
                          .spellings = kSpellings,
                          .hf_prefixes = kPrefixes,
                          .ignored = kIgnored,
                          .twins = kBertTwins};

}  // namespace millrace
