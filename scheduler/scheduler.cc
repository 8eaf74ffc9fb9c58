#include "scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/types/span.h"
#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

// How many masks of a sequence are awaited the next time that one was too late, as a multiple of
// the time before, and at most: a sequence holds up few steps of all.
constexpr int32_t kMoreAwaited = 16;
constexpr int32_t kMostAwaited = 1 << 24;

absl::Status CheckPools(const StepLimits& limits) {
  const int groups = limits.state.num_groups();
  if (limits.num_blocks.size() != static_cast<size_t>(groups)) {
    return absl::InvalidArgumentError(
        StrCat("num_blocks: has ", limits.num_blocks.size(), " groups, the state ", groups));
  }
  if (limits.state.num_paged_groups() == 0) {
    return absl::InvalidArgumentError("state: has no paged group");
  }
  for (int group = 0; group < groups; ++group) {
    const PagedState* const paged = limits.state.Paged(group);
    if (paged == nullptr) {
      if (limits.num_blocks[group] >= 0) continue;
      return absl::InvalidArgumentError(
          StrCat("num_blocks: is ", limits.num_blocks[group], ", must be at least 0 of slots"));
    }
    if (limits.num_blocks[group] <= 0) {
      return absl::InvalidArgumentError(
          StrCat("num_blocks: is ", limits.num_blocks[group], ", must be at least 1"));
    }
    if (paged->window.value_or(1) <= 0) {
      return absl::InvalidArgumentError(
          StrCat("window: is ", *paged->window, ", must be at least 1"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Scheduler>> Scheduler::Create(const SchedulerOptions& options) {
  const StepLimits& limits = options.limits;
  const std::pair<const char*, int32_t> positive[] = {
      {"max_num_seqs", limits.max_num_seqs},
      {"max_model_len", limits.max_model_len},
      {"block_size", limits.block_size()},
      {"vocab_size", limits.vocab_size},
      {"checkpoint_distance", options.checkpoint_distance},
  };
  for (const auto& [name, value] : positive) {
    if (value <= 0) {
      return absl::InvalidArgumentError(StrCat(name, ": is ", value, ", must be at least 1"));
    }
  }
  MILLRACE_RETURN_IF_ERROR(CheckPools(limits));
  if (options.num_draft_tokens < 0 || options.num_draft_tokens > kMaxDraftTokens) {
    return absl::InvalidArgumentError(StrCat("num_draft_tokens: is ", options.num_draft_tokens,
                                             ", must be 0 to ", kMaxDraftTokens));
  }
  if (limits.max_num_batched_tokens < limits.max_num_seqs) {
    return absl::InvalidArgumentError(
        StrCat("max_num_batched_tokens: is ", limits.max_num_batched_tokens,
               ", must be at least max_num_seqs, ", limits.max_num_seqs));
  }
  if (limits.whole_sequences() && limits.max_num_batched_tokens < limits.max_model_len) {
    return absl::InvalidArgumentError(
        StrCat("max_num_batched_tokens: is ", limits.max_num_batched_tokens,
               ", must be at least max_model_len, ", limits.max_model_len,
               ", as the model takes whole texts"));
  }
  if (limits.whole_sequences() && options.prefix_caching) {
    return absl::InvalidArgumentError(
        "prefix_caching: is true, must be false for a model that takes whole texts");
  }
  return std::unique_ptr<Scheduler>(new Scheduler(options));
}

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options),
      has_slots_(options.limits.has_slots()),
      shares_prefixes_(!has_slots_ ||
                       (options.prefix_caching && options.limits.num_checkpoints() > 0)),
      all_tokens_(std::make_shared<const SampleMask>(MaskWords(options.limits.vocab_size), ~0U)),
      pools_(options_.limits, options.block_events),
      checkpoints_(options.prefix_caching ? options.limits.num_checkpoints() : 0),
      waiting_(/*forgiven=*/options.limits.max_num_batched_tokens, pools_.size()),
      budget_(options.itl_slo, {.token_tile = options.limits.token_tile,
                                .num_experts = options.limits.num_experts,
                                .experts_a_token = options.limits.experts_a_token}) {
  for (SlotId slot = options.limits.max_num_seqs; slot > 0; --slot) free_slots_.push_back(slot - 1);
  running_.reserve(options.limits.max_num_seqs);
}

absl::Status Scheduler::Add(SequenceRequest request) {
  MILLRACE_RETURN_IF_ERROR(ValidateSequence(request, options_.limits, options_.prefix_caching));
  auto [it, is_new] = sequences_.try_emplace(request.id);
  if (!is_new) return absl::AlreadyExistsError(StrCat("id: ", request.id, " is alive"));

  const int32_t prompt_size = static_cast<int32_t>(request.prompt.size());
  const int32_t new_tokens = static_cast<int32_t>(
      std::min<int64_t>(request.stop.max_tokens, MaxNewTokens(prompt_size, options_.limits)));
  std::sort(request.stop.stop_token_ids.begin(), request.stop.stop_token_ids.end());
  // What is guessed may not be what a mask allows.
  const bool drafts = options_.num_draft_tokens > 0 && request.first_mask == nullptr;
  auto sequence = std::make_unique<Sequence>(Sequence{
      .id = request.id,
      .priority = request.priority,
      .order = num_added_++,
      .prompt_size = prompt_size,
      .max_size = prompt_size + new_tokens,
      .max_inputs = prompt_size + std::max(new_tokens - 1, 0),
      .stop_token_ids = std::move(request.stop.stop_token_ids),
      .sampling = std::move(request.sampling),
      .masked = request.first_mask != nullptr,
      .masks_late_from = options_.late_masks ? std::optional(0) : std::nullopt,
      .arrival = request.arrival,
      .second_type = request.second_type,
      .tokens = std::move(request.prompt),
      .scored = request.score_prompt ? 0 : prompt_size - 1,
      .hashes = std::move(request.prompt_hashes),
      .mask = std::move(request.first_mask),
      .drafter = drafts ? std::move(request.drafter) : nullptr,
      .tables = BlockTables(pools_.size()),
  });
  if (absl::Status status = JoinGroup(request.prompt_group, *sequence); !status.ok()) {
    sequences_.erase(it);
    return status;
  }
  waiting_.Join(request.tenant, *sequence);
  waiting_.Push(*sequence);
  it->second = std::move(sequence);
  return absl::OkStatus();
}

absl::Status Scheduler::JoinGroup(uint64_t id, Sequence& sequence) {
  if (id == 0) return absl::OkStatus();
  std::unique_ptr<PromptGroup>& group = groups_[id];
  if (group == nullptr) {
    group = std::make_unique<PromptGroup>(PromptGroup{.id = id});
  } else {
    const Sequence& other = *group->members.front();
    const auto prompt = absl::MakeConstSpan(other.tokens).first(other.prompt_size);
    if (absl::MakeConstSpan(sequence.tokens) != prompt) {
      return absl::InvalidArgumentError(
          StrCat("prompt_group: ", id, " is of sequences with another prompt"));
    }
  }
  group->members.push_back(&sequence);
  sequence.group = group.get();
  return absl::OkStatus();
}

void Scheduler::LeaveGroup(Sequence& sequence) {
  PromptGroup* const group = std::exchange(sequence.group, nullptr);
  if (group == nullptr) return;
  std::erase(group->members, &sequence);
  if (group->members.empty()) groups_.erase(group->id);
}

bool Scheduler::Cancel(SequenceId id, absl::Status why, SteadyTime now,
                       std::vector<TokenEvent>* events) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return false;
  TokenEvent event{.id = id};
  event.end = End(*it->second, EndReason::kCancelled, std::move(why), now);
  events->push_back(std::move(event));
  return true;
}

void Scheduler::CancelAll(const absl::Status& why, SteadyTime now,
                          std::vector<TokenEvent>* events) {
  while (!running_.empty()) Cancel(running_.front()->id, why, now, events);
  UnparkPrefixes();
  while (!waiting_.empty()) Cancel(waiting_.first().id, why, now, events);
}

void Scheduler::SetMask(SequenceId id, std::shared_ptr<const SampleMask> mask) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end() || !it->second->masked) return;
  Sequence& sequence = *it->second;
  if (sequence.late_masks.empty()) {
    sequence.mask = std::move(mask);
  } else {
    SetLateMask(sequence, std::move(mask));
  }
}

void Scheduler::SetLateMask(Sequence& sequence, std::shared_ptr<const SampleMask> mask) {
  late_masks_.push_back(std::move(sequence.late_masks.front()));
  late_masks_.back().mask = std::move(mask);
  sequence.late_masks.pop_front();
}

void Scheduler::Force(SequenceId id, absl::Span<const Token> tokens, SteadyTime now,
                      std::vector<TokenEvent>* events) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end() || tokens.empty()) return;
  Sequence& sequence = *it->second;
  TokenEvent event{.id = id};
  event.cached_tokens = sequence.cached_tokens.value_or(0);
  std::optional<EndReason> reason;
  for (const Token token : tokens) {
    reason = TakeToken(sequence, token, now);
    ++event.sampled.end;
    ++counters_.forced_tokens;
    if (reason) break;
    if (sequence.late_masks.empty()) continue;
    // A row in flight is about to sample it.
    SetLateMask(sequence, OnlyToken(token, options_.limits.vocab_size));
    --sequence.tokens_in_flight;
    ++sequence.forced_in_flight;
  }
  if (reason) {
    event.end = End(sequence, *reason, absl::OkStatus(), now);
  } else if (sequence.slot && sequence.tokens.size() > static_cast<size_t>(sequence.computed) + 1) {
    sequence.prefill_end = static_cast<int32_t>(sequence.tokens.size());
  }
  events->push_back(std::move(event));
}

void Scheduler::AwaitMasks(SequenceId id) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end() || !it->second->takes_late_masks()) return;
  Sequence& sequence = *it->second;
  sequence.masks_late_from = static_cast<int32_t>(sequence.tokens.size()) + sequence.next_awaited;
  sequence.next_awaited = std::min(sequence.next_awaited * kMoreAwaited, kMostAwaited);
}

bool Scheduler::Complete(SequenceId id, SteadyTime now, std::vector<TokenEvent>* events) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return false;
  TokenEvent event{.id = id};
  event.end = End(*it->second, EndReason::kComplete, absl::OkStatus(), now);
  events->push_back(std::move(event));
  return true;
}

absl::Status Scheduler::Commit(const StepResult& result, SteadyTime now,
                               std::vector<TokenEvent>* events) {
  if (num_in_flight_ == 0) return absl::InternalError("a step result, but no step is in flight");
  PlannedStep& step = in_flight_[(last_step_ - num_in_flight_ + 1) % kMaxStepsInFlight];
  MILLRACE_RETURN_IF_ERROR(CheckAnswers(result, step));
  --num_in_flight_;
  if (result.status.ok()) budget_.Observe(step.work, now - BeginOf(step));
  last_commit_ = now;

  const RowResult none{.status = result.status};
  for (size_t i = 0; i < step.rows.size(); ++i) {
    CommitRow(step.rows[i], result.status.ok() ? result.rows[i] : none, result, now, events);
  }
  for (const CheckpointId copied : step.copies) checkpoints_.Finish(copied, result.status.ok());
  std::erase_if(ended_, [](const auto& sequence) { return sequence->rows_in_flight == 0; });
  return absl::OkStatus();
}

absl::Status Scheduler::CheckAnswers(const StepResult& result, const PlannedStep& step) const {
  if (result.id != step.id) {
    return absl::InternalError(StrCat("result of step ", result.id, ", expected ", step.id));
  }
  if (!result.status.ok()) return absl::OkStatus();
  if (result.rows.size() != step.rows.size()) {
    return absl::InternalError(StrCat("result of step ", result.id, " has ", result.rows.size(),
                                      " rows, its plan ", step.rows.size()));
  }
  for (size_t i = 0; i < step.rows.size(); ++i) {
    const RowResult& row = result.rows[i];
    const int32_t wanted = step.rows[i].num_scored + (step.rows[i].samples ? 1 : 0);
    const int32_t most = wanted + step.rows[i].num_draft;
    const bool in_range =
        row.tokens.begin >= 0 && row.tokens.end <= static_cast<int64_t>(result.tokens.size());
    if (row.slot != step.rows[i].slot ||
        (row.status.ok() &&
         (!in_range || row.tokens.size() < wanted || row.tokens.size() > most))) {
      return absl::InternalError(StrCat("result of step ", result.id, ", row ", i, ": slot ",
                                        row.slot, " with ", row.tokens.size(),
                                        " tokens, expected slot ", step.rows[i].slot, " with ",
                                        wanted, most > wanted ? StrCat(" to ", most) : ""));
    }
    if (row.status.ok() && row.embedding.size() != options_.limits.embedding_size) {
      return absl::InternalError(StrCat("result of step ", result.id, ", row ", i,
                                        ": embedding of ", row.embedding.size(),
                                        " numbers, expected ", options_.limits.embedding_size));
    }
  }
  return absl::OkStatus();
}

void Scheduler::CommitRow(const PlannedRow& row, const RowResult& row_result,
                          const StepResult& result, SteadyTime now,
                          std::vector<TokenEvent>* events) {
  Sequence& sequence = *row.sequence;
  --sequence.rows_in_flight;
  const bool forced = row.samples && sequence.forced_in_flight > 0;
  if (row.samples) --(forced ? sequence.forced_in_flight : sequence.tokens_in_flight);
  sequence.tokens_in_flight -= row.num_draft;
  sequence.drafts_in_flight -= row.num_draft;
  if (sequence.ended) return;
  if (!row_result.status.ok()) return FailGroup(sequence, row_result.status, now, events);

  TokenEvent event{.id = sequence.id};
  event.cached_tokens = sequence.cached_tokens.value_or(0);

  const int32_t sampled = row_result.tokens.begin + row.num_scored;
  event.scored = {.begin = row_result.tokens.begin, .end = sampled};
  event.sampled = {.begin = sampled, .end = sampled};
  event.embedding = row_result.embedding;
  sequence.scored += row.num_scored;
  const bool publishes = sequence.slot && options_.prefix_caching;
  if (forced) {  // Force has returned its event.
    if (publishes) PublishBlocks(sequence, row.end);
    return;
  }

  std::optional<EndReason> reason;
  const size_t size = sequence.tokens.size();
  const int32_t accepted = row_result.tokens.size() - row.num_scored - 1;
  if (row.num_draft > 0 && sequence.slot) sequence.computed -= row.num_draft - accepted;
  while (event.sampled.end < row_result.tokens.end && !reason) {
    reason = TakeToken(sequence, result.tokens[event.sampled.end++].token, now);
  }
  if (row.num_draft > 0) CountAccepted(event.sampled.size() - 1);
  if (!row.samples && row.end == sequence.max_size) {
    reason = EndReason::kLength;  // nothing was to be generated
  }
  // The last token that was sampled is no input yet.
  if (publishes) {
    PublishBlocks(sequence,
                  row.samples ? static_cast<int32_t>(sequence.tokens.size()) - 1 : row.end);
  }
  if (!reason && row.samples) GuessOn(sequence, size);
  if (sequence.late_draft.has_value() && !reason) SetLateDraft(sequence);
  if (reason) event.end = End(sequence, *reason, absl::OkStatus(), now);
  if (row_result.tokens.size() > 0 || event.end) events->push_back(std::move(event));
}

// Those of its group that run may read what the sequence was to write: they share its blocks as
// soon as the step that fills them is planned.
void Scheduler::FailGroup(Sequence& sequence, const absl::Status& why, SteadyTime now,
                          std::vector<TokenEvent>* events) {
  std::vector<Sequence*> failed = {&sequence};
  if (sequence.group != nullptr) {
    for (Sequence* const other : sequence.group->running) {
      if (other != &sequence) failed.push_back(other);
    }
  }
  for (Sequence* const each : failed) {
    UnpublishBlocks(*each);
    TokenEvent event{.id = each->id};
    event.cached_tokens = each->cached_tokens.value_or(0);
    event.end = End(*each, EndReason::kFailed, why, now);
    events->push_back(std::move(event));
  }
}

std::optional<EndReason> Scheduler::TakeToken(Sequence& sequence, Token token, SteadyTime now) {
  sequence.tokens.push_back(token);
  if (!sequence.first_token) sequence.first_token = now;
  const std::vector<Token>& stops = sequence.stop_token_ids;
  if (std::binary_search(stops.begin(), stops.end(), token)) return EndReason::kStopToken;
  if (static_cast<int32_t>(sequence.tokens.size()) == sequence.max_size) return EndReason::kLength;
  return std::nullopt;
}

// The blocks that the committed inputs up to `end` have filled can be shared from now on.
void Scheduler::PublishBlocks(Sequence& sequence, int32_t end) {
  const int32_t block_size = options_.limits.block_size();
  std::vector<BlockHash>& hashes = sequence.hashes.blocks;
  for (; sequence.blocks_committed < end / block_size; ++sequence.blocks_committed) {
    const size_t i = sequence.blocks_committed;
    if (i == hashes.size()) {
      hashes.push_back(
          hasher_.Hash(i == 0 ? sequence.hashes.root : hashes[i - 1],
                       absl::MakeConstSpan(sequence.tokens).subspan(i * block_size, block_size)));
    }
    pools_.Publish(sequence, sequence.blocks_committed, hashes[i]);
  }
  ConfirmCheckpoint(sequence, end);
}

// The blocks of a failed sequence may be what went wrong: no other sequence may reuse them.
void Scheduler::UnpublishBlocks(const Sequence& sequence) {
  for (const BlockHash& hash : sequence.hashes.blocks) {
    pools_.Unpublish(hash);
    checkpoints_.Unpublish(hash);
  }
}

SequenceEnd Scheduler::End(Sequence& sequence, EndReason reason, absl::Status status,
                           SteadyTime now) {
  SequenceEnd end{
      .reason = reason,
      .status = std::move(status),
      .stop_token = std::nullopt,
      .prompt_tokens = sequence.prompt_size,
      .cached_tokens = sequence.cached_tokens.value_or(0),
      .generated_tokens = static_cast<int32_t>(sequence.tokens.size()) - sequence.prompt_size,
      .arrival = sequence.arrival,
      .first_scheduled = sequence.first_scheduled,
      .first_token = sequence.first_token,
      .ended = now,
  };
  if (reason == EndReason::kStopToken) end.stop_token = sequence.tokens.back();

  if (sequence.slot) {
    LeaveSlot(sequence);
  } else if (sequence.parked) {
    std::erase(sequence.group->parked, &sequence);
  } else if (sequence.awaited_blocks > 0) {
    std::erase(prefix_waiters_, &sequence);
  } else {
    waiting_.Erase(sequence);
  }
  LeaveGroup(sequence);
  waiting_.Leave(sequence);
  sequence.ended = true;
  while (!sequence.late_masks.empty()) SetLateMask(sequence, all_tokens_);
  if (sequence.late_draft.has_value()) SetLateDraft(sequence);
  const auto it = sequences_.find(sequence.id);
  std::unique_ptr<Sequence> owned = std::move(it->second);
  sequences_.erase(it);
  if (sequence.rows_in_flight > 0) ended_.push_back(std::move(owned));
  return end;
}

// Steps in flight may still work on the slot and the blocks. Whoever gets them next gets them in a
// step that is submitted, and therefore run, after these (see BlockPool).
void Scheduler::LeaveSlot(Sequence& sequence) {
  running_.erase(std::lower_bound(running_.begin(), running_.end(), &sequence, RunsBefore()));
  free_slots_.push_back(*sequence.slot);
  sequence.slot.reset();
  --sequence.tenant->running;
  pools_.ReleaseAll(sequence);
  ForgetCheckpoints(sequence);
  sequence.blocks_sent = 0;
  sequence.computed = 0;
  sequence.prompt_step = 0;
  if (sequence.group == nullptr) return;
  // Unless another one computes the prompt, whoever waited for this one to do so must.
  PromptGroup& group = *sequence.group;
  std::erase(group.running, &sequence);
  const auto computes = [](const Sequence* other) { return other->prompt_step == 0; };
  if (std::none_of(group.running.begin(), group.running.end(), computes)) Unpark(group);
}

SchedulerStats Scheduler::stats() const {
  SchedulerStats stats = counters_;
  stats.num_running = static_cast<int32_t>(running_.size());
  stats.num_waiting = static_cast<int32_t>(sequences_.size() - running_.size());
  const BlockPool& pool = pools_.main();
  stats.blocks_held = pool.num_held();
  stats.blocks_cached = pool.num_cached();
  stats.blocks_free = pool.num_available() - pool.num_cached();
  for (int i = 0; i < pools_.size(); ++i) {
    const double held = pools_.total(i) - pools_.available(i);
    stats.usage = std::max(stats.usage, held / pools_.total(i));
  }
  stats.checkpoints_held = checkpoints_.num_published();
  stats.checkpoints_free = checkpoints_.size() - stats.checkpoints_held;
  stats.checkpoints_evicted = checkpoints_.num_evicted();
  stats.prompt_cut_time = budget_.prompt_cost();
  stats.prompt_cut_loss = budget_.throughput_cost();
  return stats;
}

}  // namespace millrace
