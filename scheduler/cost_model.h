// Predicts how long a step takes, from the steps that were measured.
#ifndef MILLRACE_SCHEDULER_COST_MODEL_H_
#define MILLRACE_SCHEDULER_COST_MODEL_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace millrace {

// The work of a step, as far as its time depends on it.
struct StepWork {
  int32_t decode_rows = 0;
  int64_t decode_context = 0;  // positions that the decode rows attend to, together
  int32_t prompt_tokens = 0;   // recomputed ones too
  double prompt_pairs = 0;     // (prompt token, position it attends to)

  // Adds `tokens` consecutive prompt tokens from position `start` on.
  void AddPrompt(int32_t tokens, int32_t start);
};

// A linear model of a step's milliseconds, refitted after each step: least squares of the relative
// error with exponential forgetting, no coefficient below 0. A direction in which the recent steps
// do not differ keeps what earlier steps have taught. A function of the calls alone.
class StepCostModel {
 public:
  // Takes a step that was measured. Ignores a time that is not positive.
  void Observe(const StepWork& work, double milliseconds);

  // Return whether a step with such a part was ever observed.
  bool knows_decode() const { return knows_decode_; }
  bool knows_prompt() const { return knows_prompt_; }

  double Milliseconds(const StepWork& work) const;

  // Returns how many prompt tokens from position `start` on add no more than `milliseconds`, at
  // most `wanted`.
  int32_t PromptTokensWithin(double milliseconds, int32_t start, int32_t wanted) const;

 private:
  // A constant, decode rows, prompt tokens, decode context, prompt pairs.
  static constexpr size_t kFeatures = 5;
  using Features = std::array<double, kFeatures>;

  static Features FeaturesOf(const StepWork& work);
  void Refit();

  std::array<Features, kFeatures> products_{};  // weighted sums of x·xᵀ
  Features targets_{};                          // weighted sums of x·ms
  Features coefficients_{};
  int64_t num_mixed_ = 0;  // steps observed with both parts
  bool knows_decode_ = false;
  bool knows_prompt_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_SCHEDULER_COST_MODEL_H_
