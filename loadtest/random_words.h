// Texts of random words, and how many words make as many tokens as are wanted.
#ifndef MILLRACE_LOADTEST_RANDOM_WORDS_H_
#define MILLRACE_LOADTEST_RANDOM_WORDS_H_

#include <cstdint>
#include <string>

#include "loadtest/random.h"

namespace millrace {

// How many tokens the server makes of a prompt: base + words * per_word.
struct PromptScale {
  double base = 0;
  double per_word = 1;

  // Returns how many words make so many tokens, at least 1.
  int64_t Words(double tokens) const;
};

inline constexpr int64_t kRandomWords = 128;  // how many RandomWords chooses from

// Returns `count` short words, separated by spaces, each of which is a token in most vocabularies.
std::string RandomWords(int64_t count, Random& random);

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_RANDOM_WORDS_H_
