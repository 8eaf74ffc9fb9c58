// Cuts a text into tokens in the likeliest way: Kudo, "Subword Regularization" (2018), by Viterbi's
// algorithm.
#ifndef MILLRACE_TEXT_TOKENIZER_UNIGRAM_MODEL_H_
#define MILLRACE_TEXT_TOKENIZER_UNIGRAM_MODEL_H_

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/subword_model.h"
#include "text/tokenizer/token_trie.h"

namespace millrace {

class UnigramModel : public SubwordModel {
 public:
  static absl::StatusOr<std::unique_ptr<const SubwordModel>> Create(const TokenizerSpec& spec);

  // Takes O(n * the longest token).
  absl::Status Encode(std::string_view piece, const std::atomic<bool>* cancelled,
                      std::vector<Token>* tokens) const override;

 private:
  UnigramModel() = default;
  void AddUnknown(std::string_view text, std::vector<Token>* tokens) const;

  TokenTrie trie_;
  std::vector<double> scores_;  // by id
  double unknown_score_ = 0;
  std::optional<Token> unknown_;
  std::optional<std::array<std::optional<Token>, 256>> byte_tokens_;  // with byte fallback
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_UNIGRAM_MODEL_H_
