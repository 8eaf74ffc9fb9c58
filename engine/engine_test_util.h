// For tests: an engine over a scripted executor, and a reader of its answers.
#ifndef MILLRACE_ENGINE_ENGINE_TEST_UTIL_H_
#define MILLRACE_ENGINE_ENGINE_TEST_UTIL_H_

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/engine_impl.h"
#include "engine/scripted_executor_test_util.h"

namespace millrace {

// Reads one answer, when it is asked to.
class Reader {
 public:
  // Sends the request, for one choice.
  Reader(Engine* engine, GenerateRequest request);
  // For all of its choices.
  static std::vector<Reader> OfChoices(Engine* engine, GenerateRequest request);

  ResponseStream& stream() { return *stream_; }
  void Drop() { stream_.reset(); }

  // Waits for events and takes them until one has `finish`.
  const Finish& ReadAll();
  // Waits for events and takes them until there are `count` tokens.
  void ReadTokens(size_t count);
  // Takes what is there.
  void Drain();
  // Waits until there is something to take since the last Drain.
  void WaitReady();

  const std::vector<OutputEvent>& events() const { return events_; }
  // The answer's, without the echoed prompt.
  std::string text() const;
  std::vector<Token> tokens() const;
  const Finish& finish() const { return *events_.back().finish; }

 private:
  struct Signal {
    std::mutex mutex;
    std::condition_variable changed;
    bool ready = false;
  };
  Reader(std::shared_ptr<ResponseStream> stream, std::shared_ptr<Signal> signal);
  void WaitFor(const std::function<bool()>& done);

  std::shared_ptr<Signal> signal_ = std::make_shared<Signal>();
  std::shared_ptr<ResponseStream> stream_;
  std::vector<OutputEvent> events_;
};

// A request for the answer to `prompt`, sampled in no particular way.
GenerateRequest TextRequest(std::string prompt);

inline StepLimits SmallLimits() {
  return {.max_num_seqs = 4,
          .max_num_batched_tokens = 64,
          .max_model_len = 256,
          .num_blocks = {64},
          .state = StateLayout::OnePool(16),
          .vocab_size = 258};
}

std::unique_ptr<EngineImpl> MakeEngine(std::shared_ptr<Script> script, EngineOptions options = {},
                                       const StepLimits& limits = SmallLimits());

// The value of one of the engine's series: "vllm:prompt_tokens_total"; `label` as "reason=\"x\"",
// of a series that has one more. Ends the program where there is none.
double Metric(const Engine& engine, const std::string& name, const std::string& label = "");

// Waits until `done` holds, at most for as long as a hanging test may.
bool Eventually(const std::function<bool()>& done);

}  // namespace millrace

#endif  // MILLRACE_ENGINE_ENGINE_TEST_UTIL_H_
