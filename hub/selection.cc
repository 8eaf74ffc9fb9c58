#include "hub/selection.h"

#include <algorithm>
#include <optional>
#include <set>

#include "absl/strings/ascii.h"
#include "base/status.h"
#include "base/strings.h"
#include "formats/gguf/gguf_split.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "hub/model_name.h"

namespace millrace {
namespace {

constexpr char kConfig[] = "config.json";
constexpr char kWeights[] = "model.safetensors";
constexpr size_t kMostNamed = 20;  // names in a message
constexpr size_t kMaxShards = 10'000;

// Optional files, fetched if present.
constexpr std::string_view kText[] = {
    "tokenizer.json",          "tokenizer_config.json",
    "special_tokens_map.json", "chat_template.jinja",
    "chat_template.json",      "generation_config.json",
    "added_tokens.json",       "additional_chat_templates/tool_use.jinja"};

// Tokenizers, of which the first one that is there is read.
constexpr std::string_view kTokenizers[] = {"tokenizer.json", "tekken.json", "tokenizer.model"};

// Optional files of an encoder in the format of sentence-transformers.
constexpr std::string_view kPooling[] = {"modules.json", "sentence_bert_config.json",
                                         "config_sentence_transformers.json",
                                         "1_Pooling/config.json"};

bool Contains(const std::vector<std::string>& files, std::string_view name) {
  return std::find(files.begin(), files.end(), name) != files.end();
}

void SelectIfThere(const std::vector<std::string>& files, std::string_view name,
                   Selection& selection) {
  (Contains(files, name) ? selection.files : selection.absent).emplace_back(name);
}

bool IsGguf(std::string_view name) { return name.ends_with(".gguf"); }

std::string Lower(std::string_view text) {
  std::string lower(text);
  absl::AsciiStrToLower(&lower);
  return lower;
}

// Returns the first of the files that a model is split into, for any of them; other names as they
// are.
std::string FirstPart(const std::string& name) {
  const std::optional<GgufPart> part = ParseGgufPart(name);
  return part.has_value() ? part->Name(1) : name;
}

// Returns whether a file's name ends in the tag, as in SmolLM2-135M-Instruct-Q4_K_M.gguf, or its
// name before it was split.
bool HasTag(const std::string& name, std::string_view tag) {
  const std::optional<GgufPart> part = ParseGgufPart(name);
  const std::string stem = Lower(part.has_value() ? part->prefix : name.substr(0, name.size() - 5));
  const std::string wanted = Lower(tag);
  return stem.ends_with(wanted) && stem.size() > wanted.size() &&
         !absl::ascii_isalnum(stem[stem.size() - wanted.size() - 1]);
}

std::string Some(const std::vector<std::string>& names) {
  std::vector<std::string> shown;
  for (const std::string& name : names) {
    if (shown.size() == kMostNamed) {
      shown.push_back(StrCat("and ", names.size() - kMostNamed, " more"));
      break;
    }
    shown.push_back(Printable(name));
  }
  return JoinList(shown);
}

absl::StatusOr<std::string> SelectGguf(const std::vector<std::string>& files,
                                       const std::string& wanted) {
  if (Contains(files, wanted)) {
    if (IsGguf(wanted)) return FirstPart(wanted);
    return absl::InvalidArgumentError(
        StrCat(Printable(wanted), " is no .gguf file; allowed behind the colon: one, or a tag"));
  }
  std::vector<std::string> all, tagged;
  std::set<std::string> seen;
  for (const std::string& name : files) {
    const std::string file = FirstPart(name);
    if (!IsGguf(file) || !seen.insert(file).second) continue;
    all.push_back(file);
    if (!wanted.empty() && HasTag(file, wanted)) tagged.push_back(file);
  }
  const std::vector<std::string>& fit = wanted.empty() ? all : tagged;
  if (fit.size() == 1) return fit[0];
  if (fit.empty()) {
    return absl::NotFoundError(
        StrCat("has no file or tag \"", Printable(wanted), "\"",
               all.empty() ? "; it has no .gguf files" : StrCat("; it has ", Some(all))));
  }
  return absl::InvalidArgumentError(
      StrCat("has several .gguf files: name one behind a colon; there are ", Some(fit)));
}

}  // namespace

absl::StatusOr<Selection> Select(const std::vector<std::string>& files, const std::string& wanted,
                                 HubContent content) {
  Selection selection;
  const auto there = [&](std::string_view name) { return Contains(files, name); };
  const auto* const tokenizer = std::find_if(std::begin(kTokenizers), std::end(kTokenizers), there);
  const bool none = tokenizer == std::end(kTokenizers);
  const std::string main(content != HubContent::kText ? kConfig
                         : none                       ? kTokenizers[0]
                                                      : *tokenizer);
  if (!wanted.empty() || !Contains(files, main)) {
    if (wanted.empty() && std::none_of(files.begin(), files.end(), IsGguf)) {
      return absl::NotFoundError(StrCat("has neither ", main, " nor a .gguf file"));
    }
    MILLRACE_ASSIGN_OR_RETURN(selection.gguf, SelectGguf(files, wanted));
    const std::optional<GgufPart> part = ParseGgufPart(*selection.gguf);
    selection.files = part.has_value() ? part->Names() : std::vector{*selection.gguf};
    for (const std::string& file : selection.files) {
      if (!Contains(files, file)) return absl::NotFoundError(StrCat("has no ", Printable(file)));
    }
    if (wanted.empty()) selection.absent = {main};
    return selection;
  }
  if (content != HubContent::kText) {
    selection.files.emplace_back(kConfig);
    for (const std::string_view name : kPooling) SelectIfThere(files, name, selection);
  }
  for (const std::string_view name : kText) SelectIfThere(files, name, selection);
  for (const auto* name = kTokenizers + 1; !none && name <= tokenizer; ++name) {
    SelectIfThere(files, *name, selection);
  }
  if (content != HubContent::kModel) return selection;
  if (Contains(files, kWeightsIndex)) {
    selection.has_index = true;
    selection.files.emplace_back(kWeightsIndex);
  } else if (Contains(files, kWeights)) {
    selection.files.emplace_back(kWeights);
  } else {
    const bool others = std::any_of(files.begin(), files.end(), [](std::string_view name) {
      return name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth");
    });
    return absl::NotFoundError(StrCat("has no ", kWeights,
                                      others ? ", and weights in other files (pytorch_model.bin) "
                                               "are not read: look for a revision or a model that "
                                               "has it"
                                             : StrCat(" and no ", kWeightsIndex)));
  }
  return selection;
}

absl::StatusOr<std::vector<std::string>> Shards(std::string_view index) {
  absl::StatusOr<Json> json = ParseJson(index, JsonLimits{});
  if (!json.ok()) return Annotate(json.status(), kWeightsIndex);
  const auto map = json->is_object() ? json->find("weight_map") : json->end();
  std::set<std::string> names;
  if (json->is_object() && map != json->end() && map->is_object()) {
    for (const Json& file : *map) {
      if (!file.is_string()) continue;
      const auto& name = file.get_ref<const std::string&>();
      if (!IsSafeFileName(name) || name.find('/') != name.npos || !name.ends_with(".safetensors") ||
          names.size() == kMaxShards) {
        return absl::FailedPreconditionError(
            StrCat(kWeightsIndex, ": names ", Printable(name), ", which is no file of weights"));
      }
      names.insert(name);
    }
  }
  if (names.empty()) {
    return absl::FailedPreconditionError(StrCat(kWeightsIndex, ": has no weight_map"));
  }
  return std::vector<std::string>(names.begin(), names.end());
}

}  // namespace millrace
