// Synthetic sessions of agents and users.
#ifndef MILLRACE_LOADTEST_SESSION_GENERATOR_H_
#define MILLRACE_LOADTEST_SESSION_GENERATOR_H_

#include <cstdint>
#include <string>

#include "loadtest/options.h"
#include "loadtest/random.h"
#include "loadtest/random_words.h"
#include "loadtest/session_trace.h"

namespace millrace {

// Makes sessions of --turns, --input-len and the other flags of replays. A session depends on the
// seed, the flags, the scale and its index alone. Safe to use from several threads.
class SessionGenerator {
 public:
  explicit SessionGenerator(const Options& options);

  void set_scale(PromptScale scale) { scale_ = scale; }

  // Returns a trace whose only root is the session. Its forks are the sessions behind it.
  SessionTrace Make(uint64_t index) const;

 private:
  // How a path goes on from a turn. All branches go on from it alike.
  struct Step {
    SharedJson answer;         // to the turn before
    SharedJson calls;          // null: a question follows, else a tool's result
    std::string call_id;       // of the only call
    int64_t prompt_turns = 0;  // how many turns the path has before it
  };

  std::string Text(double tokens, Random& random) const;
  TraceTurn First(Random& random) const;
  Step Choose(int64_t prompt_turns, const TraceTurn& before, Random& random) const;
  TraceTurn Later(const Step& step, Random& random) const;
  // Adds `count` turns. A session without turns begins by `step`.
  void AddLater(Step step, int64_t count, TraceSession& session, Random& random) const;

  Options options_;
  PromptScale scale_;
  SharedJson tools_;  // null: none
};

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_SESSION_GENERATOR_H_
