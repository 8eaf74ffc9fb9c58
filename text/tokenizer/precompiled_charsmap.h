// SentencePiece's precompiled map of characters to what they are normalized to: a double-array trie
// (Aoe, 1989, in the layout of darts-clone) whose values are places in a list of texts.
#ifndef MILLRACE_TEXT_TOKENIZER_PRECOMPILED_CHARSMAP_H_
#define MILLRACE_TEXT_TOKENIZER_PRECOMPILED_CHARSMAP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace millrace {

class PrecompiledCharsmap {
 public:
  // `bytes`: the trie's size in bytes (32 bits, little-endian), the trie, texts that end in NUL.
  // INVALID_ARGUMENT for sizes that lie, or texts that are no UTF-8.
  static absl::StatusOr<PrecompiledCharsmap> Create(std::string_view bytes);

  // Maps the text as Hugging Face's tokenizers do: a whole grapheme of less than 6 bytes where the
  // map knows it, and else each of its characters. Stops where the result is longer than `most`
  // bytes. `first_bytes`, if given, is the size of a part at the front of `text`, and becomes the
  // size of what stems from it.
  std::string Apply(std::string_view text, size_t most, size_t* first_bytes = nullptr) const;

  // The replacement of the first `size` bytes of a text: whole characters.
  struct Prefix {
    size_t size;
    std::string_view replacement;
  };
  // Returns the longest prefix of `text` that the map has, as SentencePiece takes it.
  std::optional<Prefix> FindLongest(std::string_view text) const;

 private:
  // Returns the replacement of the shortest beginning of `text` that the map knows.
  std::optional<std::string_view> Find(std::string_view text) const;

  std::vector<uint32_t> trie_;
  std::string texts_;
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_PRECOMPILED_CHARSMAP_H_
