// Byte-pair encoding: Sennrich et al., "Neural Machine Translation of Rare Words with Subword
// Units" (2016); over bytes as in GPT-2 (Radford et al., 2019), or over characters, as
// SentencePiece has it.
#ifndef MILLRACE_TEXT_TOKENIZER_BPE_MODEL_H_
#define MILLRACE_TEXT_TOKENIZER_BPE_MODEL_H_

#include <array>
#include <atomic>
#include <bitset>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "base/strings.h"
#include "text/tokenizer/byte_tokens.h"
#include "text/tokenizer/subword_model.h"

namespace millrace {

// A character that has no token, where there is neither a token for the unknown nor for its bytes,
// is dropped, and its neighbours may merge: so do Hugging Face's tokenizers.
class BpeModel : public SubwordModel {
 public:
  static absl::StatusOr<std::unique_ptr<const SubwordModel>> Create(const TokenizerSpec& spec,
                                                                    bool bytes);

  // Takes O(n log n) in the longest part of the piece that no merge can cross out of, O(n) else.
  absl::Status Encode(std::string_view piece, const std::atomic<bool>* cancelled,
                      std::vector<Token>* tokens) const override;

 private:
  static constexpr uint32_t kNoMerge = std::numeric_limits<uint32_t>::max();
  class PairQueue;

  explicit BpeModel(bool bytes) : bytes_(bytes) {}

  absl::Status AddVocabulary(const TokenizerSpec& spec);
  absl::Status AddMerges(const TokenizerSpec& spec);
  // Appends the bytes that pieces have for this text of the vocabulary; false where GPT-2's
  // spelling spells none.
  bool AppendModelText(std::string_view text, std::string* out) const;

  size_t CharacterSize(std::string_view text) const;
  std::optional<Token> CharacterToken(std::string_view character, bool first, bool last) const;
  // Returns whether no merge can join the texts before and after `at`.
  bool CanCut(std::string_view piece, size_t left, size_t at) const;
  absl::Status EncodeWord(std::string_view word, const std::atomic<bool>* cancelled,
                          std::vector<Token>* tokens) const;
  std::optional<Token> FindWhole(std::string_view word) const;
  void Unknown(std::string_view character, bool first, bool last, std::optional<Token>* held,
               std::vector<Token>* symbols) const;
  absl::Status MergeWord(std::string_view word, const std::atomic<bool>* cancelled,
                         std::vector<Token>* tokens) const;
  void MergeFew(std::vector<Token>* symbols, size_t from) const;
  absl::Status MergeMany(std::vector<Token>* symbols, size_t from,
                         const std::atomic<bool>* cancelled) const;
  uint32_t RankOf(Token left, Token right) const;  // of their merge, or kNoMerge

  const bool bytes_;
  std::string continuing_prefix_, word_suffix_;
  bool affixes_ = false;  // one of them is not empty
  bool ignore_merges_ = false;
  bool fuse_unknown_ = false;
  std::optional<Token> unknown_;
  std::optional<ByteTokenTable> byte_tokens_;  // with byte fallback

  std::string texts_;  // of all tokens, one after the other
  absl::flat_hash_map<std::string_view, Token, StringHash> ids_;  // views into texts_
  size_t longest_ = 0;                                            // text, in bytes
  std::array<std::optional<Token>, 256> single_;   // of one byte (bytes_) or one of ASCII
  absl::flat_hash_map<uint64_t, uint32_t> ranks_;  // of merges, by left << 32 | right: lowest first
  std::vector<Token> merged_;                      // by rank, what the pair becomes
  // The pairs of characters, or bytes, that some merge has on its two sides.
  std::bitset<1 << 16> joined_bytes_;     // of one byte each
  absl::flat_hash_set<uint64_t> joined_;  // of others
  // By token: its text is merged into it, or not. Computed when it is first needed.
  enum Whole : uint8_t { kNotKnown, kYes, kNo };
  std::unique_ptr<std::atomic<uint8_t>[]> whole_;
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_BPE_MODEL_H_
