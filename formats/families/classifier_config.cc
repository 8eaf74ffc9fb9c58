#include "formats/families/classifier_config.h"

#include <string_view>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr int64_t kMaxLabels = 1 << 20;

// transformers' default without a field is two labels.
absl::Status CheckLabels(const JsonFields& config) {
  const char* field = "num_labels";
  int64_t labels = 2;
  if (config.Find("id2label") != nullptr) {
    field = "id2label";
    MILLRACE_ASSIGN_OR_RETURN(const JsonFields names, config.Object(field));
    labels = static_cast<int64_t>(names.object().size());
  } else if (config.Find(field) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(labels, config.Int(field, 0, kMaxLabels));
  }
  if (labels == 1) return absl::OkStatus();
  return config.Unsupported(
      field, StrCat(labels, " labels are not supported (supported: 1, a score of a pair)"));
}

// "torch.nn.modules.activation.Sigmoid"
absl::StatusOr<bool> ReadIsSigmoid(const JsonFields& fields, std::string_view name) {
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view type, fields.String(name));
  const std::string_view function = type.substr(type.rfind('.') + 1);  // npos + 1 is 0
  if (type.starts_with("torch.nn.") && function == "Sigmoid") return true;
  if (type.starts_with("torch.nn.") && function == "Identity") return false;
  return fields.Unsupported(name, StrCat("\"", Printable(type),
                                         "\" is not supported (supported: torch.nn's Sigmoid and "
                                         "Identity)"));
}

}  // namespace

absl::Status ReadScoreFunction(const JsonFields& fields, std::string_view name,
                               ClassifierHead* head) {
  if (fields.Find(name) == nullptr) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(head->sigmoid, ReadIsSigmoid(fields, name));
  return absl::OkStatus();
}

absl::StatusOr<ClassifierHead> ReadClassifierHead(const JsonFields& config) {
  MILLRACE_RETURN_IF_ERROR(CheckLabels(config));
  constexpr char kNew[] = "sentence_transformers";
  constexpr char kFunction[] = "activation_fn";
  constexpr char kOld[] = "sbert_ce_default_activation_function";
  ClassifierHead head;
  if (config.Find(kNew) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(const JsonFields fields, config.Object(kNew));
    if (fields.Find(kFunction) != nullptr) {
      MILLRACE_RETURN_IF_ERROR(ReadScoreFunction(fields, kFunction, &head));
      return head;
    }
  }
  MILLRACE_RETURN_IF_ERROR(ReadScoreFunction(config, kOld, &head));
  return head;
}

}  // namespace millrace
