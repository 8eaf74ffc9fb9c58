#include "text/tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "text/tokenizer/subword_model.h"
#include "text/utf8.h"

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
  MILLRACE_RETURN_IF_ERROR(CheckWanted(options.cancelled));
  std::vector<Token> tokens;
  MILLRACE_RETURN_IF_ERROR(EncodeText(text, options, &tokens));
  return tokens;
}

std::string_view Tokenizer::TokenBytes(Token token) const {
  if (token < 0 || token >= vocab_size()) return {};
  const uint32_t begin = token == 0 ? 0 : ends_[token - 1];
  return std::string_view(bytes_).substr(begin, ends_[token] - begin);
}

std::string_view Tokenizer::FirstTokenBytes(Token token) const {
  const auto it = first_.find(token);
  return it == first_.end() ? TokenBytes(token) : std::string_view(it->second);
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

void Tokenizer::SetEndOfGeneration(std::vector<Token> tokens) {
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  end_of_generation_ = std::move(tokens);
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
  SetEndOfGeneration({*eos_});
  special_ = SpecialMatcher({{"<s>", *bos_}, {"</s>", *eos_}});
}

absl::Status ByteTokenizer::EncodeText(std::string_view text, EncodeOptions options,
                                       std::vector<Token>* tokens) const {
  while (!text.empty()) {
    const auto match = options.parse_special ? special_.Find(text) : std::nullopt;
    const std::string_view plain = text.substr(0, match ? match->begin : text.size());
    for (const char byte : plain) tokens->push_back(static_cast<uint8_t>(byte));
    if (match) tokens->push_back(match->token);
    text.remove_prefix(plain.size() + (match ? match->size : 0));
  }
  return absl::OkStatus();
}

}  // namespace millrace
