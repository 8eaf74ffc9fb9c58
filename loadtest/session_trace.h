// Traces of sessions, as files have them: requests, what is said between them, and how they branch.
#ifndef MILLRACE_LOADTEST_SESSION_TRACE_H_
#define MILLRACE_LOADTEST_SESSION_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace {

// A JSON value as text, which all that have it share.
using SharedJson = std::shared_ptr<const std::string>;

// One request of a session.
struct TraceTurn {
  // The recorded answer to the turn before: a message with the role assistant. Null if the trace
  // has none.
  SharedJson answer_before;
  SharedJson calls_before;           // its tool_calls; null: it has none
  std::vector<SharedJson> messages;  // what is said before this request, at least one message
  SharedJson tools;                  // an array; null: those of the turn before
  SharedJson extra;                  // further fields of the body, an object; null: none
  int64_t max_tokens = 0;            // 0: the trace does not say
  double delay = 0;                  // seconds from the answer before to this request
  bool restarts = false;             // the history before it is not sent
};

// A straight line of turns. Those of `forks` go on where it ends or goes on itself.
struct TraceSession {
  std::string id;
  std::vector<TraceTurn> turns;  // at least one
  struct Fork {
    size_t after = 0;  // turn whose answer the child goes on from
    size_t child = 0;  // index of a session
  };
  std::vector<Fork> forks;
};

// Sessions, and the indices of those that are not the child of another.
struct SessionTrace {
  std::vector<TraceSession> sessions;
  std::vector<size_t> roots;
};

// Reads JSON Lines, each line one of
//   {"session_id": ID, "turns": [TURN, ...]}                 a session (AIPerf's dag_jsonl,
//   multi_turn)
//   {"session_id": ID, "messages": [...], ...}               a turn (AIPerf's rows after Mooncake)
//   {"id": ID, "messages": [...], "tools": [...]}            a conversation (vLLM's multi-turn
//   files)
// docs/load-testing.md has the fields. An error names the line and the field.
absl::StatusOr<SessionTrace> ParseSessionTrace(std::string_view text);

// Returns the trace as ParseSessionTrace reads it, a line a session.
std::string SessionTraceText(const SessionTrace& trace);

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_SESSION_TRACE_H_
