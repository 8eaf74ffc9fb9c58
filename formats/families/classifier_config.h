// Reader of the fields of config.json that describe a head which scores pairs of texts.
#ifndef MILLRACE_FORMATS_FAMILIES_CLASSIFIER_CONFIG_H_
#define MILLRACE_FORMATS_FAMILIES_CLASSIFIER_CONFIG_H_

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "formats/json/json_fields.h"
#include "formats/model/model_config.h"

namespace millrace {

// Reads the number of labels, which must be 1, and the function of the score, as
// sentence-transformers' CrossEncoder does: `sentence_transformers.activation_fn`, else
// `sbert_ce_default_activation_function`, else the sigmoid. UNIMPLEMENTED, naming the field, for
// anything else.
absl::StatusOr<ClassifierHead> ReadClassifierHead(const JsonFields& config);

// Sets the function of scores by a field with a Python type, if it is there: torch.nn's Sigmoid or
// Identity, UNIMPLEMENTED for another.
absl::Status ReadScoreFunction(const JsonFields& fields, std::string_view name,
                               ClassifierHead* head);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_FAMILIES_CLASSIFIER_CONFIG_H_
