#include <filesystem>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/status.h"
#include "base/strings.h"
#include "formats/folder_file.h"
#include "formats/json_fields.h"
#include "formats/model_text.h"
#include "formats/tokenizer_json.h"
#include "formats/tokenizer_json_parts.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr char kTokenizer[] = "tokenizer.json";
constexpr char kConfig[] = "tokenizer_config.json";
constexpr char kSpecialTokens[] = "special_tokens_map.json";
constexpr char kTemplate[] = "chat_template.jinja";
constexpr char kOldTemplate[] = "chat_template.json";
constexpr char kTemplateField[] = "chat_template";
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
  }
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
};

// {"32000": {"content": "<|im_end|>", "special": true, ...}, ...}
absl::Status ReadAddedTokens(const JsonFields& config, TokenizerSpec* spec, TokenIndex* index) {
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
                                            kTokenizer, " has \"", Printable(*other), "\" there"));
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

// A text, or a list of {"name", "template"} of which the one called "default" counts, if there is
// one.
absl::StatusOr<std::string> FindTemplate(const JsonFields& fields, const char* file) {
  const Json* field = fields.Find(kTemplateField);
  if (field == nullptr) return std::string();
  if (field->is_string()) return field->get<std::string>();
  if (!field->is_array()) {
    return fields.Bad(kTemplateField,
                      StrCat("is ", Describe(*field), ", must be a text or a list"));
  }
  for (size_t i = 0; i < field->size(); ++i) {
    const Json& entry = (*field)[i];
    const std::string place = StrCat(kTemplateField, "[", i, "]");
    if (!entry.is_object()) return fields.Bad(place, "must be an object");
    const JsonFields named(entry, StrCat(file, ": ", place, "."));
    MILLRACE_ASSIGN_OR_RETURN(const std::string_view name, named.String("name"));
    MILLRACE_ASSIGN_OR_RETURN(const std::string_view text, named.String("template"));
    if (name == "default") return std::string(text);
  }
  return std::string();
}

absl::StatusOr<std::string> ReadTemplateField(const Json& json, const char* file) {
  const JsonFields fields(json, StrCat(file, ": "));
  MILLRACE_ASSIGN_OR_RETURN(std::string text, FindTemplate(fields, file));
  if (text.size() <= kMaxTemplateBytes) return text;
  return fields.Bad(kTemplateField,
                    StrCat(text.size(), " bytes, must be at most ", kMaxTemplateBytes));
}

absl::StatusOr<std::string> ReadTemplate(const fs::path& folder, const Json& config) {
  if (HasFolderFile(folder, kTemplate)) {
    MILLRACE_ASSIGN_OR_RETURN(const MappedFile file,
                              OpenFolderFile(folder, kTemplate, kMaxTemplateBytes));
    return std::string(file.text());
  }
  MILLRACE_ASSIGN_OR_RETURN(std::string text, ReadTemplateField(config, kConfig));
  if (!text.empty()) return text;
  MILLRACE_ASSIGN_OR_RETURN(const Json old, ReadIfThere(folder, kOldTemplate));
  return ReadTemplateField(old, kOldTemplate);
}

absl::StatusOr<TokenizerSpec> ReadTokenizer(const fs::path& folder) {
  if (!HasFolderFile(folder, kTokenizer)) {
    return absl::NotFoundError(
        StrCat(kTokenizer,
               ": the folder has none. Tokenizers in other files (tokenizer.model, vocab.json, "
               "tekken.json) are not read: have transformers write one (AutoTokenizer."
               "from_pretrained(...).save_pretrained(...)), or name a GGUF file of the same "
               "vocabulary with --tokenizer"));
  }
  MILLRACE_ASSIGN_OR_RETURN(const MappedFile file,
                            OpenFolderFile(folder, kTokenizer, kMaxTokenizerBytes));
  return ReadTokenizerJson(file.text(), kTokenizer);
}

}  // namespace

absl::StatusOr<ModelText> ReadFolderText(const std::string& path) {
  const fs::path folder(path);
  ModelText text;
  MILLRACE_ASSIGN_OR_RETURN(text.tokenizer, ReadTokenizer(folder));
  MILLRACE_ASSIGN_OR_RETURN(const Json json, ReadIfThere(folder, kConfig));
  const JsonFields config(json, StrCat(kConfig, ": "));
  TokenIndex index(text.tokenizer);
  MILLRACE_RETURN_IF_ERROR(ReadTokens(config, &text));
  if (config.Find("added_tokens_decoder") != nullptr) {
    MILLRACE_RETURN_IF_ERROR(ReadAddedTokens(config, &text.tokenizer, &index));
  } else {
    MILLRACE_ASSIGN_OR_RETURN(const Json map, ReadIfThere(folder, kSpecialTokens));
    MILLRACE_RETURN_IF_ERROR(ReadTokens(JsonFields(map, StrCat(kSpecialTokens, ": ")), &text));
  }
  const auto id = [&](const std::optional<std::string>& token) {
    return token.has_value() ? index.Id(*token) : std::nullopt;
  };
  text.tokenizer.bos = id(text.bos);
  text.tokenizer.eos = id(text.eos);
  text.tokenizer.pad = id(text.pad);
  if (text.tokenizer.eos.has_value()) text.tokenizer.end_of_generation = {*text.tokenizer.eos};
  MILLRACE_ASSIGN_OR_RETURN(text.chat_template, ReadTemplate(folder, json));
  return text;
}

}  // namespace millrace
