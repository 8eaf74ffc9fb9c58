// Byte fallback: tokens "<0x00>" to "<0xFF>" stand for bytes of characters that have no token.
#ifndef MILLRACE_TEXT_TOKENIZER_BYTE_TOKENS_H_
#define MILLRACE_TEXT_TOKENIZER_BYTE_TOKENS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "base/token.h"
#include "formats/tokenizers/tokenizer_spec.h"

namespace millrace {

using ByteTokenTable = std::array<std::optional<Token>, 256>;

// Returns the byte that a token's text "<0x41>" means.
std::optional<uint8_t> ByteOfToken(std::string_view text);

ByteTokenTable ByteTokens(absl::Span<const VocabularyEntry> vocabulary);

// Returns false, with nothing appended, when a byte of `text` has no token.
bool AppendByteTokens(const ByteTokenTable& table, std::string_view text,
                      std::vector<Token>* tokens);

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_BYTE_TOKENS_H_
