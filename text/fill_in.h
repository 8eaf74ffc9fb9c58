// Prompts to fill in the middle of a text (Bavarian et al., arXiv:2207.14255), with the tokens that
// models of code have for them.
#ifndef MILLRACE_TEXT_FILL_IN_H_
#define MILLRACE_TEXT_FILL_IN_H_

#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/token.h"
#include "formats/model_text.h"
#include "text/tokenizer/tokenizer.h"

namespace millrace {

// The tokens before a text's parts, and those which end what is filled in beside the model's own.
struct FillInTokens {
  Token prefix, suffix;
  std::optional<Token> middle;  // none: the suffix comes first, and the answer follows the prefix
  std::vector<Token> ends;
};

// Returns those that the model's file names, or else those whose texts are known to be such (Qwen,
// CodeGemma, StarCoder, Granite, DeepSeek, CodeLlama, GLM, Codestral). Nothing: there are none.
std::optional<FillInTokens> FindFillInTokens(const Tokenizer& tokenizer, const FillInIds& ids);

// Returns the prompt that asks for what is between `prefix`, in tokens, and `suffix`. Texts of
// special tokens in the suffix are no tokens.
absl::StatusOr<std::vector<Token>> FillInPrompt(const Tokenizer& tokenizer,
                                                const FillInTokens& tokens,
                                                absl::Span<const Token> prefix,
                                                std::string_view suffix);

}  // namespace millrace

#endif  // MILLRACE_TEXT_FILL_IN_H_
