// Ranges of code points, of which the tables of characters are made.
#ifndef MILLRACE_TEXT_TOKENIZER_CODE_RANGE_H_
#define MILLRACE_TEXT_TOKENIZER_CODE_RANGE_H_

#include <algorithm>
#include <cstddef>
#include <iterator>

namespace millrace {

struct CodeRange {
  char32_t first;
  char32_t last;
};

// Returns the range that has `code`, null when none has it. The ranges are ascending.
template <typename Range, size_t kSize>
const Range* FindRange(const Range (&ranges)[kSize], char32_t code) {
  const Range* found =
      std::lower_bound(std::begin(ranges), std::end(ranges), code,
                       [](const Range& range, char32_t wanted) { return range.last < wanted; });
  return found != std::end(ranges) && found->first <= code ? found : nullptr;
}

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_CODE_RANGE_H_
