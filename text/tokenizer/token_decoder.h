// Turns a token's text in the vocabulary into the bytes that it writes.
#ifndef MILLRACE_TEXT_TOKENIZER_TOKEN_DECODER_H_
#define MILLRACE_TEXT_TOKENIZER_TOKEN_DECODER_H_

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "formats/tokenizers/tokenizer_spec.h"

namespace millrace {

// The work at the ends of a whole text, once its tokens have been put together.
struct TextEnds {
  std::string strip;            // a character
  size_t strip_at_start = 0;    // at most so many
  bool drop_end_space = false;  // the space that the last token's suffix became
};

// The steps of a decoder, token by token: so a text can be shown while it grows.
class TokenDecoder {
 public:
  // Makes a decoder. UNIMPLEMENTED for steps that need the whole text, other than those in
  // TextEnds.
  static absl::StatusOr<TokenDecoder> Create(const std::optional<std::vector<DecoderSpec>>& specs);

  // Returns the bytes that a token of this text writes as the first one of a text, or after others.
  absl::StatusOr<std::string> Decode(std::string_view token, bool first) const;

  const TextEnds& ends() const { return ends_; }

 private:
  using Step = std::function<absl::Status(bool first, std::string* text)>;

  TokenDecoder() = default;
  absl::Status Add(const DecoderSpec& spec, bool* fused);

  std::vector<Step> steps_;
  TextEnds ends_;
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_TOKEN_DECODER_H_
