// Over a million random events (arrive, cancel, plan, commit, with rows and steps that fail, masks
// that come late and bring tokens that need no step, and drafts that are right more or less often)
// against the model of an executor that checks every plan and every cached value
// (model_executor_test_util.h). After each event, every block has as many holders as it counts, and
// every place of a checkpoint one use; each sequence gets exactly the tokens and scores that it
// would get alone, and begins from no state of another tenant; at the end every block is free; and
// none starves.
//
// The bound, within a priority: a sequence is first scheduled within as many steps as all those
// that rank before it, and those that had started before it came, have positions and three steps
// each. (The first in rank of these advances in every step. The three: it may be preempted once
// with its last two steps in flight, and its end is known one step late.) An arrival of a better
// priority starts the count anew.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/model_executor_test_util.h"
#include "scheduler/scheduler.h"
#include "scheduler/scheduler_script_test_util.h"

namespace millrace {
namespace {

struct Case {
  const char* name;
  int slots;
  int budget;
  std::vector<int32_t> blocks;  // of each group
  int block_size;
  int max_model_len;
  bool prefix_caching;
  int priorities;
  bool faults;
  int tenants = 1;
  bool masks = false;
  bool late_masks = false;
  std::vector<StateGroup> groups = {PagedState{}};
  int draft_tokens = 0;
};

const StateGroup kPages = PagedState{};
const StateGroup kSlots = SlotState{};
StateGroup Window(int32_t tokens) { return PagedState{.window = tokens}; }
Case Of(Case c, std::vector<StateGroup> groups) {
  c.groups = std::move(groups);
  return c;
}
Case WithDrafts(int tokens, Case c) {
  c.draft_tokens = tokens;
  return c;
}

constexpr int kEvents = 125'000;  // for each case: over a million in all
const Case kCases[] = {
    {"Plain", 6, 16, {24}, 4, 40, true, 1, false},
    {"Faults", 6, 16, {24}, 4, 40, true, 1, true},
    {"Priorities", 6, 16, {20}, 4, 40, true, 3, false},
    {"PrioritiesAndFaults", 8, 24, {24}, 4, 40, true, 3, true},
    {"NoCache", 6, 16, {20}, 4, 40, false, 2, true},
    {"TightBudget", 6, 6, {20}, 4, 40, true, 2, true},
    {"PoolSmallerThanTheModelsLength", 4, 16, {6}, 4, 40, true, 2, true},
    {"BlocksOfOneToken", 5, 12, {50}, 1, 24, true, 2, true},
    {"Tenants", 6, 16, {24}, 4, 40, true, 1, false, 3},
    {"TenantsPrioritiesAndFaults", 8, 24, {20}, 4, 40, true, 3, true, 4},
    {"Masks", 6, 16, {24}, 4, 40, true, 1, false, 1, true},
    {"MasksAndFaults", 6, 16, {20}, 4, 40, true, 2, true, 2, true},
    {"LateMasks", 6, 16, {24}, 4, 40, true, 1, false, 1, true, true},
    {"LateMasksAndFaults", 8, 24, {20}, 4, 40, true, 3, true, 1, true, true},
    Of({"Window", 6, 16, {14}, 4, 40, true, 1, false}, {Window(9)}),
    Of({"WindowOfOneToken", 6, 16, {3}, 4, 40, true, 1, true}, {Window(1)}),
    Of({"WindowWithoutCache", 6, 16, {14}, 4, 40, false, 2, true}, {Window(8)}),
    Of({"PagesAndWindow", 6, 16, {24, 14}, 4, 40, true, 1, false}, {kPages, Window(6)}),
    Of({"WindowIsShort", 6, 24, {30, 4}, 4, 40, true, 3, true}, {kPages, Window(9)}),
    Of({"PagesAreShort", 6, 24, {12, 24}, 4, 40, true, 3, true}, {kPages, Window(9)}),
    Of({"ThreeGroups", 6, 16, {12, 20, 10}, 4, 40, true, 3, true}, {Window(12), kPages, Window(5)}),
    Of({"ThreeGroupsOfTenants", 8, 24, {10, 20, 8}, 4, 40, true, 3, true, 4},
       {Window(12), kPages, Window(5)}),
    Of({"WindowsAndMasks", 6, 16, {20, 8}, 4, 40, true, 2, true, 1, true, true},
       {kPages, Window(6)}),
    Of({"Slots", 6, 16, {24, 12}, 4, 40, true, 1, false}, {kPages, kSlots}),
    Of({"SlotsWithoutCheckpoints", 6, 16, {24, 0}, 4, 40, true, 1, false}, {kPages, kSlots}),
    Of({"SlotsWithoutCache", 6, 16, {24, 12}, 4, 40, false, 2, true}, {kPages, kSlots}),
    Of({"FewCheckpoints", 6, 16, {24, 3}, 4, 40, true, 3, true}, {kPages, kSlots}),
    Of({"SlotsAndBlocksOfOneToken", 5, 12, {50, 9}, 1, 24, true, 2, true}, {kPages, kSlots}),
    Of({"SlotsAndMasks", 6, 16, {20, 20}, 4, 40, true, 2, true, 1, true, true}, {kPages, kSlots}),
    Of({"SlotsOfTenants", 8, 24, {30, 16}, 4, 40, true, 2, true, 3}, {kPages, kSlots}),
    Of({"SlotsWindowsAndFaults", 8, 24, {10, 20, 8}, 4, 40, true, 3, true, 2},
       {kSlots, kPages, Window(5)}),
    WithDrafts(1, {"DraftsOfOneToken", 6, 16, {24}, 4, 40, true, 1, false}),
    WithDrafts(4, {"Drafts", 6, 16, {24}, 4, 40, true, 1, false}),
    WithDrafts(4, {"DraftsTightBudget", 6, 7, {20}, 4, 40, true, 2, true}),
    WithDrafts(8, {"DraftsPrioritiesAndFaults", 8, 40, {24}, 4, 40, true, 3, true}),
    WithDrafts(5, {"DraftsWithoutCache", 6, 16, {20}, 4, 40, false, 2, true}),
    WithDrafts(3, {"DraftsBlocksOfOneToken", 5, 20, {50}, 1, 24, true, 2, true}),
    WithDrafts(6, {"DraftsOfTenants", 8, 30, {20}, 4, 40, true, 3, true, 4}),
    WithDrafts(4, {"DraftsAndMasks", 6, 24, {20}, 4, 40, true, 2, true, 2, true}),
    WithDrafts(4, {"DraftsAndLateMasks", 6, 24, {20}, 4, 40, true, 2, true, 1, true, true}),
    WithDrafts(4, Of({"DraftsAndWindow", 6, 16, {14}, 4, 40, true, 1, true}, {Window(9)})),
    WithDrafts(4, Of({"DraftsAndSlots", 6, 16, {24, 12}, 4, 60, true, 1, false}, {kPages, kSlots})),
    WithDrafts(
        6, Of({"DraftsAndFewCheckpoints", 6, 24, {24, 3}, 4, 60, true, 3, true}, {kPages, kSlots})),
    WithDrafts(4, Of({"DraftsAndSlotsWithoutCache", 6, 16, {24, 12}, 4, 40, false, 2, true},
                     {kPages, kSlots})),
    WithDrafts(5, Of({"DraftsSlotsAndWindows", 8, 30, {14, 30, 14}, 4, 60, true, 3, true, 2},
                     {kSlots, kPages, Window(5)})),
    WithDrafts(4, Of({"DraftsAndThreeGroups", 6, 24, {12, 20, 10}, 4, 40, true, 3, true},
                     {Window(12), kPages, Window(5)})),
};

// Guesses what the reference says; one in four of its tokens is another. At the end of what that
// says it guesses on.
class NoisyDrafter : public Drafter {
 public:
  NoisyDrafter(std::vector<Token> expected, uint64_t seed)
      : expected_(std::move(expected)), seed_(seed) {}

  void Append(absl::Span<const Token> tokens) override { next_ += tokens.size(); }
  std::vector<Token> Draft(int32_t most) const override {
    std::vector<Token> draft;
    std::mt19937_64 random(seed_ + next_);
    if (random() % 8 == 0) return draft;
    while (static_cast<int32_t>(draft.size()) < most && random() % 16 > 0) {
      const size_t at = next_ + draft.size();
      const bool is_right = at < expected_.size() && random() % 4 > 0;
      draft.push_back(is_right ? expected_[at] : static_cast<Token>(random() % 17));
    }
    return draft;
  }
  std::unique_ptr<Drafter> Clone() const override { return std::make_unique<NoisyDrafter>(*this); }

 private:
  std::vector<Token> expected_;
  uint64_t seed_;
  size_t next_ = 0;
};

constexpr Token kStops[] = {9, 0};
constexpr int kVocabSize = 17;
constexpr std::string_view kSalt = "the salt's name";
constexpr size_t kMostAlive = 24;

struct Counts {
  int64_t arrivals = 0, cancels = 0, failures = 0, stops = 0, lengths = 0;
  int64_t steps = 0, steps_ahead = 0, surplus_rows = 0, copies = 0;
  int64_t masks_in_flight = 0;
  int64_t restores = 0;  // of states
  int64_t stored = 0;    // blocks, by events
};

class World {
 public:
  explicit World(const Case& c, uint64_t seed)
      : case_(c),
        options_{.limits = {.max_num_seqs = c.slots,
                            .max_num_batched_tokens = c.budget,
                            .max_model_len = c.max_model_len,
                            .num_blocks = c.blocks,
                            .state = {.block_size = c.block_size, .groups = c.groups},
                            .vocab_size = kVocabSize},
                 .prefix_caching = c.prefix_caching,
                 .late_masks = c.late_masks,
                 .block_events = true,
                 .num_draft_tokens = c.draft_tokens,
                 .num_step_draft_tokens = 3 * c.draft_tokens,
                 .checkpoint_distance = 8,
                 .itl_slo = c.tenants > 1 ? std::optional(Duration::zero()) : std::nullopt},
        scheduler_(*Scheduler::Create(options_)),
        executor_(options_.limits),
        random_(seed),
        salts_(c.slots),
        checkpoint_salts_(options_.limits.has_slots() ? c.blocks[SlotGroup()] : 0) {
    for (auto& base : bases_) {
      for (int i = 0; i < c.max_model_len; ++i) base.push_back(Below(kVocabSize));
    }
  }

  void RandomEvent() {
    if (Below(5000) == 0) load_ = 2 + Below(40);
    if (!wants_mask_.empty() && Below(3) == 0) GiveMask();
    const int pick = Below(80 + load_);
    if (pick < 39) {
      Plan();
    } else if (pick < 77) {
      Commit();
    } else if (pick < 80) {
      Cancel();
    } else {
      Arrive();
    }
    const std::string wrong = SchedulerAuditor::Audit(*scheduler_);
    ASSERT_EQ(wrong, "");
    FollowBlocks();
  }

  void Drain() {
    while (scheduler_->HasWork() && !::testing::Test::HasFatalFailure()) {
      if (!wants_mask_.empty()) GiveMask();
      Plan();
      if (Below(2) == 0) Plan();
      Commit();
    }
    EXPECT_TRUE(alive_.empty());
    const SchedulerStats stats = scheduler_->stats();
    EXPECT_EQ(stats.blocks_held, 0);
    EXPECT_EQ(stats.blocks_cached + stats.blocks_free, case_.blocks[MainGroup()]);
    EXPECT_EQ(stats.checkpoints_held + stats.checkpoints_free,
              case_.prefix_caching ? static_cast<int32_t>(checkpoint_salts_.size()) : 0);
    EXPECT_EQ(SchedulerAuditor::Audit(*scheduler_), "");
  }

  const Counts& counts() const { return counts_; }
  SchedulerStats stats() const { return scheduler_->stats(); }
  uint64_t plans_digest() const { return plans_digest_; }

 private:
  struct Alive {
    int32_t priority;
    int64_t cost;  // steps that it can take from others, at most
    uint32_t salt;
    ModelExecutor::Output expected;
    bool masked;
    bool may_jump;
    size_t num_scored = 0;
    size_t num_generated = 0;
    bool started = false;
    int64_t latest_start = 0;  // in steps
  };

  // Who follows the prefix cache by its events knows what it has. The two kinds of a block's events
  // take turns, and a stored block's hash is that of its tokens after its parent.
  void FollowBlocks() {
    for (const BlockEvent& event : scheduler_->TakeBlockEvents()) {
      const std::pair key = {event.group, event.hash};
      ASSERT_EQ(followed_.contains(key), !event.stored);
      if (!event.stored) {
        followed_.erase(key);
        continue;
      }
      followed_.insert(key);
      ASSERT_EQ(event.tokens.size(), static_cast<size_t>(case_.block_size));
      ASSERT_EQ(hasher_.Hash(event.parent, event.tokens), event.hash);
      ASSERT_EQ(event.salt, event.place == 0 ? kSalt : "");
      ++counts_.stored;
    }
    if (++follows_ % 16 == 0) {
      ASSERT_EQ(SchedulerAuditor::AuditEvents(*scheduler_, followed_), "");
    }
  }

  bool Fits(int positions) const {
    for (size_t i = 0; i < case_.groups.size(); ++i) {
      const auto* const paged = std::get_if<PagedState>(&case_.groups[i]);
      if (paged == nullptr) continue;
      // A window may begin and end within a block.
      int most = (positions + case_.block_size - 1) / case_.block_size;
      if (paged->window.has_value()) {
        most = std::min(most, (*paged->window + case_.block_size - 2) / case_.block_size + 1);
      }
      if (most > case_.blocks[i]) return false;
    }
    return true;
  }

  size_t SlotGroup() const {
    size_t i = 0;
    while (std::holds_alternative<PagedState>(case_.groups[i])) ++i;
    return i;
  }

  // Follows the states from slots to checkpoints and back: none gets to another salt.
  void CheckSalts(const StepPlan& plan) {
    if (!options_.limits.has_slots()) return;
    const auto group = static_cast<int>(SlotGroup());
    // A plan copies first: at the slots are the sequences before this plan's.
    std::vector<uint32_t> before = salts_;
    for (const SlotStart& start : plan.starts) {
      salts_[start.slot] = alive_.at(start.sampling->seed).salt;
    }
    for (const StateMove& move : plan.moves) {
      if (move.group != group) continue;
      if (move.to.block >= case_.slots) {
        ASSERT_LT(move.from.block, case_.slots);
        checkpoint_salts_[move.to.block - case_.slots] = before[move.from.block];
        continue;
      }
      ++counts_.restores;
      ASSERT_GE(move.from.block, case_.slots);
      EXPECT_EQ(checkpoint_salts_[move.from.block - case_.slots], salts_[move.to.block]);
    }
  }

  size_t MainGroup() const {
    for (size_t i = 0; i < case_.groups.size(); ++i) {
      const auto* const paged = std::get_if<PagedState>(&case_.groups[i]);
      if (paged != nullptr && !paged->window.has_value()) return i;
    }
    return 0;
  }

  int Below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }

  // One sequence, or a group of one prompt.
  void Arrive() {
    SequenceRequest request;
    const int size = 1 + Below(1 + Below(case_.max_model_len - 1));  // mostly short
    const int shared = Below(size + 1);
    const std::vector<Token>& base = bases_[Below(static_cast<int>(std::size(bases_)))];
    request.prompt.assign(base.begin(), base.begin() + shared);
    while (static_cast<int>(request.prompt.size()) < size) {
      request.prompt.push_back(Below(kVocabSize));
    }
    if (Below(2) == 0) request.stop.stop_token_ids.assign(std::begin(kStops), std::end(kStops));
    request.priority = Below(case_.priorities);
    if (case_.tenants > 1) request.tenant.id = Below(case_.tenants);
    request.tenant.weight = 1 + static_cast<int32_t>(request.tenant.id);
    const uint32_t salt = options_.limits.has_slots() ? request.tenant.id : 0;
    request.prompt_hashes =
        HashPrompt(CacheRoot({std::to_string(salt)}), request.prompt, case_.block_size);
    request.prompt_hashes.salt = kSalt;
    const int choices = Below(6) == 0 ? 2 + Below(4) : 1;
    if (choices > 1) request.prompt_group = next_id_ + 1;
    for (int i = 0; i < choices && alive_.size() < kMostAlive; ++i) {
      ++counts_.arrivals;
      request.id = next_id_++;
      request.score_prompt = Below(8) == 0;
      auto sampling = std::make_shared<SamplingParams>();
      sampling->seed = request.id;  // by which Plan knows who starts
      if (request.score_prompt) sampling->top_logprobs = 0;
      if (Below(4) == 0) sampling->repetition_penalty = 1.5f;
      request.first_mask = case_.masks && Below(3) > 0 ? mask_ : nullptr;
      request.sampling = std::move(sampling);
      request.stop.max_tokens = Below(16) == 0 ? 0 : 1 + Below(30);
      Add(request);
    }
  }

  void Add(SequenceRequest request) {
    const auto size = static_cast<int32_t>(request.prompt.size());
    const int32_t num_new = static_cast<int32_t>(
        std::min<int64_t>(request.stop.max_tokens, MaxNewTokens(size, options_.limits)));
    const bool can_fit =
        size + std::min(request.stop.max_tokens, 1) <= case_.max_model_len && Fits(size);
    Alive alive{.priority = request.priority,
                .cost = size + num_new + 3,
                .salt = request.tenant.id,
                .masked = request.first_mask != nullptr,
                .may_jump = !request.sampling->penalizes() && !request.score_prompt};
    if (can_fit) {
      alive.expected = executor_.Reference(request.prompt, num_new, request.stop.stop_token_ids,
                                           request.sampling->penalizes());
      if (!request.score_prompt) alive.expected.prompt_logprobs.clear();
    }
    request.drafter = std::make_shared<NoisyDrafter>(alive.expected.generated, request.id);
    const absl::Status status = scheduler_->Add(request);
    ASSERT_EQ(status.ok(), can_fit) << status;
    if (!can_fit) return;
    alive_.emplace(request.id, std::move(alive));
    for (auto& [other, waiting] : alive_) {
      if (other == request.id || (!waiting.started && waiting.priority > request.priority)) {
        waiting.latest_start = counts_.steps + StepsBefore(other, waiting);
      }
    }
  }

  // Between tenants, scheduler_fairness_test states the bound; who waits for a mask is not in every
  // step.
  void ExpectNotStarved(const Alive& alive) const {
    if (case_.tenants > 1 || case_.masks) return;
    EXPECT_TRUE(alive.started || counts_.steps <= alive.latest_start);
  }

  int64_t StepsBefore(SequenceId id, const Alive& waiting) const {
    int64_t steps = waiting.cost;
    for (const auto& [other, alive] : alive_) {
      const bool before = std::pair(alive.priority, other) < std::pair(waiting.priority, id);
      if (before || alive.started) steps += alive.cost;
    }
    return steps;
  }

  void Cancel() {
    if (next_id_ == 0) return;
    // Most often one that is alive; any other must not be found.
    SequenceId id = next_id_ - 1 - Below(static_cast<int>(std::min<uint64_t>(next_id_, 40)));
    if (!alive_.empty() && Below(4) > 0) {
      id = std::next(alive_.begin(), Below(static_cast<int>(alive_.size())))->first;
    }
    std::vector<TokenEvent> events;
    const bool found = scheduler_->Cancel(id, absl::CancelledError("test"), {}, &events);
    ASSERT_EQ(found, alive_.contains(id));
    if (!found) return;
    ++counts_.cancels;
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].end->reason, EndReason::kCancelled);
    Take(events[0], {});
    GiveDrafts();
  }

  void Plan() {
    std::optional<StepPlan> plan = scheduler_->Plan(now_);
    if (!plan) {
      // There is something to do unless results are awaited.
      EXPECT_TRUE(executor_.num_in_flight() > 0 || alive_.empty() || !wants_mask_.empty());
      return;
    }
    counts_.steps_ahead += executor_.num_in_flight();
    ++counts_.steps;
    counts_.copies += static_cast<int64_t>(plan->moves.size());
    CheckSalts(*plan);
    for (const SlotStart& start : plan->starts) {
      Alive& alive = alive_.at(start.sampling->seed);
      ExpectNotStarved(alive);
      alive.started = true;
    }
    for (const StepRow& row : plan->rows) {
      plans_digest_ = plans_digest_ * 31 + static_cast<uint64_t>(row.slot * 1000 + row.start);
      plans_digest_ = plans_digest_ * 31 + static_cast<uint64_t>(row.num_tokens);
    }
    for (const BlockId block : plan->blocks) {
      plans_digest_ = plans_digest_ * 31 + static_cast<uint64_t>(block);
    }
    const absl::Status status = executor_.Submit(*std::move(plan));
    ASSERT_TRUE(status.ok()) << status;
  }

  void Commit() {
    if (executor_.num_in_flight() == 0) return;
    while (AwaitsMask(executor_.oldest())) {
      ASSERT_FALSE(wants_mask_.empty());
      ++counts_.masks_in_flight;
      GiveMask();
    }
    ModelExecutor::Script script;
    if (case_.faults) {
      script.fail_step = Below(2000) == 0;
      script.fault = [this](const StepRow&) {
        const int pick = Below(1000);
        return pick == 0   ? ModelExecutor::Fault::kRow
               : pick == 1 ? ModelExecutor::Fault::kSilent
                           : ModelExecutor::Fault::kNone;
      };
    }
    const StepResult result = executor_.Run(script);
    if (case_.tenants > 1) now_ += std::chrono::milliseconds(1 + Below(40));
    std::vector<TokenEvent> events;
    const absl::Status status = scheduler_->Commit(result, now_, &events);
    ASSERT_TRUE(status.ok()) << status;
    GiveDrafts();
    for (const TokenEvent& event : events) {
      Take(event, result);
      const auto it = alive_.find(event.id);
      if (it == alive_.end() || !it->second.masked || event.sampled.size() == 0) continue;
      wants_mask_.push_back(event.id);
    }
    size_t told = 0;
    for (const TokenEvent& event : events) told += event.sampled.size() + event.scored.size();
    counts_.surplus_rows += static_cast<int64_t>(result.tokens.size() - told);
  }

  void GiveDrafts() {
    const absl::Status status = executor_.SetDrafts(scheduler_->TakeLateDrafts());
    ASSERT_TRUE(status.ok()) << status;
  }

  // Returns whether the device waits for a late mask of the step.
  bool AwaitsMask(const StepPlan& plan) {
    for (const LateMask& late : scheduler_->TakeLateMasks()) {
      EXPECT_NE(late.mask, nullptr);
      EXPECT_GE(late.step, plan.id) << "of a step that has ended";
      EXPECT_TRUE(late_masks_.emplace(late.step, late.logits).second) << "given twice";
    }
    for (int32_t i = 0; i < static_cast<int32_t>(plan.logits.size()); ++i) {
      if (plan.logits[i].late_mask && !late_masks_.contains({plan.id, i})) return true;
    }
    return false;
  }

  // Gives a sequence its next mask, and before it perhaps tokens: those that the model would
  // sample, so that what follows is the same.
  void GiveMask() {
    const SequenceId id = wants_mask_.front();
    wants_mask_.pop_front();
    const auto it = alive_.find(id);
    if (it != alive_.end() && it->second.may_jump && Below(3) == 0) {
      const std::vector<Token>& generated = it->second.expected.generated;
      StepResult result;
      std::vector<Token> tokens;
      for (size_t i = it->second.num_generated; i < generated.size() && Below(8) > 0; ++i) {
        tokens.push_back(generated[i]);
        result.tokens.push_back({.token = generated[i]});
      }
      std::vector<TokenEvent> events;
      scheduler_->Force(id, tokens, now_, &events);
      ASSERT_EQ(events.size(), tokens.empty() ? 0u : 1u);
      for (const TokenEvent& event : events) Take(event, result);
    }
    scheduler_->SetMask(id, mask_);
  }

  void Take(const TokenEvent& event, const StepResult& result) {
    const auto it = alive_.find(event.id);
    ASSERT_NE(it, alive_.end()) << "an event after the end";
    Alive& alive = it->second;
    const ModelExecutor::Output& expected = alive.expected;
    for (int32_t i = event.scored.begin; i < event.scored.end; ++i) {
      ASSERT_LT(alive.num_scored, expected.prompt_logprobs.size());
      EXPECT_EQ(result.tokens[i].logprob, expected.prompt_logprobs[alive.num_scored++]);
    }
    for (int32_t i = event.sampled.begin; i < event.sampled.end; ++i) {
      ASSERT_LT(alive.num_generated, expected.generated.size());
      ASSERT_EQ(result.tokens[i].token, expected.generated[alive.num_generated++]);
    }
    if (!event.end) return;
    EXPECT_EQ(event.end->generated_tokens, static_cast<int32_t>(alive.num_generated));
    ExpectNotStarved(alive);
    switch (event.end->reason) {
      case EndReason::kStopToken:
        ++counts_.stops;
        EXPECT_EQ(event.end->stop_token, expected.generated.back());
        break;
      case EndReason::kLength:
        ++counts_.lengths;
        break;
      case EndReason::kFailed:
        ++counts_.failures;
        EXPECT_TRUE(case_.faults);
        break;
      case EndReason::kComplete:
        FAIL() << "no sequence here has a mask";
      case EndReason::kCancelled:
        break;
    }
    if (event.end->status.ok()) {
      EXPECT_EQ(alive.num_generated, expected.generated.size());
      EXPECT_EQ(alive.num_scored, expected.prompt_logprobs.size());
    }
    alive_.erase(it);
  }

  const Case& case_;
  const SchedulerOptions options_;
  const std::unique_ptr<Scheduler> scheduler_;
  ModelExecutor executor_;
  std::mt19937_64 random_;
  SteadyTime now_ = SteadyTime(std::chrono::hours(1));
  std::vector<Token> bases_[2];  // prompts begin like one of these
  std::map<SequenceId, Alive> alive_;
  SequenceId next_id_ = 0;
  const std::shared_ptr<const SampleMask> mask_ =
      std::make_shared<const SampleMask>(SampleMask{~0U});
  std::deque<SequenceId> wants_mask_;  // perhaps ended meanwhile
  std::set<std::pair<StepId, int32_t>> late_masks_;
  int load_ = 20;
  Counts counts_;
  uint64_t plans_digest_ = 0;
  std::vector<uint32_t> salts_;                   // of the sequences at the slots, as planned
  std::vector<uint32_t> checkpoint_salts_;        // of those whose states were copied
  std::set<std::pair<int, BlockHash>> followed_;  // blocks, by events
  BlockHasher hasher_;
  int64_t follows_ = 0;
};

class SchedulerPropertyTest : public ::testing::TestWithParam<Case> {};

TEST_P(SchedulerPropertyTest, HoldsThroughRandomEvents) {
  const Case& c = GetParam();
  World world(c, 20);
  for (int i = 0; i < kEvents && !HasFailure(); ++i) {
    world.RandomEvent();
    if (i % 10'000 == 9'999) world.Drain();
  }
  world.Drain();

  // It went where it was meant to go.
  const Counts& counts = world.counts();
  const SchedulerStats stats = world.stats();
  RecordProperty("steps", std::to_string(counts.steps));
  RecordProperty("preemptions", std::to_string(stats.preemptions));
  RecordProperty("prefix_hits", std::to_string(stats.prefix_hits));
  RecordProperty("failures", std::to_string(counts.failures));
  EXPECT_GT(counts.steps, kEvents / 10);
  EXPECT_GT(counts.steps_ahead, kEvents / 25);
  EXPECT_GT(counts.arrivals, kEvents / 100);
  EXPECT_GT(counts.cancels, kEvents / 200);
  EXPECT_EQ(counts.stored > kEvents / 200, c.prefix_caching);
  EXPECT_GT(counts.stops, 100);
  EXPECT_GT(counts.lengths, 100);
  EXPECT_GT(counts.surplus_rows, 100);
  // A sequence with windows alone does not outgrow what it was admitted with.
  const bool grows = std::any_of(c.groups.begin(), c.groups.end(), [](const StateGroup& group) {
    const auto* const paged = std::get_if<PagedState>(&group);
    return paged != nullptr && !paged->window.has_value();
  });
  if (grows) {
    EXPECT_GT(stats.preemptions, 20);
  }
  bool has_slots = false, has_checkpoints = false;
  for (size_t i = 0; i < c.groups.size(); ++i) {
    if (std::holds_alternative<PagedState>(c.groups[i])) continue;
    has_slots = true;
    has_checkpoints = c.blocks[i] > 0 && c.prefix_caching;
  }
  EXPECT_EQ(counts.copies > 100, has_slots ? has_checkpoints : c.block_size > 1);
  EXPECT_EQ(stats.prefix_hits > kEvents / 200, c.prefix_caching && has_slots == has_checkpoints);
  EXPECT_EQ(counts.restores > 500, has_checkpoints);
  EXPECT_GE(stats.checkpoint_hits, counts.restores);
  EXPECT_EQ(counts.failures > 60, c.faults);
  EXPECT_EQ(stats.forced_tokens > 10'000, c.masks);
  EXPECT_EQ(counts.masks_in_flight > 1'000, c.late_masks);
  int64_t accepted = 0;
  for (const int64_t at_place : stats.accepted_tokens) accepted += at_place;
  EXPECT_EQ(accepted > 1'000, c.draft_tokens > 0);
  EXPECT_EQ(stats.draft_tokens > accepted, c.draft_tokens > 0);
}

INSTANTIATE_TEST_SUITE_P(, SchedulerPropertyTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(SchedulerDeterminismTest, TheSameEventsMakeTheSamePlans) {
  World first(kCases[3], 7);
  World second(kCases[3], 7);
  World other(kCases[3], 8);
  for (int i = 0; i < 5'000; ++i) {
    for (World* world : {&first, &second, &other}) world->RandomEvent();
  }
  EXPECT_EQ(first.plans_digest(), second.plans_digest());
  EXPECT_NE(first.plans_digest(), other.plans_digest());
}

}  // namespace
}  // namespace millrace
