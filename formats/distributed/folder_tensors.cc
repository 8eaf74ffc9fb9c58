#include "formats/distributed/folder_tensors.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/status.h"
#include "base/strings.h"
#include "formats/files/folder_file.h"
#include "formats/json/json_fields.h"

namespace millrace {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;
constexpr int64_t kMaxHeads = 1 << 20;
constexpr size_t kMaxFolderTensors = 1 << 22;

// Names of Hugging Face's are left as they are.
constexpr std::string_view kSameNames = "* *";

// The parts that torch.compile, checkpointed activations and FSDP1 put into names.
constexpr std::string_view kWrappers[] = {"_orig_mod.", "_checkpoint_wrapped_module.",
                                          "_fsdp_wrapped_module."};
// What a model's state is nested in.
constexpr std::string_view kNests[] = {"app.", "state_dict.", "model.", "module."};

std::string WithoutWrappers(std::string name) {
  for (const std::string_view wrapper : kWrappers) {
    for (size_t at = name.find(wrapper); at != name.npos; at = name.find(wrapper)) {
      name.erase(at, wrapper.size());
    }
  }
  return name;
}

// Removes the nests from all names, one after another, until `known` holds of them. Returns whether
// it then does.
template <typename Known>
bool RemoveNests(std::vector<std::string>* names, Known known) {
  while (!known(*names)) {
    const auto all_begin = [&](std::string_view nest) {
      return !names->empty() &&
             std::all_of(names->begin(), names->end(), [&](const std::string& name) {
               return name.size() > nest.size() && name.starts_with(nest);
             });
    };
    const auto nest = std::find_if(std::begin(kNests), std::end(kNests), all_begin);
    if (nest == std::end(kNests)) return false;
    for (std::string& name : *names) name.erase(0, nest->size());
  }
  return true;
}

bool AreTorchtitans(const std::vector<std::string>& names) {
  return std::find(names.begin(), names.end(), "tok_embeddings.weight") != names.end();
}

bool AreHuggingFaces(const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [](const std::string& name) {
    return name == "model.embed_tokens.weight" || name.starts_with("model.language_model.");
  });
}

// Returns the table of names that have lost their nests.
absl::StatusOr<std::string_view> KnownRules(const std::vector<std::string>& names,
                                            const FolderFacts& facts) {
  if (!AreTorchtitans(names)) return kSameNames;
  if (facts.model_type == "llama") return kTorchtitanLlama3Rules;
  if (facts.model_type == "qwen3" || facts.model_type == "qwen3_moe") return kTorchtitanQwen3Rules;
  return absl::UnimplementedError(StrCat(
      "the checkpoint has torchtitan's names, which are known of llama, qwen3 and qwen3_moe; "
      "config.json: model_type is \"",
      Printable(facts.model_type), "\": --rules can name its tensors"));
}

class Namer {
 public:
  Namer(const CheckpointMetadata& checkpoint, const FolderFacts& facts)
      : checkpoint_(checkpoint), facts_(facts) {}

  absl::StatusOr<FolderTensors> Name(const std::vector<std::string>& names,
                                     const std::vector<NameRule>& rules) {
    for (size_t i = 0; i < names.size(); ++i) {
      std::string to;
      const NameRule* rule = FindNameRule(rules, names[i], &to);
      if (rule == nullptr) return Bad(i, "no rule names it; --rules can, or leave it out");
      MILLRACE_RETURN_IF_ERROR(Add(i, *rule, to));
    }
    if (made_.tensors.empty()) return absl::InvalidArgumentError("no tensor of a model is left");
    return std::move(made_);
  }

 private:
  absl::Status Bad(size_t source, std::string_view what) const {
    return absl::InvalidArgumentError(
        StrCat("tensor ", checkpoint_.tensors[source].name, ": ", what));
  }

  absl::Status Add(size_t source, const NameRule& rule, std::string to) {
    FolderTensor tensor{
        .name = std::move(to), .source = source, .shape = checkpoint_.tensors[source].shape};
    switch (rule.action) {
      case NameAction::kLeaveOut:
        ++made_.left_out;
        return absl::OkStatus();
      case NameAction::kUntied:
        if (!facts_.tied) break;
        ++made_.left_out;
        return absl::OkStatus();
      case NameAction::kRotaryQ:
        return AddRotary(std::move(tensor), facts_.heads, "num_attention_heads");
      case NameAction::kRotaryK:
        return AddRotary(std::move(tensor), facts_.kv_heads, "num_key_value_heads");
      case NameAction::kExperts:
        return AddExperts(std::move(tensor));
      case NameAction::kKeep:
        break;
    }
    return AddTensor(std::move(tensor));
  }

  absl::Status AddRotary(FolderTensor tensor, int64_t heads, std::string_view field) {
    if (heads == 0) return Bad(tensor.source, StrCat("config.json does not say ", field));
    if (tensor.shape.empty() || tensor.shape[0] % (2 * heads) != 0) {
      return Bad(tensor.source,
                 StrCat("its rows are not ", heads, " heads of an even size, as many as ", field));
    }
    tensor.rotary_heads = heads;
    return AddTensor(std::move(tensor));
  }

  absl::Status AddExperts(FolderTensor tensor) {
    if (tensor.shape.empty()) return Bad(tensor.source, "has no dimension of experts");
    const int64_t experts = tensor.shape[0];
    tensor.shape.erase(tensor.shape.begin());
    const size_t number = tensor.name.rfind('#');
    for (int64_t i = 0; i < experts; ++i) {
      FolderTensor expert = tensor;
      expert.name.replace(number, 1, StrCat(i));
      MILLRACE_RETURN_IF_ERROR(AddTensor(std::move(expert)));
    }
    return absl::OkStatus();
  }

  absl::Status AddTensor(FolderTensor tensor) {
    if (made_.tensors.size() >= kMaxFolderTensors) {
      return Bad(tensor.source, StrCat("more than ", kMaxFolderTensors, " tensors"));
    }
    const auto [other, is_new] = sources_.emplace(tensor.name, tensor.source);
    if (!is_new) {
      return Bad(tensor.source, StrCat("would be ", tensor.name, ", as would ",
                                       checkpoint_.tensors[other->second].name));
    }
    made_.tensors.push_back(std::move(tensor));
    return absl::OkStatus();
  }

  const CheckpointMetadata& checkpoint_;
  const FolderFacts& facts_;
  FolderTensors made_;
  absl::flat_hash_map<std::string, size_t> sources_;  // by the names in the folder
};

}  // namespace

absl::StatusOr<FolderFacts> ReadFolderFacts(const std::string& folder) {
  constexpr char kConfig[] = "config.json";
  MILLRACE_ASSIGN_OR_RETURN(const Json json, ReadFolderJson(folder, kConfig, kMaxConfigBytes));
  const JsonFields config(json, StrCat(kConfig, ": "));
  FolderFacts facts;
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view type, config.String("model_type"));
  facts.model_type = type;
  if (config.Find("num_attention_heads") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(facts.heads, config.Int("num_attention_heads", 1, kMaxHeads));
  }
  facts.kv_heads = facts.heads;
  if (config.Find("num_key_value_heads") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(facts.kv_heads, config.Int("num_key_value_heads", 1, kMaxHeads));
  }
  MILLRACE_ASSIGN_OR_RETURN(facts.tied, config.BoolOr("tie_word_embeddings", false));
  return facts;
}

absl::StatusOr<FolderTensors> NameTensors(const CheckpointMetadata& checkpoint,
                                          const FolderFacts& facts,
                                          const std::vector<NameRule>* rules) {
  std::vector<std::string> names;
  for (const CheckpointTensor& tensor : checkpoint.tensors) names.push_back(tensor.name);
  Namer namer(checkpoint, facts);
  if (rules != nullptr) return namer.Name(names, *rules);
  for (std::string& name : names) name = WithoutWrappers(std::move(name));
  const bool known = RemoveNests(&names, [](const std::vector<std::string>& at) {
    return AreTorchtitans(at) || AreHuggingFaces(at);
  });
  if (!known) {
    return absl::UnimplementedError(
        StrCat("the names of its tensors are neither torchtitan's nor Hugging Face's",
               names.empty() ? "" : StrCat(" (the first is ", checkpoint.tensors[0].name, ")"),
               ": --rules can name them"));
  }
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view table, KnownRules(names, facts));
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<NameRule> parsed, ParseNameRules(table, "rules"));
  return namer.Name(names, parsed);
}

}  // namespace millrace
