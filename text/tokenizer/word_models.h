// Models that look words up: WordPiece (Schuster and Nakajima, 2012; the longest token first) and
// WordLevel (a token is a word).
#ifndef MILLRACE_TEXT_TOKENIZER_WORD_MODELS_H_
#define MILLRACE_TEXT_TOKENIZER_WORD_MODELS_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/strings.h"
#include "text/tokenizer/subword_model.h"
#include "text/tokenizer/token_trie.h"

namespace millrace {

class WordPieceModel : public SubwordModel {
 public:
  static absl::StatusOr<std::unique_ptr<const SubwordModel>> Create(const TokenizerSpec& spec);

  // Takes O(n * the longest token).
  absl::Status Encode(std::string_view piece, const std::atomic<bool>* cancelled,
                      std::vector<Token>* tokens) const override;

 private:
  WordPieceModel() = default;

  TokenTrie first_;       // at the front of a piece
  TokenTrie continuing_;  // after it, without the prefix
  std::optional<Token> unknown_;
  size_t max_characters_ = 0;
};

class WordLevelModel : public SubwordModel {
 public:
  static absl::StatusOr<std::unique_ptr<const SubwordModel>> Create(const TokenizerSpec& spec);

  absl::Status Encode(std::string_view piece, const std::atomic<bool>* cancelled,
                      std::vector<Token>* tokens) const override;

 private:
  WordLevelModel() = default;

  absl::flat_hash_map<std::string, Token, StringHash, std::equal_to<>> ids_;
  std::optional<Token> unknown_;
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_WORD_MODELS_H_
