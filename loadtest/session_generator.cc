#include "loadtest/session_generator.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/strings.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

// Streams of random numbers that nothing else of a run draws from.
constexpr uint64_t kReplayStream = uint64_t{1} << 33;
constexpr uint64_t kSystemStream = uint64_t{1} << 50;
constexpr uint64_t kToolStream = uint64_t{1} << 51;

constexpr int64_t kDefaultOutput = 128;  // tokens
constexpr int64_t kDescriptionWords = 20;
constexpr int64_t kArgumentWords = 3;

SharedJson Shared(const Json& json) { return std::make_shared<const std::string>(json.dump()); }

std::string ToolName(int64_t tool) { return StrCat("tool_", tool); }

// Returns definitions as chats have them, of functions with one argument.
SharedJson MakeTools(const Options& options) {
  if (options.tools == 0) return nullptr;
  Json tools = Json::array();
  for (int64_t i = 0; i < options.tools; ++i) {
    Random random(options.seed, kToolStream + static_cast<uint64_t>(i));
    const Json query = {{"type", "string"},
                        {"description", RandomWords(kDescriptionWords, random)}};
    tools.push_back({{"type", "function"},
                     {"function",
                      {{"name", ToolName(i)},
                       {"description", RandomWords(kDescriptionWords, random)},
                       {"parameters",
                        {{"type", "object"},
                         {"properties", {{"query", query}}},
                         {"required", Json::array({"query"})}}}}}});
  }
  return Shared(tools);
}

}  // namespace

SessionGenerator::SessionGenerator(const Options& options)
    : options_(options), tools_(MakeTools(options)) {}

std::string SessionGenerator::Text(double tokens, Random& random) const {
  return RandomWords(scale_.Words(tokens), random);
}

TraceTurn SessionGenerator::First(Random& random) const {
  TraceTurn turn{.tools = tools_};
  double overhead = scale_.base;
  if (options_.prefix_len > 0) {
    const auto which = random.Next() % static_cast<uint64_t>(options_.num_prefixes);
    Random system(options_.seed, kSystemStream + which);
    turn.messages.push_back(Shared(
        {{"role", "system"}, {"content", Text(static_cast<double>(options_.prefix_len), system)}}));
  }
  const double tokens = static_cast<double>(options_.input_len.Draw(random)) - overhead;
  turn.messages.push_back(Shared({{"role", "user"}, {"content", Text(tokens, random)}}));
  turn.max_tokens = options_.output_len.value_or(Lengths(kDefaultOutput)).Draw(random);
  return turn;
}

SessionGenerator::Step SessionGenerator::Choose(int64_t prompt_turns, const TraceTurn& before,
                                                Random& random) const {
  Step step{.prompt_turns = prompt_turns};
  Json answer = {{"role", "assistant"},
                 {"content", Text(static_cast<double>(before.max_tokens), random)}};
  if (tools_ && random.Uniform() < options_.result_ratio) {
    // Nine letters and digits, as the templates of some models want them.
    step.call_id = absl::StrFormat("call%05d", prompt_turns);
    const Json arguments = {{"query", RandomWords(kArgumentWords, random)}};
    answer["tool_calls"] =
        Json::array({{{"id", step.call_id},
                      {"type", "function"},
                      {"function",
                       {{"name", ToolName(random.Between(0, options_.tools - 1))},
                        {"arguments", arguments.dump()}}}}});
    step.calls = Shared(answer["tool_calls"]);
  }
  step.answer = Shared(answer);
  return step;
}

TraceTurn SessionGenerator::Later(const Step& step, Random& random) const {
  TraceTurn turn{.answer_before = step.answer, .calls_before = step.calls};
  if (step.calls) {
    turn.messages.push_back(
        Shared({{"role", "tool"},
                {"tool_call_id", step.call_id},
                {"content", Text(static_cast<double>(options_.result_len.Draw(random)), random)}}));
    turn.delay = options_.tool_time;
  } else {
    turn.messages.push_back(
        Shared({{"role", "user"},
                {"content", Text(static_cast<double>(options_.input_len.Draw(random)), random)}}));
    turn.delay = options_.think_time * std::exp(options_.think_sigma * random.Normal());
  }
  turn.max_tokens = options_.output_len.value_or(Lengths(kDefaultOutput)).Draw(random);
  return turn;
}

void SessionGenerator::AddLater(Step step, int64_t count, TraceSession& session,
                                Random& random) const {
  for (int64_t i = 0; i < count; ++i) {
    if (!session.turns.empty()) {
      step = Choose(step.prompt_turns + 1, session.turns.back(), random);
    }
    session.turns.push_back(Later(step, random));
  }
}

SessionTrace SessionGenerator::Make(uint64_t index) const {
  Random random(options_.seed, kReplayStream + index);
  const int64_t turns = options_.turns.Draw(random);
  const bool has_branches =
      options_.branches > 1 && turns > 1 && random.Uniform() < options_.branch_ratio;
  // A session that branches does so after a turn of any number but the last.
  const int64_t shared = has_branches ? random.Between(1, turns - 1) : turns;

  SessionTrace trace{.roots = {0}};
  TraceSession root{.id = StrCat("s", index)};
  root.turns.push_back(First(random));
  AddLater({}, shared - 1, root, random);
  if (!has_branches) {
    trace.sessions.push_back(std::move(root));
    return trace;
  }
  const Step step = Choose(shared, root.turns.back(), random);
  trace.sessions.resize(1);
  for (int64_t branch = 0; branch < options_.branches; ++branch) {
    root.forks.push_back({.after = root.turns.size() - 1, .child = trace.sessions.size()});
    TraceSession& child = trace.sessions.emplace_back();
    child.id = StrCat(root.id, ".", branch);
    AddLater(step, turns - shared, child, random);
  }
  trace.sessions.front() = std::move(root);
  return trace;
}

}  // namespace millrace
