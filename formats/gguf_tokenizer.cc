#include "formats/gguf_tokenizer.h"

#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "formats/tokenizer_pre.h"

namespace millrace {
namespace {

constexpr size_t kMaxTokens = 1 << 22;
constexpr size_t kMaxTokenBytes = 1 << 16;
constexpr size_t kMaxTemplateBytes = 1 << 20;

absl::Status Lies(const GgufFile& file, std::string_view key, std::string_view what) {
  return absl::InvalidArgumentError(StrCat(file.base_name(), ": key ", key, ": ", what));
}

absl::Status ReadTokens(const GgufFile& file, GgufTokenizer* gguf) {
  constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
  MILLRACE_ASSIGN_OR_RETURN(gguf->tokens, file.Strings(kTokens));
  if (gguf->tokens.empty() || gguf->tokens.size() > kMaxTokens) {
    return Lies(file, kTokens, StrCat(gguf->tokens.size(), " tokens, must be 1 to ", kMaxTokens));
  }
  for (size_t id = 0; id < gguf->tokens.size(); ++id) {
    if (gguf->tokens[id].size() > kMaxTokenBytes) {
      return Lies(file, kTokens,
                  StrCat("token ", id, " has ", gguf->tokens[id].size(), " bytes, must be at most ",
                         kMaxTokenBytes));
    }
  }
  constexpr std::string_view kTypes = "tokenizer.ggml.token_type";
  if (file.Find(kTypes) == nullptr) {
    gguf->types.assign(gguf->tokens.size(), TokenType::kNormal);
    return absl::OkStatus();
  }
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<int32_t> types, file.Int32s(kTypes));
  if (types.size() != gguf->tokens.size()) {
    return Lies(file, kTypes, StrCat(types.size(), " types for ", gguf->tokens.size(), " tokens"));
  }
  gguf->types.reserve(types.size());
  for (const int32_t type : types) {
    if (type < 1 || type > 6) return Lies(file, kTypes, StrCat(type, " is outside of 1 to 6"));
    gguf->types.push_back(static_cast<TokenType>(type));
  }
  return absl::OkStatus();
}

absl::Status ReadScores(const GgufFile& file, GgufTokenizer* gguf) {
  constexpr std::string_view kScores = "tokenizer.ggml.scores";
  const GgufValue* value = file.Find(kScores);
  const auto* array = value == nullptr ? nullptr : std::get_if<GgufArray>(value);
  if (array == nullptr || array->element_type != "float32") {
    return Lies(file, kScores, "must be an array of float32");
  }
  if (array->count != gguf->tokens.size()) {
    return Lies(file, kScores,
                StrCat(array->count, " scores for ", gguf->tokens.size(), " tokens"));
  }
  gguf->scores.resize(array->count);
  std::memcpy(gguf->scores.data(), array->bytes.data(), array->bytes.size());
  for (const float score : gguf->scores) {
    if (!std::isfinite(score)) return Lies(file, kScores, "one is not finite");
  }
  return absl::OkStatus();
}

absl::Status ReadCharsmap(const GgufFile& file, GgufTokenizer* gguf) {
  constexpr std::string_view kCharsmap = "tokenizer.ggml.precompiled_charsmap";
  const GgufValue* value = file.Find(kCharsmap);
  if (value == nullptr) return absl::OkStatus();
  const auto* array = std::get_if<GgufArray>(value);
  if (array == nullptr || (array->element_type != "uint8" && array->element_type != "int8")) {
    return Lies(file, kCharsmap, "must be an array of uint8");
  }
  gguf->charsmap = array->bytes;
  return absl::OkStatus();
}

absl::StatusOr<TokenizerKind> ReadKind(const GgufFile& file) {
  constexpr std::string_view kModel = "tokenizer.ggml.model";
  constexpr std::pair<std::string_view, TokenizerKind> kKinds[] = {
      {"bert", TokenizerKind::kBert}, {"gemma4", TokenizerKind::kGemma4},
      {"gpt2", TokenizerKind::kGpt2}, {"llama", TokenizerKind::kLlama},
      {"t5", TokenizerKind::kT5},     {"whitespace", TokenizerKind::kGpt2},
  };
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view model, file.String(kModel));
  std::vector<std::string_view> known;
  for (const auto& [name, kind] : kKinds) {
    if (name == model) return kind;
    known.push_back(name);
  }
  return absl::UnimplementedError(StrCat(file.base_name(), ": key ", kModel, ": \"",
                                         Printable(model),
                                         "\" is not supported (supported: ", JoinList(known), ")"));
}

absl::Status ReadId(const GgufFile& file, std::string_view key, size_t tokens,
                    std::optional<int32_t>* id) {
  if (file.Find(key) == nullptr) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(*id, file.Int(key, 0, static_cast<int64_t>(tokens) - 1));
  return absl::OkStatus();
}

absl::Status ReadFlag(const GgufFile& file, std::string_view key, bool* flag) {
  if (file.Find(key) == nullptr) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(*flag, file.Bool(key));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GgufTokenizer> ReadGgufTokenizer(const GgufFile& file) {
  GgufTokenizer gguf;
  MILLRACE_ASSIGN_OR_RETURN(gguf.kind, ReadKind(file));
  gguf.pre = "default";
  if (file.Find("tokenizer.ggml.pre") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(gguf.pre, file.String("tokenizer.ggml.pre"));
  }
  if (gguf.kind == TokenizerKind::kGpt2 && IsSentencePiecePre(gguf.pre)) {
    gguf.kind = TokenizerKind::kGemma4;
  }
  MILLRACE_RETURN_IF_ERROR(ReadTokens(file, &gguf));
  if (gguf.kind == TokenizerKind::kGpt2 || gguf.kind == TokenizerKind::kGemma4) {
    MILLRACE_ASSIGN_OR_RETURN(gguf.merges, file.Strings("tokenizer.ggml.merges"));
  }
  if (gguf.kind == TokenizerKind::kLlama || gguf.kind == TokenizerKind::kT5) {
    MILLRACE_RETURN_IF_ERROR(ReadScores(file, &gguf));
  }
  MILLRACE_RETURN_IF_ERROR(ReadCharsmap(file, &gguf));

  const size_t tokens = gguf.tokens.size();
  MILLRACE_RETURN_IF_ERROR(ReadId(file, "tokenizer.ggml.bos_token_id", tokens, &gguf.bos));
  MILLRACE_RETURN_IF_ERROR(ReadId(file, "tokenizer.ggml.eos_token_id", tokens, &gguf.eos));
  MILLRACE_RETURN_IF_ERROR(ReadId(file, "tokenizer.ggml.eot_token_id", tokens, &gguf.eot));
  MILLRACE_RETURN_IF_ERROR(ReadId(file, "tokenizer.ggml.eom_token_id", tokens, &gguf.eom));
  MILLRACE_RETURN_IF_ERROR(ReadId(file, "tokenizer.ggml.padding_token_id", tokens, &gguf.pad));
  MILLRACE_RETURN_IF_ERROR(ReadId(file, "tokenizer.ggml.unknown_token_id", tokens, &gguf.unknown));
  MILLRACE_RETURN_IF_ERROR(ReadId(file, "tokenizer.ggml.cls_token_id", tokens, &gguf.cls));
  // The key is spelled so.
  MILLRACE_RETURN_IF_ERROR(
      ReadId(file, "tokenizer.ggml.seperator_token_id", tokens, &gguf.separator));
  // Each has two names, the newer one first.
  for (const auto& [newer, older, id] : {std::tuple("fim_pre", "prefix", &gguf.fim_prefix),
                                         std::tuple("fim_suf", "suffix", &gguf.fim_suffix),
                                         std::tuple("fim_mid", "middle", &gguf.fim_middle)}) {
    for (const char* const name : {older, newer}) {
      MILLRACE_RETURN_IF_ERROR(
          ReadId(file, StrCat("tokenizer.ggml.", name, "_token_id"), tokens, id));
    }
  }
  if (gguf.kind == TokenizerKind::kGpt2 && gguf.bos) {
    const GgufPreTokenizer* pre = FindGgufPreTokenizer(gguf.pre);
    gguf.add_bos = pre != nullptr && pre->add_bos;
  }
  MILLRACE_RETURN_IF_ERROR(ReadFlag(file, "tokenizer.ggml.add_bos_token", &gguf.add_bos));
  MILLRACE_RETURN_IF_ERROR(ReadFlag(file, "tokenizer.ggml.add_eos_token", &gguf.add_eos));
  MILLRACE_RETURN_IF_ERROR(ReadFlag(file, "tokenizer.ggml.add_sep_token", &gguf.add_sep));
  if (gguf.add_bos && !gguf.bos) {
    return Lies(file, "tokenizer.ggml.add_bos_token", "is true, but there is no bos_token_id");
  }
  if (gguf.add_eos && !gguf.eos) {
    return Lies(file, "tokenizer.ggml.add_eos_token", "is true, but there is no eos_token_id");
  }
  const bool spaced = gguf.kind == TokenizerKind::kLlama || gguf.kind == TokenizerKind::kT5;
  gguf.add_space_prefix = spaced;
  MILLRACE_RETURN_IF_ERROR(
      ReadFlag(file, "tokenizer.ggml.add_space_prefix", &gguf.add_space_prefix));
  if (gguf.add_space_prefix && !spaced) {
    return absl::UnimplementedError(StrCat(file.base_name(),
                                           ": key tokenizer.ggml.add_space_prefix: true is not "
                                           "supported for this tokenizer.ggml.model"));
  }
  MILLRACE_RETURN_IF_ERROR(
      ReadFlag(file, "tokenizer.ggml.remove_extra_whitespaces", &gguf.remove_extra_whitespaces));
  gguf.lowercase = gguf.kind == TokenizerKind::kBert;
  MILLRACE_RETURN_IF_ERROR(ReadFlag(file, "tokenizer.ggml.normalizer.lowercase", &gguf.lowercase));
  gguf.strip_accents = gguf.lowercase;
  MILLRACE_RETURN_IF_ERROR(
      ReadFlag(file, "tokenizer.ggml.normalizer.strip_accents", &gguf.strip_accents));
  constexpr std::string_view kTemplate = "tokenizer.chat_template";
  if (file.Find(kTemplate) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(gguf.chat_template, file.String(kTemplate));
    if (gguf.chat_template.size() > kMaxTemplateBytes) {
      return Lies(file, kTemplate,
                  StrCat(gguf.chat_template.size(), " bytes, must be at most ", kMaxTemplateBytes));
    }
  }
  return gguf;
}

}  // namespace millrace
