#include "text/tokenizer/special_matcher.h"

#include <algorithm>
#include <cstdint>

namespace millrace {

SpecialMatcher::SpecialMatcher(std::vector<std::pair<std::string, Token>> tokens)
    : sorted_(std::move(tokens)) {
  std::erase_if(sorted_, [](const auto& token) { return token.first.empty(); });
  std::sort(sorted_.begin(), sorted_.end());
  for (const auto& [text, token] : sorted_) first_bytes_.set(static_cast<uint8_t>(text[0]));
}

std::optional<SpecialMatcher::Match> SpecialMatcher::Find(std::string_view text) const {
  // Sorted, the texts that share a beginning are neighbours: each further byte narrows the range.
  for (size_t begin = 0; begin < text.size(); ++begin) {
    if (!first_bytes_.test(static_cast<uint8_t>(text[begin]))) continue;
    std::optional<Match> longest;
    auto low = sorted_.begin(), high = sorted_.end();
    for (size_t depth = 0; begin + depth < text.size() && low != high; ++depth) {
      const uint8_t byte = text[begin + depth];
      const auto byte_at = [depth](const auto& token) {
        return depth < token.first.size() ? static_cast<uint8_t>(token.first[depth]) : -1;
      };
      low =
          std::partition_point(low, high, [&](const auto& token) { return byte_at(token) < byte; });
      high = std::partition_point(low, high,
                                  [&](const auto& token) { return byte_at(token) == byte; });
      if (low != high && low->first.size() == depth + 1)
        longest = Match{begin, depth + 1, low->second};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

}  // namespace millrace
