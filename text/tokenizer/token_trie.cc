#include "text/tokenizer/token_trie.h"

#include <algorithm>

namespace millrace {

TokenTrie::TokenTrie(std::vector<std::pair<std::string_view, Token>> tokens) {
  std::erase_if(tokens, [](const auto& token) { return token.first.empty(); });
  std::stable_sort(tokens.begin(), tokens.end(),
                   [](const auto& left, const auto& right) { return left.first < right.first; });
  // Level by level: a node's texts are neighbours, and so are its edges.
  struct Range {
    size_t begin, end, depth;
    uint32_t node;
  };
  std::vector<Range> ranges;
  const auto byte_at = [&](size_t i, size_t depth) {
    return static_cast<uint8_t>(tokens[i].first[depth]);
  };
  // Adds a node for each next byte of tokens[begin, end), whose texts are longer than depth.
  const auto add_children = [&](size_t begin, size_t end, size_t depth, auto add) {
    while (begin < end) {
      const uint8_t byte = byte_at(begin, depth);
      size_t last = begin + 1;
      while (last < end && byte_at(last, depth) == byte) ++last;
      const auto node = static_cast<uint32_t>(nodes_.size());
      nodes_.emplace_back();
      add(byte, node);
      ranges.push_back({begin, last, depth + 1, node});
      begin = last;
    }
  };
  add_children(0, tokens.size(), 0, [&](uint8_t byte, uint32_t node) { roots_[byte] = node; });
  for (size_t i = 0; i < ranges.size(); ++i) {
    Range range = ranges[i];
    for (; range.begin < range.end && tokens[range.begin].first.size() == range.depth;
         ++range.begin) {
      nodes_[range.node].token = tokens[range.begin].second;
    }
    nodes_[range.node].first_edge = static_cast<uint32_t>(labels_.size());
    add_children(range.begin, range.end, range.depth, [&](uint8_t byte, uint32_t node) {
      labels_.push_back(byte);
      targets_.push_back(node);
    });
    nodes_[range.node].edges =
        static_cast<uint32_t>(labels_.size()) - nodes_[range.node].first_edge;
  }
}

}  // namespace millrace
