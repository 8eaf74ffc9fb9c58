#include "text/tokenizer/byte_tokens.h"

#include <algorithm>
#include <charconv>

namespace millrace {

std::optional<uint8_t> ByteOfToken(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return std::nullopt;
  uint8_t byte = 0;
  const char* const end = text.data() + 5;
  const auto [stop, error] = std::from_chars(text.data() + 3, end, byte, 16);
  if (error != std::errc() || stop != end) return std::nullopt;
  return byte;
}

ByteTokenTable ByteTokens(absl::Span<const VocabularyEntry> vocabulary) {
  ByteTokenTable table;
  for (const VocabularyEntry& entry : vocabulary) {
    // Encoders write large digits; small ones are read alone.
    const bool lower = std::any_of(entry.text.begin(), entry.text.end(),
                                   [](char c) { return c >= 'a' && c <= 'f'; });
    const std::optional<uint8_t> byte = ByteOfToken(entry.text);
    if (byte && !lower) table[*byte] = entry.id;
  }
  return table;
}

bool AppendByteTokens(const ByteTokenTable& table, std::string_view text,
                      std::vector<Token>* tokens) {
  for (const char byte : text) {
    if (!table[static_cast<uint8_t>(byte)]) return false;
  }
  for (const char byte : text) tokens->push_back(*table[static_cast<uint8_t>(byte)]);
  return true;
}

}  // namespace millrace
