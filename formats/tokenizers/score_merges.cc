#include "formats/tokenizers/score_merges.h"

#include <algorithm>
#include <cstddef>

#include "absl/container/flat_hash_map.h"
#include "base/strings.h"

namespace millrace {
namespace {

bool BeginsCharacter(char byte) { return (byte & 0xc0) != 0x80; }

size_t CountCharacters(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), BeginsCharacter));
}

}  // namespace

std::vector<std::pair<std::string_view, std::string_view>> MergesByScore(
    absl::Span<const VocabularyEntry> tokens) {
  struct Pair {
    double score;
    size_t left_characters, right_characters;
    std::string_view left, right;
  };
  absl::flat_hash_map<std::string_view, size_t, StringHash> ids;
  ids.reserve(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) ids[tokens[id].text] = id;
  std::vector<Pair> pairs;
  std::vector<std::pair<std::pair<size_t, size_t>, size_t>> cuts;  // ids of the parts, place
  for (const VocabularyEntry& entry : tokens) {
    const std::string_view token = entry.text;
    cuts.clear();
    for (size_t at = 1; at < token.size(); ++at) {
      if (!BeginsCharacter(token[at])) continue;
      const auto left = ids.find(token.substr(0, at));
      if (left == ids.end()) continue;
      const auto right = ids.find(token.substr(at));
      if (right != ids.end()) cuts.push_back({{left->second, right->second}, at});
    }
    std::sort(cuts.begin(), cuts.end());
    for (const auto& cut : cuts) {
      const std::string_view left = token.substr(0, cut.second), right = token.substr(cut.second);
      pairs.push_back({entry.score, CountCharacters(left), CountCharacters(right), left, right});
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) {
    if (a.score != b.score) return a.score > b.score;
    if (a.left_characters != b.left_characters) return a.left_characters > b.left_characters;
    return a.right_characters > b.right_characters;
  });
  std::vector<std::pair<std::string_view, std::string_view>> merges;
  merges.reserve(pairs.size());
  for (const Pair& pair : pairs) merges.emplace_back(pair.left, pair.right);
  return merges;
}

}  // namespace millrace
