#include "formats/tokenizers/tokenizer_json.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/status.h"
#include "base/strings.h"
#include "formats/tokenizers/pair_frame.h"
#include "formats/tokenizers/tokenizer_json_parts.h"

namespace millrace {
namespace {

constexpr size_t kMaxTokenBytes = 1 << 16;
constexpr JsonLimits kLimits = {.depth = 32, .values = 1 << 24};

// {"text": id, ...}, or a list of ids' [text, score]
absl::Status ReadVocabulary(const JsonFields& model, std::vector<VocabularyEntry>* vocabulary) {
  const Json* vocab = model.Find("vocab");
  if (vocab == nullptr || !(vocab->is_object() || vocab->is_array()) ||
      vocab->size() > static_cast<size_t>(kMaxTokenizerId)) {
    return model.Bad("vocab", StrCat("must be an object or a list of at most ", kMaxTokenizerId));
  }
  vocabulary->reserve(vocab->size());
  const auto add = [&](const std::string& text, int32_t id, double score) -> absl::Status {
    if (text.size() > kMaxTokenBytes) {
      return model.Bad(
          "vocab", StrCat("token ", id, " has ", text.size(), " bytes, at most ", kMaxTokenBytes));
    }
    vocabulary->push_back({text, id, score});
    return absl::OkStatus();
  };
  if (vocab->is_object()) {
    for (const auto& [text, id] : vocab->get_ref<const Json::object_t&>()) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > kMaxTokenizerId) {
        return model.Bad("vocab", StrCat("\"", Printable(text), "\" is ", Describe(id),
                                         ", must be an id from 0 to ", kMaxTokenizerId));
      }
      MILLRACE_RETURN_IF_ERROR(add(text, id.get<int32_t>(), 0));
    }
    return absl::OkStatus();
  }
  for (const Json& entry : *vocab) {
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number() ||
        !std::isfinite(entry[1].get<double>())) {
      return model.Bad("vocab", "must be a list of pairs of text and score");
    }
    MILLRACE_RETURN_IF_ERROR(add(entry[0].get_ref<const std::string&>(),
                                 static_cast<int32_t>(vocabulary->size()), entry[1].get<double>()));
  }
  return absl::OkStatus();
}

// "left right", or ["left", "right"]
absl::Status ReadMerges(const JsonFields& model, BpeModelSpec* bpe) {
  const Json* merges = model.Find("merges");
  if (merges == nullptr || !merges->is_array()) return model.Bad("merges", "must be a list");
  bpe->merges.reserve(merges->size());
  for (const Json& merge : *merges) {
    if (merge.is_string()) {
      const std::string_view pair = merge.get_ref<const std::string&>();
      const size_t space = pair.find(' ');
      if (space != std::string_view::npos && pair.find(' ', space + 1) == std::string_view::npos) {
        bpe->merges.emplace_back(pair.substr(0, space), pair.substr(space + 1));
        continue;
      }
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      bpe->merges.emplace_back(merge[0].get_ref<const std::string&>(),
                               merge[1].get_ref<const std::string&>());
      continue;
    }
    return model.Bad("merges", StrCat("entry ", bpe->merges.size(), " is ", Describe(merge),
                                      ", must be two tokens"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> TextOr(const JsonFields& fields, std::string_view name,
                                   std::string_view otherwise) {
  if (fields.Find(name) == nullptr) return std::string(otherwise);
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view text, fields.String(name));
  return std::string(text.substr(0, kMaxTokenBytes));
}

absl::StatusOr<SubwordModelSpec> ReadBpe(const JsonFields& model) {
  BpeModelSpec bpe;
  MILLRACE_RETURN_IF_ERROR(model.Refuse("dropout", {0, 0.0}));
  MILLRACE_RETURN_IF_ERROR(ReadMerges(model, &bpe));
  if (model.Find("unk_token") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(bpe.unknown, TextOr(model, "unk_token", ""));
  }
  MILLRACE_ASSIGN_OR_RETURN(bpe.continuing_prefix, TextOr(model, "continuing_subword_prefix", ""));
  MILLRACE_ASSIGN_OR_RETURN(bpe.word_suffix, TextOr(model, "end_of_word_suffix", ""));
  MILLRACE_ASSIGN_OR_RETURN(bpe.fuse_unknown, model.BoolOr("fuse_unk", false));
  MILLRACE_ASSIGN_OR_RETURN(bpe.byte_fallback, model.BoolOr("byte_fallback", false));
  MILLRACE_ASSIGN_OR_RETURN(bpe.ignore_merges, model.BoolOr("ignore_merges", false));
  return bpe;
}

absl::StatusOr<SubwordModelSpec> ReadUnigram(const JsonFields& model, size_t tokens) {
  UnigramModelSpec unigram;
  if (tokens == 0) return model.Bad("vocab", "is empty");
  if (model.Find("unk_id") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(unigram.unknown,
                              model.Int("unk_id", 0, static_cast<int64_t>(tokens) - 1));
  }
  MILLRACE_ASSIGN_OR_RETURN(unigram.byte_fallback, model.BoolOr("byte_fallback", false));
  return unigram;
}

absl::StatusOr<SubwordModelSpec> ReadWordPiece(const JsonFields& model) {
  WordPieceModelSpec word_piece;
  MILLRACE_ASSIGN_OR_RETURN(word_piece.unknown, TextOr(model, "unk_token", "[UNK]"));
  MILLRACE_ASSIGN_OR_RETURN(word_piece.continuing_prefix,
                            TextOr(model, "continuing_subword_prefix", "##"));
  if (model.Find("max_input_chars_per_word") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(const int64_t most,
                              model.Int("max_input_chars_per_word", 0, INT64_MAX));
    word_piece.max_characters = static_cast<size_t>(most);
  }
  return word_piece;
}

absl::StatusOr<SubwordModelSpec> ReadModel(const JsonFields& model, size_t tokens) {
  std::string_view type;
  if (model.Find("type") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(type, model.String("type"));
  } else {  // old files have no type: their fields tell
    type = model.Find("merges") != nullptr                     ? "BPE"
           : model.Find("vocab")->is_array()                   ? "Unigram"
           : model.Find("max_input_chars_per_word") != nullptr ? "WordPiece"
                                                               : "WordLevel";
  }
  if ((type == "Unigram") != model.Find("vocab")->is_array()) {
    return model.Bad("vocab", StrCat("is not what ", Printable(type), " has"));
  }
  if (type == "BPE") return ReadBpe(model);
  if (type == "Unigram") return ReadUnigram(model, tokens);
  if (type == "WordPiece") return ReadWordPiece(model);
  if (type == "WordLevel") {
    MILLRACE_ASSIGN_OR_RETURN(std::string unknown, TextOr(model, "unk_token", "<unk>"));
    return WordLevelModelSpec{std::move(unknown)};
  }
  return model.Unsupported("type",
                           StrCat("\"", Printable(type),
                                  "\" is not supported (supported: BPE, Unigram, WordPiece, "
                                  "WordLevel)"));
}

// The id of a token that the vocabulary has is the vocabulary's, whatever stands here: so do
// Hugging Face's tokenizers read it.
absl::Status ReadAddedTokens(const JsonFields& fields, TokenizerSpec* spec) {
  const Json* list = fields.Find("added_tokens");
  if (list == nullptr) return absl::OkStatus();
  if (!list->is_array() || list->size() > static_cast<size_t>(kMaxTokenizerId)) {
    return fields.Bad("added_tokens", "must be a list");
  }
  absl::flat_hash_map<std::string_view, int32_t, StringHash> ids;
  for (const VocabularyEntry& entry : spec->vocabulary) ids[entry.text] = entry.id;
  for (size_t i = 0; i < list->size(); ++i) {
    if (!(*list)[i].is_object()) return fields.Bad("added_tokens", "must be a list of objects");
    const JsonFields token((*list)[i], StrCat("tokenizer.json: added_tokens[", i, "]."));
    MILLRACE_ASSIGN_OR_RETURN(AddedTokenSpec added, ReadAddedToken(token));
    if (added.content.empty()) continue;
    MILLRACE_ASSIGN_OR_RETURN(added.id, token.Int("id", 0, kMaxTokenizerId));
    if (const auto it = ids.find(added.content); it != ids.end()) added.id = it->second;
    spec->added.push_back(std::move(added));
  }
  return absl::OkStatus();
}

const Json& ValueOrNull(const JsonFields& fields, std::string_view name) {
  static const Json* const null = new Json;
  const Json* value = fields.Find(name);
  return value == nullptr ? *null : *value;
}

}  // namespace

absl::StatusOr<AddedTokenSpec> ReadAddedToken(const JsonFields& fields) {
  AddedTokenSpec token;
  MILLRACE_ASSIGN_OR_RETURN(token.content, TextOr(fields, "content", ""));
  MILLRACE_ASSIGN_OR_RETURN(token.single_word, fields.BoolOr("single_word", false));
  MILLRACE_ASSIGN_OR_RETURN(token.lstrip, fields.BoolOr("lstrip", false));
  MILLRACE_ASSIGN_OR_RETURN(token.rstrip, fields.BoolOr("rstrip", false));
  MILLRACE_ASSIGN_OR_RETURN(token.special, fields.BoolOr("special", false));
  MILLRACE_ASSIGN_OR_RETURN(token.normalized, fields.BoolOr("normalized", !token.special));
  return token;
}

absl::StatusOr<TokenizerSpec> ReadTokenizerJson(std::string_view text, const std::string& name) {
  absl::StatusOr<Json> parsed = ParseJson(text, kLimits);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(StrCat(name, ": ", std::string(parsed.status().message())));
  }
  const auto document = std::make_shared<const Json>(*std::move(parsed));
  if (!document->is_object()) return absl::InvalidArgumentError(StrCat(name, ": is no object"));
  const JsonFields fields(*document, StrCat(name, ": "));
  const auto part = [&](std::string_view field) { return StrCat(name, ": ", field, "."); };

  TokenizerSpec spec;
  spec.owner = document;
  MILLRACE_ASSIGN_OR_RETURN(const JsonFields model, fields.Object("model"));
  MILLRACE_RETURN_IF_ERROR(ReadVocabulary(model, &spec.vocabulary));
  MILLRACE_ASSIGN_OR_RETURN(spec.model, ReadModel(model, spec.vocabulary.size()));
  MILLRACE_RETURN_IF_ERROR(ReadAddedTokens(fields, &spec));
  MILLRACE_ASSIGN_OR_RETURN(spec.normalizers,
                            ReadNormalizers(ValueOrNull(fields, "normalizer"), part("normalizer")));
  MILLRACE_ASSIGN_OR_RETURN(
      spec.pre_tokenizers,
      ReadPreTokenizers(ValueOrNull(fields, "pre_tokenizer"), part("pre_tokenizer")));
  MILLRACE_ASSIGN_OR_RETURN(
      spec.frame, ReadFrame(ValueOrNull(fields, "post_processor"), part("post_processor")));
  spec.pair_frame = ReadPairFrame(ValueOrNull(fields, "post_processor"));
  if (fields.Find("decoder") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(spec.decoders,
                              ReadDecoders(ValueOrNull(fields, "decoder"), part("decoder")));
  }
  return spec;
}

}  // namespace millrace
