// The requests to send: prompts, lengths, sessions, and which are cancelled or read slowly.
#ifndef MILLRACE_LOADTEST_WORKLOAD_H_
#define MILLRACE_LOADTEST_WORKLOAD_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "loadtest/dataset.h"
#include "loadtest/options.h"
#include "loadtest/random.h"

namespace millrace {

// How many tokens the server makes of a prompt: base + words * per_word.
struct PromptScale {
  double base = 0;
  double per_word = 1;
};

// One request, as both protocols can send it.
struct Request {
  std::vector<ChatTurn> messages;  // of chats
  std::string prompt;              // of completions, unless there are ids
  std::vector<int32_t> ids;
  int64_t max_tokens = 1;
  int64_t cancel_after = 0;  // tokens; 0: never
  bool slow = false;
};

// A sequence of requests, each of which holds what was said before.
class Session {
 public:
  uint64_t index() const { return index_; }
  uint32_t turn() const { return turn_; }
  bool has_next() const { return turn_ < turns_; }

 private:
  friend class Workload;
  Session(uint64_t index, Random random) : index_(index), random_(random) {}

  uint64_t index_;
  Random random_;
  uint32_t turn_ = 0;
  uint32_t turns_ = 1;
  std::vector<ChatTurn> said_;
};

// Makes the requests of a run. A session depends on the seed and its index alone. Safe to use from
// several threads.
class Workload {
 public:
  // Reads --dataset and the trace's lengths.
  static absl::StatusOr<Workload> Make(const Options& options,
                                       const std::vector<TraceEntry>& trace);

  void set_scale(PromptScale scale) { scale_ = scale; }

  Session Begin(uint64_t index) const;
  // Makes the session's next request. Requires has_next.
  Request Next(Session& session) const;
  // Adds the answer to what was said.
  void Hear(Session& session, std::string answer) const;

 private:
  explicit Workload(const Options& options) : options_(options) {}

  std::string NewText(Session& session) const;
  std::vector<int32_t> NewIds(Session& session) const;
  int64_t InputLength(Session& session) const;
  int64_t OutputLength(Session& session, const DataEntry* entry) const;
  const DataEntry* Entry(const Session& session) const;

  Options options_;
  PromptScale scale_;
  std::vector<DataEntry> data_;
  std::vector<TraceEntry> trace_;
};

inline constexpr int64_t kRandomWords = 128;  // how many RandomWords chooses from

// Returns `count` short words, separated by spaces, each of which is a token in most vocabularies.
std::string RandomWords(int64_t count, Random& random);

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_WORKLOAD_H_
