// Agents: conversations that go on by tools' results, of models with state at slots. What of their
// prompts is computed, beside what no one has computed before.
#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "gtest/gtest.h"
#include "scheduler/scheduler.h"
#include "scheduler/scheduler_script_test_util.h"

namespace millrace {
namespace {

using Text = std::vector<Token>;

constexpr SteadyTime kNow = SteadyTime(std::chrono::hours(1));

// Special tokens of a chat template like Qwen3.5's.
enum : Token { kStart, kEnd, kLine, kTwoLines, kUser, kAssistant, kThink, kEndThink, kFirstWord };

Text Words(int count, uint32_t seed) {
  std::mt19937 random(seed);
  Text words;
  for (int i = 0; i < count; ++i) {
    words.push_back(kFirstWord + static_cast<Token>(random() % 10'000));
  }
  return words;
}

void Append(const Text& more, Text& text) { text.insert(text.end(), more.begin(), more.end()); }

struct Load {
  int agents = 32;
  int at_once = 32;  // agents that have begun, and not yet ended
  int turns = 10;
  int system = 2000;  // tokens that all prompts of a tenant begin with
  int question = 100;
  int thought = 60;
  int reply = 40;
  int result = 200;             // of a tool
  bool sends_thoughts = false;  // back to the server
  int asks_again = 0;           // at this turn there is a question in place of a tool's result
  int tenants = 1;
};

// Answers a scheduler's plans with tokens that depend on the sequence and the position alone.
class Server {
 public:
  explicit Server(const SchedulerOptions& options) : scheduler_(*Scheduler::Create(options)) {}

  void Add(SequenceId id, const Text& prompt, int32_t max_tokens, uint32_t tenant) {
    const absl::Status status =
        scheduler_->Add({.id = id,
                         .prompt = prompt,
                         .prompt_hashes = HashPrompt(
                             CacheRoot({"weights", StrCat("tenant", tenant)}), prompt, kBlock),
                         .sampling = std::make_shared<SamplingParams>(SamplingParams{.seed = id}),
                         .stop = {.max_tokens = max_tokens, .stop_token_ids = {}},
                         .tenant = {.id = tenant},
                         .first_mask = nullptr,
                         .arrival = kNow});
    EXPECT_TRUE(status.ok()) << status;
  }

  // Runs the oldest step. Returns the ends that came of it.
  std::vector<std::pair<SequenceId, SequenceEnd>> Step() {
    while (std::optional<StepPlan> plan = scheduler_->Plan(kNow)) Submit(*plan);
    std::vector<std::pair<SequenceId, SequenceEnd>> ends;
    if (results_.empty()) return ends;
    std::vector<TokenEvent> events;
    const absl::Status status = scheduler_->Commit(results_.front(), kNow, &events);
    EXPECT_TRUE(status.ok()) << status;
    for (const TokenEvent& event : events) {
      for (int32_t i = event.sampled.begin; i < event.sampled.end; ++i) {
        answers[event.id].push_back(results_.front().tokens[i].token);
      }
      if (event.end.has_value()) ends.emplace_back(event.id, *event.end);
    }
    results_.pop_front();
    return ends;
  }

  const Scheduler& scheduler() const { return *scheduler_; }

  static constexpr int kBlock = 16;
  std::map<SequenceId, Text> answers;

 private:
  void Submit(const StepPlan& plan) {
    for (const SlotStart& start : plan.starts) of_slot_[start.slot] = start.sampling->seed;
    StepResult result{.id = plan.id};
    for (const StepRow& row : plan.rows) {
      RowResult& out = result.rows.emplace_back(RowResult{.slot = row.slot});
      out.tokens.begin = static_cast<int32_t>(result.tokens.size());
      if (row.logits.size() > 0) {
        const uint64_t mixed = (of_slot_[row.slot] * 65'537 + row.start) * 0x9E3779B97F4A7C15;
        result.tokens.push_back({.token = kFirstWord + static_cast<Token>((mixed >> 32) % 10'000)});
      }
      out.tokens.end = static_cast<int32_t>(result.tokens.size());
    }
    results_.push_back(std::move(result));
  }

  const std::unique_ptr<Scheduler> scheduler_;
  std::map<SlotId, SequenceId> of_slot_;
  std::deque<StepResult> results_;
};

// A conversation as a client keeps it.
class Agent {
 public:
  Agent(const Load& load, int number) : load_(load), number_(number) {
    said_.push_back({kUser, Words(load.question, 1'000 + number), {}});
  }

  uint32_t tenant() const { return number_ % load_.tenants; }
  int turn() const { return turn_; }
  int32_t max_tokens() const { return load_.thought + load_.reply + 2; }

  // Returns the conversation so far as the template has it: thoughts before the last question are
  // left out.
  Text Prompt() const {
    Text prompt = Words(load_.system, 1);
    size_t last_question = 0;
    for (size_t i = 0; i < said_.size(); ++i) {
      if (said_[i].role == kUser && !said_[i].is_result) last_question = i;
    }
    for (size_t i = 0; i < said_.size(); ++i) {
      const Message& message = said_[i];
      Append({kStart, message.role, kLine}, prompt);
      if (message.role == kAssistant) {
        if (i > last_question && load_.sends_thoughts) {
          Append({kThink, kLine}, prompt);
          Append(message.thought, prompt);
        } else {
          Append({kThink, kTwoLines, kEndThink, kTwoLines}, prompt);
        }
      }
      Append(message.text, prompt);
      Append({kEnd, kLine}, prompt);
    }
    Append({kStart, kAssistant, kLine, kThink, kLine}, prompt);
    return prompt;
  }

  // Takes an answer, whose tokens stand for a thought and a call, and adds the tool's result.
  void Hear(const Text& answer) {
    ++turn_;
    const auto reply = answer.end() - load_.reply;
    said_.push_back({kAssistant, {reply, answer.end()}, {answer.begin(), reply}});
    const bool asks = turn_ == load_.asks_again;
    said_.push_back({kUser,
                     Words(asks ? load_.question : load_.result, 100'000 + number_ * 100 + turn_),
                     {},
                     !asks});
  }

 private:
  struct Message {
    Token role;
    Text text;
    Text thought;
    bool is_result = false;
  };
  Load load_;
  int number_;
  int turn_ = 0;
  std::vector<Message> said_;
};

size_t CommonPrefix(const Text& a, const Text& b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

struct Outcome {
  int64_t fresh = 0;    // tokens of prompts that no sequence of the tenant had before
  int64_t prompts = 0;  // tokens of all prompts
  int hits = 0;         // first prompts that began behind what all share, but for a block
  SchedulerStats stats;

  double OverFresh() const {
    return static_cast<double>(stats.prefill_tokens) / static_cast<double>(fresh);
  }
};

Outcome Serve(const Load& load, const SchedulerOptions& options) {
  Server server(options);
  std::vector<Agent> agents;
  // What prompts may begin with: by tenant the first ones, and by agent its own last ones.
  std::map<std::string, std::vector<Text>> had;
  std::map<SequenceId, Text> prompts;
  Outcome outcome;
  const auto ask = [&](int number) {
    const Agent& agent = agents[number];
    const SequenceId id = agent.turn() * 1'000 + number + 1;
    const Text prompt = agent.Prompt();
    std::vector<Text>& before =
        had[agent.turn() == 0 ? StrCat("tenant", agent.tenant()) : StrCat(number)];
    size_t common = 0;
    for (const Text& text : before) common = std::max(common, CommonPrefix(prompt, text));
    outcome.fresh += static_cast<int64_t>(prompt.size() - std::min(common, prompt.size() - 1));
    outcome.prompts += static_cast<int64_t>(prompt.size());
    if (agent.turn() == 0) before.push_back(prompt);
    prompts[id] = prompt;
    server.Add(id, prompt, agent.max_tokens(), agent.tenant());
  };
  for (int i = 0; i < load.agents; ++i) agents.emplace_back(load, i);
  int begun = 0;
  while (begun < load.at_once) ask(begun++);
  while (server.scheduler().HasWork()) {
    for (const auto& [id, end] : server.Step()) {
      const int number = static_cast<int>((id - 1) % 1'000);
      Text all = prompts[id];
      Append(server.answers[id], all);
      had[StrCat(number)].push_back(all);
      agents[number].Hear(server.answers[id]);
      const bool begins = agents[number].turn() == 1;
      outcome.hits += begins && end.cached_tokens >= load.system - Server::kBlock ? 1 : 0;
      if (agents[number].turn() < load.turns) {
        ask(number);
      } else if (begun < load.agents) {
        ask(begun++);
      }
    }
  }
  outcome.stats = server.scheduler().stats();
  EXPECT_EQ(SchedulerAuditor::Audit(server.scheduler()), "");
  return outcome;
}

SchedulerOptions WithStates(int32_t slots, int32_t checkpoints, int32_t tokens = 512,
                            int32_t blocks = 20'000) {
  SchedulerOptions options;
  options.limits = {.max_num_seqs = slots,
                    .max_num_batched_tokens = tokens,
                    .max_model_len = 20'000,
                    .num_blocks = {blocks, checkpoints},
                    .state = {.groups = {PagedState{}, SlotState{}}},
                    .vocab_size = 20'000};
  options.limits.state.block_size = Server::kBlock;
  return options;
}

constexpr Load kBranching = {.agents = 64, .turns = 1};

// 64 prompts of one beginning, one after the other, some or all at once: whoever comes while the
// beginning is computed for the first time waits for it.
TEST(SchedulerAgentsTest, PromptsOfOneBeginningComputeItOnce) {
  for (const int at_once : {1, 4, 64}) {
    for (const int tokens : {512, 8192}) {  // of a step
      SCOPED_TRACE(StrCat(at_once, " at once, steps of ", tokens));
      Load load = kBranching;
      load.at_once = at_once;
      const Outcome outcome = Serve(load, WithStates(64, 256, tokens));
      EXPECT_GE(outcome.hits, 60);
      EXPECT_LE(outcome.OverFresh(), 1.15);
    }
  }
}

struct Case {
  const char* name;
  Load load;
  int32_t checkpoints;
  double most;  // times what is new
};

// 32 agents, ten turns each: what is computed of their prompts. There are blocks for all of them.
TEST(SchedulerAgentsTest, TurnsComputeLittleMoreThanWhatIsNew) {
  const Case cases[] = {
      {"answers come back as they were", {.sends_thoughts = true}, 128, 1.1},
      {"thoughts are left out", {}, 128, 1.1},
      // They take a few slots from one another: what was not yet copied is computed again.
      {"two tenants", {.tenants = 2}, 128, 1.4},
      {"thoughts are left out from a question on",
       {.sends_thoughts = true, .asks_again = 5},
       128,
       1.1},
      // What turns have left behind gives way first, so that two places an agent are enough.
      {"answers come back as they were, few places", {.sends_thoughts = true}, 64, 1.1},
      {"thoughts are left out, few places", {}, 64, 1.1},
      // Not all of them find a place: some begin from what all share.
      {"fewer places than agents", {}, 16, 6},
  };
  for (const Case& one : cases) {
    for (const int32_t slots : {8, 32}) {
      SCOPED_TRACE(StrCat(one.name, ", ", slots, " slots"));
      const Outcome outcome = Serve(one.load, WithStates(slots, one.checkpoints));
      EXPECT_LE(outcome.OverFresh(), one.most) << outcome.stats.replayed_tokens << " replayed, "
                                               << outcome.stats.checkpoints_evicted << " gave way";
    }
  }
}

// Agents whose tokens do not all fit: sequences are preempted, and all end.
TEST(SchedulerAgentsTest, AgentsBeyondTheMemoryEnd) {
  const Outcome outcome =
      Serve({.agents = 16, .at_once = 16, .turns = 4}, WithStates(8, 24, 512, /*blocks=*/300));
  EXPECT_EQ(outcome.stats.usage, 0);
  EXPECT_GT(outcome.stats.preemptions, 0);
  EXPECT_LT(outcome.stats.prefill_tokens, outcome.prompts);
}

}  // namespace
}  // namespace millrace
