// For tests of every executor: tiny twins of the model families against what transformers makes of
// them (tests/reference/make_family_reference.py).
#ifndef MILLRACE_EXECUTORS_MODELS_FAMILY_REFERENCE_H_
#define MILLRACE_EXECUTORS_MODELS_FAMILY_REFERENCE_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "executors/executor.h"
#include "executors/models/reference_forward.h"
#include "formats/twins/family_twins.h"

namespace millrace {

struct FamilyReference {
  struct Twin {
    double largest;                        // of all logits, without their signs
    std::vector<double> logprobs;          // as TwinLogprobs has them
    std::vector<double> half_kv_logprobs;  // the same of keys and values in float16
  };
  std::vector<Token> prompt;
  std::vector<int32_t> rows;          // positions, multiples of 16; the last is the prompt's last
  std::map<std::string, Twin> twins;  // by their names
};

// Reads tests/reference/family_reference.json; the program runs in the repository. Ends it on an
// error.
FamilyReference ReadFamilyReference();

// Returns the log-probabilities of the prompt's tokens but the first, on an executor of which
// nothing is in use, fed `chunk` tokens a step.
std::vector<float> PromptLogprobs(Executor& executor, const std::vector<Token>& prompt, int chunk);

// Returns PromptLogprobs of the reference's prompt, fed whole, and then the log-probabilities of
// all of the vocabulary behind each of its rows' positions: their logits, but for what is the same
// for a whole row. The executor takes a sequence more than the vocabulary has tokens, and as many
// tokens a step as it has; its blocks have 16.
std::vector<float> TwinLogprobs(Executor& executor, const FamilyReference& reference);

// Loads the model of a folder or a file, for sequences of up to max_model_len positions, or if that
// is 0 of as many as the model was made for.
using LoadTwin = std::function<absl::StatusOr<std::unique_ptr<Executor>>(const std::string& path,
                                                                         int max_model_len)>;

struct TwinResult {
  std::string name;
  std::string change;  // of a mutant
  // Largest absolute log-probability difference, divided by the twin's largest logit.
  double error;
  double half_kv_error;  // against those of keys and values in float16
  bool quantized;        // the twin's weights are, so that a device may round linears' inputs, too
  bool mixture;          // of experts: a rounding may choose another one
  bool same;             // bit for bit, however the prompt was cut
};

// The form that a twin's file is in.
enum class TwinForm { kFolder, kGguf };

// Has `load` load every twin that can be had in this form from beneath `work`, which it makes, and
// feeds each the prompt whole, for TwinLogprobs, and by 7 tokens and token by token. A twin that
// does not load ends the program.
std::vector<TwinResult> RunFamilies(const LoadTwin& load, const std::string& work,
                                    TwinForm form = TwinForm::kFolder);

// The same of every twin after each of its mutations and faults, against what the twin should be:
// the prompt whole, its tokens alone.
struct MutantResults {
  std::vector<TwinResult> results;
  std::vector<std::string> unsaid;  // "name change" of those that are the same file in this form
};
MutantResults RunMutants(const LoadTwin& load, const std::string& work,
                         TwinForm form = TwinForm::kFolder);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_MODELS_FAMILY_REFERENCE_H_
