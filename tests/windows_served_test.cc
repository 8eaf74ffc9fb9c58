// Models whose layers have windows, served by the scheduler and the CPU's executor
// together from a memory that is far too small for all: what is released, found again, shared and
// computed again must not change a single token.
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "executors/cpu/cpu_executor.h"
#include "formats/twins/family_twins.h"
#include "gtest/gtest.h"
#include "scheduler/scheduler.h"

namespace millrace {
namespace {

constexpr int kPrompts = 100;
constexpr int kChoices = 2;  // of each prompt
constexpr int kBlock = 16;
constexpr int kVocab = 64;  // of which prompts are drawn
constexpr SteadyTime kNow = SteadyTime(std::chrono::hours(1));

// The way in which sequences are served. Their answers do not depend on it.
struct Way {
  int64_t kv_cache_memory;
  int max_num_batched_tokens;
  bool shares;  // prefixes, and prompts among choices
};

struct Served {
  std::map<SequenceId, std::vector<Token>> answers;
  SchedulerStats stats;
  StepLimits limits;
};

// Prompts of 20 to 160 tokens, of which every third begins as the one before it.
std::vector<std::vector<Token>> Prompts() {
  std::mt19937 random(7);
  std::vector<std::vector<Token>> prompts;
  for (int i = 0; i < kPrompts; ++i) {
    std::vector<Token> prompt;
    if (i % 3 == 2) prompt = prompts.back();
    const size_t size = prompt.size() + 20 + random() % 60;
    while (prompt.size() < size) prompt.push_back(static_cast<Token>(random() % kVocab));
    prompts.push_back(std::move(prompt));
  }
  return prompts;
}

// Serves all choices of the prompts, of which one more comes with each step.
Served Serve(const std::string& path, const Way& way) {
  CpuSpec device;
  device.threads = 1;
  device.kv_cache_memory = way.kv_cache_memory;
  device.block_size = kBlock;
  device.max_num_seqs = 12;
  device.max_num_batched_tokens = way.max_num_batched_tokens;
  auto executor = cpu::LoadCpuExecutor({path}, device);
  EXPECT_TRUE(executor.ok()) << executor.status();
  Served served{.answers = {}, .stats = {}, .limits = (*executor)->info().limits};
  auto scheduler = Scheduler::Create({.limits = served.limits, .prefix_caching = way.shares});
  EXPECT_TRUE(scheduler.ok()) << scheduler.status();

  const auto add = [&](const std::vector<Token>& prompt, uint64_t number) {
    for (uint32_t choice = 0; choice < kChoices; ++choice) {
      const SequenceId id = number * kChoices + choice;
      const absl::Status status =
          (*scheduler)
              ->Add({.id = id,
                     .prompt = prompt,
                     .prompt_hashes = way.shares
                                          ? HashPrompt(CacheRoot({"weights"}), prompt, kBlock)
                                          : BlockHashes(),
                     .sampling = std::make_shared<SamplingParams>(SamplingParams{
                         .temperature = 0.8f, .seed = number, .sample_index = choice}),
                     .stop = {.max_tokens = static_cast<int32_t>(40 + number * 7 % 60),
                              .stop_token_ids = {}},
                     .prompt_group = way.shares ? number + 1 : 0,
                     .first_mask = nullptr,
                     .arrival = kNow});
      EXPECT_TRUE(status.ok()) << status;
    }
  };

  const std::vector<std::vector<Token>> prompts = Prompts();
  size_t added = 0;
  std::vector<TokenEvent> events;
  while (added < prompts.size() || (*scheduler)->HasWork()) {
    if (added < prompts.size()) {
      add(prompts[added], added);
      ++added;
    }
    while (std::optional<StepPlan> plan = (*scheduler)->Plan(kNow)) {
      const absl::Status status = (*executor)->Submit(*std::move(plan));
      EXPECT_TRUE(status.ok()) << status;
    }
    const std::optional<StepResult> result = (*executor)->Wait();
    if (!result.has_value()) {
      ADD_FAILURE() << "sequences are alive, and no step is planned";
      return served;
    }
    events.clear();
    const absl::Status status = (*scheduler)->Commit(*result, kNow, &events);
    EXPECT_TRUE(status.ok()) << status;
    for (const TokenEvent& event : events) {
      std::vector<Token>& answer = served.answers[event.id];
      for (int32_t i = event.sampled.begin; i < event.sampled.end; ++i) {
        answer.push_back(result->tokens[i].token);
      }
      if (!event.end.has_value()) continue;
      EXPECT_EQ(event.end->reason, EndReason::kLength) << event.id << " " << event.end->status;
    }
  }
  served.stats = (*scheduler)->stats();
  return served;
}

class WindowsServedTest : public testing::TestWithParam<const char*> {};

TEST_P(WindowsServedTest, AnswersDoNotDependOnTheMemory) {
  const std::string path =
      StrCat(testing::TempDir(), "windows_served_test_", GetParam(), "_", getpid());
  WriteTwinFolder(FamilyTwinOf(GetParam()), path);
  const Served alone =
      Serve(path, {.kv_cache_memory = 64 << 20, .max_num_batched_tokens = 512, .shares = false});
  ASSERT_EQ(alone.limits.state.num_groups(), 2);
  EXPECT_EQ(alone.stats.preemptions, 0);
  EXPECT_EQ(alone.answers.size(), kPrompts * kChoices);

  // One sequence of the model's length fits, and not much more.
  const int64_t most = alone.limits.state.BlocksFor(alone.limits.max_model_len);
  const auto of_context = alone.limits.state.Paged(0)->block_bytes;
  const auto of_windows = alone.limits.state.Paged(1)->block_bytes;
  const int64_t memory = 3 * most / 2 * of_context + 12 * of_windows;
  for (const int tokens : {48, 512}) {
    SCOPED_TRACE(tokens);
    const Served crowded =
        Serve(path, {.kv_cache_memory = memory, .max_num_batched_tokens = tokens, .shares = true});
    EXPECT_GT(crowded.stats.preemptions, 10);
    EXPECT_GT(crowded.stats.prefix_hits, 100);
    EXPECT_EQ(crowded.stats.usage, 0);  // all is given back
    EXPECT_EQ(crowded.answers, alone.answers);
  }
  std::filesystem::remove_all(path);
}

INSTANTIATE_TEST_SUITE_P(Families, WindowsServedTest, testing::Values("gpt_oss", "gemma3"),
                         [](const auto& twin) { return std::string(twin.param); });

}  // namespace
}  // namespace millrace
