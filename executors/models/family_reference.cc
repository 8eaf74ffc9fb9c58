#include "executors/models/family_reference.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <utility>

#include "absl/types/span.h"
#include "base/strings.h"
#include "executors/executor_driver_test_util.h"
#include "formats/json/json.h"

namespace millrace {
namespace {

constexpr SamplingParams kScored{.temperature = 0, .top_logprobs = 0};

std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void AppendLogprobs(const StepResult& result, std::vector<float>* logprobs) {
  CheckOk(result.status);
  for (const TokenResult& token : result.tokens) logprobs->push_back(*token.logprob);
}

void AppendPromptLogprobs(ExecutorDriver& driver, SlotId slot, int tokens, int chunk,
                          std::vector<float>* logprobs) {
  for (int begin = 0; begin < tokens; begin += chunk) {
    AppendLogprobs(driver.Step({{slot, std::min(chunk, tokens - begin)}}, 1), logprobs);
  }
  logprobs->resize(tokens - 1);  // The last step samples a token, which nobody asks for.
}

// Appends those of the whole vocabulary behind prompt[position], after `cached`, the blocks of all
// tokens before: a sequence for each token, which is its target. The state of recurrent layers is
// in no block, so that without any each sequence computes its prompt, in a step of its own.
void AppendRow(ExecutorDriver& driver, int vocab, absl::Span<const Token> prompt, int32_t position,
               absl::Span<const BlockId> cached, std::vector<float>* logprobs) {
  if (cached.empty()) {
    for (Token token = 0; token < vocab; ++token) {
      std::vector<Token> tokens(prompt.begin(), prompt.begin() + position + 1);
      tokens.push_back(token);
      const SlotId slot = driver.Add(std::move(tokens), kScored);
      AppendLogprobs(driver.Step({{slot, position + 1}}, position + 1), logprobs);
      driver.Remove(slot);
    }
    return;
  }
  std::vector<ExecutorDriver::Share> shares;
  for (Token token = 0; token < vocab; ++token) {
    std::vector<Token> tokens(prompt.begin(), prompt.begin() + position + 1);
    tokens.push_back(token);
    shares.push_back({driver.Add(std::move(tokens), kScored, cached), 1});
  }
  AppendLogprobs(driver.Step(shares, position + 1), logprobs);
  for (const auto& [slot, count] : shares) driver.Remove(slot);
}

// The twin's file of this form beneath `work`.
std::string Write(const FamilyTwin& twin, TwinForm form, const std::string& work, TwinFault fault) {
  std::string path = StrCat(work, "/", twin.name, form == TwinForm::kGguf ? ".gguf" : "");
  if (form == TwinForm::kGguf) {
    std::filesystem::remove(path);  // which may still be mapped
    WriteTwinGguf(twin, path, fault);
  } else {
    WriteTwinFolder(twin, path, fault);
  }
  return path;
}

FamilyReference::Twin PromptAlone(FamilyReference::Twin twin, size_t count) {
  twin.logprobs.resize(count);
  twin.half_kv_logprobs.resize(count);
  return twin;
}

void Compare(const std::vector<float>& logprobs, const FamilyReference::Twin& expected,
             TwinResult* result) {
  const auto worse = [&](const std::vector<double>& of, double* error) {
    const double now = WorstError(logprobs, of) / expected.largest;
    *error = now <= *error ? *error : now;
  };
  worse(expected.logprobs, &result->error);
  worse(expected.half_kv_logprobs, &result->half_kv_error);
}

bool IsQuantized(const FamilyTwin& twin) { return twin.config.contains("quantization_config"); }

bool IsMixture(const FamilyTwin& twin) { return twin.config.contains("num_experts_per_tok"); }

}  // namespace

FamilyReference ReadFamilyReference() {
  const absl::StatusOr<Json> json = ParseJson(ReadAll("tests/reference/family_reference.json"), {});
  CheckOk(json.status());
  FamilyReference reference;
  reference.prompt = (*json)["prompt"].get<std::vector<Token>>();
  reference.rows = (*json)["rows"].get<std::vector<int32_t>>();
  for (const auto& [name, twin] : (*json)["twins"].items()) {
    reference.twins[name] = {.largest = twin["largest"],
                             .logprobs = twin["logprobs"],
                             .half_kv_logprobs = twin["half_kv_logprobs"]};
  }
  return reference;
}

std::vector<float> PromptLogprobs(Executor& executor, const std::vector<Token>& prompt, int chunk) {
  ExecutorDriver driver(executor);
  std::vector<float> logprobs;
  AppendPromptLogprobs(driver, driver.Add(prompt, kScored), static_cast<int>(prompt.size()), chunk,
                       &logprobs);
  return logprobs;
}

std::vector<float> TwinLogprobs(Executor& executor, const FamilyReference& reference) {
  const StepLimits& limits = executor.info().limits;
  const int tokens = static_cast<int>(reference.prompt.size());
  ExecutorDriver driver(executor);
  const SlotId slot = driver.Add(reference.prompt, kScored);
  std::vector<float> logprobs;
  AppendPromptLogprobs(driver, slot, tokens, tokens, &logprobs);
  for (const int32_t position : reference.rows) {
    const int32_t cached = limits.has_slots() ? 0 : position / limits.block_size();
    AppendRow(driver, limits.vocab_size, reference.prompt, position,
              absl::MakeConstSpan(driver.blocks(slot)).first(cached), &logprobs);
  }
  return logprobs;
}

std::vector<TwinResult> RunFamilies(const LoadTwin& load, const std::string& work, TwinForm form) {
  const FamilyReference reference = ReadFamilyReference();
  std::filesystem::create_directories(work);
  std::vector<TwinResult> results;
  for (const FamilyTwin& twin : FamilyTwins()) {
    const FamilyReference::Twin& expected = reference.twins.at(twin.name);
    if (form == TwinForm::kGguf && !twin.in_gguf) continue;
    const std::string path = Write(twin, form, work, TwinFault::kNone);
    TwinResult result{.name = twin.name,
                      .change = "",
                      .error = 0,
                      .half_kv_error = 0,
                      .quantized = IsQuantized(twin),
                      .mixture = IsMixture(twin),
                      .same = true};
    const auto executor = load(path, twin.max_model_len);
    CheckOk(executor.status());
    std::vector<float> whole = TwinLogprobs(**executor, reference);
    Compare(whole, expected, &result);
    whole.resize(reference.prompt.size() - 1);
    for (const int chunk : {7, 1}) {
      const auto again = load(path, twin.max_model_len);
      CheckOk(again.status());
      const std::vector<float> logprobs = PromptLogprobs(**again, reference.prompt, chunk);
      Compare(logprobs, PromptAlone(expected, logprobs.size()), &result);
      result.same = result.same && logprobs == whole;
    }
    results.push_back(result);
  }
  return results;
}

MutantResults RunMutants(const LoadTwin& load, const std::string& work, TwinForm form) {
  const FamilyReference reference = ReadFamilyReference();
  const int tokens = static_cast<int>(reference.prompt.size());
  std::filesystem::create_directories(work);
  MutantResults mutants;
  for (const FamilyTwin& twin : FamilyTwins()) {
    if (form == TwinForm::kGguf && !twin.in_gguf) continue;
    const FamilyReference::Twin expected =
        PromptAlone(reference.twins.at(twin.name), reference.prompt.size() - 1);
    const std::string original =
        form == TwinForm::kGguf ? ReadAll(Write(twin, form, work, TwinFault::kNone)) : "";
    const auto run = [&](const FamilyTwin& mutated, TwinFault fault, const std::string& change) {
      const std::string path = Write(mutated, form, work, fault);
      if (form == TwinForm::kGguf && ReadAll(path) == original) {
        mutants.unsaid.push_back(StrCat(twin.name, " ", change));
        return;
      }
      TwinResult result{.name = twin.name,
                        .change = change,
                        .error = 0,
                        .half_kv_error = 0,
                        .quantized = IsQuantized(twin),
                        .mixture = IsMixture(twin),
                        .same = false};
      const auto executor = load(path, twin.max_model_len);
      CheckOk(executor.status());
      Compare(PromptLogprobs(**executor, reference.prompt, tokens), expected, &result);
      mutants.results.push_back(result);
    };
    for (const Json& mutation : twin.mutations) {
      FamilyTwin mutated = twin;
      mutated.config.merge_patch(mutation);
      run(mutated, TwinFault::kNone, mutation.dump());
    }
    run(twin, TwinFault::kOtherKvHeads, "another grouping of heads");
    run(twin, TwinFault::kOtherScale, "another scale of scores");
  }
  return mutants;
}

}  // namespace millrace
