// The middle of a tokenizer: from a piece of text to its tokens.
#ifndef MILLRACE_TEXT_TOKENIZER_SUBWORD_MODEL_H_
#define MILLRACE_TEXT_TOKENIZER_SUBWORD_MODEL_H_

#include <atomic>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/token.h"
#include "formats/tokenizers/tokenizer_spec.h"

namespace millrace {

// Where CheckWanted is called in a loop over characters or tokens, once in so many.
inline constexpr size_t kCharactersPerLook = 4096;

// CANCELLED once `cancelled`, which may be null, is set.
inline absl::Status CheckWanted(const std::atomic<bool>* cancelled) {
  if (cancelled == nullptr || !cancelled->load(std::memory_order_relaxed)) return absl::OkStatus();
  return absl::CancelledError("the encoding of a text was cancelled");
}

// Constant after construction, as far as a caller can see: Encode may be called from any thread.
class SubwordModel {
 public:
  virtual ~SubwordModel() = default;

  // Appends the tokens of `piece`, which is not empty. INVALID_ARGUMENT, calling the text "prompt",
  // for text that the vocabulary has no tokens for, not even one for the unknown. CANCELLED where
  // `cancelled` is set, which is looked at every so often in a long piece.
  virtual absl::Status Encode(std::string_view piece, const std::atomic<bool>* cancelled,
                              std::vector<Token>* tokens) const = 0;
};

// Makes the model of a spec, which may end afterwards. `bytes`: the pieces are bytes where the
// vocabulary has GPT-2's characters for them (of BPE alone). INVALID_ARGUMENT for a spec that lies.
absl::StatusOr<std::unique_ptr<const SubwordModel>> MakeSubwordModel(const TokenizerSpec& spec,
                                                                     bool bytes);

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_SUBWORD_MODEL_H_
