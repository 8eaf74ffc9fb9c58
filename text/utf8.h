// UTF-8, byte by byte, by the Unicode standard's rules (chapter 3.9, table 3-7).
#ifndef MILLRACE_TEXT_UTF8_H_
#define MILLRACE_TEXT_UTF8_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace millrace {

// The unit at the front of a text.
struct Utf8Unit {
  enum Kind {
    kCharacter,  // a well-formed character of `size` bytes
    kBroken,     // `size` bytes that U+FFFD stands for: the longest beginning of a character, or 1
    kCut,        // the text ends inside of a character that may still become well-formed
  };
  Kind kind;
  size_t size;
};

// Returns the first unit of `text`, which must not be empty.
Utf8Unit FirstUtf8Unit(std::string_view text);

// Returns the character at the front of `text`, which must not be empty, and its size in bytes;
// U+FFFD and 1 for what is no character.
struct Utf8Character {
  char32_t code;
  size_t size;
};
Utf8Character FirstCharacter(std::string_view text);

void AppendCharacter(char32_t code, std::string* out);

// Returns the place of the first byte that is no part of a well-formed character, or npos.
size_t FindInvalidUtf8(std::string_view text);

// Appends the whole characters of `text` to `out`, U+FFFD for each broken part, and returns how
// many bytes that took: fewer than text.size() exactly when the end is cut.
size_t AppendWholeCharacters(std::string_view text, std::string* out);

inline constexpr std::string_view kReplacementCharacter = "\xef\xbf\xbd";  // U+FFFD

}  // namespace millrace

#endif  // MILLRACE_TEXT_UTF8_H_
