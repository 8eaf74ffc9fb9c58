// Models with recurrent layers, served by the scheduler and the CPU's executor together: what
// begins from a checkpoint, is preempted, or shares its prompt must not change a single token, and
// prompts that begin alike compute what is new alone.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/strings.h"
#include "executors/cpu/cpu_executor.h"
#include "formats/twins/family_twins.h"
#include "gtest/gtest.h"
#include "scheduler/scheduler.h"

namespace millrace {
namespace {

constexpr int kBlock = 16;
constexpr int kMostTokens = 4096;  // of a sequence
constexpr int kVocab = 64;         // of which prompts are drawn
constexpr SteadyTime kNow = SteadyTime(std::chrono::hours(1));

std::vector<Token> Tokens(int count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<Token> tokens;
  while (static_cast<int>(tokens.size()) < count) {
    tokens.push_back(static_cast<Token>(random() % kVocab));
  }
  return tokens;
}

std::vector<Token> Joined(std::vector<Token> first, const std::vector<Token>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

struct Ask {
  std::vector<Token> prompt = {};
  int32_t max_tokens = 8;
  uint64_t seed = 0;
  uint32_t choice = 0;
  uint64_t group = 0;
  std::string salt = {};
};

// How sequences are served. Their answers do not depend on it.
struct Way {
  int32_t blocks = 20'000;
  int32_t checkpoints = 64;
  int max_num_seqs = 8;
  int max_num_batched_tokens = 512;
  bool caches = true;
};

class StatesServedTest : public testing::TestWithParam<const char*> {
 protected:
  StatesServedTest() : path_(StrCat(testing::TempDir(), "states_served_test_", getpid())) {
    FamilyTwin twin = FamilyTwinOf(GetParam());
    twin.config["max_position_embeddings"] = kMostTokens;
    WriteTwinFolder(twin, path_);
  }
  ~StatesServedTest() override { std::filesystem::remove_all(path_); }

  // Loads the model anew, with empty caches.
  void Begin(const Way& way) {
    CpuSpec device;
    device.threads = 1;
    device.block_size = kBlock;
    device.max_num_seqs = way.max_num_seqs;
    device.max_num_batched_tokens = way.max_num_batched_tokens;
    device.kv_cache_memory = int64_t{1} << 26;
    if (!state_.has_value()) {
      auto first = cpu::LoadCpuExecutor({path_}, device);
      ASSERT_TRUE(first.ok()) << first.status();
      state_ = (*first)->info().limits.state;
    }
    const int64_t slot = std::get<SlotState>(state_->groups[1]).bytes;
    device.kv_cache_memory = way.blocks * state_->Paged(0)->block_bytes + way.max_num_seqs * slot;
    device.state_cache_memory = way.checkpoints * slot;
    auto executor = cpu::LoadCpuExecutor({path_}, device);
    ASSERT_TRUE(executor.ok()) << executor.status();
    executor_ = *std::move(executor);
    const StepLimits& limits = executor_->info().limits;
    ASSERT_EQ(limits.num_checkpoints(), way.checkpoints);
    auto scheduler = Scheduler::Create({.limits = limits, .prefix_caching = way.caches});
    ASSERT_TRUE(scheduler.ok()) << scheduler.status();
    scheduler_ = *std::move(scheduler);
    answers_.clear();
    cached_.clear();
  }

  SequenceId Add(const Ask& ask) {
    const SequenceId id = ++last_id_;
    const absl::Status status = scheduler_->Add(
        {.id = id,
         .prompt = ask.prompt,
         .prompt_hashes = HashPrompt(CacheRoot({"weights", ask.salt}), ask.prompt, kBlock),
         .sampling = std::make_shared<SamplingParams>(
             SamplingParams{.temperature = 0.8f, .seed = ask.seed, .sample_index = ask.choice}),
         .stop = {.max_tokens = ask.max_tokens, .stop_token_ids = {}},
         .prompt_group = ask.group,
         .first_mask = nullptr,
         .arrival = kNow});
    EXPECT_TRUE(status.ok()) << status;
    return id;
  }

  void Step() {
    while (std::optional<StepPlan> plan = scheduler_->Plan(kNow)) {
      const absl::Status status = executor_->Submit(*std::move(plan));
      ASSERT_TRUE(status.ok()) << status;
    }
    const std::optional<StepResult> result = executor_->Wait();
    ASSERT_TRUE(result.has_value()) << "sequences are alive, and no step is planned";
    std::vector<TokenEvent> events;
    const absl::Status status = scheduler_->Commit(*result, kNow, &events);
    ASSERT_TRUE(status.ok()) << status;
    for (const TokenEvent& event : events) {
      std::vector<Token>& answer = answers_[event.id];
      for (int32_t i = event.sampled.begin; i < event.sampled.end; ++i) {
        answer.push_back(result->tokens[i].token);
      }
      if (!event.end.has_value()) continue;
      EXPECT_EQ(event.end->reason, EndReason::kLength) << event.id << " " << event.end->status;
      cached_[event.id] = event.end->cached_tokens;
    }
  }

  void Drain() {
    while (scheduler_->HasWork() && !HasFatalFailure()) Step();
  }

  // Serves one alone, without caches.
  std::vector<Token> Alone(const Ask& ask) {
    Ask single = ask;
    single.group = 0;
    const SequenceId id = Add(single);
    Drain();
    return answers_[id];
  }

  const std::string path_;
  std::optional<StateLayout> state_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<SequenceId, std::vector<Token>> answers_;
  std::map<SequenceId, int32_t> cached_;
  SequenceId last_id_ = 0;
};

// States with a matrix for each head, and those of a few inputs alone.
INSTANTIATE_TEST_SUITE_P(Twins, StatesServedTest,
                         testing::Values("qwen3_5", "lfm2", "granitehybrid", "nemotron_h_moe"),
                         [](const auto& info) { return std::string(info.param); });

// Prompts of 20 to 160 tokens, of which every third begins as the one before it, with two choices
// each, in memories that are far too small for all.
TEST_P(StatesServedTest, AnswersDoNotDependOnTheMemory) {
  std::mt19937 random(7);
  std::vector<Ask> asks;
  for (uint64_t number = 0; number < 100; ++number) {
    Ask ask{.max_tokens = static_cast<int32_t>(40 + number * 7 % 60), .seed = number};
    if (number % 3 == 2) ask.prompt = asks.back().prompt;
    ask.prompt = Joined(ask.prompt, Tokens(20 + static_cast<int>(random() % 60), random()));
    ask.group = number + 1;
    for (; ask.choice < 2; ++ask.choice) asks.push_back(ask);
  }
  const auto serve = [&](const Way& way) {
    Begin(way);
    std::vector<SequenceId> ids;
    for (size_t i = 0; i < asks.size() || scheduler_->HasWork();) {
      for (int both = 0; both < 2 && i < asks.size(); ++both) ids.push_back(Add(asks[i++]));
      Step();
      if (HasFatalFailure()) break;
    }
    std::vector<std::vector<Token>> answers;
    for (const SequenceId id : ids) answers.push_back(answers_[id]);
    return answers;
  };
  const auto alone = serve({.max_num_seqs = 1, .caches = false});
  EXPECT_EQ(scheduler_->stats().preemptions, 0);
  for (const int32_t checkpoints : {3, 20, 100}) {
    for (const int tokens : {48, 512}) {
      SCOPED_TRACE(StrCat(checkpoints, " checkpoints, steps of ", tokens));
      const auto crowded = serve({.blocks = 28,
                                  .checkpoints = checkpoints,
                                  .max_num_seqs = 12,
                                  .max_num_batched_tokens = tokens});
      const SchedulerStats stats = scheduler_->stats();
      EXPECT_GT(stats.preemptions, 10);
      EXPECT_GT(stats.checkpoint_hits, checkpoints / 2);
      EXPECT_EQ(stats.usage, 0);  // all is given back
      EXPECT_EQ(crowded, alone);
    }
  }
}

// 64 prompts of one prefix, which differ in the 100 tokens after it, one after the other, or all at
// once.
TEST_P(StatesServedTest, PromptsThatBranchBeginFromTheirPrefix) {
  constexpr int kPrefix = 2000;
  const std::vector<Token> shared = Tokens(kPrefix, 1);
  std::vector<Ask> asks;
  for (uint32_t i = 0; i < 64; ++i) {
    asks.push_back({.prompt = Joined(shared, Tokens(100, 100 + i)), .seed = i});
  }
  std::vector<std::vector<Token>> answers[2];
  for (const bool at_once : {false, true}) {
    Begin({});
    std::vector<SequenceId> ids;
    for (const Ask& ask : asks) {
      ids.push_back(Add(ask));
      if (!at_once) Drain();
    }
    Drain();
    int hits = 0;
    for (const SequenceId id : ids) {
      hits += cached_[id] >= kPrefix - kBlock ? 1 : 0;
      answers[at_once].push_back(answers_[id]);
    }
    EXPECT_GE(hits, 60) << (at_once ? "at once" : "in turn");
  }
  EXPECT_EQ(answers[1], answers[0]);
  Begin({.caches = false});
  for (size_t i = 0; i < asks.size(); ++i) EXPECT_EQ(Alone(asks[i]), answers[0][i]) << i;
}

// Each turn's prompt is the one before it with its answer and a tool's result.
TEST_P(StatesServedTest, TurnsOfAgentsComputeWhatIsNew) {
  constexpr int kAgents = 4;
  constexpr int kTurns = 10;
  Begin({.max_num_seqs = kAgents});
  constexpr int kSystem = 500;
  constexpr int kResult = 200;
  constexpr int kAnswer = 70;
  std::vector<std::vector<Token>> prompts;
  std::vector<Ask> asked;
  std::vector<std::vector<Token>> answers;
  int64_t fresh = kSystem;
  for (uint32_t agent = 0; agent < kAgents; ++agent) {
    prompts.push_back(Joined(Tokens(kSystem, 1), Tokens(kResult, 10 + agent)));
  }
  for (uint32_t turn = 0; turn < kTurns; ++turn) {
    std::vector<SequenceId> ids;
    for (uint32_t agent = 0; agent < kAgents; ++agent) {
      asked.push_back({.prompt = prompts[agent], .max_tokens = kAnswer, .seed = agent});
      ids.push_back(Add(asked.back()));
      fresh += kResult;
    }
    Drain();
    for (uint32_t agent = 0; agent < kAgents; ++agent) {
      const std::vector<Token>& its = answers_[ids[agent]];
      answers.push_back(its);
      prompts[agent] =
          Joined(Joined(prompts[agent], its), Tokens(kResult, 1000 + turn * 10 + agent));
    }
  }
  const SchedulerStats stats = scheduler_->stats();
  // An answer's last token is an input of the next turn's prompt; the first turn's agents run at
  // the same time.
  fresh += kAgents * (kTurns - 1) + (kAgents - 1) * kSystem;
  EXPECT_LE(static_cast<double>(stats.prefill_tokens), 1.1 * static_cast<double>(fresh))
      << "replayed " << stats.replayed_tokens;
  EXPECT_GE(stats.checkpoint_hits, kAgents * (kTurns - 1));
  Begin({.caches = false});
  for (size_t i = 0; i < asked.size(); ++i) EXPECT_EQ(Alone(asked[i]), answers[i]) << i;
}

// Choices wait for the checkpoint before their answers, and begin from it.
TEST_P(StatesServedTest, ChoicesBeginFromTheirPromptsCheckpoint) {
  Begin({});
  std::vector<Ask> asks;
  for (uint32_t choice = 0; choice < 6; ++choice) {
    asks.push_back({.prompt = Tokens(150, 3), .max_tokens = 30, .choice = choice, .group = 1});
  }
  std::vector<SequenceId> ids;
  for (const Ask& ask : asks) ids.push_back(Add(ask));
  Drain();
  std::vector<std::vector<Token>> answers;
  for (const SequenceId id : ids) answers.push_back(answers_[id]);
  EXPECT_EQ(scheduler_->stats().checkpoint_hits, 5);
  EXPECT_LT(scheduler_->stats().prefill_tokens, 150 + 5 * 2 * kBlock);
  Begin({.caches = false});
  for (size_t i = 0; i < asks.size(); ++i) EXPECT_EQ(Alone(asks[i]), answers[i]) << i;
}

TEST_P(StatesServedTest, ATenantsCheckpointIsItsOwn) {
  Begin({});
  const std::vector<Token> prompt = Tokens(150, 3);
  for (const char* salt : {"a", "b"}) {
    const SequenceId first = Add({.prompt = prompt, .salt = salt});
    Drain();
    const SequenceId second = Add({.prompt = prompt, .salt = salt});
    Drain();
    EXPECT_EQ(cached_[first], 0) << salt;
    EXPECT_GE(cached_[second], 128) << salt;
  }
}

}  // namespace
}  // namespace millrace
