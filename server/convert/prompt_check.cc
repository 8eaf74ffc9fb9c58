#include "server/convert/prompt_check.h"

#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "executors/executor.h"
#include "executors/factory.h"
#include "formats/model_text.h"
#include "text/tokenizer/pipeline_tokenizer.h"

namespace millrace {
namespace {

constexpr size_t kMaxTokens = 4096;

// Plans one row with the whole prompt, which scores each token behind those before it.
StepPlan PlanOf(const std::vector<Token>& tokens, const StateLayout& state) {
  auto sampling = std::make_shared<SamplingParams>();
  sampling->top_logprobs = 0;
  StepPlan plan{.id = 1};
  plan.starts.push_back({.slot = 0, .sampling = std::move(sampling)});
  plan.tokens = tokens;
  const auto count = static_cast<int32_t>(tokens.size());
  const int32_t blocks = state.BlocksFor(count);
  for (int group = 0; group < state.num_paged_groups(); ++group) {
    for (BlockId block = 0; block < blocks; ++block) plan.blocks.push_back(block);
  }
  for (int32_t i = 0; i + 1 < count; ++i) {
    plan.logits.push_back({.offset = i, .target = tokens[i + 1]});
  }
  plan.rows.push_back({.slot = 0,
                       .start = 0,
                       .num_tokens = count,
                       .tokens = {0, count},
                       .blocks = {0, static_cast<int32_t>(plan.blocks.size())},
                       .logits = {0, count - 1}});
  return plan;
}

absl::StatusOr<StepResult> RunPlan(Executor& executor, StepPlan plan) {
  MILLRACE_RETURN_IF_ERROR(executor.Submit(std::move(plan)));
  std::optional<StepResult> result = executor.Wait();
  if (!result.has_value()) return absl::InternalError("the step has no result");
  MILLRACE_RETURN_IF_ERROR(result->status);
  MILLRACE_RETURN_IF_ERROR(result->rows[0].status);
  return *std::move(result);
}

}  // namespace

absl::StatusOr<std::vector<ScoredToken>> ScorePrompt(const std::string& folder,
                                                     const std::string& prompt) {
  MILLRACE_ASSIGN_OR_RETURN(const ModelText text, ReadModelText(folder));
  MILLRACE_ASSIGN_OR_RETURN(const std::unique_ptr<const Tokenizer> tokenizer,
                            PipelineTokenizer::Create(text.tokenizer));
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<Token> tokens,
                            tokenizer->Encode(prompt, EncodeOptions{}));
  if (tokens.size() < 2 || tokens.size() > kMaxTokens) {
    return absl::InvalidArgumentError(
        StrCat("check: the prompt has ", tokens.size(), " tokens, expected 2 to ", kMaxTokens));
  }
  CpuSpec device;
  device.max_num_seqs = 1;
  device.max_num_batched_tokens = static_cast<int>(tokens.size());
  device.max_model_len = static_cast<int>(tokens.size());
  MILLRACE_ASSIGN_OR_RETURN(const std::unique_ptr<Executor> executor,
                            LoadExecutor(ModelSpec{.path = folder}, device));
  const StepLimits& limits = executor->info().limits;
  if (limits.embedding_size > 0) {
    return absl::UnimplementedError(
        "check: the model makes embeddings; allowed: one that generates");
  }
  MILLRACE_ASSIGN_OR_RETURN(const StepResult result,
                            RunPlan(*executor, PlanOf(tokens, limits.state)));
  std::vector<ScoredToken> scored;
  for (size_t i = 0; i < tokens.size(); ++i) {
    scored.push_back({.token = tokens[i], .text = std::string(tokenizer->TokenBytes(tokens[i]))});
    if (i > 0) scored.back().logprob = result.tokens[i - 1].logprob.value_or(0);
  }
  return scored;
}

std::string ScoreTable(const std::vector<ScoredToken>& tokens) {
  std::string table = "   token     logprob  text\n";
  double sum = 0;
  char line[64];
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i == 0) {
      std::snprintf(line, sizeof(line), "%8d           -  ", tokens[i].token);
    } else {
      std::snprintf(line, sizeof(line), "%8d  %10.4f  ", tokens[i].token, tokens[i].logprob);
      sum += tokens[i].logprob;
    }
    table += StrCat(line, Printable(tokens[i].text), "\n");
  }
  std::snprintf(line, sizeof(line), "    mean  %10.4f\n",
                sum / static_cast<double>(tokens.size() - 1));
  return table + line;
}

}  // namespace millrace
