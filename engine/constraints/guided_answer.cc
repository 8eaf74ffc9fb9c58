#include "engine/constraints/guided_answer.h"

#include <string>
#include <string_view>
#include <utility>

#include "plan/sample_mask.h"

namespace millrace {
namespace {

// Returns the tokens that write `text` behind others, if the tokenizer's own do so. Some take a
// text for a beginning and put a space before it: behind a line break they do not.
std::vector<Token> TokensBehind(const Tokenizer& tokenizer, std::string_view text) {
  for (const std::string_view before : {"", "\n"}) {
    const std::string whole = std::string(before) + std::string(text);
    const absl::StatusOr<std::vector<Token>> tokens =
        tokenizer.Encode(whole, {.add_special = false, .parse_special = false});
    if (!tokens.ok()) return {};
    // The longest tail of the tokens that writes the text.
    size_t first = tokens->size();
    size_t left = text.size();
    while (first > 0 && left > 0) {
      const std::string_view bytes = tokenizer.TokenBytes((*tokens)[first - 1]);
      if (bytes.size() > left || text.substr(left - bytes.size(), bytes.size()) != bytes) break;
      left -= bytes.size();
      --first;
    }
    const bool all = first == 0 || !before.empty();
    if (left == 0 && all) return {tokens->begin() + static_cast<ptrdiff_t>(first), tokens->end()};
  }
  return {};
}

}  // namespace

GuidedAnswer::GuidedAnswer(GrammarMatcher matcher, const Tokenizer* tokenizer)
    : matcher_(std::move(matcher)), tokenizer_(tokenizer) {
  FindForced();
}

void GuidedAnswer::FindForced() {
  if (tokenizer_ == nullptr) return;
  const std::string text = matcher_.ForcedBytes();
  if (text.size() < 2) return;
  std::vector<Token> tokens = TokensBehind(*tokenizer_, text);
  if (tokens.empty()) return;
  GrammarMatcher behind = matcher_;
  if (!behind.AcceptBytes(text)) return;
  if (!behind.finished()) tokens.pop_back();
  behind = matcher_;
  for (const Token token : tokens) {
    if (!behind.Accept(token)) return;  // the grammar's vocabulary lacks it
  }
  matcher_ = std::move(behind);
  forced_.assign(tokens.begin(), tokens.end());
}

bool GuidedAnswer::Accept(Token token) {
  if (!forced_.empty()) {
    if (token != forced_.front()) return false;
    forced_.pop_front();
    return true;
  }
  if (!matcher_.Accept(token)) return false;
  FindForced();
  return true;
}

std::vector<Token> GuidedAnswer::TakeForced() {
  std::vector<Token> tokens(forced_.begin(), forced_.end());
  forced_.clear();
  return tokens;
}

absl::StatusOr<std::shared_ptr<const TokenMask>> GuidedAnswer::Mask() {
  if (forced_.empty()) return matcher_.Mask();
  return OnlyToken(forced_.front(), matcher_.vocabulary().mask_size());
}

}  // namespace millrace
