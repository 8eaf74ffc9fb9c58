#include "scheduler/sequence_request.h"

#include <algorithm>
#include <string>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {

int64_t MaxNewTokens(int64_t prompt_tokens, const StepLimits& limits) {
  // The last token is never an input, so its keys and values need no memory.
  int64_t most = limits.max_model_len;
  for (int i = 0; i < limits.state.num_groups(); ++i) {
    if (limits.state.Paged(i) == nullptr) continue;
    // A group with a window holds any length if it holds the window.
    if (limits.state.BlocksAtOnce(i, limits.max_model_len) <= limits.num_blocks[i]) continue;
    most = std::min(most, int64_t{limits.num_blocks[i]} * limits.block_size() + 1);
  }
  return most - prompt_tokens;
}

absl::Status CheckFits(int64_t prompt_tokens, int64_t new_tokens, const StepLimits& limits) {
  if (prompt_tokens + new_tokens > limits.max_model_len) {
    const std::string more = new_tokens == 0
                                 ? ""
                                 : StrCat(" and ", new_tokens, " more are asked for: together ",
                                          prompt_tokens + new_tokens);
    return absl::OutOfRangeError(StrCat("the prompt has ", prompt_tokens, " tokens", more,
                                        ", but the model's length is ", limits.max_model_len));
  }
  const auto inputs = static_cast<int32_t>(prompt_tokens + std::max<int64_t>(new_tokens - 1, 0));
  for (int i = 0; i < limits.state.num_groups(); ++i) {
    const PagedState* const paged = limits.state.Paged(i);
    if (paged == nullptr) continue;
    const int32_t blocks = limits.state.BlocksAtOnce(i, inputs);
    if (blocks <= limits.num_blocks[i]) continue;
    return absl::OutOfRangeError(
        StrCat("the prompt of ", prompt_tokens, " tokens and ", new_tokens, " more need ", blocks,
               " blocks of the KV cache",
               paged->window.has_value() ? StrCat(" for windows of ", *paged->window) : "",
               ", but it has ", limits.num_blocks[i]));
  }
  return absl::OkStatus();
}

absl::Status ValidateSequence(const SequenceRequest& request, const StepLimits& limits,
                              bool prefix_caching) {
  if (request.prompt.empty()) return absl::InvalidArgumentError("prompt: is empty");
  for (const Token token : request.prompt) {
    if (token < 0 || token >= limits.vocab_size) {
      return absl::InvalidArgumentError(
          StrCat("prompt: token ", token, " is not in [0, ", limits.vocab_size, ")"));
    }
  }
  if (request.sampling == nullptr) return absl::InvalidArgumentError("sampling: is missing");
  if (request.score_prompt && !request.sampling->top_logprobs) {
    return absl::InvalidArgumentError("score_prompt: needs sampling.top_logprobs");
  }
  if (request.stop.max_tokens < 0) {
    return absl::InvalidArgumentError(
        StrCat("max_tokens: is ", request.stop.max_tokens, ", must be at least 0"));
  }
  if (request.tenant.weight < 1 || request.tenant.weight > kMaxTenantWeight) {
    return absl::InvalidArgumentError(
        StrCat("tenant.weight: is ", request.tenant.weight, ", must be 1 to ", kMaxTenantWeight));
  }
  const size_t full_blocks = request.prompt.size() / limits.block_size();
  if (prefix_caching && request.prompt_hashes.blocks.size() != full_blocks) {
    return absl::InvalidArgumentError(StrCat("prompt_hashes: has ",
                                             request.prompt_hashes.blocks.size(),
                                             " blocks, the prompt ", full_blocks));
  }
  return CheckFits(static_cast<int64_t>(request.prompt.size()),
                   std::min(request.stop.max_tokens, 1), limits);
}

}  // namespace millrace
