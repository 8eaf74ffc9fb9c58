// A session on its way: what its next request sends, and how it goes on after the answer.
#ifndef MILLRACE_LOADTEST_REPLAY_H_
#define MILLRACE_LOADTEST_REPLAY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "loadtest/session_trace.h"

namespace millrace {

// An answer of the server.
struct ReplayAnswer {
  std::string text;
  std::string reasoning;
};

// How answers come back in the next request.
struct ReplayRules {
  bool recorded_answers = false;  // the trace's answer in place of the server's, where it has one
  bool keep_reasoning = false;    // the server's thoughts come back, too
  double delay_ratio = 1;         // by which the trace's pauses are multiplied
};

// A position in a session's tree of turns, with the history that led to it. Copies share the
// messages.
class ReplayPath {
 public:
  struct Continuation;

  // Begins at the first turn of trace->sessions[session].
  ReplayPath(std::shared_ptr<const SessionTrace> trace, size_t session)
      : trace_(std::move(trace)), session_(session) {}

  // Returns whether a request follows: the first, or one after the answer to the last.
  bool has_next() const;
  // Moves to the next request of a path that was just begun or goes on: its messages join the
  // history.
  const TraceTurn& Next();
  // Returns the paths that go on after the answer to the last request, each once: the session's
  // own, then its forks. None at an end.
  std::vector<Continuation> GoOn(const ReplayAnswer& answer, const ReplayRules& rules) const;

  // What the last request sends.
  const std::vector<SharedJson>& history() const { return history_; }
  const SharedJson& tools() const { return tools_; }

 private:
  const TraceSession& session() const { return trace_->sessions[session_]; }
  // Returns where the path goes on at that turn of that session, after the answer.
  Continuation After(size_t session, size_t turn, const ReplayAnswer& answer,
                     const ReplayRules& rules) const;

  std::shared_ptr<const SessionTrace> trace_;
  size_t session_;
  size_t turn_ = 0;  // the next one
  std::vector<SharedJson> history_;
  SharedJson tools_;
};

struct ReplayPath::Continuation {
  double delay = 0;  // seconds from the answer
  ReplayPath path;
};

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_REPLAY_H_
