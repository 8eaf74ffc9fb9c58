#include "loadtest/replay.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/strings.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

// Returns the server's answer as a message. A trace's calls stand in it, since the results that
// follow name them; calls that the server made are not sent back.
SharedJson MessageOf(const ReplayAnswer& answer, const TraceTurn& next, bool keep_reasoning) {
  Json message = {{"role", "assistant"}, {"content", answer.text}};
  if (keep_reasoning && !answer.reasoning.empty()) message["reasoning_content"] = answer.reasoning;
  std::string text = message.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (next.calls_before) {
    text.pop_back();
    text += StrCat(",\"tool_calls\":", *next.calls_before, "}");
  }
  return std::make_shared<const std::string>(std::move(text));
}

}  // namespace

bool ReplayPath::has_next() const {
  const std::vector<TraceSession::Fork>& forks = session().forks;
  return turn_ < session().turns.size() ||
         std::any_of(forks.begin(), forks.end(),
                     [this](const TraceSession::Fork& fork) { return fork.after + 1 == turn_; });
}

const TraceTurn& ReplayPath::Next() {
  const TraceTurn& turn = session().turns[turn_++];
  if (turn.restarts) history_.clear();
  // Without a request before it, an answer is a message as others are.
  if (history_.empty() && turn.answer_before) history_.push_back(turn.answer_before);
  history_.insert(history_.end(), turn.messages.begin(), turn.messages.end());
  if (turn.tools) tools_ = turn.tools;
  return turn;
}

ReplayPath::Continuation ReplayPath::After(size_t session, size_t turn, const ReplayAnswer& answer,
                                           const ReplayRules& rules) const {
  ReplayPath path = *this;
  path.session_ = session;
  path.turn_ = turn;
  const TraceTurn& next = path.session().turns[turn];
  const bool takes_recorded = rules.recorded_answers && next.answer_before;
  path.history_.push_back(takes_recorded ? next.answer_before
                                         : MessageOf(answer, next, rules.keep_reasoning));
  return {.delay = next.delay * rules.delay_ratio, .path = std::move(path)};
}

std::vector<ReplayPath::Continuation> ReplayPath::GoOn(const ReplayAnswer& answer,
                                                       const ReplayRules& rules) const {
  std::vector<Continuation> paths;
  if (turn_ < session().turns.size()) paths.push_back(After(session_, turn_, answer, rules));
  for (const TraceSession::Fork& fork : session().forks) {
    if (fork.after + 1 == turn_) paths.push_back(After(fork.child, 0, answer, rules));
  }
  return paths;
}

}  // namespace millrace
