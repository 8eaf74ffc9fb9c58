// A model's rotary embedding, and how it is scaled for sequences longer than those that the model
// was first trained with.
#ifndef MILLRACE_FORMATS_MODEL_ROPE_CONFIG_H_
#define MILLRACE_FORMATS_MODEL_ROPE_CONFIG_H_

#include <vector>

namespace millrace {

// Position p turns pair i of a head's first `dimensions` values by p * theta^(-2i / dimensions) /
// factors[i]; cosines and sines are multiplied by `magnitude`. Pair i is the elements (2i, 2i + 1)
// where they are interleaved, else (i, i + dimensions / 2).
struct RopeConfig {
  int dimensions = 0;  // even, at most the head size
  bool interleaved = true;
  double theta = 10000;
  std::vector<float> factors;  // [dimensions / 2], or empty for all ones
  double magnitude = 1;

  // Some models are stretched only where longer sequences than `trained` positions are served:
  int trained = 0;                  // 0: what is above holds at every length
  std::vector<float> long_factors;  // LongRoPE: these in the place of `factors`; or
  double dynamic_factor = 0;        // dynamic NTK: another theta, if not 0

  bool operator==(const RopeConfig&) const = default;
};

// Returns what holds for all sequences, whatever their length, of a server of up to `max_model_len`
// positions: `trained` is 0 in it. (transformers chooses anew for each length: a sequence's first
// tokens would then have other keys than its last ones expect.)
RopeConfig Served(const RopeConfig& rope, int max_model_len);

// Return factors of pairs' angles, [dimensions / 2]. Linear scaling has the same for all ("position
// interpolation", arXiv:2306.15595).
std::vector<float> LinearFactors(double factor, int dimensions);

// Long waves are slowed down by `factor`, short ones are not, those in between partly (Llama 3.1,
// arXiv:2407.21783): waves that turn `low` times or less within the `trained` positions, `high`
// times or more. low < high.
struct Llama3Stretch {
  double factor, low, high;
  int trained;
};
std::vector<float> Llama3Factors(const Llama3Stretch& stretch, double theta, int dimensions);

// The same idea in YaRN's form (arXiv:2309.00071): pairs that turn `fast` times or more within the
// trained positions keep their angles, those that turn `slow` times or less are slowed down, and
// between those two pairs it is linear in the pair's number.
struct YarnStretch {
  double factor;
  double fast = 32, slow = 1;
  bool truncate = true;  // the two pairs' numbers are rounded, away from each other
  int trained;
};
std::vector<float> YarnFactors(const YarnStretch& stretch, double theta, int dimensions);

// Returns the factor by which YaRN multiplies cosines and sines where a model has none.
double YarnMagnitude(double factor, double mscale = 1);

// Returns the same factor of LongRoPE (arXiv:2402.13753), where `factor` is the ratio of positions.
double LongRopeMagnitude(double factor, int trained);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_MODEL_ROPE_CONFIG_H_
