#include "text/tokenizer/precompiled_charsmap.h"

#include <utf8proc.h>

#include <algorithm>

#include "base/strings.h"
#include "text/utf8.h"

namespace millrace {
namespace {

constexpr size_t kMaxBytes = 1 << 26;
constexpr size_t kLongestGrapheme = 5;

uint32_t Read32(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) {
    value |= static_cast<uint32_t>(static_cast<uint8_t>(bytes[at + i])) << (8 * i);
  }
  return value;
}

// A unit of darts-clone's trie.
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t Value(uint32_t unit) { return unit & 0x7fffffff; }
uint32_t Label(uint32_t unit) { return unit & 0x800000ff; }
size_t Offset(uint32_t unit) { return static_cast<size_t>(unit >> 10) << ((unit & 0x200) >> 6); }

// The size of the first grapheme cluster.
size_t GraphemeSize(std::string_view text) {
  Utf8Character last = FirstCharacter(text);
  size_t size = last.size;
  utf8proc_int32_t state = 0;
  while (size < text.size()) {
    const Utf8Character next = FirstCharacter(text.substr(size));
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(last.code),
                                         static_cast<utf8proc_int32_t>(next.code), &state)) {
      break;
    }
    size += next.size;
    last = next;
  }
  return size;
}

}  // namespace

absl::StatusOr<PrecompiledCharsmap> PrecompiledCharsmap::Create(std::string_view bytes) {
  const size_t size = bytes.size() < 4 ? 0 : Read32(bytes, 0);
  if (bytes.size() > kMaxBytes || size == 0 || size % 4 != 0 || size > bytes.size() - 4) {
    return absl::InvalidArgumentError(
        StrCat("tokenizer: precompiled_charsmap: ", bytes.size(), " bytes with a trie of ", size));
  }
  PrecompiledCharsmap charsmap;
  charsmap.trie_.reserve(size / 4);
  for (size_t i = 0; i < size / 4; ++i) charsmap.trie_.push_back(Read32(bytes, 4 + 4 * i));
  charsmap.texts_ = bytes.substr(4 + size);
  if (FindInvalidUtf8(charsmap.texts_) != std::string_view::npos) {
    return absl::InvalidArgumentError("tokenizer: precompiled_charsmap: its texts are not UTF-8");
  }
  return charsmap;
}

std::optional<std::string_view> PrecompiledCharsmap::Find(std::string_view text) const {
  size_t node = Offset(trie_[0]);
  for (const char character : text) {
    const uint8_t byte = static_cast<uint8_t>(character);
    node ^= byte;
    if (byte == 0 || node >= trie_.size() || Label(trie_[node]) != byte) return std::nullopt;
    const uint32_t unit = trie_[node];
    node ^= Offset(unit);
    if (!HasLeaf(unit)) continue;
    if (node >= trie_.size()) return std::nullopt;
    const size_t at = Value(trie_[node]);
    if (at >= texts_.size() || (texts_[at] & 0xc0) == 0x80) return std::nullopt;
    return std::string_view(texts_).substr(at, texts_.find('\0', at) - at);
  }
  return std::nullopt;
}

std::optional<PrecompiledCharsmap::Prefix> PrecompiledCharsmap::FindLongest(
    std::string_view text) const {
  std::optional<Prefix> longest;
  size_t node = Offset(trie_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const uint8_t byte = static_cast<uint8_t>(text[i]);
    node ^= byte;
    if (byte == 0 || node >= trie_.size() || Label(trie_[node]) != byte) break;
    const uint32_t unit = trie_[node];
    node ^= Offset(unit);
    if (!HasLeaf(unit)) continue;
    if (node >= trie_.size()) break;
    const size_t at = Value(trie_[node]);
    if (at >= texts_.size() || (texts_[at] & 0xc0) == 0x80) break;
    const bool in_character = i + 1 < text.size() && (text[i + 1] & 0xc0) == 0x80;
    if (in_character) continue;
    longest = {i + 1, std::string_view(texts_).substr(at, texts_.find('\0', at) - at)};
  }
  return longest;
}

std::string PrecompiledCharsmap::Apply(std::string_view text, size_t most,
                                       size_t* first_bytes) const {
  std::string out;
  out.reserve(text.size());
  size_t at = 0;
  size_t first = 0;  // The bytes of `out` that stem from the first part.
  const size_t given = first_bytes == nullptr ? 0 : *first_bytes;
  // Replaces the next `size` bytes. Characters stem from those of the same places; what is more
  // than these stems from the last one.
  const auto add = [&](size_t size, std::string_view content) {
    const size_t begin = out.size();
    out += content;
    if (at + size <= given) {
      first = out.size();
    } else {
      for (size_t in = at; in < given && first < out.size();) {
        in += FirstUtf8Unit(text.substr(in)).size;
        first = std::max(first, begin) + FirstUtf8Unit(std::string_view(out).substr(first)).size;
      }
    }
    // Hugging Face's tokenizers forget characters that they drop at the very front: the next one
    // takes their place.
    if (begin == 0 && at > 0 && given > 0 && !out.empty()) {
      const bool single = FirstUtf8Unit(text.substr(at)).size == size;
      first = std::max(first, single ? out.size() : FirstUtf8Unit(out).size);
    }
    at += size;
  };
  while (at < text.size() && out.size() <= most) {
    std::string_view grapheme = text.substr(at, GraphemeSize(text.substr(at)));
    if (grapheme.size() <= kLongestGrapheme) {
      if (const auto whole = Find(grapheme)) {
        add(grapheme.size(), *whole);
        continue;
      }
    }
    while (!grapheme.empty() && out.size() <= most) {
      const std::string_view character = grapheme.substr(0, FirstUtf8Unit(grapheme).size);
      add(character.size(), Find(character).value_or(character));
      grapheme.remove_prefix(character.size());
    }
  }
  if (first_bytes != nullptr) *first_bytes = first;
  return out;
}

}  // namespace millrace
