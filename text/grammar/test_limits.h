#ifndef MILLRACE_TEXT_GRAMMAR_TEST_LIMITS_H_
#define MILLRACE_TEXT_GRAMMAR_TEST_LIMITS_H_

#include <chrono>

#include "text/grammar/grammar.h"

namespace millrace {

// For tests of what a grammar's language is: a slow build, a sanitizer's for example, refuses
// none for the time that its compilation takes.
inline constexpr GrammarLimits kUnhurried{.time = std::chrono::hours(1)};

}  // namespace millrace

#endif  // MILLRACE_TEXT_GRAMMAR_TEST_LIMITS_H_
