// Python's string operations on UTF-8: positions are counted in code points, white space and case
// are Unicode's. An invalid byte counts as one code point that is neither space nor letter. Case
// changes map one code point to one, but for ß.
#ifndef MILLRACE_TEXT_JINJA_TEXT_H_
#define MILLRACE_TEXT_JINJA_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace millrace::jinja {

struct CodePoint {
  int32_t value;  // -1 for an invalid byte.
  size_t size;    // Bytes.
};
// Returns the first code point of a text that is not empty.
CodePoint NextCodePoint(std::string_view text);
bool IsSpace(int32_t code_point);
void AppendCodePoint(int32_t code_point, std::string& text);

size_t CountCodePoints(std::string_view text);
// Returns the bytes of code points [begin, end), both at most the count.
std::string_view CodePointRange(std::string_view text, size_t begin, size_t end);
// Returns the byte offset of the first `needle`, or npos; in linear time.
size_t FindText(std::string_view text, std::string_view needle);

enum class Side { kLeft, kRight, kBoth };
std::string_view StripSpace(std::string_view text, Side side);
std::string_view StripAny(std::string_view text, std::string_view characters, Side side);

// Splits a text, at most `max_splits` times from the left, or any number if negative. `separator`
// is not empty.
std::vector<std::string_view> Split(std::string_view text, std::string_view separator,
                                    int64_t max_splits);
// Splits from the right.
std::vector<std::string_view> SplitRight(std::string_view text, std::string_view separator,
                                         int64_t max_splits);
// Splits at runs of white space; white space at either end begins no part.
std::vector<std::string_view> SplitSpace(std::string_view text, int64_t max_splits);
// Splits at runs of white space from the right.
std::vector<std::string_view> SplitSpaceRight(std::string_view text, int64_t max_splits);
// Lines without their ends, with all of Python's line boundaries.
std::vector<std::string_view> SplitLines(std::string_view text);

// str.isalpha() and so on: not empty, and each code point is one.
enum class CharClass { kAlpha, kDigit, kAlnum, kSpace };
bool IsAll(std::string_view text, CharClass of);
// Computes str.isupper() and str.islower(): some code point is cased, and none in the other case.
bool HasCase(std::string_view text, bool upper);

std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
std::string Capitalize(std::string_view text);
// Computes str.title(): a letter is large unless it follows a letter.
std::string TitleLetters(std::string_view text);
// Computes Jinja's title filter: the first character after white space or one of -({[< is large.
std::string TitleWords(std::string_view text);

// Returns the text with entities for the five characters that HTML gives a meaning to.
std::string EscapeHtml(std::string_view text);
// Returns a Python string literal of the text.
std::string Repr(std::string_view text);
// Returns a JSON string of the text; `ascii` escapes every other character.
std::string JsonString(std::string_view text, bool ascii);
// Computes Python's int(text, base): white space around it, a sign, digits with single underscores
// between them, and the prefix 0b, 0o or 0x of its base, which names the base where that is 0.
// Nothing for another text, and for a number that does not fit 64 bits. `base` is 0 or 2 to 36.
std::optional<int64_t> ParseInteger(std::string_view text, int base);
// Returns a Python float literal, the shortest that reads back as the same number.
std::string FloatText(double value);

}  // namespace millrace::jinja

#endif  // MILLRACE_TEXT_JINJA_TEXT_H_
