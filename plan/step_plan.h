// The plan of one step of the model, from the scheduler to an executor, and its result.
//
// Both are plain values. They are the only thing that the two sides share: the scheduler knows
// nothing of devices, the executor nothing of requests, priorities or the prefix cache.
//
// A sequence holds a *slot* from its first row to its last. The executor keeps what belongs to the
// slot (a block table for each paged group of the state, the sampling parameters, the token sampled
// last), so that a plan says only what changes: a decode row costs the same whether its context has
// ten tokens or ten thousand.
//
// Steps run in the order of their submission. A plan may therefore name tokens that an earlier,
// still running step will sample, and reuse blocks that only earlier steps touch.
#ifndef MILLRACE_PLAN_STEP_PLAN_H_
#define MILLRACE_PLAN_STEP_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "plan/sample_mask.h"
#include "plan/sampling_params.h"
#include "plan/state_layout.h"

namespace millrace {

using StepId = uint64_t;  // 1, 2, 3 … in the order of submission
using SlotId = int32_t;   // [0, max_num_seqs)
// A block, the same in every layer of its group, [0, num_blocks of the group). In a group of slots
// a place for one state: the slot of that number, and from max_num_seqs on a checkpoint's
// (StepLimits::num_places).
using BlockId = int32_t;

// Stands in a slot's block table for a block that no row reads or writes any more: of a group with
// a window, before it.
inline constexpr BlockId kNoBlock = -1;

// The most tokens of a draft: a row has one more.
inline constexpr int32_t kMaxDraftTokens = 16;

// The most steps in flight: one that runs, and the next, planned while it does.
inline constexpr int kMaxStepsInFlight = 2;

// Half-open range of one of a plan's or a result's flat arrays.
struct Range {
  int32_t begin = 0;
  int32_t end = 0;
  int32_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Where a block, or a state, of a group lies.
struct StatePlace {
  enum class Tier { kDevice, kHost };
  BlockId block = 0;
  Tier tier = Tier::kDevice;
  bool operator==(const StatePlace&) const = default;
};

// A whole block, or a whole state, copied before any row of the step reads or writes one.
// Copy-on-write is a move on the device, as are a checkpoint (from a slot: the state of the tokens
// that earlier steps have computed there) and a beginning from one (to a slot that the plan
// starts).
struct StateMove {
  int32_t group = 0;
  StatePlace from;
  StatePlace to;
};

// A new sequence takes a slot: the executor forgets whatever the slot held.
struct SlotStart {
  SlotId slot;
  std::shared_ptr<const SamplingParams> sampling;  // never null

  // Where `sampling` penalizes: the sequence's tokens so far, the prompt's `prompt_tokens` first,
  // of the plan's `history`. What is sampled for the slot from here on the executor counts itself.
  Range history;
  int32_t prompt_tokens = 0;
};

// A position of a row whose logits are wanted.
struct WantedLogits {
  int32_t offset;               // from the row's first input token, [0, num_tokens)
  std::optional<Token> target;  // set: score this token. Unset: sample one.
  // Set: only these tokens may be sampled. Log-probabilities stay those of all tokens.
  std::shared_ptr<const SampleMask> mask;
  // True: there is a mask, known only once the step before this one has sampled and its result is
  // committed. It comes by Executor::SetMasks, and the executor waits for it before it samples.
  // Only for executors that take such masks (ModelInfo::takes_late_masks).
  bool late_mask = false;
};

// The mask that a submitted step waits for (WantedLogits::late_mask).
struct LateMask {
  StepId step = 0;
  int32_t logits = 0;                      // index in the plan's `logits`
  std::shared_ptr<const SampleMask> mask;  // never null
};

// One sequence's share of a step: `num_tokens` consecutive input tokens at positions start,
// start + 1, …, whose keys and values are appended to its blocks.
struct StepRow {
  SlotId slot;
  // The position of the first input token = tokens already in the KV cache. With `sampled_by` the
  // largest that it can be: the row begins where the slot's tokens end, which is before that if
  // tokens of earlier drafts turn out to be others.
  int32_t start;
  int32_t num_tokens;  // >= 1; with the draft's

  // The input: `tokens` of the plan's array, or (then `tokens` is empty) the token that this
  // earlier step sampled for the slot, and a draft.
  Range tokens;
  std::optional<StepId> sampled_by;

  // How many of the input tokens, the last ones, are a draft: guesses, which the row checks. It
  // samples after the token before the draft, and goes on to the next position as long as what it
  // sampled is the token that the draft has there. So the tokens are those that rows without a
  // draft sample one by one, and what follows the first other token leaves no trace: its keys and
  // values are overwritten. A row with `sampled_by` gets its draft, of at most so many tokens, by
  // Executor::SetDrafts, once the step before this one is committed, and the executor waits for it.
  int32_t num_draft = 0;

  // Set for an encoder's row that holds a pair of texts: the offset, [0, num_tokens), of the first
  // token of the second type (segment B, arXiv:1810.04805), which all later ones have too. Unset:
  // all have the first type.
  std::optional<int32_t> second_type;

  // A part of the plan's `blocks`: appended to the slot's block tables before the row runs. It has
  // as many for each paged group, those of the first group first: a position lies at the same place
  // of all tables. A row that begins at start > 0 in a fresh slot names the cached blocks of its
  // prefix here too, or kNoBlock for those before the window of `start`; a move of each group of
  // slots brings the state of the tokens before `start`.
  Range blocks;

  // Of the plan's `logits`, offsets ascending; empty for a prompt's inner chunk. With a draft the
  // last num_draft + 1 sample, at the offsets from the token before the draft on.
  Range logits;
};

// The draft that a row of a submitted step waits for (StepRow::num_draft).
struct LateDraft {
  StepId step = 0;
  int32_t row = 0;            // index in the plan's `rows`
  std::vector<Token> tokens;  // at most the row's num_draft
};

struct StepPlan {
  StepId id = 0;
  std::vector<StateMove> moves;   // first
  std::vector<SlotStart> starts;  // then
  std::vector<StepRow> rows;      // then, all of them together; a slot at most once
  std::vector<Token> tokens;      // the rows' host tokens
  std::vector<BlockId> blocks;    // the rows' new blocks
  std::vector<WantedLogits> logits;
  std::vector<Token> history;  // the starts'; together at most max_model_len
};

struct TokenLogprob {
  Token token;
  float logprob;  // natural logarithm
};

// The result of one WantedLogits.
struct TokenResult {
  Token token;                   // sampled, or the target
  std::optional<float> logprob;  // set when the slot's top_logprobs is
  int32_t rank = 0;              // with logprob: 1 + the number of tokens with a larger logit
  Range top;                     // of the result's `top`, likeliest first, equal ones by id
};

struct RowResult {
  SlotId slot = 0;
  // An error fails this row's sequence alone (its logits were not finite, or the step exceeded the
  // memory). A row whose input the failed one should have sampled fails with it.
  absl::Status status;
  // Of the result's `tokens`; none on an error. One for each WantedLogits. A row with a draft
  // has fewer if a token of it was wrong: the last one is what was sampled instead.
  Range tokens;
  // A range of the result's `embeddings`; empty on an error, and if the model generates.
  Range embedding;
};

struct StepResult {
  StepId id = 0;
  absl::Status status;          // an error is the device's: no row has a result, and none will
  std::vector<RowResult> rows;  // in the order of the plan's rows
  std::vector<TokenResult> tokens;
  std::vector<TokenLogprob> top;
  std::vector<float> embeddings;
  // How many moves, counted over all plans in their order, are complete: those of this step, and of
  // those before it, where both places are on the device.
  int64_t moves_completed = 0;
  bool as_graph = false;  // a GPU ran it as one CUDA graph
};

// The sizes that an executor's memory was allocated for.
struct StepLimits {
  int32_t max_num_seqs;             // slots, and rows in a step
  int32_t max_num_batched_tokens;   // input tokens in a step
  int32_t max_model_len;            // positions in a sequence
  std::vector<int32_t> num_blocks;  // of each group of `state`; of one of slots, checkpoints
  StateLayout state;                // at least one paged group
  int32_t vocab_size;

  // Steps of many tokens take about as long as those of the next multiple of this: products are
  // computed in tiles of so many tokens.
  int32_t token_tile = 1;

  // Of the largest layer that is a mixture: by these the scheduler foresees how many experts'
  // weights a step reads. 0: no layer is one.
  int32_t num_experts = 0;
  int32_t experts_a_token = 0;

  // 0: a decoder that generates. Else a row's result is an embedding of so many numbers instead of
  // logits.
  int32_t embedding_size = 0;
  // Says how a model embeds. False: each row is a whole sequence, and its blocks are its own for
  // that step alone, as for encoders. True: a row may be a part of a sequence, since no token sees
  // later ones. The row with the sequence's last token has the sequence's embedding.
  bool embeds_parts = false;

  int32_t block_size() const { return state.block_size; }
  bool has_slots() const { return state.has_slots(); }
  // Returns how many blocks a group has; of one of slots, these and the places of checkpoints.
  int32_t num_places(int group) const {
    return num_blocks[group] + (state.Paged(group) == nullptr ? max_num_seqs : 0);
  }
  // Returns how many checkpoints every group of slots has a place for; 0 if there is no such group.
  int32_t num_checkpoints() const {
    std::optional<int32_t> least;
    for (int group = 0; group < state.num_groups(); ++group) {
      if (state.Paged(group) != nullptr) continue;
      least = std::min(least.value_or(num_blocks[group]), num_blocks[group]);
    }
    return least.value_or(0);
  }
  // Returns how many blocks hold the context: those of StateLayout::ContextGroup.
  int32_t context_blocks() const { return num_blocks[state.ContextGroup(num_blocks)]; }

  // Returns whether rows must be whole sequences.
  bool whole_sequences() const { return embedding_size > 0 && !embeds_parts; }
};

// Returns how many blocks a row appends to each of its slot's block tables.
inline int32_t NumNewBlocks(const StepRow& row, const StateLayout& state) {
  return row.blocks.size() / state.num_paged_groups();
}

// Returns the blocks that a row of the plan appends to its slot's block table of a paged group.
inline absl::Span<const BlockId> NewBlocks(const StepPlan& plan, const StepRow& row,
                                           const StateLayout& state, int group) {
  const int32_t count = NumNewBlocks(row, state);
  return absl::MakeConstSpan(plan.blocks)
      .subspan(row.blocks.begin + state.PagedGroupsBefore(group) * count, count);
}

// Puts a draft into the plan whose row waits for it: the row's `tokens` are then the draft, and its
// num_draft, num_tokens and `logits` are as many as that needs.
void SetDraft(const LateDraft& draft, StepPlan& plan);

// Returns InvalidArgument, naming the row and the field, if `plan` breaks the contract above or
// samples more than one position of a row, draft aside. Checks the plan by itself; that
// slots and block tables continue what earlier plans began is for the executor, which knows them.
// Linear in the size of the plan.
absl::Status ValidatePlan(const StepPlan& plan, const StepLimits& limits);

}  // namespace millrace

#endif  // MILLRACE_PLAN_STEP_PLAN_H_
