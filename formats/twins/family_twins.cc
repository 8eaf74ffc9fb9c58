#include "formats/twins/family_twins.h"

#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "formats/families/families.h"

namespace millrace {
namespace {

// The decoders' twins have this in common: 64 wide, 4 heads that share 2 of keys and values, of 32
// elements where a family lets them differ from 64 / 4.
Json CommonConfig(const Family& family) {
  return {{"architectures", Json::array({family.hf[0].name})},
          {"model_type", family.name},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 32},
          {"vocab_size", 128},
          {"max_position_embeddings", 256},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"hidden_act", "silu"},
          {"bos_token_id", 1},
          {"eos_token_id", 2},
          {"pad_token_id", nullptr},
          {"tie_word_embeddings", false},
          {"torch_dtype", "float32"}};
}

FamilyTwin ReadTwin(const Family& family, const Json& json) {
  FamilyTwin twin{.name = json["name"],
                  .family = &family,
                  .config = json.value("config", CommonConfig(family)),
                  .max_model_len = json.value("max_model_len", 0),
                  .in_gguf = json.value("in_gguf", true),
                  .gguf_name = json.value("gguf_name", ""),
                  .gguf_keys = json.value("gguf_keys", Json::object()),
                  .gguf_more = json.value("gguf_more", Json::object()),
                  .pooling = json.value("pooling", ""),
                  .normalize = json.value("normalize", false),
                  .bare_names = json.value("bare_names", false),
                  .classifier = json.value("classifier", ""),
                  .spread = json.value("spread", 0.35),
                  .fused_in_gguf = json.value("fused_in_gguf", false),
                  .spelled = json.value("spelled", std::vector<std::string>()),
                  .mutations = {}};
  twin.config.merge_patch(json.value("changes", Json::object()));
  if (!json.contains("config")) {
    for (const char* epsilon : {"rms_norm_eps", "norm_eps", "layer_norm_epsilon"}) {
      if (twin.config.contains(epsilon)) twin.mutations = {Json::object({{epsilon, 0.09}})};
    }
    if (twin.config.contains("rope_theta")) {
      twin.mutations.insert(twin.mutations.begin(), Json::object({{"rope_theta", 500.0}}));
    }
  }
  for (const Json& mutation : json.value("mutations", Json::array())) {
    twin.mutations.push_back(mutation);
  }
  return twin;
}

std::vector<FamilyTwin> TwinsOf(const Family& family) {
  const absl::StatusOr<Json> list = ParseJson(family.twins, {});
  if (!list.ok()) {
    std::fprintf(stderr, "%s: %s\n", std::string(family.name).c_str(),
                 list.status().ToString().c_str());
    std::abort();
  }
  std::vector<FamilyTwin> twins;
  for (const Json& twin : *list) twins.push_back(ReadTwin(family, twin));
  return twins;
}

enum class TwinKind { kDecoder, kPooler, kEncoder, kClassifier };

TwinKind KindOf(const FamilyTwin& twin) {
  if (!twin.classifier.empty()) return TwinKind::kClassifier;
  if (twin.pooling.empty()) return TwinKind::kDecoder;
  return twin.family->name.ends_with("bert") ? TwinKind::kEncoder : TwinKind::kPooler;
}

std::vector<FamilyTwin> AllTwins(TwinKind kind) {
  std::vector<FamilyTwin> twins;
  for (const Family* family : Families()) {
    for (FamilyTwin& twin : TwinsOf(*family)) {
      if (KindOf(twin) == kind) twins.push_back(std::move(twin));
    }
  }
  return twins;
}

}  // namespace

std::vector<FamilyTwin> FamilyTwins() { return AllTwins(TwinKind::kDecoder); }

FamilyTwin FamilyTwinOf(std::string_view name) {
  for (FamilyTwin& twin : FamilyTwins()) {
    if (twin.name == name) return std::move(twin);
  }
  std::fprintf(stderr, "no family has a twin %.*s\n", static_cast<int>(name.size()), name.data());
  std::abort();
}

std::vector<FamilyTwin> PoolerTwins() { return AllTwins(TwinKind::kPooler); }

std::vector<FamilyTwin> EncoderTwins() { return AllTwins(TwinKind::kEncoder); }

std::vector<FamilyTwin> ClassifierTwins() { return AllTwins(TwinKind::kClassifier); }

}  // namespace millrace
