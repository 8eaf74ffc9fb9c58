// Unicode's normalization forms (UAX #15), case, categories and scripts, by utf8proc and by tables.
#ifndef MILLRACE_TEXT_TOKENIZER_UNICODE_FORMS_H_
#define MILLRACE_TEXT_TOKENIZER_UNICODE_FORMS_H_

#include <string>
#include <string_view>

namespace millrace {

// Returns `text` (valid UTF-8) in NFD, or NFC where it is composed, or NFKD and NFKC where
// compatibility characters are replaced. In linear time, but for sorting marks that follow each
// other.
std::string NormalizeUnicode(std::string_view text, bool compatibility, bool compose);

// Returns each character's lower case by itself: one character for one, but for U+0130.
std::string LowercaseUnicode(std::string_view text);

bool IsAscii(std::string_view text);
bool IsUnicodeSpace(char32_t code);  // White_Space

// Categories as Hugging Face's tokenizers have them, whose tables are of Unicode 8 and 9: what was
// assigned since then is of none of these.
bool IsMark(char32_t code);                    // M
bool IsNonspacingMark(char32_t code);          // Mn
bool IsControlFormatOrPrivate(char32_t code);  // Cc, Cf, Co

// Returns a number for the script of a character, 0 for a space and for what tokenizers know no
// script of. Han, Hiragana and Katakana have the same.
int ScriptOf(char32_t code);

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_UNICODE_FORMS_H_
