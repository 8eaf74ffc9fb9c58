#include "plan/step_plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

template <typename... Pieces>
absl::Status Invalid(const Pieces&... pieces) {
  return absl::InvalidArgumentError(StrCat("step plan: ", pieces...));
}

// "rows[3].start is 9, allowed: 0 to 8"
absl::Status CheckInside(std::string_view what, int64_t index, std::string_view field,
                         int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return Invalid(what, "[", index, "].", field, " is ", value, ", allowed: ", min, " to ", max);
}

absl::Status CheckRange(std::string_view what, size_t index, std::string_view field, Range range,
                        size_t size) {
  if (0 <= range.begin && range.begin <= range.end && range.end <= static_cast<int64_t>(size)) {
    return absl::OkStatus();
  }
  return Invalid(what, "[", index, "].", field, " is [", range.begin, ", ", range.end,
                 ") of an array of ", size);
}

// Blocks on the host are numbered by whoever keeps them there.
absl::Status CheckPlace(size_t move, std::string_view field, const StatePlace& place,
                        int32_t num_places) {
  const BlockId most = place.tier == StatePlace::Tier::kDevice
                           ? num_places - 1
                           : std::numeric_limits<int32_t>::max();
  return CheckInside("moves", static_cast<int64_t>(move), field, place.block, 0, most);
}

std::string_view Name(StatePlace::Tier tier) {
  return tier == StatePlace::Tier::kDevice ? "the device" : "the host";
}

absl::Status CheckMoves(const StepPlan& plan, const StepLimits& limits) {
  using Place = std::tuple<int32_t, StatePlace::Tier, BlockId>;
  const auto in_group = [](const StateMove& move, const StatePlace& place) {
    return Place(move.group, place.tier, place.block);
  };
  absl::flat_hash_set<Place> written;
  for (size_t i = 0; i < plan.moves.size(); ++i) {
    const StateMove& move = plan.moves[i];
    MILLRACE_RETURN_IF_ERROR(
        CheckInside("moves", i, "group", move.group, 0, limits.state.num_groups() - 1));
    const int32_t num_places = limits.num_places(move.group);
    MILLRACE_RETURN_IF_ERROR(CheckPlace(i, "from", move.from, num_places));
    MILLRACE_RETURN_IF_ERROR(CheckPlace(i, "to", move.to, num_places));
    if (!written.insert(in_group(move, move.to)).second) {
      return Invalid("moves[", i, "].to is block ", move.to.block, " on ", Name(move.to.tier),
                     ", which an earlier move of group ", move.group, " writes");
    }
  }
  for (size_t i = 0; i < plan.moves.size(); ++i) {
    const StateMove& move = plan.moves[i];
    if (!written.contains(in_group(move, move.from))) continue;
    return Invalid("moves[", i, "].from is block ", move.from.block, " on ", Name(move.from.tier),
                   ", which a move of group ", move.group, " writes");
  }
  return absl::OkStatus();
}

absl::Status CheckSampling(size_t start, const SamplingParams& sampling, int32_t vocab_size) {
  const auto wrong = [&](std::string_view field, auto value, std::string_view allowed) {
    return Invalid("starts[", start, "].sampling.", field, " is ", value, ", allowed: ", allowed);
  };
  const auto check = [&](const auto& number, auto value) {
    return number.Allows(value) ? absl::OkStatus() : wrong(number.name, value, number.allowed);
  };
  MILLRACE_RETURN_IF_ERROR(check(kTemperature, sampling.temperature));
  if (sampling.top_k < 0) return wrong("top_k", sampling.top_k, "0 or more");
  MILLRACE_RETURN_IF_ERROR(check(kTopP, sampling.top_p));
  MILLRACE_RETURN_IF_ERROR(check(kMinP, sampling.min_p));
  MILLRACE_RETURN_IF_ERROR(check(kTypicalP, sampling.typical_p));
  MILLRACE_RETURN_IF_ERROR(check(kRepetitionPenalty, sampling.repetition_penalty));
  MILLRACE_RETURN_IF_ERROR(check(kFrequencyPenalty, sampling.frequency_penalty));
  MILLRACE_RETURN_IF_ERROR(check(kPresencePenalty, sampling.presence_penalty));
  if (sampling.logit_bias.size() > kMaxLogitBiases) {
    return wrong("logit_bias' size", sampling.logit_bias.size(), StrCat("0 to ", kMaxLogitBiases));
  }
  for (const LogitBias& biased : sampling.logit_bias) {
    if (biased.token < 0 || biased.token >= vocab_size) {
      return wrong("logit_bias' token", biased.token, StrCat("0 to ", vocab_size - 1));
    }
    if (!(std::abs(biased.bias) <= 100)) {
      return wrong("logit_bias' bias", biased.bias, "-100 to 100");
    }
  }
  const int32_t top = sampling.top_logprobs.value_or(0);
  if (top < 0 || top > kMaxTopLogprobs) {
    return wrong("top_logprobs", top, StrCat("0 to ", kMaxTopLogprobs));
  }
  for (const Token token : sampling.banned_tokens) {
    if (token < 0 || token >= vocab_size) {
      return wrong("banned_tokens", token, StrCat("0 to ", vocab_size - 1));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckHistory(const StepPlan& plan, size_t i) {
  const SlotStart& start = plan.starts[i];
  MILLRACE_RETURN_IF_ERROR(CheckRange("starts", i, "history", start.history, plan.history.size()));
  const bool wanted = start.sampling->penalizes();
  if ((start.history.size() > 0) != wanted) {
    return Invalid("starts[", i, "].history has ", start.history.size(), " tokens, allowed: ",
                   wanted ? "those of the sequence, for its penalties" : "none without penalties");
  }
  return CheckInside("starts", i, "prompt_tokens", start.prompt_tokens, 0, start.history.size());
}

absl::Status CheckStarts(const StepPlan& plan, const StepLimits& limits) {
  std::vector<bool> started(limits.max_num_seqs);
  for (size_t i = 0; i < plan.starts.size(); ++i) {
    const SlotStart& start = plan.starts[i];
    MILLRACE_RETURN_IF_ERROR(
        CheckInside("starts", i, "slot", start.slot, 0, limits.max_num_seqs - 1));
    if (started[start.slot])
      return Invalid("starts[", i, "].slot is ", start.slot, " a second time");
    started[start.slot] = true;
    if (start.sampling == nullptr) return Invalid("starts[", i, "].sampling is null");
    MILLRACE_RETURN_IF_ERROR(CheckSampling(i, *start.sampling, limits.vocab_size));
    MILLRACE_RETURN_IF_ERROR(CheckHistory(plan, i));
  }
  if (plan.history.size() > static_cast<size_t>(limits.max_model_len)) {
    return Invalid("history has ", plan.history.size(), " tokens, allowed: ", limits.max_model_len);
  }
  for (size_t i = 0; i < plan.history.size(); ++i) {
    MILLRACE_RETURN_IF_ERROR(
        CheckInside("history", i, "token", plan.history[i], 0, limits.vocab_size - 1));
  }
  return absl::OkStatus();
}

absl::Status CheckInput(const StepPlan& plan, size_t i, const StepLimits& limits) {
  const StepRow& row = plan.rows[i];
  MILLRACE_RETURN_IF_ERROR(CheckInside("rows", i, "num_draft", row.num_draft, 0,
                                       std::min(kMaxDraftTokens, row.num_tokens - 1)));
  if (row.sampled_by.has_value()) {
    if (row.tokens.size() != 0 || row.num_tokens != row.num_draft + 1) {
      return Invalid("rows[", i, "] has sampled_by, and ", row.tokens.size(), " host tokens for ",
                     row.num_tokens, " inputs; allowed: none, for one and the draft");
    }
    if (*row.sampled_by < 1 || *row.sampled_by >= plan.id) {
      return Invalid("rows[", i, "].sampled_by is ", *row.sampled_by, ", allowed: steps before ",
                     plan.id);
    }
  } else if (row.tokens.size() != row.num_tokens) {
    return Invalid("rows[", i, "] has ", row.tokens.size(), " host tokens for ", row.num_tokens,
                   " inputs, and no sampled_by");
  }
  for (int32_t at = row.tokens.begin; at < row.tokens.end; ++at) {
    MILLRACE_RETURN_IF_ERROR(
        CheckInside("rows", i, "tokens", plan.tokens[at], 0, limits.vocab_size - 1));
  }
  return absl::OkStatus();
}

absl::Status CheckBlocks(const StepPlan& plan, size_t i, const StepLimits& limits) {
  const StepRow& row = plan.rows[i];
  const int32_t num_groups = limits.state.num_paged_groups();
  if (row.blocks.size() % num_groups != 0) {
    return Invalid("rows[", i, "].blocks has ", row.blocks.size(),
                   " blocks, allowed: as many for each of ", num_groups, " groups");
  }
  for (int group = 0; group < limits.state.num_groups(); ++group) {
    const PagedState* const pages = limits.state.Paged(group);
    if (pages == nullptr) continue;
    for (const BlockId block : NewBlocks(plan, row, limits.state, group)) {
      if (block == kNoBlock && pages->window.has_value()) continue;
      MILLRACE_RETURN_IF_ERROR(
          CheckInside("rows", i, num_groups > 1 ? StrCat("blocks of group ", group) : "blocks",
                      block, 0, limits.num_blocks[group] - 1));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLogits(const StepPlan& plan, size_t i, const StepLimits& limits) {
  const StepRow& row = plan.rows[i];
  int32_t least = 0;
  int sampled = 0;
  for (int32_t at = row.logits.begin; at < row.logits.end; ++at) {
    const WantedLogits& wanted = plan.logits[at];
    MILLRACE_RETURN_IF_ERROR(
        CheckInside("rows", i, "logits' offset", wanted.offset, least, row.num_tokens - 1));
    least = wanted.offset + 1;
    if (wanted.target.has_value()) {
      MILLRACE_RETURN_IF_ERROR(
          CheckInside("rows", i, "logits' target", *wanted.target, 0, limits.vocab_size - 1));
      if (wanted.mask != nullptr || wanted.late_mask) {
        return Invalid("rows[", i, "].logits masks a token to score");
      }
    } else if (wanted.mask != nullptr && wanted.mask->size() != MaskWords(limits.vocab_size)) {
      return Invalid("rows[", i, "].logits has a mask of ", wanted.mask->size(),
                     " words, allowed: ", MaskWords(limits.vocab_size));
    } else if (wanted.mask != nullptr && wanted.late_mask) {
      return Invalid("rows[", i, "].logits has two masks");
    } else if (++sampled > row.num_draft + 1) {
      return Invalid("rows[", i, "].logits samples more than one position, allowed: one",
                     row.num_draft > 0 ? " and the draft's" : "");
    }
  }
  // As many of ascending offsets below num_tokens are the last ones, if the first is.
  const int32_t first = row.logits.end - row.num_draft - 1;
  if (row.num_draft > 0 && (sampled != row.num_draft + 1 ||
                            plan.logits[first].offset != row.num_tokens - row.num_draft - 1)) {
    return Invalid("rows[", i, "].logits samples ", sampled, " positions, allowed: the ",
                   row.num_draft + 1, " from the token before the draft on");
  }
  return absl::OkStatus();
}

absl::Status CheckRow(const StepPlan& plan, size_t i, const StepLimits& limits) {
  const StepRow& row = plan.rows[i];
  MILLRACE_RETURN_IF_ERROR(CheckInside("rows", i, "slot", row.slot, 0, limits.max_num_seqs - 1));
  MILLRACE_RETURN_IF_ERROR(CheckInside("rows", i, "start", row.start, 0, limits.max_model_len - 1));
  MILLRACE_RETURN_IF_ERROR(
      CheckInside("rows", i, "num_tokens", row.num_tokens, 1, limits.max_model_len - row.start));
  MILLRACE_RETURN_IF_ERROR(CheckRange("rows", i, "tokens", row.tokens, plan.tokens.size()));
  MILLRACE_RETURN_IF_ERROR(CheckRange("rows", i, "blocks", row.blocks, plan.blocks.size()));
  MILLRACE_RETURN_IF_ERROR(CheckRange("rows", i, "logits", row.logits, plan.logits.size()));
  MILLRACE_RETURN_IF_ERROR(CheckInput(plan, i, limits));
  MILLRACE_RETURN_IF_ERROR(CheckBlocks(plan, i, limits));
  if (row.second_type.has_value()) {
    if (!limits.whole_sequences()) {
      return Invalid("rows[", i, "].second_type is for encoders only");
    }
    MILLRACE_RETURN_IF_ERROR(
        CheckInside("rows", i, "second_type", *row.second_type, 0, row.num_tokens - 1));
  }
  MILLRACE_RETURN_IF_ERROR(CheckLogits(plan, i, limits));
  if (limits.embeds_parts && row.logits.size() > 0) {
    return Invalid("rows[", i, "] wants ", row.logits.size(),
                   " logits; allowed of a model of embeddings: none");
  }
  if (limits.whole_sequences() && (row.start > 0 || row.logits.size() > 0)) {
    return Invalid("rows[", i, "] begins at ", row.start, " and wants ", row.logits.size(),
                   " logits; allowed of an encoder: whole sequences, without logits");
  }
  return absl::OkStatus();
}

}  // namespace

void SetDraft(const LateDraft& draft, StepPlan& plan) {
  StepRow& row = plan.rows[draft.row];
  const auto length = static_cast<int32_t>(draft.tokens.size());
  const int32_t missing = row.num_draft - length;
  row.tokens.begin = static_cast<int32_t>(plan.tokens.size());
  plan.tokens.insert(plan.tokens.end(), draft.tokens.begin(), draft.tokens.end());
  row.tokens.end = static_cast<int32_t>(plan.tokens.size());
  row.num_draft = length;
  row.num_tokens -= missing;
  row.logits.end -= missing;
}

absl::Status ValidatePlan(const StepPlan& plan, const StepLimits& limits) {
  if (plan.id == 0) return Invalid("id is 0, allowed: 1 and more");
  MILLRACE_RETURN_IF_ERROR(CheckMoves(plan, limits));
  MILLRACE_RETURN_IF_ERROR(CheckStarts(plan, limits));
  std::vector<bool> has_row(limits.max_num_seqs);
  int64_t num_tokens = 0;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    MILLRACE_RETURN_IF_ERROR(CheckRow(plan, i, limits));
    const StepRow& row = plan.rows[i];
    if (has_row[row.slot]) return Invalid("rows[", i, "].slot is ", row.slot, " a second time");
    has_row[row.slot] = true;
    num_tokens += row.num_tokens;
  }
  if (num_tokens > limits.max_num_batched_tokens) {
    return Invalid("rows have ", num_tokens,
                   " input tokens, allowed: ", limits.max_num_batched_tokens);
  }
  return absl::OkStatus();
}

}  // namespace millrace
