// A range of code points, of which the tables of characters are made.
#ifndef MILLRACE_TEXT_TOKENIZER_CODE_RANGE_H_
#define MILLRACE_TEXT_TOKENIZER_CODE_RANGE_H_

namespace millrace {

struct CodeRange {
  char32_t first;
  char32_t last;
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_CODE_RANGE_H_
