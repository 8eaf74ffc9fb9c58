#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/strings.h"
#include "loadtest/session_trace.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

// Returns {"name": VALUE, ...} of members whose values are JSON already.
class ObjectWriter {
 public:
  void Add(std::string_view name, std::string_view json) {
    text_ += StrCat(text_.empty() ? "{" : ", ", "\"", name, "\": ", json);
  }
  std::string Finish() { return text_ + "}"; }

 private:
  std::string text_;
};

std::string TurnText(const SessionTrace& trace, const TraceSession& session, size_t index) {
  const TraceTurn& turn = session.turns[index];
  std::vector<std::string_view> messages(turn.messages.size());
  std::transform(turn.messages.begin(), turn.messages.end(), messages.begin(),
                 [](const SharedJson& message) { return std::string_view(*message); });
  if (turn.answer_before) messages.insert(messages.begin(), *turn.answer_before);
  ObjectWriter object;
  object.Add("messages", StrCat("[", JoinList(messages), "]"));
  if (turn.max_tokens > 0) object.Add("max_tokens", StrCat(turn.max_tokens));
  if (turn.delay > 0) object.Add("delay", Json(turn.delay * 1e3).dump());
  if (turn.restarts) object.Add("restart", "true");
  if (turn.tools) object.Add("tools", *turn.tools);
  if (turn.extra) object.Add("extra", *turn.extra);
  const bool is_last = index + 1 == session.turns.size();
  Json forks = Json::array();
  for (const TraceSession::Fork& fork : session.forks) {
    if (fork.after != index) continue;
    const std::string& child = trace.sessions[fork.child].id;
    forks.push_back(is_last ? Json(child) : Json{{"child", child}, {"background", true}});
  }
  if (!forks.empty()) object.Add("forks", forks.dump());
  return object.Finish();
}

}  // namespace

std::string SessionTraceText(const SessionTrace& trace) {
  std::string text;
  for (const TraceSession& session : trace.sessions) {
    std::vector<std::string> turns;
    for (size_t i = 0; i < session.turns.size(); ++i) turns.push_back(TurnText(trace, session, i));
    ObjectWriter object;
    object.Add("session_id", Json(session.id).dump());
    object.Add("turns", StrCat("[", JoinList(turns), "]"));
    text += object.Finish() + "\n";
  }
  return text;
}

}  // namespace millrace
