#include "server/text/tokenizer.h"

#include <algorithm>

#include "base/status.h"
#include "base/strings.h"
#include "server/text/utf8.h"

namespace millrace {

absl::StatusOr<std::vector<Token>> Tokenizer::Encode(std::string_view text,
                                                     EncodeOptions options) const {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(
        StrCat("prompt: ", text.size(), " bytes of text, at most ", kMaxTextBytes, " are taken"));
  }
  if (const size_t at = FindInvalidUtf8(text); at != std::string_view::npos) {
    return absl::InvalidArgumentError(StrCat("prompt: not valid UTF-8 at byte ", at));
  }
  const SpecialMatcher& special = options.parse_special ? parsed_special_ : always_special_;
  std::vector<Token> tokens;
  if (options.add_special && add_bos_) tokens.push_back(*bos_);
  while (true) {
    const std::optional<SpecialMatcher::Match> match = special.Find(text);
    const std::string_view plain = text.substr(0, match ? match->begin : text.size());
    if (!plain.empty()) MILLRACE_RETURN_IF_ERROR(EncodePlain(plain, &tokens));
    if (!match) break;
    tokens.push_back(match->token);
    text.remove_prefix(match->begin + match->size);
  }
  if (options.add_special && add_eos_) tokens.push_back(*eos_);
  return tokens;
}

std::string_view Tokenizer::TokenBytes(Token token) const {
  if (token < 0 || token >= vocab_size()) return {};
  const uint32_t begin = token == 0 ? 0 : ends_[token - 1];
  return std::string_view(bytes_).substr(begin, ends_[token] - begin);
}

bool Tokenizer::IsSpecial(Token token) const {
  return token >= 0 && token < vocab_size() && special_[token];
}

void Tokenizer::Reserve(size_t tokens, size_t bytes) {
  bytes_.reserve(bytes);
  ends_.reserve(tokens);
  special_.reserve(tokens);
}

void Tokenizer::AddToken(std::string_view bytes, bool special) {
  bytes_.append(bytes);
  ends_.push_back(static_cast<uint32_t>(bytes_.size()));
  special_.push_back(special);
}

void Tokenizer::SetEndOfGeneration(std::initializer_list<std::optional<Token>> tokens) {
  for (const std::optional<Token>& token : tokens) {
    if (token) end_of_generation_.push_back(*token);
  }
  std::sort(end_of_generation_.begin(), end_of_generation_.end());
  end_of_generation_.erase(std::unique(end_of_generation_.begin(), end_of_generation_.end()),
                           end_of_generation_.end());
}

ByteTokenizer::ByteTokenizer() {
  for (int byte = 0; byte < 256; ++byte) {
    const char character = static_cast<char>(byte);
    AddToken({&character, 1}, /*special=*/false);
  }
  bos_ = vocab_size();
  AddToken("<s>", /*special=*/true);
  eos_ = vocab_size();
  AddToken("</s>", /*special=*/true);
  SetEndOfGeneration({eos_});
  parsed_special_ = SpecialMatcher({{"<s>", *bos_}, {"</s>", *eos_}});
}

absl::Status ByteTokenizer::EncodePlain(std::string_view text, std::vector<Token>* tokens) const {
  for (const char character : text) tokens->push_back(static_cast<uint8_t>(character));
  return absl::OkStatus();
}

}  // namespace millrace
