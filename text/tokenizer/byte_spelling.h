// GPT-2's spelling of bytes as printable characters (Radford et al., 2019): those of Latin-1 that
// print stand for themselves, the others, in ascending order, for U+0100 onwards.
#ifndef MILLRACE_TEXT_TOKENIZER_BYTE_SPELLING_H_
#define MILLRACE_TEXT_TOKENIZER_BYTE_SPELLING_H_

#include <string>
#include <string_view>

namespace millrace {

// Appends the characters that spell `bytes`.
void AppendByteSpelling(std::string_view bytes, std::string* out);

// Appends the bytes that `spelling` spells. Returns false, with nothing appended, when some
// character of it spells none.
bool AppendSpelledBytes(std::string_view spelling, std::string* out);

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_BYTE_SPELLING_H_
