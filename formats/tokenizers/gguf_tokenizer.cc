#include "formats/tokenizers/gguf_tokenizer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "formats/tokenizers/gguf_special_tokens.h"
#include "formats/tokenizers/tokenizer_pre.h"

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
  if (types.size() < gguf->tokens.size()) {
    return Lies(file, kTypes, StrCat(types.size(), " types for ", gguf->tokens.size(), " tokens"));
  }
  gguf->types.reserve(gguf->tokens.size());
  for (size_t id = 0; id < gguf->tokens.size(); ++id) {
    const int32_t type = types[id];
    if (type < 0 || type > 6) return Lies(file, kTypes, StrCat(type, " is outside of 0 to 6"));
    // 0 is "undefined".
    gguf->types.push_back(type == 0 ? TokenType::kNormal : static_cast<TokenType>(type));
  }
  return absl::OkStatus();
}

absl::Status ReadScores(const GgufFile& file, GgufTokenizer* gguf) {
  constexpr std::string_view kScores = "tokenizer.ggml.scores";
  const GgufValue* value = file.Find(kScores);
  const size_t tokens = gguf->tokens.size();
  gguf->scores.assign(tokens, 0);
  // llama.cpp takes all for equally good.
  if (value == nullptr) return absl::OkStatus();
  const auto* array = std::get_if<GgufArray>(value);
  const bool whole = array != nullptr && array->element_type == "int32";
  if (array == nullptr || (array->element_type != "float32" && !whole)) {
    return Lies(file, kScores, "must be an array of float32 or int32");
  }
  if (array->count < tokens) {
    return Lies(file, kScores, StrCat(array->count, " scores for ", tokens, " tokens"));
  }
  if (whole) {
    MILLRACE_ASSIGN_OR_RETURN(const std::vector<int32_t> scores, file.Int32s(kScores));
    std::copy_n(scores.begin(), tokens, gguf->scores.begin());
    return absl::OkStatus();
  }
  std::memcpy(gguf->scores.data(), array->bytes.data(), tokens * sizeof(float));
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

// Reads a token's id. One beyond the vocabulary, as converters write for "none", is left out with a
// warning.
absl::Status ReadId(const GgufFile& file, std::string_view key, std::optional<int32_t>* id,
                    GgufTokenizer* gguf) {
  if (file.Find(key) == nullptr) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(const int64_t number, file.Int(key, std::numeric_limits<int64_t>::min(),
                                                           std::numeric_limits<int64_t>::max()));
  const size_t tokens = gguf->tokens.size();
  if (number >= 0 && static_cast<size_t>(number) < tokens) {
    *id = static_cast<int32_t>(number);
  } else {
    gguf->warnings.push_back(StrCat("key ", key, ": ", number,
                                    " is left out, since the vocabulary has ", tokens, " tokens"));
  }
  return absl::OkStatus();
}

absl::Status ReadFlag(const GgufFile& file, std::string_view key, bool* flag) {
  if (file.Find(key) == nullptr) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(*flag, file.Bool(key));
  return absl::OkStatus();
}

// Sets the special tokens that llama.cpp takes where a file has no keys for them: those of Llama's
// and T5's vocabularies. Falcon's end of text is GPT-2's only one.
void SetDefaultIds(GgufTokenizer* gguf) {
  const auto set = [&](int32_t id, std::initializer_list<std::optional<int32_t>*> places) {
    if (static_cast<size_t>(id) >= gguf->tokens.size()) return;
    for (std::optional<int32_t>* place : places) *place = id;
  };
  constexpr size_t kFalconEnd = 11;
  switch (gguf->kind) {
    case TokenizerKind::kLlama:
      set(0, {&gguf->unknown});
      set(1, {&gguf->bos});
      set(2, {&gguf->eos});
      break;
    case TokenizerKind::kT5:
      set(0, {&gguf->pad});
      set(1, {&gguf->eos});
      set(2, {&gguf->unknown});
      break;
    case TokenizerKind::kGpt2:
      if (gguf->tokens.size() > kFalconEnd && gguf->types[kFalconEnd] == TokenType::kControl) {
        set(kFalconEnd, {&gguf->bos, &gguf->eos});
      }
      break;
    case TokenizerKind::kGemma4:
    case TokenizerKind::kBert:
      break;
  }
}

absl::Status ReadIds(const GgufFile& file, GgufTokenizer* gguf) {
  SetDefaultIds(gguf);
  // Of two names the older one comes first: the newer one goes before it. One is spelled so.
  const std::pair<std::string_view, std::optional<int32_t>*> ids[] = {
      {"bos", &gguf->bos},
      {"eos", &gguf->eos},
      {"eot", &gguf->eot},
      {"eom", &gguf->eom},
      {"padding", &gguf->pad},
      {"unknown", &gguf->unknown},
      {"cls", &gguf->cls},
      {"seperator", &gguf->separator},
      {"prefix", &gguf->fim_prefix},
      {"suffix", &gguf->fim_suffix},
      {"middle", &gguf->fim_middle},
      {"fim_pre", &gguf->fim_prefix},
      {"fim_suf", &gguf->fim_suffix},
      {"fim_mid", &gguf->fim_middle},
      {"fim_pad", &gguf->fim_padding},
      {"fim_rep", &gguf->fim_repository},
      {"fim_sep", &gguf->fim_separator},
  };
  for (const auto& [name, id] : ids) {
    MILLRACE_RETURN_IF_ERROR(ReadId(file, StrCat("tokenizer.ggml.", name, "_token_id"), id, gguf));
  }
  return absl::OkStatus();
}

// Reads which tokens stand around a text.
absl::Status ReadFrame(const GgufFile& file, GgufTokenizer* gguf) {
  if (gguf->kind == TokenizerKind::kGpt2) {
    const GgufPreTokenizer* pre = FindGgufPreTokenizer(gguf->pre);
    gguf->add_bos = gguf->bos.has_value() && pre != nullptr && pre->add_bos;
  } else if (gguf->kind == TokenizerKind::kLlama) {
    gguf->add_bos = gguf->bos.has_value();
  } else if (gguf->kind == TokenizerKind::kT5) {
    gguf->add_eos = gguf->eos.has_value();
  }
  MILLRACE_RETURN_IF_ERROR(ReadFlag(file, "tokenizer.ggml.add_bos_token", &gguf->add_bos));
  MILLRACE_RETURN_IF_ERROR(ReadFlag(file, "tokenizer.ggml.add_eos_token", &gguf->add_eos));
  MILLRACE_RETURN_IF_ERROR(ReadFlag(file, "tokenizer.ggml.add_sep_token", &gguf->add_sep));
  if (gguf->add_bos && !gguf->bos) {
    return Lies(file, "tokenizer.ggml.add_bos_token", "is true, but there is no bos_token_id");
  }
  if (gguf->add_eos && !gguf->eos) {
    return Lies(file, "tokenizer.ggml.add_eos_token", "is true, but there is no eos_token_id");
  }
  return absl::OkStatus();
}

absl::Status ReadTemplate(const GgufFile& file, std::string_view key, std::string_view* text) {
  if (file.Find(key) == nullptr) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(*text, file.String(key));
  if (text->size() <= kMaxTemplateBytes) return absl::OkStatus();
  return Lies(file, key, StrCat(text->size(), " bytes, must be at most ", kMaxTemplateBytes));
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
  if (gguf.kind == TokenizerKind::kGpt2 && gguf.pre == "default") {
    gguf.warnings.push_back(StrCat(
        "key tokenizer.ggml.pre: ",
        file.Find("tokenizer.ggml.pre") == nullptr ? "is missing" : "is \"default\"",
        ", so that texts are cut as llama.cpp cuts them then, and not as the model was trained "
        "with: its answers are worse. Take a newer GGUF file of the model"));
  }
  MILLRACE_RETURN_IF_ERROR(ReadTokens(file, &gguf));
  if (gguf.kind == TokenizerKind::kGpt2 || gguf.kind == TokenizerKind::kGemma4) {
    MILLRACE_ASSIGN_OR_RETURN(gguf.merges, file.Strings("tokenizer.ggml.merges"));
  }
  if (gguf.kind == TokenizerKind::kLlama || gguf.kind == TokenizerKind::kT5) {
    MILLRACE_RETURN_IF_ERROR(ReadScores(file, &gguf));
  }
  MILLRACE_RETURN_IF_ERROR(ReadCharsmap(file, &gguf));

  MILLRACE_RETURN_IF_ERROR(ReadIds(file, &gguf));
  MILLRACE_RETURN_IF_ERROR(ReadFrame(file, &gguf));
  const bool spaced = gguf.kind == TokenizerKind::kLlama || gguf.kind == TokenizerKind::kT5;
  gguf.add_space_prefix = gguf.kind == TokenizerKind::kLlama;
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
  MILLRACE_RETURN_IF_ERROR(ReadTemplate(file, "tokenizer.chat_template", &gguf.chat_template));
  MILLRACE_RETURN_IF_ERROR(
      ReadTemplate(file, "tokenizer.chat_template.tool_use", &gguf.tool_template));
  if (file.Find("tokenizer.ggml.suppress_tokens") != nullptr) {
    gguf.warnings.emplace_back(
        "key tokenizer.ggml.suppress_tokens: is not followed, so that the model may answer with "
        "these tokens (a request's logit_bias of -100 keeps one away)");
  }
  std::string_view name;
  if (const GgufValue* value = file.Find("general.name")) {
    if (const auto* text = std::get_if<std::string_view>(value)) name = *text;
  }
  FindSpecialTokens(name, &gguf);
  return gguf;
}

}  // namespace millrace
