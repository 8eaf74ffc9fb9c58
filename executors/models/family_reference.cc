#include "executors/models/family_reference.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "executors/executor_driver.h"
#include "formats/json.h"

namespace millrace {

FamilyReference ReadFamilyReference() {
  std::ifstream file("tests/reference/family_reference.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const absl::StatusOr<Json> json = ParseJson(text, {});
  CheckOk(json.status());
  FamilyReference reference;
  reference.prompt = (*json)["prompt"].get<std::vector<Token>>();
  for (const auto& [name, twin] : (*json)["twins"].items()) {
    reference.twins[name] = {.largest = twin["largest"],
                             .logprobs = twin["logprobs"],
                             .half_kv_logprobs = twin["half_kv_logprobs"]};
  }
  return reference;
}

std::vector<float> PromptLogprobs(Executor& executor, const std::vector<Token>& prompt, int chunk) {
  ExecutorDriver driver(executor);
  const SlotId slot = driver.Add(prompt, {.temperature = 0, .top_logprobs = 0});
  std::vector<float> logprobs;
  const int tokens = static_cast<int>(prompt.size());
  for (int begin = 0; begin < tokens; begin += chunk) {
    const StepResult result = driver.Step({{slot, std::min(chunk, tokens - begin)}}, 1);
    CheckOk(result.status);
    // The last step samples a token, which nobody asks for.
    for (const TokenResult& token : result.tokens) logprobs.push_back(*token.logprob);
  }
  logprobs.resize(tokens - 1);
  driver.Remove(slot);
  return logprobs;
}

std::vector<TwinResult> RunFamilies(const LoadTwin& load, const std::string& work, TwinForm form) {
  const FamilyReference reference = ReadFamilyReference();
  std::filesystem::create_directories(work);
  std::vector<TwinResult> results;
  for (const FamilyTwin& twin : FamilyTwins()) {
    const FamilyReference::Twin& expected = reference.twins.at(twin.name);
    if (form == TwinForm::kGguf && !twin.in_gguf) continue;
    const std::string path = work + "/" + twin.name + (form == TwinForm::kGguf ? ".gguf" : "");
    if (form == TwinForm::kGguf) {
      WriteTwinGguf(twin, path);
    } else {
      WriteTwinFolder(twin, path);
    }
    TwinResult result{.name = twin.name, .error = 0, .half_kv_error = 0, .same = true};
    std::vector<float> whole;
    for (const int chunk : {static_cast<int>(reference.prompt.size()), 7, 1}) {
      const auto executor = load(path, twin.max_model_len);
      CheckOk(executor.status());
      const std::vector<float> logprobs = PromptLogprobs(**executor, reference.prompt, chunk);
      const auto worse = [&](double error, const std::vector<double>& of) {
        const double now = WorstError(logprobs, of) / expected.largest;
        return now <= error ? error : now;
      };
      result.error = worse(result.error, expected.logprobs);
      result.half_kv_error = worse(result.half_kv_error, expected.half_kv_logprobs);
      if (whole.empty()) whole = logprobs;
      result.same = result.same && logprobs == whole;
    }
    results.push_back(result);
  }
  return results;
}

}  // namespace millrace
