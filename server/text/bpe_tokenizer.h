// Byte-level byte-pair encoding: Sennrich et al., "Neural Machine Translation of Rare Words with
// Subword Units" (2016), over bytes as in GPT-2 (Radford et al., 2019).
#ifndef MILLRACE_SERVER_TEXT_BPE_TOKENIZER_H_
#define MILLRACE_SERVER_TEXT_BPE_TOKENIZER_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "base/strings.h"
#include "formats/tokenizer_config.h"
#include "server/text/pre_tokenizer.h"
#include "server/text/tokenizer.h"

namespace millrace {

// Gives the ids that Hugging Face's tokenizers give for the same vocabulary. Like them it drops a
// byte for which the vocabulary has no token (SmolLM2 lacks some that only rare characters have).
class BpeTokenizer : public Tokenizer {
 public:
  // Copies what it needs: the config's views may end afterwards. Errors name the key.
  static absl::StatusOr<std::unique_ptr<const BpeTokenizer>> Create(const TokenizerConfig& config);

 private:
  struct Merge {
    uint32_t rank;  // the lowest goes first
    Token token;    // what the pair becomes
  };
  struct Scratch;

  explicit BpeTokenizer(PreTokenizer pre_tokenizer) : pre_tokenizer_(std::move(pre_tokenizer)) {}

  absl::Status AddTokens(const TokenizerConfig& config);
  absl::Status AddMerges(const TokenizerConfig& config);
  absl::Status EncodePlain(std::string_view text, std::vector<Token>* tokens) const override;
  void EncodePiece(std::string_view piece, Scratch* scratch, std::vector<Token>* tokens) const;
  const Merge* FindMerge(Token left, Token right) const;

  PreTokenizer pre_tokenizer_;
  std::array<std::optional<Token>, 256> byte_tokens_;
  absl::flat_hash_map<std::string_view, Token, StringHash> ids_;  // by TokenBytes, which it views
  absl::flat_hash_map<uint64_t, Merge> merges_;                   // by left << 32 | right
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_TEXT_BPE_TOKENIZER_H_
