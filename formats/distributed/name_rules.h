// A table of rules by which the tensors of a checkpoint get the names, and the order of rows, that
// Hugging Face's transformers gives them.
#ifndef MILLRACE_FORMATS_DISTRIBUTED_NAME_RULES_H_
#define MILLRACE_FORMATS_DISTRIBUTED_NAME_RULES_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace {

// What is done with a tensor beside its name.
enum class NameAction {
  kKeep,
  kLeaveOut,
  kUntied,   // kept, but left out where the config ties head and embedding
  kRotaryQ,  // its heads' rows are pairs (2i, 2i + 1) that are rotated together, and become halves
             // (i, i + size / 2), as transformers rotates them; of as many heads as queries have
  kRotaryK,  // the same, of as many heads as keys have
  kExperts,  // each index of its first dimension becomes a tensor
};

// A row of the table.
struct NameRule {
  std::string from;  // in the checkpoint: # stands for a whole number, * at the end for the rest
  std::string to;    // in the folder: # and * stand for the same again; of kExperts one more #, the
                     // last, for the expert's number
  NameAction action = NameAction::kKeep;
};

// Reads a table, a rule a line: FROM TO, FROM TO ACTION or FROM -, with white space between. A line
// that is empty or begins with "# " is a comment. Actions are untied, rotary-q, rotary-k and
// experts; - leaves a tensor out. INVALID_ARGUMENT, naming `file` and the line.
absl::StatusOr<std::vector<NameRule>> ParseNameRules(std::string_view text, std::string_view file);

// Returns the first rule whose FROM stands for the name, and in `to` the name that its TO then is;
// null if there is none. Of kExperts the last # is left in `to`.
const NameRule* FindNameRule(const std::vector<NameRule>& rules, std::string_view name,
                             std::string* to);

// The tables of torchtitan's models, as its state-dict adapters
// (torchtitan/models/{llama3,qwen3}/state_dict_adapter.py) have them, with the names of 2024 and of
// 2026.
extern const std::string_view kTorchtitanLlama3Rules;
extern const std::string_view kTorchtitanQwen3Rules;

}  // namespace millrace

#endif  // MILLRACE_FORMATS_DISTRIBUTED_NAME_RULES_H_
