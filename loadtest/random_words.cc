#include "loadtest/random_words.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>

namespace millrace {
namespace {

constexpr auto kWords = std::to_array<std::string_view>(
    {"the",   "of",    "and",   "to",     "in",    "is",    "you",   "that",   "it",    "he",
     "was",   "for",   "on",    "are",    "as",    "with",  "his",   "they",   "at",    "be",
     "this",  "have",  "from",  "or",     "one",   "had",   "by",    "word",   "but",   "not",
     "what",  "all",   "were",  "we",     "when",  "your",  "can",   "said",   "there", "use",
     "an",    "each",  "which", "she",    "do",    "how",   "their", "if",     "will",  "up",
     "other", "about", "out",   "many",   "then",  "them",  "these", "so",     "some",  "her",
     "would", "make",  "like",  "him",    "into",  "time",  "has",   "look",   "two",   "more",
     "write", "go",    "see",   "number", "no",    "way",   "could", "people", "my",    "than",
     "first", "water", "been",  "call",   "who",   "oil",   "its",   "now",    "find",  "long",
     "down",  "day",   "did",   "get",    "come",  "made",  "may",   "part",   "over",  "new",
     "sound", "take",  "only",  "little", "work",  "know",  "place", "year",   "live",  "me",
     "back",  "give",  "most",  "very",   "after", "thing", "our",   "just",   "name",  "good",
     "man",   "think", "say",   "great",  "where", "help",  "line",  "right"});

static_assert(kWords.size() == kRandomWords);

}  // namespace

std::string RandomWords(int64_t count, Random& random) {
  // Each of the words comes once before any comes again, so that texts of as many words are about
  // as long, also for a tokenizer that splits words.
  auto order = kWords;
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    const size_t at = static_cast<size_t>(i) % order.size();
    std::swap(order[at], order[at + random.Next() % (order.size() - at)]);
    if (i > 0) text += ' ';
    text += order[at];
  }
  return text;
}

int64_t PromptScale::Words(double tokens) const {
  return std::max<int64_t>(1, std::llround(tokens / per_word));
}

}  // namespace millrace
