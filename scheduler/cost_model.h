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
  int64_t moved_bytes = 0;     // of blocks and states that are copied before the rows run

  // Adds `tokens` consecutive prompt tokens from position `start` on.
  void AddPrompt(int32_t tokens, int32_t start);
};

// What a device computes together, whatever it is: its tiles, and the experts of its model.
struct StepShape {
  int32_t token_tile = 1;   // StepLimits::token_tile
  int32_t num_experts = 0;  // of a layer; 0: no mixture
  int32_t experts_a_token = 0;
};

// A linear function of five features, fitted to the last kWindow observations: least absolute
// relative errors, by iteratively reweighted least squares (Holland and Welsch, "Robust regression
// using iteratively reweighted least-squares", 1977), no coefficient below 0. Each observation also
// weighs by its own time, so that slow outliers hardly count. A direction in which the observations
// do not differ keeps its last coefficients.
class WindowFit {
 public:
  static constexpr size_t kFeatures = 5;
  static constexpr size_t kWindow = 48;
  using Features = std::array<double, kFeatures>;

  // Once the window is full, only one observation in `refit_every` has the fit made anew.
  explicit WindowFit(size_t refit_every = 1) : refit_every_(refit_every) {}

  // Takes a time, which the features are to explain; of what `base` says by then of its own
  // features `base_x`, only what is left. `base` outlives this.
  void Observe(const Features& x, double time, const WindowFit* base = nullptr,
               const Features& base_x = {});

  double Of(const Features& x) const;
  bool known() const { return num_observed_ > 0; }

  // Takes another's coefficients for a start.
  void BeginWith(const WindowFit& other) { coefficients_ = other.coefficients_; }

  // Returns how much a feature differs in the window: its variance over its mean's square.
  double Spread(size_t feature) const;

 private:
  struct Observation {
    Features x;
    double time;
    const WindowFit* base;  // null: none
    Features base_x;
  };

  size_t num_in_window() const { return num_observed_ < kWindow ? num_observed_ : kWindow; }
  void Refit();

  const size_t refit_every_;
  std::array<Observation, kWindow> window_{};  // by number modulo its size
  size_t num_observed_ = 0;
  Features coefficients_{};
};

// A step's milliseconds. Steps that only decode, those that only have prompts, and mixed ones each
// have a constant and coefficients of their own, since they run other kernels and are launched in
// other ways; those of mixed steps explain what they take longer than their decode rows alone. Each
// knows the last 48 steps of its kind and nothing else, so that 48 steps after a change of the
// device the model is as good as new. A function of the calls alone.
class StepCostModel {
 public:
  explicit StepCostModel(const StepShape& shape = {}) : shape_(shape) {}
  StepCostModel(const StepCostModel&) = delete;
  StepCostModel& operator=(const StepCostModel&) = delete;

  // Takes a step that was measured. Ignores a time that is not positive.
  void Observe(const StepWork& work, double milliseconds);

  // Returns whether anything is known of such a step. Of a mixed one its parts are enough.
  bool Knows(const StepWork& work) const;

  double Milliseconds(const StepWork& work) const;

  // Returns whether mixed steps of late were so alike that they do not tell what a token costs.
  bool NeedsVariety() const;

 private:
  static WindowFit::Features DecodeFeatures(const StepWork& work);
  WindowFit::Features PromptFeatures(const StepWork& work) const;

  const StepShape shape_;
  WindowFit decode_{8};  // a constant, rows, context, moved bytes
  WindowFit prompt_;     // a constant, tiles, pairs, experts, moved bytes
  WindowFit mixed_;      // the same
};

}  // namespace millrace

#endif  // MILLRACE_SCHEDULER_COST_MODEL_H_
