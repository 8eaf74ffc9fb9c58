// Turns requests to generate into sequences, and gives each its last event.
#ifndef MILLRACE_ENGINE_GENERATOR_H_
#define MILLRACE_ENGINE_GENERATOR_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/constraints/thinking_budget.h"
#include "engine/engine.h"
#include "engine/engine_parts.h"

namespace millrace {

// Thread-safe. A request goes from Generate (the caller's thread) through Prepare (the text pool)
// to the engine thread, and ends by Finish (an output shard, or the thread that refused it).
class Generator {
 public:
  // `parts` outlives this.
  explicit Generator(EngineParts* parts);

  std::vector<std::shared_ptr<ResponseStream>> Generate(GenerateRequest request,
                                                        std::function<void()> ready);

  // Delivers the last event.
  void Finish(const std::shared_ptr<LiveRequest>& request, OutputEvent last);

 private:
  class Stream;

  Choices MakeChoices(GenerateRequest request, const std::function<void()>& ready);
  void Prepare(const Choices& choices);
  absl::Status Encode(const Choices& choices);
  SequenceDefaults DefaultsOf(const GenerateRequest& request) const;
  absl::StatusOr<std::shared_ptr<const SampleMask>> Follow(const Choices& choices,
                                                           const SamplingParams& sampling,
                                                           bool free_tokens);
  absl::StatusOr<bool> CompleteGrammar(const std::vector<Token>& prompt, const LiveRequest& first,
                                       GenerateRequest& request);
  absl::StatusOr<std::shared_ptr<const Grammar>> Compile(const LiveRequest& request,
                                                         const GrammarSpec& spec);
  absl::StatusOr<std::shared_ptr<const SampleMask>> BoundThinking(
      const Choices& choices, ThinkingMarkers markers, std::shared_ptr<const SampleMask> mask);
  absl::Status BoundTokens(const Choices& choices, SequenceRequest& sequence);
  absl::Status AddDrafter(const Choices& choices, SequenceRequest& sequence);
  void Submit(const Choices& choices, std::vector<SequenceRequest> sequences);
  void Refuse(const Choices& choices, const absl::Status& why);
  uint64_t DrawSeed();

  EngineParts& parts_;
  std::atomic<uint64_t> seed_state_;
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_GENERATOR_H_
