#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/status.h"
#include "base/strings.h"
#include "formats/files/folder_file.h"
#include "formats/json/json_fields.h"
#include "formats/model_text.h"
#include "formats/tokenizers/sentencepiece_model.h"
#include "formats/tokenizers/tekken.h"
#include "formats/tokenizers/tokenizer_json.h"
#include "formats/tokenizers/tokenizer_json_parts.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr char kTokenizer[] = "tokenizer.json";
constexpr char kTekken[] = "tekken.json";
constexpr char kSentencePiece[] = "tokenizer.model";
constexpr char kConfig[] = "tokenizer_config.json";
constexpr char kSpecialTokens[] = "special_tokens_map.json";
constexpr char kAddedTokens[] = "added_tokens.json";
constexpr char kTemplate[] = "chat_template.jinja";
constexpr char kOldTemplate[] = "chat_template.json";
constexpr char kTemplates[] = "additional_chat_templates";
constexpr char kTemplateField[] = "chat_template";
constexpr char kToolUse[] = "tool_use";
constexpr size_t kMaxTokenizerBytes = 256 << 20;
constexpr size_t kMaxConfigBytes = 16 << 20;
constexpr size_t kMaxTemplateBytes = 1 << 20;

absl::StatusOr<Json> ReadIfThere(const fs::path& folder, const std::string& name) {
  if (!HasFolderFile(folder, name)) return Json::object();
  return ReadFolderJson(folder, name, kMaxConfigBytes);
}

// A special token is its text, or an object with it.
absl::Status ReadToken(const JsonFields& fields, std::string_view name,
                       std::optional<std::string>* text) {
  const Json* field = fields.Find(name);
  if (field == nullptr) return absl::OkStatus();
  const Json* content = field;
  if (field->is_object()) {
    const auto it = field->find("content");
    content = it == field->end() ? nullptr : &*it;
  }
  if (content == nullptr || !content->is_string()) {
    return fields.Bad(name, StrCat("is ", Describe(*field), ", must be a token's text"));
  }
  *text = content->get<std::string>();
  return absl::OkStatus();
}

absl::Status ReadTokens(const JsonFields& fields, ModelText* text) {
  MILLRACE_RETURN_IF_ERROR(ReadToken(fields, "bos_token", &text->bos));
  MILLRACE_RETURN_IF_ERROR(ReadToken(fields, "eos_token", &text->eos));
  MILLRACE_RETURN_IF_ERROR(ReadToken(fields, "unk_token", &text->unknown));
  return ReadToken(fields, "pad_token", &text->pad);
}

// The ids of a tokenizer's texts, and the texts of its ids.
class TokenIndex {
 public:
  explicit TokenIndex(const TokenizerSpec& spec) {
    for (const VocabularyEntry& entry : spec.vocabulary) Add(entry.id, std::string(entry.text));
    for (const AddedTokenSpec& token : spec.added) Add(token.id, token.content);
  }

  void Add(int32_t id, const std::string& text) {
    texts_[id] = text;
    ids_[text] = id;
    next_ = std::max(next_, id + 1);
  }
  // Returns the id behind the last.
  int32_t next() const { return next_; }
  std::optional<int32_t> Id(const std::string& text) const {
    const auto found = ids_.find(text);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }
  const std::string* Text(int32_t id) const {
    const auto found = texts_.find(id);
    return found == texts_.end() ? nullptr : &found->second;
  }

 private:
  absl::flat_hash_map<std::string, int32_t> ids_;
  absl::flat_hash_map<int32_t, std::string> texts_;
  int32_t next_ = 0;
};

// {"32000": {"content": "<|im_end|>", "special": true, ...}, ...}
absl::Status ReadAddedTokens(const JsonFields& config, const char* tokenizer, TokenizerSpec* spec,
                             TokenIndex* index) {
  MILLRACE_ASSIGN_OR_RETURN(const JsonFields list, config.Object("added_tokens_decoder"));
  absl::flat_hash_map<int32_t, size_t> places;  // in spec->added, by id
  for (size_t i = 0; i < spec->added.size(); ++i) places.emplace(spec->added[i].id, i);
  for (const auto& [key, value] : list.object().items()) {
    const auto id = ParseNumber<int32_t>(key);
    if (!id || *id < 0 || *id > kMaxTokenizerId || !value.is_object()) {
      return list.Bad(Printable(key),
                      StrCat("is ", Describe(value), ", must be a token under its id, from 0 to ",
                             kMaxTokenizerId));
    }
    const JsonFields fields(value, StrCat(kConfig, ": added_tokens_decoder.", key, "."));
    MILLRACE_ASSIGN_OR_RETURN(AddedTokenSpec token, ReadAddedToken(fields));
    if (token.content.empty()) continue;
    token.id = index->Id(token.content).value_or(*id);
    if (const std::string* other = index->Text(token.id); other != nullptr) {
      if (*other != token.content) {
        return fields.Bad("content", StrCat("is \"", Printable(token.content), "\", but ",
                                            tokenizer, " has \"", Printable(*other), "\" there"));
      }
    }
    index->Add(token.id, token.content);
    const auto [place, is_new] = places.emplace(token.id, spec->added.size());
    if (is_new) {
      spec->added.push_back(std::move(token));
    } else {
      spec->added[place->second] = std::move(token);
    }
  }
  return absl::OkStatus();
}

// Makes a special token of one that the tokenizer does not match whole: under the id of its text,
// or the next one.
absl::Status AddNamedToken(const JsonFields& config, const Json& token, const std::string& place,
                           TokenizerSpec* spec, TokenIndex* index) {
  AddedTokenSpec added{.id = 0, .content = {}, .special = true};
  if (token.is_string()) {
    added.content = token.get<std::string>();
  } else if (token.is_object()) {
    MILLRACE_ASSIGN_OR_RETURN(added,
                              ReadAddedToken(JsonFields(token, StrCat(kConfig, ": ", place, "."))));
    added.special = true;
    added.normalized = token.value("normalized", false);
  } else {
    return config.Bad(place, StrCat("is ", Describe(token), ", must be a token's text"));
  }
  const auto same = [&](const AddedTokenSpec& other) { return other.content == added.content; };
  if (added.content.empty() || std::any_of(spec->added.begin(), spec->added.end(), same)) {
    return absl::OkStatus();
  }
  added.id = index->Id(added.content).value_or(index->next());
  if (added.id > kMaxTokenizerId) {
    return config.Bad(place,
                      StrCat("would be token ", added.id, ", allowed: up to ", kMaxTokenizerId));
  }
  index->Add(added.id, added.content);
  spec->added.push_back(std::move(added));
  return absl::OkStatus();
}

// Adds the special tokens that a config names and tokenizer.json does not have among its added
// ones, as transformers does.
absl::Status AddNamedTokens(const JsonFields& config, TokenizerSpec* spec, TokenIndex* index) {
  for (const char* name : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                           "cls_token", "mask_token"}) {
    const Json* token = config.Find(name);
    if (token == nullptr) continue;
    MILLRACE_RETURN_IF_ERROR(AddNamedToken(config, *token, name, spec, index));
  }
  for (const char* name : {"additional_special_tokens", "extra_special_tokens"}) {
    const Json* tokens = config.Find(name);
    if (tokens == nullptr) continue;
    if (!tokens->is_array() && !tokens->is_object()) {
      return config.Bad(name, StrCat("is ", Describe(*tokens), ", must be a list of tokens"));
    }
    for (const Json& token : *tokens) {
      MILLRACE_RETURN_IF_ERROR(AddNamedToken(config, token, name, spec, index));
    }
  }
  return absl::OkStatus();
}

// added_tokens.json of an older folder: {"<token>": id, ...}. What tokenizer.json has goes before
// it.
absl::Status ReadAddedTokensFile(const fs::path& folder, TokenizerSpec* spec, TokenIndex* index) {
  MILLRACE_ASSIGN_OR_RETURN(const Json json, ReadIfThere(folder, kAddedTokens));
  const JsonFields fields(json, StrCat(kAddedTokens, ": "));
  for (const auto& [text, value] : json.items()) {
    MILLRACE_ASSIGN_OR_RETURN(const int64_t id, fields.Int(text, 0, kMaxTokenizerId));
    if (text.empty() || index->Id(text).has_value()) continue;
    if (const std::string* other = index->Text(static_cast<int32_t>(id)); other != nullptr) {
      return fields.Bad(Printable(text), StrCat("is ", id, ", but ", kTokenizer, " has \"",
                                                Printable(*other), "\" there"));
    }
    index->Add(static_cast<int32_t>(id), text);
    spec->added.push_back({.id = static_cast<int32_t>(id), .content = text, .normalized = true});
  }
  return absl::OkStatus();
}

// The templates of a folder; empty for one that there is not.
struct Templates {
  std::string chat, tools;
};

// A text, or texts by name, as an object or a list of {"name", "template"}: "default" and
// "tool_use" count.
absl::StatusOr<Templates> FindTemplates(const JsonFields& fields, const char* file) {
  Templates templates;
  const Json* field = fields.Find(kTemplateField);
  if (field == nullptr) return templates;
  if (field->is_string()) {
    templates.chat = field->get<std::string>();
    return templates;
  }
  const auto set = [&](std::string_view name, std::string_view text) {
    if (name == "default") templates.chat = text;
    if (name == kToolUse) templates.tools = text;
  };
  if (field->is_object()) {
    const JsonFields named(*field, StrCat(file, ": ", kTemplateField, "."));
    for (const auto& [name, value] : field->items()) {
      MILLRACE_ASSIGN_OR_RETURN(const std::string_view text, named.String(name));
      set(name, text);
    }
    return templates;
  }
  if (!field->is_array()) {
    return fields.Bad(kTemplateField, StrCat("is ", Describe(*field),
                                             ", must be a text, or an object or a list of them"));
  }
  for (size_t i = 0; i < field->size(); ++i) {
    const Json& entry = (*field)[i];
    const std::string place = StrCat(kTemplateField, "[", i, "]");
    if (!entry.is_object()) return fields.Bad(place, "must be an object");
    const JsonFields named(entry, StrCat(file, ": ", place, "."));
    MILLRACE_ASSIGN_OR_RETURN(const std::string_view name, named.String("name"));
    MILLRACE_ASSIGN_OR_RETURN(const std::string_view text, named.String("template"));
    set(name, text);
  }
  return templates;
}

absl::StatusOr<Templates> ReadTemplateField(const Json& json, const char* file) {
  const JsonFields fields(json, StrCat(file, ": "));
  MILLRACE_ASSIGN_OR_RETURN(Templates templates, FindTemplates(fields, file));
  const size_t size = std::max(templates.chat.size(), templates.tools.size());
  if (size <= kMaxTemplateBytes) return templates;
  return fields.Bad(kTemplateField, StrCat(size, " bytes, must be at most ", kMaxTemplateBytes));
}

// Reads a file that holds a template; empty where there is none, or nothing in it.
absl::StatusOr<std::string> ReadTemplateFile(const fs::path& folder, const std::string& name) {
  std::error_code error;
  if (!HasFolderFile(folder, name) || fs::file_size(folder / name, error) == 0) {
    return std::string();
  }
  MILLRACE_ASSIGN_OR_RETURN(const MappedFile file, OpenFolderFile(folder, name, kMaxTemplateBytes));
  return std::string(file.text());
}

absl::StatusOr<Templates> ReadTemplates(const fs::path& folder, const Json& config) {
  Templates files;
  MILLRACE_ASSIGN_OR_RETURN(files.chat, ReadTemplateFile(folder, kTemplate));
  MILLRACE_ASSIGN_OR_RETURN(files.tools,
                            ReadTemplateFile(folder / kTemplates, StrCat(kToolUse, ".jinja")));
  if (files.chat.empty()) {
    MILLRACE_ASSIGN_OR_RETURN(files.chat, ReadTemplateFile(folder / kTemplates, "default.jinja"));
  }
  if (!files.chat.empty()) return files;
  MILLRACE_ASSIGN_OR_RETURN(Templates named, ReadTemplateField(config, kConfig));
  if (named.chat.empty()) {
    MILLRACE_ASSIGN_OR_RETURN(const Json old, ReadIfThere(folder, kOldTemplate));
    MILLRACE_ASSIGN_OR_RETURN(named, ReadTemplateField(old, kOldTemplate));
  }
  if (!files.tools.empty()) named.tools = std::move(files.tools);
  return named;
}

// A folder's tokenizer, and what files other than tokenizer.json say beside it.
struct FolderTokenizer {
  const char* file = kTokenizer;
  TokenizerSpec spec;
  SentencePieceTexts texts;  // empty of tokenizer.json, which names no special tokens
};

// The order is AutoTokenizer's.
absl::StatusOr<FolderTokenizer> ReadTokenizer(const fs::path& folder) {
  FolderTokenizer read;
  if (HasFolderFile(folder, kTokenizer)) {
    MILLRACE_ASSIGN_OR_RETURN(const MappedFile file,
                              OpenFolderFile(folder, kTokenizer, kMaxTokenizerBytes));
    MILLRACE_ASSIGN_OR_RETURN(read.spec, ReadTokenizerJson(file.text(), kTokenizer));
    return read;
  }
  if (HasFolderFile(folder, kTekken)) {
    MILLRACE_ASSIGN_OR_RETURN(const MappedFile file,
                              OpenFolderFile(folder, kTekken, kMaxTokenizerBytes));
    MILLRACE_ASSIGN_OR_RETURN(read.spec, ReadTekken(file.text(), kTekken));
    read.file = kTekken;
    read.texts = {.bos = "<s>", .eos = "</s>", .unknown = "<unk>", .pad = "<pad>"};
    return read;
  }
  if (HasFolderFile(folder, kSentencePiece)) {
    MILLRACE_ASSIGN_OR_RETURN(MappedFile mapped,
                              OpenFolderFile(folder, kSentencePiece, kMaxTokenizerBytes));
    const auto file = std::make_shared<const MappedFile>(std::move(mapped));
    MILLRACE_ASSIGN_OR_RETURN(SentencePieceTokenizer model,
                              ReadSentencePieceModel(file->text(), kSentencePiece));
    read.file = kSentencePiece;
    read.spec = std::move(model.spec);
    read.spec.owner = file;
    read.texts = std::move(model.texts);
    return read;
  }
  return absl::NotFoundError(StrCat(
      kTokenizer, ": the folder has none, and neither ", kTekken, " nor ", kSentencePiece,
      ". Tokenizers in other files (vocab.json, spiece.model) are not read: have transformers "
      "write one (AutoTokenizer.from_pretrained(...).save_pretrained(...)), or name a GGUF file of "
      "the same vocabulary with --tokenizer"));
}

// A special token that the config names, or that it takes away with null, goes before the file's.
void SetDefault(const Json& config, const char* name, const std::string& file,
                std::optional<std::string>* text) {
  if (!file.empty() && !config.contains(name)) *text = file;
}

// Puts BOS, and EOS if the config wants it, around texts, and reads what LlamaTokenizer reads of
// the space in front of them.
absl::Status ReadFrame(const JsonFields& config, TokenizerSpec* spec) {
  MILLRACE_ASSIGN_OR_RETURN(const bool add_bos, config.BoolOr("add_bos_token", true));
  MILLRACE_ASSIGN_OR_RETURN(const bool add_eos, config.BoolOr("add_eos_token", false));
  spec->frame.clear();
  if (add_bos && spec->bos.has_value()) spec->frame.push_back(spec->bos);
  spec->frame.push_back(std::nullopt);
  if (add_eos && spec->eos.has_value()) spec->frame.push_back(spec->eos);
  MILLRACE_ASSIGN_OR_RETURN(const bool prefix, config.BoolOr("add_prefix_space", true));
  MILLRACE_ASSIGN_OR_RETURN(const bool legacy, config.BoolOr("legacy", true));
  for (NormalizerSpec& step : spec->normalizers) {
    auto* const normalizer = std::get_if<SentencePieceNormalizer>(&step);
    if (normalizer == nullptr) continue;
    normalizer->dummy_prefix = normalizer->dummy_prefix && prefix;
    normalizer->prefix_first_only = !legacy;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelText> ReadFolderText(const std::string& path) {
  const fs::path folder(path);
  ModelText text;
  MILLRACE_ASSIGN_OR_RETURN(FolderTokenizer read, ReadTokenizer(folder));
  text.tokenizer = std::move(read.spec);
  MILLRACE_ASSIGN_OR_RETURN(const Json json, ReadIfThere(folder, kConfig));
  SetDefault(json, "bos_token", read.texts.bos, &text.bos);
  SetDefault(json, "eos_token", read.texts.eos, &text.eos);
  SetDefault(json, "unk_token", read.texts.unknown, &text.unknown);
  SetDefault(json, "pad_token", read.texts.pad, &text.pad);
  const JsonFields config(json, StrCat(kConfig, ": "));
  TokenIndex index(text.tokenizer);
  MILLRACE_RETURN_IF_ERROR(ReadTokens(config, &text));
  Json named = json;
  if (config.Find("added_tokens_decoder") != nullptr) {
    MILLRACE_RETURN_IF_ERROR(ReadAddedTokens(config, read.file, &text.tokenizer, &index));
  } else {
    MILLRACE_ASSIGN_OR_RETURN(const Json map, ReadIfThere(folder, kSpecialTokens));
    MILLRACE_RETURN_IF_ERROR(ReadTokens(JsonFields(map, StrCat(kSpecialTokens, ": ")), &text));
    named.update(map);
    MILLRACE_RETURN_IF_ERROR(ReadAddedTokensFile(folder, &text.tokenizer, &index));
  }
  MILLRACE_RETURN_IF_ERROR(AddNamedTokens(config.With(named), &text.tokenizer, &index));
  const auto id = [&](const std::optional<std::string>& token) {
    return token.has_value() ? index.Id(*token) : std::nullopt;
  };
  text.tokenizer.bos = id(text.bos);
  text.tokenizer.eos = id(text.eos);
  text.tokenizer.pad = id(text.pad);
  if (text.tokenizer.eos.has_value()) text.tokenizer.end_of_generation = {*text.tokenizer.eos};
  if (read.file != kTokenizer) {
    MILLRACE_RETURN_IF_ERROR(ReadFrame(config, &text.tokenizer));
  }
  MILLRACE_ASSIGN_OR_RETURN(Templates templates, ReadTemplates(folder, json));
  text.chat_template = std::move(templates.chat);
  text.tool_template = std::move(templates.tools);
  return text;
}

}  // namespace millrace
