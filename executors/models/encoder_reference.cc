#include "executors/models/encoder_reference.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "executors/executor_driver_test_util.h"
#include "executors/models/reference_forward.h"

namespace millrace {

EncoderReference ReadEncoderReference() {
  std::ifstream file("tests/reference/encoder_reference.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const absl::StatusOr<Json> json = ParseJson(text, {});
  CheckOk(json.status());
  return {(*json)["prompt"].get<std::vector<Token>>(), (*json)["twins"]};
}

StepPlan TextsPlan(const std::vector<std::vector<Token>>& texts, int block_size, StepId id) {
  StepPlan plan{.id = id};
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto slot = static_cast<SlotId>(i);
    const auto tokens = static_cast<int32_t>(texts[i].size());
    plan.starts.push_back({slot, std::make_shared<const SamplingParams>()});
    StepRow row{.slot = slot, .start = 0, .num_tokens = tokens};
    row.tokens.begin = static_cast<int32_t>(plan.tokens.size());
    plan.tokens.insert(plan.tokens.end(), texts[i].begin(), texts[i].end());
    row.tokens.end = static_cast<int32_t>(plan.tokens.size());
    row.blocks.begin = static_cast<int32_t>(plan.blocks.size());
    for (int32_t at = 0; at < tokens; at += block_size) {
      plan.blocks.push_back(static_cast<BlockId>(plan.blocks.size()));
    }
    row.blocks.end = static_cast<int32_t>(plan.blocks.size());
    plan.rows.push_back(row);
  }
  return plan;
}

Embeddings Embed(Executor& executor, const std::vector<std::vector<Token>>& texts, StepId id) {
  return Embed(executor, TextsPlan(texts, executor.info().limits.block_size(), id));
}

Embeddings Embed(Executor& executor, StepPlan plan) {
  CheckOk(executor.Submit(std::move(plan)));
  const std::optional<StepResult> result = executor.Wait();
  CheckOk(result->status);
  Embeddings embeddings;
  for (const RowResult& row : result->rows) {
    CheckOk(row.status);
    embeddings.emplace_back(result->embeddings.begin() + row.embedding.begin,
                            result->embeddings.begin() + row.embedding.end);
  }
  return embeddings;
}

double EmbeddingError(const std::vector<float>& embedding, const Json& reference) {
  const auto expected = reference.get<std::vector<double>>();
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  return WorstError(embedding, expected) / largest;
}

std::vector<EncoderMutant> EncoderMutants(const FamilyTwin& twin) {
  std::vector<EncoderMutant> mutants;
  for (const Json& mutation : twin.mutations) {
    EncoderMutant& mutant = mutants.emplace_back(EncoderMutant{.twin = twin});
    mutant.twin.config.merge_patch(mutation);
    mutant.change = mutation.dump();
  }
  mutants.push_back({twin, TwinFault::kOtherKvHeads, "other heads of keys and values"});
  mutants.push_back({twin, TwinFault::kOtherScale, "another scale of scores"});
  mutants.push_back({twin, TwinFault::kNone, "another pooling"});
  mutants.back().twin.pooling = twin.pooling == "mean_tokens" ? "cls_token" : "mean_tokens";
  mutants.push_back({twin, TwinFault::kNone, "another length"});
  mutants.back().twin.normalize = !twin.normalize;
  return mutants;
}

}  // namespace millrace
