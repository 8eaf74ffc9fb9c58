// Measures a step's cost on the engine's thread: Plan and Commit, events included, with 256
// sequences that decode at 4k context in blocks of 16, two steps in flight, every block a step
// takes evicted from a cache of 100,000, 10 to 100,000 sequences waiting, and one group of pages or
// three (the second argument).
//
//   Decode    sixteen sequences cross into a new block in each step
//   Aligned   all 256 do in the same step, every sixteenth (see p99)
//   Turnover  besides, in each step a sequence ends and the next is admitted, with a prompt of 4k,
//   half of
//             it found in the cache
//
// The executor's part, making the results, is not timed. `median_us` and `p99_us` are over the
// steps.
#include <algorithm>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "scheduler/scheduler.h"

namespace millrace {
namespace {

constexpr int32_t kRows = 256;
constexpr int32_t kContext = 4096;
constexpr int32_t kBlockSize = 16;
constexpr int32_t kCached = 100'000;
constexpr int kSteps = 1000;
constexpr Token kStop = 1;
constexpr Token kPlain = 2;

constexpr int32_t kMaxModelLen = 131'072;

// The state of one group of pages, or of three: two have windows.
StepLimits Limits(int groups) {
  // The running ones' blocks, those that they take while it is measured, and the cache.
  constexpr int32_t kBlocks = kRows * ((kContext + kSteps) / kBlockSize + 8) + kCached;
  StepLimits limits = {.max_num_seqs = kRows,
                       .max_num_batched_tokens = 8192,
                       .max_model_len = kMaxModelLen,
                       .num_blocks = {kBlocks},
                       .state = StateLayout::OnePool(kBlockSize),
                       .vocab_size = 50'000};
  for (const int32_t window : {128, 1024}) {
    if (limits.state.num_groups() == groups) break;
    limits.state.groups.push_back(PagedState{.window = window});
    limits.num_blocks.push_back(kBlocks);
  }
  return limits;
}

class Load {
 public:
  Load(bool aligned, int groups) : scheduler_(*Scheduler::Create({.limits = Limits(groups)})) {
    // First what only fills the cache, to the last block.
    while (scheduler_->stats().blocks_free > 0) {
      Add({.prompt_size = kContext, .max_tokens = 0});
      Settle();
    }
    for (int32_t i = 0; i < kRows; ++i) {
      Add({.prompt_size = kContext + (aligned ? 0 : i % kBlockSize)});
    }
    Settle();
  }

  struct Wanted {
    int32_t prompt_size;
    int32_t shared = 0;  // leading tokens that all have in common
    int32_t max_tokens = kMaxModelLen;
  };
  void Add(const Wanted& wanted) {
    SequenceRequest request{.id = next_id_++};
    for (int32_t i = 0; i < wanted.prompt_size; ++i) {
      const auto own = static_cast<int32_t>(random_() % 40'000);
      request.prompt.push_back(kPlain + 1 + (i < wanted.shared ? i : own));
    }
    request.prompt_hashes = HashPrompt({}, request.prompt, kBlockSize);
    request.sampling = sampling_;
    request.stop = {.max_tokens = wanted.max_tokens, .stop_token_ids = {kStop}};
    if (!scheduler_->Add(std::move(request)).ok()) std::abort();
  }

  // One turn of the engine's loop, two steps in flight: seconds of Plan and Commit.
  double Step(bool one_ends) {
    const auto begin = std::chrono::steady_clock::now();
    std::optional<StepPlan> plan = scheduler_->Plan(begin);
    const auto planned = std::chrono::steady_clock::now();
    if (plan) Run(*plan, one_ends);
    const StepResult result = std::move(results_.front());
    results_.pop_front();
    const auto ran = std::chrono::steady_clock::now();
    std::vector<TokenEvent> events;
    if (!scheduler_->Commit(result, ran, &events).ok()) std::abort();
    const auto end = std::chrono::steady_clock::now();
    num_events_ += events.size();
    return std::chrono::duration<double>(planned - begin + (end - ran)).count();
  }

  const Scheduler& scheduler() const { return *scheduler_; }
  size_t num_events() const { return num_events_; }

 private:
  // The result of a step in which every row that samples gets a plain token, or the first a stop
  // token.
  void Run(const StepPlan& plan, bool one_ends) {
    StepResult& result = results_.emplace_back();
    result.id = plan.id;
    for (const StepRow& row : plan.rows) {
      const int32_t size = static_cast<int32_t>(result.tokens.size());
      if (row.logits.size() > 0) result.tokens.push_back({.token = one_ends ? kStop : kPlain});
      one_ends = one_ends && row.logits.size() == 0;
      result.rows.push_back({.slot = row.slot, .tokens = {size, size + row.logits.size()}});
    }
  }

  // Until prompts are worked through; one step stays in flight.
  void Settle() {
    int64_t prefilled;
    do {
      prefilled = scheduler_->stats().prefill_tokens;
      if (const std::optional<StepPlan> plan = scheduler_->Plan({})) Run(*plan, false);
      while (results_.size() > 1 || !scheduler_->stats().num_running) {
        std::vector<TokenEvent> events;
        if (!scheduler_->Commit(results_.front(), {}, &events).ok()) std::abort();
        results_.pop_front();
        if (results_.empty()) break;
      }
    } while (scheduler_->stats().prefill_tokens > prefilled);
  }

  const std::unique_ptr<Scheduler> scheduler_;
  const std::shared_ptr<const SamplingParams> sampling_ = std::make_shared<SamplingParams>();
  std::mt19937 random_;
  std::deque<StepResult> results_;
  SequenceId next_id_ = 0;
  size_t num_events_ = 0;
};

void BM_Step(benchmark::State& state, bool aligned, bool turnover) {
  const int waiting = static_cast<int>(state.range(0));
  Load load(aligned, static_cast<int>(state.range(1)));
  const Load::Wanted whole{.prompt_size = kContext, .shared = kContext / 2};
  // Only those that come to run need more than a name in the queue.
  for (int i = 0; i < waiting; ++i) {
    load.Add(turnover && i < kSteps ? whole : Load::Wanted{.prompt_size = 1});
  }
  std::vector<double> micros;
  for (auto _ : state) {
    const double seconds = load.Step(turnover);
    state.SetIterationTime(seconds);
    micros.push_back(seconds * 1e6);
    if (turnover) load.Add(whole);
  }
  std::sort(micros.begin(), micros.end());
  const SchedulerStats stats = load.scheduler().stats();
  state.counters["median_us"] = micros[micros.size() / 2];
  state.counters["p99_us"] = micros[micros.size() * 99 / 100];
  state.counters["rows"] = stats.num_running;
  state.counters["cached"] = stats.blocks_cached;
  state.counters["free"] = stats.blocks_free;
  state.counters["events"] = static_cast<double>(load.num_events()) / static_cast<double>(kSteps);
}

#define MILLRACE_STEP_BENCH(name, aligned, turnover)  \
  BENCHMARK_CAPTURE(BM_Step, name, aligned, turnover) \
      ->ArgsProduct({{10, 1'000, 100'000}, {1, 3}})   \
      ->Iterations(kSteps)                            \
      ->UseManualTime()                               \
      ->Unit(benchmark::kMicrosecond)

MILLRACE_STEP_BENCH(Decode, false, false);
MILLRACE_STEP_BENCH(Aligned, true, false);
MILLRACE_STEP_BENCH(Turnover, false, true);

}  // namespace
}  // namespace millrace
