// Text to token ids and back.
#ifndef MILLRACE_TEXT_TOKENIZER_TOKENIZER_H_
#define MILLRACE_TEXT_TOKENIZER_TOKENIZER_H_

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/token.h"
#include "formats/tokenizers/tokenizer_spec.h"
#include "text/tokenizer/special_matcher.h"
#include "text/tokenizer/token_decoder.h"

namespace millrace {

struct EncodeOptions {
  bool add_special = true;     // the model's own frame around a text (a BOS, where it wants one)
  bool parse_special = false;  // "<|im_start|>" in the text becomes that token
  const std::atomic<bool>* cancelled = nullptr;  // looked at often; set: encoding ends
};

// The number of tokens that add_special puts before and behind a text.
struct TextFrame {
  int32_t opening = 0;
  int32_t closing = 0;
  int32_t size() const { return opening + closing; }
};

// A vocabulary and the way into it. Constant after construction: every method may be called from
// any thread.
class Tokenizer {
 public:
  static constexpr size_t kMaxTextBytes = 8 << 20;

  virtual ~Tokenizer() = default;

  // Encodes a text. INVALID_ARGUMENT for text over kMaxTextBytes, text that is not valid UTF-8,
  // text that the model has no tokens for, and text that its regular expressions take too long
  // over; the message calls the text "prompt". CANCELLED where `cancelled` is set.
  absl::StatusOr<std::vector<Token>> Encode(std::string_view text, EncodeOptions options) const;

  // Returns the bytes that a token writes after others, perhaps a part of a character. Empty for an
  // id outside of the vocabulary.
  std::string_view TokenBytes(Token token) const;
  // Returns the bytes that it writes as a text's first token: some vocabularies keep spaces with
  // the words after.
  std::string_view FirstTokenBytes(Token token) const;
  const TextEnds& text_ends() const { return text_ends_; }

  // Returns whether skip_special_tokens hides the token.
  bool IsSpecial(Token token) const;

  int32_t vocab_size() const { return static_cast<int32_t>(ends_.size()); }
  const TextFrame& text_frame() const { return text_frame_; }
  // Returns the frame around a pair of texts; empty where the tokenizer has none.
  absl::Span<const PairPart> pair_frame() const { return pair_frame_; }
  std::optional<Token> bos() const { return bos_; }
  std::optional<Token> eos() const { return eos_; }
  // Returns the tokens that end an answer (eos, end of turn, end of message), ascending.
  absl::Span<const Token> end_of_generation() const { return end_of_generation_; }

 protected:
  // Reserves memory, so that adding tokens moves nothing.
  void Reserve(size_t tokens, size_t bytes);
  // Adds a token under the next id.
  void AddToken(std::string_view bytes, bool special);
  // Sets the bytes that it writes as the first one, where they differ.
  void SetFirst(Token token, std::string bytes) {
    first_.insert_or_assign(token, std::move(bytes));
  }
  // Sets the tokens that end an answer.
  void SetEndOfGeneration(std::vector<Token> tokens);

  std::optional<Token> bos_, eos_;
  TextFrame text_frame_;
  std::vector<PairPart> pair_frame_;
  TextEnds text_ends_;

 private:
  // Appends the ids of `text`, which is valid UTF-8.
  virtual absl::Status EncodeText(std::string_view text, EncodeOptions options,
                                  std::vector<Token>* tokens) const = 0;

  std::string bytes_;           // of all tokens, one after the other
  std::vector<uint32_t> ends_;  // by id, where its bytes end
  std::vector<bool> special_;
  absl::flat_hash_map<Token, std::string> first_;
  std::vector<Token> end_of_generation_;
};

// 256 tokens of one byte each, then BOS "<s>" and EOS "</s>": for --device fake, which has no
// model.
class ByteTokenizer : public Tokenizer {
 public:
  ByteTokenizer();

 private:
  absl::Status EncodeText(std::string_view text, EncodeOptions options,
                          std::vector<Token>* tokens) const override;

  SpecialMatcher special_;
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_TOKENIZER_H_
