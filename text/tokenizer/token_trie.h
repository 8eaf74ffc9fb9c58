// A set of texts to find the beginnings of a text in.
#ifndef MILLRACE_TEXT_TOKENIZER_TOKEN_TRIE_H_
#define MILLRACE_TEXT_TOKENIZER_TOKEN_TRIE_H_

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "base/token.h"

namespace millrace {

class TokenTrie {
 public:
  TokenTrie() = default;
  // The last one of equal texts stays; empty ones are left out.
  explicit TokenTrie(std::vector<std::pair<std::string_view, Token>> tokens);

  // Calls found(size, token) for each token that `text` begins with, the shortest first.
  template <typename Found>
  void ForEachPrefix(std::string_view text, Found found) const {
    if (text.empty()) return;
    uint32_t node = roots_[static_cast<uint8_t>(text[0])];
    for (size_t size = 1; node != 0; ++size) {
      if (nodes_[node].token >= 0) found(size, nodes_[node].token);
      if (size == text.size()) return;
      node = Child(nodes_[node], static_cast<uint8_t>(text[size]));
    }
  }

 private:
  struct Node {
    uint32_t first_edge = 0;
    uint32_t edges = 0;
    Token token = -1;  // that ends here
  };

  // Returns the child, or 0 if there is none.
  uint32_t Child(const Node& node, uint8_t byte) const {
    uint32_t low = node.first_edge, high = node.first_edge + node.edges;
    while (low < high) {
      const uint32_t middle = (low + high) / 2;
      if (labels_[middle] < byte) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low < node.first_edge + node.edges && labels_[low] == byte ? targets_[low] : 0;
  }

  std::vector<Node> nodes_ = std::vector<Node>(1);  // 0 is no node
  std::vector<uint8_t> labels_;                     // of edges, ascending within a node
  std::vector<uint32_t> targets_;
  std::array<uint32_t, 256> roots_{};  // by the first byte
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_TOKEN_TRIE_H_
