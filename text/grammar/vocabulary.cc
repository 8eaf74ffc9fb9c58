#include "text/grammar/vocabulary.h"

#include <algorithm>
#include <optional>

namespace millrace {
namespace {

constexpr size_t kLongestToken = 255;

// Returns the number of characters if the bytes are plain text.
std::optional<int> PlainCharacters(std::string_view bytes) {
  int characters = 0;
  for (size_t i = 0; i < bytes.size(); ++characters) {
    const auto at = [&](size_t k) {
      return i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0;
    };
    const int lead = at(0);
    if (lead < 0x80) {
      if (lead < 0x20 || lead == '"' || lead == '\\') return std::nullopt;
      ++i;
      continue;
    }
    const int size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
    if (lead < 0xc2 || lead > 0xf4) return std::nullopt;
    const int low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const int high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (at(1) < low || at(1) > high) return std::nullopt;
    for (int k = 2; k < size; ++k) {
      if (at(k) < 0x80 || at(k) > 0xbf) return std::nullopt;
    }
    i += size;
  }
  return characters;
}

bool HasFrameByte(std::string_view bytes) {
  return std::any_of(bytes.begin(), bytes.end(), [](char c) {
    return static_cast<uint8_t>(c) >= GrammarVocabulary::kSpecialClose;
  });
}

}  // namespace

GrammarVocabulary::GrammarVocabulary(absl::Span<const VocabularyToken> tokens,
                                     std::vector<Token> end_tokens, int32_t mask_size)
    : mask_size_(mask_size), end_tokens_(std::move(end_tokens)) {
  std::erase_if(end_tokens_, [mask_size](Token t) { return t < 0 || t >= mask_size; });
  const size_t count = std::min(tokens.size(), static_cast<size_t>(mask_size));
  size_t total = 0;
  for (size_t i = 0; i < count; ++i) total += tokens[i].bytes.size() + 2;
  bytes_.reserve(total);  // so that views of it stay
  std::vector<std::pair<std::string_view, Token>> all, rest;
  plain_.assign(kLongestPlain + 1, TokenMask(mask_words()));
  for (size_t i = 0; i < count; ++i) {
    const auto token = static_cast<Token>(i);
    const auto begin = static_cast<uint32_t>(bytes_.size());
    ranges_.emplace_back(begin, 0);
    const std::string_view bytes = tokens[i].bytes;
    const bool ends = std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end();
    if (bytes.empty() || ends || bytes.size() + 2 > kLongestToken || HasFrameByte(bytes)) continue;
    if (tokens[i].special) bytes_ += static_cast<char>(kSpecialOpen);
    bytes_ += bytes;
    if (tokens[i].special) bytes_ += static_cast<char>(kSpecialClose);
    ranges_.back().second = static_cast<uint32_t>(bytes_.size()) - begin;
    const std::string_view stored = Bytes(token);
    all.emplace_back(stored, token);
    longest_ = std::max(longest_, static_cast<int>(stored.size()));
    const std::optional<int> plain = PlainCharacters(stored);
    if (!plain.has_value() || *plain > kLongestPlain) {
      rest.emplace_back(stored, token);
    } else {
      longest_plain_ = std::max(longest_plain_, *plain);
      plain_[*plain][i / 32] |= 1U << (i % 32);
    }
  }
  for (int c = 1; c <= kLongestPlain; ++c) {
    for (size_t word = 0; word < mask_words(); ++word) plain_[c][word] |= plain_[c - 1][word];
  }
  plain_.resize(longest_plain_ + 1);
  all_ = MakeTrie(std::move(all));
  rest_ = MakeTrie(std::move(rest));
}

std::string_view GrammarVocabulary::Bytes(Token token) const {
  if (token < 0 || static_cast<size_t>(token) >= ranges_.size()) return {};
  const auto [begin, size] = ranges_[token];
  return std::string_view(bytes_).substr(begin, size);
}

const TokenMask& GrammarVocabulary::Plain(int characters) const {
  return plain_[std::min(characters, longest_plain_)];
}

int GrammarVocabulary::ByteKind(uint8_t byte) {
  if (byte >= 'a' && byte <= 'f') return 0;
  if (byte >= 'g' && byte <= 'z') return 1;
  if (byte >= 'A' && byte <= 'F') return 2;
  if (byte >= 'G' && byte <= 'Z') return 3;
  if (byte >= '0' && byte <= '9') return 4;
  if (byte == ' ') return 5;
  if (byte == '_' || byte == '-') return 6;
  if (byte == '"') return 7;
  if (byte == '\\') return 8;
  if (byte < 0x20) return 9;
  return byte >= 0x80 ? 10 : 11;
}

// Sorted texts give the nodes in preorder.
GrammarVocabulary::Trie GrammarVocabulary::MakeTrie(
    std::vector<std::pair<std::string_view, Token>> tokens) {
  std::sort(tokens.begin(), tokens.end());
  Trie trie;
  std::vector<uint32_t> open;  // the path's nodes
  const auto close_to = [&](size_t depth) {
    while (open.size() > depth) {
      Node& node = trie.nodes[open.back()];
      node.skip = static_cast<uint32_t>(trie.nodes.size());
      const uint16_t classes = node.classes;
      const uint16_t own = static_cast<uint16_t>(1U << ByteKind(node.byte));
      open.pop_back();
      if (!open.empty()) trie.nodes[open.back()].classes |= classes | own;
    }
  };
  std::string_view before;
  for (const auto& [text, token] : tokens) {
    size_t same = 0;
    while (same < before.size() && same < text.size() && before[same] == text[same]) ++same;
    close_to(same);
    for (size_t i = same; i < text.size(); ++i) {
      open.push_back(static_cast<uint32_t>(trie.nodes.size()));
      trie.nodes.push_back({.skip = 0,
                            .first = static_cast<uint32_t>(trie.tokens.size()),
                            .ends = 0,
                            .classes = 0,
                            .byte = static_cast<uint8_t>(text[i]),
                            .depth = static_cast<uint8_t>(i + 1)});
    }
    trie.tokens.push_back(token);
    ++trie.nodes[open.back()].ends;
    before = text;
  }
  close_to(0);
  trie.nodes.push_back({.skip = 0,
                        .first = static_cast<uint32_t>(trie.tokens.size()),
                        .ends = 0,
                        .classes = 0,
                        .byte = 0,
                        .depth = 0});
  return trie;
}

}  // namespace millrace
