#include "loadtest/session_trace.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

// Keeps the order of members: templates print tools and calls as they were written.
using Json = nlohmann::ordered_json;

constexpr int64_t kMostTokens = 1'000'000;
// Milliseconds. Timestamps may count from 1970.
constexpr double kLongestDelay = 1e10;
constexpr double kLatestTime = 1e15;
constexpr int kDeepest = 64;  // levels: values are copied and written by recursion

absl::Status Wrong(std::string_view field, std::string_view expected) {
  return absl::InvalidArgumentError(StrCat(field, ": expected ", expected));
}

std::string DumpJson(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

SharedJson Shared(const Json& json) { return std::make_shared<const std::string>(DumpJson(json)); }

// Returns a discarded value for what is not JSON.
absl::StatusOr<Json> ParseLine(std::string_view text) {
  bool is_too_deep = false;
  // `depth` is how many values there are around an array or object that begins.
  const auto keep = [&](int depth, Json::parse_event_t event, Json&) {
    const bool begins =
        event == Json::parse_event_t::array_start || event == Json::parse_event_t::object_start;
    is_too_deep |= begins && depth >= kDeepest;
    return !is_too_deep;
  };
  Json json = Json::parse(text, keep, false);
  if (!is_too_deep) return json;
  return absl::InvalidArgumentError(StrCat("is nested deeper than ", kDeepest, " levels"));
}

// Returns a member that is there and not null, else nullptr.
const Json* Member(const Json& object, std::string_view name) {
  const auto member = object.find(std::string(name));
  return member == object.end() || member->is_null() ? nullptr : &*member;
}

// Refuses a member that nothing reads, so that a misspelt one does not go unnoticed.
absl::Status CheckNames(const Json& object, std::initializer_list<std::string_view> allowed) {
  for (const auto& [name, value] : object.items()) {
    if (std::find(allowed.begin(), allowed.end(), name) != allowed.end()) continue;
    return absl::InvalidArgumentError(
        StrCat("there is no field \"", Printable(name), "\"; allowed: ", JoinList(allowed)));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadId(const Json& object, std::string_view name) {
  const Json* const id = Member(object, name);
  if (id == nullptr || !id->is_string() || id->get_ref<const std::string&>().empty()) {
    return Wrong(name, "a text that is not empty");
  }
  return id->get<std::string>();
}

absl::StatusOr<double> ReadMilliseconds(const Json& object, std::string_view name, double most) {
  const Json* const member = Member(object, name);
  if (member == nullptr) return 0;
  if (!member->is_number() || *member < 0 || *member > most) {
    return Wrong(name, StrCat("a number of milliseconds from 0 to ", most));
  }
  return member->get<double>();
}

bool HasRole(const Json& message, std::string_view role) { return message["role"] == role; }

absl::StatusOr<const Json*> ReadMessages(const Json& object) {
  const Json* const messages = Member(object, "messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    return Wrong("messages", "an array of at least one message");
  }
  for (size_t i = 0; i < messages->size(); ++i) {
    const Json& message = (*messages)[i];
    const Json* const role = message.is_object() ? Member(message, "role") : nullptr;
    if (role == nullptr || !role->is_string()) {
      return Wrong(StrCat("messages[", i, "].role"), "a text, as \"user\"");
    }
  }
  return messages;
}

void SetAnswerBefore(const Json& answer, TraceTurn& turn) {
  turn.answer_before = Shared(answer);
  if (const Json* const calls = Member(answer, "tool_calls")) turn.calls_before = Shared(*calls);
}

// Sets the messages of a turn. An answer at their beginning, with more behind it, is that to the
// turn before.
void SetMessages(const Json& messages, size_t begin, TraceTurn& turn) {
  if (begin + 1 < messages.size() && HasRole(messages[begin], "assistant")) {
    SetAnswerBefore(messages[begin++], turn);
  }
  for (; begin < messages.size(); ++begin) turn.messages.push_back(Shared(messages[begin]));
}

// Estimates the tokens of a recorded answer: one for each four bytes, as with data sets.
int64_t EstimatedTokens(const Json& answer) {
  size_t bytes = 3;
  for (const char* name : {"content", "tool_calls"}) {
    if (const Json* const part = Member(answer, name)) bytes += DumpJson(*part).size();
  }
  return std::clamp<int64_t>(static_cast<int64_t>(bytes / 4), 1, kMostTokens);
}

// Reads what a turn has besides its messages.
absl::Status ReadTurnFields(const Json& object, TraceTurn& turn) {
  for (const std::string_view name : {"max_tokens", "output_length"}) {
    const Json* const member = Member(object, name);
    if (member == nullptr) continue;
    if (!member->is_number_integer() || *member < 1 || *member > kMostTokens) {
      return Wrong(name, "a whole number from 1 to 1000000");
    }
    turn.max_tokens = member->get<int64_t>();
  }
  if (const Json* const tools = Member(object, "tools")) {
    if (!tools->is_array()) return Wrong("tools", "an array");
    turn.tools = Shared(*tools);
  }
  if (const Json* const restart = Member(object, "restart")) {
    if (!restart->is_boolean()) return Wrong("restart", "true or false");
    turn.restarts = restart->get<bool>();
  }
  MILLRACE_ASSIGN_OR_RETURN(const double delay, ReadMilliseconds(object, "delay", kLongestDelay));
  turn.delay = delay / 1e3;
  Json extra = Json::object();
  if (const Json* const member = Member(object, "extra")) {
    if (!member->is_object()) return Wrong("extra", "an object");
    for (const char* taken : {"messages", "stream"}) {
      if (member->contains(taken)) return Wrong(StrCat("extra.", taken), "no such field");
    }
    extra = *member;
  }
  if (const Json* const model = Member(object, "model")) extra["model"] = *model;
  if (!extra.empty()) turn.extra = Shared(extra);
  return absl::OkStatus();
}

// A child as a file names it, before all sessions are known.
struct NamedFork {
  size_t session = 0;
  size_t after = 0;
  std::string child;
  int line = 0;
  std::string field;
};

class TraceReader {
 public:
  absl::Status ReadLine(std::string_view text, int line) {
    line_ = line;
    MILLRACE_ASSIGN_OR_RETURN(const Json object, ParseLine(text));
    if (!object.is_object()) return absl::InvalidArgumentError("expected a JSON object");
    if (object.contains("turns")) return ReadSession(object);
    if (object.contains("session_id")) return ReadRow(object);
    if (object.contains("messages")) return ReadConversation(object);
    return Wrong("turns or messages", "one of them");
  }

  absl::StatusOr<SessionTrace> Finish() {
    if (trace_.sessions.empty()) return absl::InvalidArgumentError("expected at least one session");
    std::vector<bool> is_child(trace_.sessions.size());
    for (const NamedFork& fork : forks_) {
      const auto found = by_id_.find(fork.child);
      const std::string at = StrCat("line ", fork.line, ": ", fork.field);
      if (found == by_id_.end()) {
        return absl::InvalidArgumentError(
            StrCat(at, ": there is no session \"", Printable(fork.child), "\""));
      }
      if (is_child[found->second]) {
        return absl::InvalidArgumentError(StrCat(at, ": session \"", Printable(fork.child),
                                                 "\" goes on from another turn already"));
      }
      is_child[found->second] = true;
      trace_.sessions[fork.session].forks.push_back({fork.after, found->second});
    }
    for (size_t i = 0; i < is_child.size(); ++i) {
      if (!is_child[i]) trace_.roots.push_back(i);
    }
    MILLRACE_RETURN_IF_ERROR(CheckReached());
    return std::move(trace_);
  }

 private:
  // Sessions that fork in a circle are reached from no root.
  absl::Status CheckReached() const {
    std::vector<bool> is_reached(trace_.sessions.size());
    std::vector<size_t> open = trace_.roots;
    while (!open.empty()) {
      const size_t at = open.back();
      open.pop_back();
      is_reached[at] = true;
      for (const TraceSession::Fork& fork : trace_.sessions[at].forks) open.push_back(fork.child);
    }
    const auto lost = std::find(is_reached.begin(), is_reached.end(), false);
    if (lost == is_reached.end()) return absl::OkStatus();
    const TraceSession& session = trace_.sessions[static_cast<size_t>(lost - is_reached.begin())];
    return absl::InvalidArgumentError(
        StrCat("forks of session \"", Printable(session.id), "\" go in a circle"));
  }

  absl::StatusOr<size_t> AddSession(std::string id, std::string_view field) {
    const auto [at, is_new] = by_id_.emplace(id, trace_.sessions.size());
    if (!is_new) return Wrong(field, StrCat("another one than \"", Printable(id), "\" again"));
    trace_.sessions.push_back({.id = std::move(id)});
    return trace_.sessions.size() - 1;
  }

  absl::Status ReadSession(const Json& object) {
    MILLRACE_RETURN_IF_ERROR(CheckNames(object, {"session_id", "turns"}));
    MILLRACE_ASSIGN_OR_RETURN(std::string id, ReadId(object, "session_id"));
    MILLRACE_ASSIGN_OR_RETURN(const size_t session, AddSession(std::move(id), "session_id"));
    const Json& turns = object["turns"];
    if (!turns.is_array() || turns.empty()) {
      return Wrong("turns", "an array of at least one turn");
    }
    for (size_t i = 0; i < turns.size(); ++i) {
      const std::string field = StrCat("turns[", i, "]");
      if (!turns[i].is_object()) return Wrong(field, "an object");
      MILLRACE_RETURN_IF_ERROR(Annotate(ReadTurn(turns[i], session, i + 1 == turns.size()), field));
    }
    return absl::OkStatus();
  }

  absl::Status ReadTurn(const Json& object, size_t session, bool is_last) {
    MILLRACE_RETURN_IF_ERROR(
        CheckNames(object, {"messages", "text", "max_tokens", "output_length", "tools", "extra",
                            "model", "delay", "restart", "forks"}));
    TraceTurn turn;
    MILLRACE_RETURN_IF_ERROR(ReadTurnFields(object, turn));
    if (const Json* const text = Member(object, "text")) {
      if (!text->is_string() || object.contains("messages")) {
        return Wrong("text", "a text, without messages beside it");
      }
      turn.messages.push_back(Shared({{"role", "user"}, {"content", *text}}));
    } else {
      MILLRACE_ASSIGN_OR_RETURN(const Json* const messages, ReadMessages(object));
      SetMessages(*messages, 0, turn);
    }
    trace_.sessions[session].turns.push_back(std::move(turn));
    const Json* const forks = Member(object, "forks");
    return forks == nullptr ? absl::OkStatus() : ReadForks(*forks, session, is_last);
  }

  absl::Status ReadForks(const Json& forks, size_t session, bool is_last) {
    if (!forks.is_array()) return Wrong("forks", "an array");
    const size_t after = trace_.sessions[session].turns.size() - 1;
    for (size_t i = 0; i < forks.size(); ++i) {
      const std::string field = StrCat("forks[", i, "]");
      NamedFork fork{.session = session, .after = after, .line = line_};
      fork.field = StrCat("turns[", after, "].", field);
      bool goes_on = false;
      if (forks[i].is_object()) {
        MILLRACE_RETURN_IF_ERROR(Annotate(CheckNames(forks[i], {"child", "background"}), field));
        absl::StatusOr<std::string> child = ReadId(forks[i], "child");
        if (!child.ok()) return Annotate(child.status(), field);
        fork.child = *std::move(child);
        const Json* const background = Member(forks[i], "background");
        if (background != nullptr && !background->is_boolean()) {
          return Wrong(field + ".background", "true or false");
        }
        goes_on = background != nullptr && background->get<bool>();
      } else if (forks[i].is_string()) {
        fork.child = forks[i].get<std::string>();
      } else {
        return Wrong(field, "a session's id, or {\"child\": ID, \"background\": true}");
      }
      if (!goes_on && !is_last) {
        return Wrong(field,
                     "{\"child\": ID, \"background\": true}, since the session has more turns");
      }
      forks_.push_back(std::move(fork));
    }
    return absl::OkStatus();
  }

  // What the rows of a session have said so far.
  struct Rows {
    size_t session = 0;
    bool is_delta = false;
    Json said = Json::array();  // with the answers, of rows that repeat their history
    std::optional<double> timestamp;
  };

  absl::Status ReadRow(const Json& object) {
    MILLRACE_RETURN_IF_ERROR(
        CheckNames(object, {"session_id", "messages", "message_mode", "max_tokens", "output_length",
                            "tools", "extra", "model", "delay", "timestamp"}));
    MILLRACE_ASSIGN_OR_RETURN(const std::string id, ReadId(object, "session_id"));
    MILLRACE_ASSIGN_OR_RETURN(const Json* const messages, ReadMessages(object));
    const Json* const mode = Member(object, "message_mode");
    if (mode != nullptr && *mode != "history" && *mode != "delta") {
      return Wrong("message_mode", "history or delta");
    }
    const bool is_delta = mode != nullptr && *mode == "delta";
    auto rows = rows_.find(id);
    if (rows == rows_.end()) {
      MILLRACE_ASSIGN_OR_RETURN(const size_t session, AddSession(id, "session_id"));
      rows = rows_.emplace(id, Rows{.session = session, .is_delta = is_delta}).first;
    }
    if (rows->second.is_delta != is_delta) {
      return Wrong("message_mode", "that of the session's other lines");
    }
    return AddRow(object, *messages, rows->second);
  }

  absl::Status AddRow(const Json& object, const Json& messages, Rows& rows) {
    std::vector<TraceTurn>& turns = trace_.sessions[rows.session].turns;
    TraceTurn turn;
    MILLRACE_RETURN_IF_ERROR(ReadTurnFields(object, turn));
    if (Member(object, "timestamp") != nullptr) {
      MILLRACE_ASSIGN_OR_RETURN(const double now,
                                ReadMilliseconds(object, "timestamp", kLatestTime));
      if (rows.timestamp && Member(object, "delay") == nullptr) {
        turn.delay = std::max(0.0, now - *rows.timestamp) / 1e3;
      }
      rows.timestamp = now;
    }
    size_t begin = 0;
    if (!rows.is_delta) {
      const bool goes_on = messages.size() > rows.said.size() &&
                           std::equal(rows.said.begin(), rows.said.end(), messages.begin());
      turn.restarts = !goes_on;
      if (goes_on) begin = rows.said.size();
      rows.said = messages;
    }
    SetMessages(messages, begin, turn);
    turns.push_back(std::move(turn));
    return absl::OkStatus();
  }

  // Cuts a conversation into turns, each of which ends before an answer.
  absl::Status ReadConversation(const Json& object) {
    MILLRACE_RETURN_IF_ERROR(CheckNames(object, {"id", "messages", "tools"}));
    MILLRACE_ASSIGN_OR_RETURN(std::string id, ReadId(object, "id"));
    MILLRACE_ASSIGN_OR_RETURN(const Json* const messages, ReadMessages(object));
    MILLRACE_ASSIGN_OR_RETURN(const size_t session, AddSession(std::move(id), "id"));
    std::vector<TraceTurn>& turns = trace_.sessions[session].turns;
    TraceTurn turn;
    MILLRACE_RETURN_IF_ERROR(ReadTurnFields(object, turn));
    for (const Json& message : *messages) {
      if (!HasRole(message, "assistant") || turn.messages.empty()) {
        turn.messages.push_back(Shared(message));
        continue;
      }
      turn.max_tokens = EstimatedTokens(message);
      turns.push_back(std::exchange(turn, {}));
      SetAnswerBefore(message, turn);
    }
    if (!turn.messages.empty()) turns.push_back(std::move(turn));
    return absl::OkStatus();
  }

  SessionTrace trace_;
  std::map<std::string, size_t> by_id_;
  std::map<std::string, Rows> rows_;
  std::vector<NamedFork> forks_;
  int line_ = 0;
};

}  // namespace

absl::StatusOr<SessionTrace> ParseSessionTrace(std::string_view text) {
  TraceReader reader;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = Trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty()) continue;
    MILLRACE_RETURN_IF_ERROR(Annotate(reader.ReadLine(line, number), StrCat("line ", number)));
  }
  return reader.Finish();
}

}  // namespace millrace
