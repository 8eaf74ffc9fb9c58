// Calls that want text work and nothing of the model: Tokenize and Detokenize.
#ifndef MILLRACE_ENGINE_TEXT_CALLS_H_
#define MILLRACE_ENGINE_TEXT_CALLS_H_

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "engine/engine.h"
#include "engine/engine_parts.h"

namespace millrace {

// Thread-safe. Each call is counted in and out with its tenant, takes its turn in the text pool,
// and ends early once it is cancelled.
class TextCalls {
 public:
  // `parts` outlives this.
  explicit TextCalls(EngineParts* parts) : parts_(*parts) {}

  std::function<void()> Tokenize(TokenizeRequest request,
                                 std::function<void(absl::StatusOr<TokenizeResult>)> done);
  std::function<void()> Detokenize(DetokenizeRequest request,
                                   std::function<void(absl::StatusOr<std::string>)> done);

  // Ends all calls that are alive.
  void CancelAll(CancelReason reason);
  // Waits until none is alive, at most until `deadline`. Returns false if one still is.
  bool WaitIdle(SteadyTime deadline);

 private:
  struct Call;

  absl::StatusOr<TokenizeResult> TokensOf(const TokenizeRequest& request, Call& call) const;
  absl::StatusOr<std::string> TextOf(const DetokenizeRequest& request, Call& call) const;
  // Has `work` done in the call's turn. `tokens` are those that a result is charged with. Work that
  // began and has none is charged by its bytes.
  template <typename Result>
  std::function<void()> Start(const std::shared_ptr<Call>& call, size_t bytes,
                              std::function<absl::StatusOr<Result>(Call&)> work,
                              std::function<int64_t(const Result&)> tokens,
                              std::function<void(absl::StatusOr<Result>)> done);
  absl::Status Enter(const std::shared_ptr<Call>& call);
  void Leave(const std::shared_ptr<Call>& call, int64_t tokens);

  EngineParts& parts_;
  std::mutex mutex_;
  std::condition_variable idle_;
  absl::flat_hash_set<std::shared_ptr<Call>> alive_;  // guarded by mutex_
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_TEXT_CALLS_H_
