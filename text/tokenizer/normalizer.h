// Rewrites text before it is cut into pieces.
#ifndef MILLRACE_TEXT_TOKENIZER_NORMALIZER_H_
#define MILLRACE_TEXT_TOKENIZER_NORMALIZER_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "formats/tokenizers/tokenizer_spec.h"

namespace millrace {

struct NormalizedText {
  std::string text;  // Valid UTF-8.
  // The bytes at the front that stem from the first character of the text as it came, which has so
  // many before the first step.
  size_t first_bytes = 0;
};

// Returns the text as it comes, before it is normalized.
NormalizedText UnnormalizedText(std::string_view text);

// Constant after construction: Apply may be called from any thread.
class Normalizer {
 public:
  class Step {
   public:
    virtual ~Step() = default;
    // Runs the step on `text`, which may be empty.
    virtual absl::Status Run(NormalizedText* text) const = 0;
  };

  static absl::StatusOr<Normalizer> Create(absl::Span<const NormalizerSpec> specs);

  bool empty() const { return steps_.empty(); }

  // Runs all steps. INVALID_ARGUMENT, calling the text "prompt", if a step would make it longer
  // than kMaxBytes, or a regular expression needs too much for it.
  absl::Status Apply(NormalizedText* text) const;

  static constexpr size_t kMaxBytes = 64 << 20;

 private:
  std::vector<std::unique_ptr<const Step>> steps_;
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_NORMALIZER_H_
