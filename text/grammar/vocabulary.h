// A model's tokens as bytes, in the order in which masks are computed.
#ifndef MILLRACE_TEXT_GRAMMAR_VOCABULARY_H_
#define MILLRACE_TEXT_GRAMMAR_VOCABULARY_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/token.h"

namespace millrace {

// One bit a token, token 0 the lowest bit of the first word: set, the token may be sampled.
using TokenMask = std::vector<uint32_t>;

inline bool MaskAllows(const TokenMask& mask, Token token) {
  const auto word = static_cast<size_t>(token) / 32;
  return word < mask.size() && (mask[word] >> (token % 32) & 1) != 0;
}

// A token as a grammar sees it.
struct VocabularyToken {
  std::string_view bytes;  // what it writes after others; empty: it can never be sampled
  bool special = false;    // only a marker of the grammar (GrammarSpec::kMarker) can ask for it
};

// Constant after construction: any thread may use it.
class GrammarVocabulary {
 public:
  // The tokens by their ids, [mask_size] or fewer: a model may have more logits than its tokenizer
  // has tokens. `end_tokens` end an answer.
  GrammarVocabulary(absl::Span<const VocabularyToken> tokens, std::vector<Token> end_tokens,
                    int32_t mask_size);

  int32_t mask_size() const { return mask_size_; }  // in tokens
  size_t mask_words() const { return (static_cast<size_t>(mask_size_) + 31) / 32; }
  absl::Span<const Token> end_tokens() const { return end_tokens_; }
  // Returns the bytes that a matcher moves past: a special token's are framed by bytes that no text
  // has. Empty: the token cannot come.
  std::string_view Bytes(Token token) const;

  // The frame of a special token's name.
  static constexpr uint8_t kSpecialOpen = 0xff;
  static constexpr uint8_t kSpecialClose = 0xfe;

  // A trie in preorder: node i's subtree is nodes i to `skip`. Each token ends at a node.
  struct Node {
    uint32_t skip;     // the node after the subtree
    uint32_t first;    // of `tokens`, the tokens of the subtree begin
    uint32_t ends;     // and these many of them end at the node itself
    uint16_t classes;  // of all bytes beneath the node, as ByteKind has them
    uint8_t byte;
    uint8_t depth;  // length of the text that ends here, at most 255
  };
  struct Trie {
    std::vector<Node> nodes;    // then a node whose `first` is the number of tokens
    std::vector<Token> tokens;  // in the order of the nodes
  };
  // All tokens that are no plain text, and all tokens.
  const Trie& rest() const { return rest_; }
  const Trie& all() const { return all_; }

  // Returns the number of bytes of the longest token, as Bytes() has them.
  int longest() const { return longest_; }

  // Tokens of plain text consist of whole UTF-8 characters, none of them a control character, a
  // quotation mark or a backslash: what a JSON string holds as it is. Returns the mask of those
  // with at most `characters`; anything beyond kLongestPlain is all of them.
  static constexpr int kLongestPlain = 64;
  const TokenMask& Plain(int characters) const;
  // The longest of them has so many characters, at most kLongestPlain.
  int longest_plain() const { return longest_plain_; }

  // Bytes fall into kinds, so that a subtree may be taken whole where a state does not tell its
  // bytes apart.
  static constexpr int kNumKinds = 12;
  static int ByteKind(uint8_t byte);

 private:
  static Trie MakeTrie(std::vector<std::pair<std::string_view, Token>> tokens);

  int32_t mask_size_;
  std::vector<Token> end_tokens_;
  std::string bytes_;
  std::vector<std::pair<uint32_t, uint32_t>> ranges_;  // of bytes_, by token
  Trie rest_, all_;
  std::vector<TokenMask> plain_;  // by characters
  int longest_plain_ = 0;
  int longest_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_GRAMMAR_VOCABULARY_H_
