#include "text/tokenizer/regex_encoding.h"

#include <oniguruma.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/types/span.h"
#include "text/tokenizer/code_range.h"
#include "text/tokenizer/unicode_classes.h"

namespace millrace {
namespace {

// The ranges of a class as Oniguruma takes them: their number, then the first and the last code
// point of each, ascending.
using Ranges = std::vector<OnigCodePoint>;

// Oniguruma numbers its classes. Those of kClassAdditions follow behind all of its own.
constexpr int kFirstAddition = 1 << 20;

absl::Span<const CodeRange> RangesOf(ClassSlice slice) {
  return absl::MakeConstSpan(kClassRanges).subspan(slice.begin, slice.size);
}

// Returns the number of \p{name}; negative when there is none.
int NumberOf(OnigEncodingType* encoding, std::string_view name) {
  std::string copy(name);
  auto* begin = reinterpret_cast<OnigUChar*>(copy.data());
  return encoding->property_name_to_ctype(encoding, begin, begin + copy.size());
}

// Returns nothing when there is no such class.
std::vector<CodeRange> Members(const OnigEncodingType& encoding, int number) {
  std::vector<CodeRange> result;
  OnigCodePoint single_bytes = 0;
  const OnigCodePoint* ranges = nullptr;
  if (number < 0 || encoding.get_ctype_code_range(static_cast<OnigCtype>(number), &single_bytes,
                                                  &ranges) != ONIG_NORMAL) {
    return result;
  }
  for (size_t i = 0; i < ranges[0]; ++i) result.push_back({ranges[1 + 2 * i], ranges[2 + 2 * i]});
  return result;
}

// Returns the members of `ranges` and of `added` without those of `removed`.
Ranges Changed(std::vector<CodeRange> ranges, absl::Span<const CodeRange> added,
               absl::Span<const CodeRange> removed) {
  ranges.insert(ranges.end(), added.begin(), added.end());
  std::sort(ranges.begin(), ranges.end(),
            [](const CodeRange& left, const CodeRange& right) { return left.first < right.first; });
  Ranges result = {0};
  const auto append = [&result](char32_t first, char32_t last) {
    if (result[0] > 0 && first <= result.back() + 1) {
      result.back() = std::max<OnigCodePoint>(result.back(), last);
      return;
    }
    result.insert(result.end(), {first, last});
    ++result[0];
  };
  const CodeRange* out = removed.begin();
  for (auto [first, last] : ranges) {
    while (out != removed.end() && out->last < first) ++out;
    for (const CodeRange* hole = out; hole != removed.end() && hole->first <= last; ++hole) {
      if (hole->first > first) append(first, hole->first - 1);
      first = hole->last + 1;
    }
    if (first <= last) append(first, last);
  }
  return result;
}

// The classes that the installed Oniguruma has otherwise or lacks.
class Classes {
 public:
  static const Classes& Get() {
    static const auto& classes = *new Classes();
    return classes;
  }

  // Returns the number of the class that kClassAdditions has for a name, in any case and with '_',
  // '-' and ' '; nothing when it has none.
  std::optional<int> FindAddition(std::string_view name) const {
    std::string canonical;
    for (const char c : name) {
      if (c != '_' && c != '-' && c != ' ') {
        canonical += absl::ascii_tolower(static_cast<unsigned char>(c));
      }
    }
    const auto found = additions_.find(canonical);
    return found == additions_.end() ? std::nullopt : std::optional(found->second);
  }

  // Returns null for a class that has not changed.
  const OnigCodePoint* FindRanges(OnigCtype number) const {
    const std::vector<Ranges>& list = number < kFirstAddition ? changed_ : added_;
    const size_t at = number < kFirstAddition ? number : number - kFirstAddition;
    return at < list.size() && !list[at].empty() ? list[at].data() : nullptr;
  }

 private:
  Classes() {
    for (const ClassChange& change : kClassChanges) {
      const int number = NumberOf(&OnigEncodingUTF8, change.name);
      if (number < 0) continue;
      if (static_cast<size_t>(number) >= changed_.size()) {
        changed_.resize(static_cast<size_t>(number) + 1);
      }
      changed_[static_cast<size_t>(number)] = Changed(
          Members(OnigEncodingUTF8, number), RangesOf(change.added), RangesOf(change.removed));
    }
    for (const ClassAddition& addition : kClassAdditions) {
      additions_[addition.name] = kFirstAddition + static_cast<int>(added_.size());
      const int like = NumberOf(&OnigEncodingUTF8, addition.like);
      added_.push_back(Changed(Members(OnigEncodingUTF8, like), RangesOf(addition.added),
                               RangesOf(addition.removed)));
    }
  }

  std::vector<Ranges> changed_;  // by number, empty where nothing has changed
  std::vector<Ranges> added_;    // by number - kFirstAddition
  absl::flat_hash_map<std::string_view, int> additions_;
};

int NumberOfName(OnigEncodingType* /*encoding*/, OnigUChar* begin, OnigUChar* end) {
  const std::string_view name(reinterpret_cast<const char*>(begin),
                              static_cast<size_t>(end - begin));
  const std::optional<int> addition = Classes::Get().FindAddition(name);
  return addition ? *addition
                  : OnigEncodingUTF8.property_name_to_ctype(&OnigEncodingUTF8, begin, end);
}

int IsOfClass(OnigCodePoint code, OnigCtype number) {
  // Oniguruma has a table for Latin-1, which \w and \b see and [\w] does not.
  const bool latin1 = code < 0x100 && number <= ONIGENC_CTYPE_ASCII;
  const OnigCodePoint* ranges = latin1 ? nullptr : Classes::Get().FindRanges(number);
  if (ranges == nullptr) return OnigEncodingUTF8.is_code_ctype(code, number);
  size_t begin = 0;
  for (size_t end = ranges[0]; begin < end;) {
    const size_t middle = (begin + end) / 2;
    if (ranges[2 + 2 * middle] < code) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin < ranges[0] && ranges[1 + 2 * begin] <= code ? 1 : 0;
}

int RangesOfClass(OnigCtype number, OnigCodePoint* single_bytes, const OnigCodePoint* ranges[]) {
  const OnigCodePoint* changed = Classes::Get().FindRanges(number);
  if (changed == nullptr) {
    return OnigEncodingUTF8.get_ctype_code_range(number, single_bytes, ranges);
  }
  *single_bytes = 0x80;
  *ranges = changed;
  return ONIG_NORMAL;
}

}  // namespace

OnigEncodingTypeST* TokenizerEncoding() {
  static OnigEncodingType encoding = [] {
    OnigEncodingType changed = OnigEncodingUTF8;
    changed.property_name_to_ctype = NumberOfName;
    changed.is_code_ctype = IsOfClass;
    changed.get_ctype_code_range = RangesOfClass;
    return changed;
  }();
  return &encoding;
}

std::vector<CodeRange> MembersOfClass(std::string_view name) {
  OnigEncodingType* encoding = TokenizerEncoding();
  return Members(*encoding, NumberOf(encoding, name));
}

}  // namespace millrace
