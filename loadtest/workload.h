// The requests to send: prompts, lengths, sessions, and which are cancelled or read slowly.
#ifndef MILLRACE_LOADTEST_WORKLOAD_H_
#define MILLRACE_LOADTEST_WORKLOAD_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "loadtest/dataset.h"
#include "loadtest/options.h"
#include "loadtest/random.h"
#include "loadtest/random_words.h"
#include "loadtest/replay.h"
#include "loadtest/session_generator.h"
#include "loadtest/session_trace.h"

namespace millrace {

// One request, as both protocols can send it.
struct Request {
  std::vector<ChatTurn> messages;  // of chats
  std::string prompt;              // of completions, unless there are ids
  std::vector<int32_t> ids;
  int64_t max_tokens = 1;
  int64_t cancel_after = 0;  // tokens; 0: never
  bool slow = false;

  // Of replays: messages, tools and further fields of the body as JSON (null: none), and the seed
  // of sampling.
  std::vector<SharedJson> history;
  SharedJson tools;
  SharedJson extra;
  std::optional<int64_t> seed;
  // Of a session's first request: a digest of the tools and system messages that it begins with, 0
  // if there are none.
  uint64_t beginning = 0;
  // The share of the prompt's bytes that come after these; of a branch that is not the first, the
  // share of those behind the turn before that come after the answer, which the first one has, too.
  double own_share = 1;
};

// What the branches of a session have in common while it runs. Belongs to one thread.
struct SessionProgress {
  int64_t open = 1;  // branches that have not ended
  bool has_failed = false;
  bool was_cut = false;  // requests that the session has were not sent
};

// A sequence of requests, each of which holds what was said before; or one branch of a session of
// several such sequences.
class Session {
 public:
  uint64_t index() const { return index_; }
  // Returns how many requests of the sequence there were.
  uint32_t turn() const { return turn_; }
  // Returns whether a request follows: the first, or one after the answer to the last.
  bool has_next() const { return path_ ? path_->has_next() : turn_ < turns_; }
  // Returns the tokens of the last answered prompt, 0 before there is one.
  int64_t prompt_tokens() const { return prompt_tokens_; }
  const std::shared_ptr<SessionProgress>& progress() const { return progress_; }

 private:
  friend class Workload;
  Session(uint64_t index, Random random) : index_(index), random_(random) {}

  uint64_t index_;
  Random random_;
  uint32_t turn_ = 0;
  uint32_t turns_ = 1;
  std::vector<ChatTurn> said_;
  std::optional<ReplayPath> path_;  // of replays
  int64_t prompt_tokens_ = 0;
  bool repeats_answer_ = false;  // another branch goes on from the same answer, and brings it
  std::shared_ptr<SessionProgress> progress_ = std::make_shared<SessionProgress>();
};

// A session, or a branch of it, that goes on `delay` seconds after an answer.
struct Continuation {
  double delay = 0;
  Session session;
};

// Makes the requests of a run. A session depends on the seed and its index alone. Safe to use from
// several threads.
class Workload {
 public:
  // Reads --dataset and the trace's lengths. A replay is of `sessions`, or of synthetic ones if
  // that is null.
  static absl::StatusOr<Workload> Make(const Options& options, const std::vector<TraceEntry>& trace,
                                       std::shared_ptr<const SessionTrace> sessions = nullptr);

  void set_scale(PromptScale scale);

  Session Begin(uint64_t index) const;
  // Makes the session's next request. Requires has_next.
  Request Next(Session& session) const;
  // Returns how the session goes on after the answer to its last request, whose prompt had so many
  // tokens: once, or once for each branch, or not at all.
  std::vector<Continuation> GoOn(Session session, ReplayAnswer answer, int64_t prompt_tokens) const;
  // Returns the synthetic session of that index as lines of a trace.
  std::string GeneratedTrace(uint64_t index) const;

 private:
  explicit Workload(const Options& options) : options_(options) {}

  Request NextOfReplay(Session& session) const;
  void DrawClient(Session& session, Request& request) const;
  std::string NewText(Session& session) const;
  std::vector<int32_t> NewIds(Session& session) const;
  int64_t InputLength(Session& session) const;
  int64_t OutputLength(Session& session, const DataEntry* entry) const;
  const DataEntry* Entry(const Session& session) const;

  Options options_;
  PromptScale scale_;
  std::vector<DataEntry> data_;
  std::vector<TraceEntry> trace_;
  std::shared_ptr<const SessionTrace> sessions_;  // of a replay of a file
  std::optional<SessionGenerator> generator_;     // of a replay without one
};

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_WORKLOAD_H_
