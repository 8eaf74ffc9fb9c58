#include "engine/prepare.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "base/sha256.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/request/request_fields.h"
#include "engine/request/tenant.h"

namespace millrace {
namespace {

std::vector<Token> StopTokens(const GenerateRequest& request, const SequenceDefaults& defaults) {
  std::vector<Token> stops = request.stop_token_ids;
  if (!request.ignore_eos) {
    stops.insert(stops.end(), defaults.end_of_generation.begin(), defaults.end_of_generation.end());
  }
  std::sort(stops.begin(), stops.end());
  stops.erase(std::unique(stops.begin(), stops.end()), stops.end());
  return stops;
}

// For a request that does not say it: what the model wants gives way to what fits, and to what is
// asked for at least.
int32_t DefaultMaxTokens(const GenerateRequest& request, int64_t fit) {
  if (!request.default_max_tokens.has_value()) return static_cast<int32_t>(fit);
  const int32_t wanted = std::max(*request.default_max_tokens, request.min_tokens);
  return static_cast<int32_t>(std::min<int64_t>(wanted, fit));
}

BlockHash RootOf(const Tenant* tenant, const SequenceDefaults& defaults) {
  if (tenant == nullptr || tenant->limits().cache_salt.empty()) return defaults.cache_root;
  const auto* const root = reinterpret_cast<const char*>(defaults.cache_root.data());
  return CacheRoot(
      {std::string_view(root, defaults.cache_root.size()), tenant->limits().cache_salt});
}

// A digest, since the salt itself is a secret of the file of keys.
std::string NameOfSalt(std::string_view salt) {
  constexpr size_t kBytes = 16;
  const Sha256Digest digest = Sha256Of(StrCat("kv-events:", salt));
  return absl::BytesToHexString(AbslView(AsBytes(digest).substr(0, kBytes)));
}

}  // namespace

TenantShare ShareOf(const Tenant* tenant) {
  // Requests without a key's tenant share as one with the default.
  if (tenant == nullptr) return {.id = 0, .weight = TenantLimits().share};
  return {.id = tenant->id(), .weight = tenant->limits().share};
}

BlockHashes HashesOf(const std::vector<Token>& prompt, const Tenant* tenant,
                     const SequenceDefaults& defaults) {
  if (!defaults.prefix_caching) return {};
  BlockHashes hashes = HashPrompt(RootOf(tenant, defaults), prompt, defaults.limits.block_size());
  if (defaults.names_salts && tenant != nullptr && !tenant->limits().cache_salt.empty()) {
    hashes.salt = NameOfSalt(tenant->limits().cache_salt);
  }
  return hashes;
}

absl::StatusOr<SequenceRequest> MakeSequence(const GenerateRequest& request,
                                             std::vector<Token> prompt,
                                             const SequenceDefaults& defaults) {
  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  const int64_t insisted_on = request.max_tokens.value_or(std::max(request.min_tokens, 1));
  MILLRACE_RETURN_IF_ERROR(CheckFits(prompt_tokens, insisted_on, defaults.limits));

  SequenceRequest sequence;
  sequence.stop.stop_token_ids = StopTokens(request, defaults);
  sequence.stop.max_tokens = request.max_tokens.value_or(
      DefaultMaxTokens(request, MaxNewTokens(prompt_tokens, defaults.limits)));
  sequence.priority = request.priority;
  sequence.score_prompt = request.echo && request.logprobs.has_value() && prompt_tokens > 1;
  sequence.prompt_hashes = HashesOf(prompt, request.tenant.get(), defaults);
  sequence.tenant = ShareOf(request.tenant.get());

  SamplingParams sampling;
  ForEachSamplingField([&](const auto& field) { sampling.*field.params = request.*field.member; });
  sampling.top_k = std::max(sampling.top_k, 0);
  sampling.logit_bias = request.logit_bias;
  sampling.seed = request.seed.value_or(0);
  sampling.top_logprobs = request.logprobs;
  if (request.mean_logprob && !request.logprobs.has_value()) sampling.top_logprobs = 0;
  if (request.min_tokens > 0) {
    sampling.banned_tokens = sequence.stop.stop_token_ids;
    sampling.banned_before = static_cast<int32_t>(prompt_tokens) + request.min_tokens;
  }
  sequence.sampling = std::make_shared<const SamplingParams>(std::move(sampling));
  sequence.prompt = std::move(prompt);
  return sequence;
}

SequenceRequest MakeChoice(const SequenceRequest& first, uint32_t choice) {
  SequenceRequest sequence = first;
  if (first.drafter != nullptr) sequence.drafter = first.drafter->Clone();
  SamplingParams sampling = *first.sampling;
  sampling.sample_index = choice;
  sequence.sampling = std::make_shared<const SamplingParams>(std::move(sampling));
  sequence.score_prompt = false;
  return sequence;
}

absl::Status CheckKnown(std::string_view field, const std::vector<Token>& prompt,
                        int32_t vocab_size) {
  const auto unknown =
      std::find_if(prompt.begin(), prompt.end(), [&](Token token) { return token >= vocab_size; });
  if (unknown == prompt.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat(field, " has the token ", *unknown,
                                           ", which the model does not know; allowed: 0 to ",
                                           vocab_size - 1));
}

bool NeedsNoModel(const SequenceRequest& sequence) {
  return sequence.stop.max_tokens == 0 && !sequence.score_prompt;
}

}  // namespace millrace
