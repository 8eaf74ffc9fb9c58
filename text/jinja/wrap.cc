#include "text/jinja/wrap.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "text/jinja/text.h"

namespace millrace::jinja {
namespace {

// The characters of a line by their index, with the classes that textwrap's expression names.
class Characters {
 public:
  explicit Characters(std::string_view line) : line_(line) {
    for (std::string_view rest = line; !rest.empty();) {
      const size_t size = NextCodePoint(rest).size;
      offsets_.push_back(line.size() - rest.size());
      classes_.push_back(ClassOf(rest.substr(0, size)));
      rest.remove_prefix(size);
    }
    offsets_.push_back(line.size());
  }

  size_t size() const { return classes_.size(); }
  std::string_view Range(size_t begin, size_t end) const {
    return line_.substr(offsets_[begin], offsets_[end] - offsets_[begin]);
  }
  // These return false at and after the end.
  bool IsSpace(size_t i) const { return Has(i, kSpace); }
  bool IsHyphen(size_t i) const { return Has(i, kHyphen); }
  bool IsWord(size_t i) const { return Has(i, kWord); }
  bool IsLetter(size_t i) const { return Has(i, kLetter); }
  // A character that may stand before a dash.
  bool IsWordOrPunctuation(size_t i) const { return Has(i, kWord | kPunctuation); }

 private:
  enum Class : unsigned char { kSpace = 1, kHyphen = 2, kWord = 4, kLetter = 8, kPunctuation = 16 };

  static unsigned char ClassOf(std::string_view character) {
    const char byte = character.front();
    if (std::string_view("\t\n\v\f\r ").find(byte) != std::string_view::npos) return kSpace;
    if (byte == '-') return kHyphen;
    if (std::string_view("!\"'&.,?").find(byte) != std::string_view::npos) return kPunctuation;
    if (byte != '_' && !IsAll(character, CharClass::kAlnum)) return 0;
    return IsAll(character, CharClass::kDigit) ? kWord : kWord | kLetter;
  }
  bool Has(size_t i, int classes) const {
    return i < classes_.size() && (classes_[i] & classes) != 0;
  }

  std::string_view line_;
  std::vector<size_t> offsets_;
  std::vector<unsigned char> classes_;
};

// The end of two or more hyphens at `at` that a word follows, or `at`.
size_t DashEnd(const Characters& line, size_t at) {
  size_t end = at;
  while (line.IsHyphen(end)) ++end;
  return end >= at + 2 && line.IsWord(end) ? end : at;
}

// Returns whether a word may be cut after the hyphen at `at`, which joins two parts of letters.
bool JoinsWords(const Characters& line, size_t at) {
  if (!line.IsHyphen(at) || at < 2 || !line.IsLetter(at - 1)) return false;
  const bool after =
      line.IsLetter(at - 2) || (line.IsHyphen(at - 2) && at >= 3 && line.IsLetter(at - 3));
  return after && line.IsLetter(at + 1) &&
         (line.IsLetter(at + 2) || (line.IsHyphen(at + 2) && line.IsLetter(at + 3)));
}

// The end of the chunk at `begin`: white space, a dash between words, or a word, perhaps up to a
// hyphen. A line may end after each chunk.
size_t ChunkEnd(const Characters& line, size_t begin, bool on_hyphens) {
  size_t end = begin;
  while (line.IsSpace(end)) ++end;
  if (end > begin) return end;
  if (on_hyphens && begin > 0 && line.IsWordOrPunctuation(begin - 1)) {
    if (const size_t dash = DashEnd(line, begin); dash > begin) return dash;
  }
  for (end = begin + 1; end < line.size() && !line.IsSpace(end); ++end) {
    if (!on_hyphens) continue;
    if (JoinsWords(line, end)) return end + 1;
    if (line.IsWordOrPunctuation(end - 1) && DashEnd(line, end) > end) break;
  }
  return end;
}

// Returns where a word of [begin, end) is cut when only `space` characters fit: after its last
// hyphen there, if other characters stand before that.
size_t CutEnd(const Characters& line, size_t begin, size_t end, size_t space, bool on_hyphens) {
  if (!on_hyphens || end - begin <= space) return std::min(end, begin + space);
  size_t hyphen = begin + space;
  while (hyphen > begin && !line.IsHyphen(hyphen - 1)) --hyphen;
  // `hyphen` is the place after it.
  for (size_t i = begin; i + 1 < hyphen; ++i) {
    if (!line.IsHyphen(i)) return hyphen;
  }
  return begin + space;
}

}  // namespace

std::vector<std::string_view> WrapLine(std::string_view text, const WrapOptions& options) {
  const Characters line(text);
  const size_t width = options.width;
  std::vector<size_t> ends;  // The end of each chunk.
  for (size_t at = 0; at < line.size(); at = ends.back()) {
    ends.push_back(ChunkEnd(line, at, options.break_on_hyphens));
  }
  const auto is_blank = [&line](size_t begin, size_t end) {
    return StripSpace(line.Range(begin, end), Side::kBoth).empty();
  };
  std::vector<std::string_view> lines;
  size_t chunk = 0;
  size_t at = 0;  // The beginning of ends[chunk]'s chunk, or of what is left of it.
  while (chunk < ends.size()) {
    if (!lines.empty() && is_blank(at, ends[chunk])) at = ends[chunk++];
    const size_t begin = at;
    size_t last = at;  // The beginning of the line's last chunk.
    while (chunk < ends.size() && ends[chunk] - begin <= width) {
      last = at;
      at = ends[chunk++];
    }
    if (chunk < ends.size() && ends[chunk] - at > width) {
      const size_t space = width - (at - begin);
      if (options.break_long_words) {
        last =
            at;  // Even where there is no space left: Python keeps the white space before it then.
        at = CutEnd(line, at, ends[chunk], space, options.break_on_hyphens);
      } else if (at == begin) {
        last = at;
        at = ends[chunk++];
      }
    }
    const size_t end = is_blank(last, at) ? last : at;
    if (end > begin) lines.push_back(line.Range(begin, end));
  }
  return lines;
}

}  // namespace millrace::jinja
