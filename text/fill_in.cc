#include "text/fill_in.h"

#include <string>

#include "base/status.h"

namespace millrace {
namespace {

struct Names {
  std::string_view prefix, suffix, middle;  // of a middle: empty for none
};

constexpr Names kNames[] = {
    {"<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"},     // Qwen, CodeGemma
    {"<fim_prefix>", "<fim_suffix>", "<fim_middle>"},           // StarCoder, Granite
    {"<fim-prefix>", "<fim-suffix>", "<fim-middle>"},           // SantaCoder
    {"<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"},     // DeepSeek
    {"▁<PRE>", "▁<SUF>", "▁<MID>"},                             // CodeLlama
    {"<PRE>", "<SUF>", "<MID>"},                                // CodeLlama
    {"<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"},  // GLM
    {"[PREFIX]", "[SUFFIX]", "[MIDDLE]"},                       // Devstral
    {"[PREFIX]", "[SUFFIX]", ""},                               // Codestral
};

// Models write these behind the middle: padding, another file, another repository.
constexpr std::string_view kEnds[] = {
    "<|fim_pad|>", "<fim_pad>",     "<fim-pad>",  "<|file_sep|>", "<|file_separator|>",
    "<file_sep>",  "<|repo_name|>", "<reponame>", "▁<EOT>",       "<EOT>",
};

// Returns the token that this text names, which stands for itself in the vocabulary.
std::optional<Token> Find(const Tokenizer& tokenizer, std::string_view name) {
  const auto tokens = tokenizer.Encode(name, {.add_special = false, .parse_special = true});
  if (!tokens.ok() || tokens->size() != 1) return std::nullopt;
  const std::string_view bytes = tokenizer.TokenBytes(tokens->front());
  // SentencePiece's sign for a space may be read as one.
  constexpr std::string_view kSpace = "▁";
  const std::string spaced =
      name.starts_with(kSpace) ? " " + std::string(name.substr(kSpace.size())) : "";
  if (bytes != name && (spaced.empty() || bytes != spaced)) return std::nullopt;
  return tokens->front();
}

std::optional<FillInTokens> FindNamed(const Tokenizer& tokenizer) {
  for (const Names& names : kNames) {
    const auto prefix = Find(tokenizer, names.prefix), suffix = Find(tokenizer, names.suffix);
    if (!prefix.has_value() || !suffix.has_value()) continue;
    FillInTokens found = {.prefix = *prefix, .suffix = *suffix};
    if (!names.middle.empty()) {
      found.middle = Find(tokenizer, names.middle);
      if (!found.middle.has_value()) continue;
    }
    return found;
  }
  return std::nullopt;
}

}  // namespace

std::optional<FillInTokens> FindFillInTokens(const Tokenizer& tokenizer, const FillInIds& ids) {
  std::optional<FillInTokens> found;
  if (ids.prefix.has_value() && ids.suffix.has_value()) {
    found = FillInTokens{.prefix = *ids.prefix, .suffix = *ids.suffix, .middle = ids.middle};
  } else {
    found = FindNamed(tokenizer);
  }
  if (!found.has_value()) return found;
  for (const std::string_view name : kEnds) {
    if (const auto end = Find(tokenizer, name)) found->ends.push_back(*end);
  }
  return found;
}

absl::StatusOr<std::vector<Token>> FillInPrompt(const Tokenizer& tokenizer,
                                                const FillInTokens& tokens,
                                                absl::Span<const Token> prefix,
                                                std::string_view suffix) {
  MILLRACE_ASSIGN_OR_RETURN(
      const std::vector<Token> after,
      tokenizer.Encode(suffix, {.add_special = false, .parse_special = false}));
  MILLRACE_ASSIGN_OR_RETURN(std::vector<Token> prompt,
                            tokenizer.Encode("", {.add_special = true, .parse_special = false}));
  prompt.resize(static_cast<size_t>(tokenizer.text_frame().opening));
  const auto add_prefix = [&] {
    prompt.push_back(tokens.prefix);
    prompt.insert(prompt.end(), prefix.begin(), prefix.end());
  };
  if (tokens.middle.has_value()) add_prefix();
  prompt.push_back(tokens.suffix);
  prompt.insert(prompt.end(), after.begin(), after.end());
  if (tokens.middle.has_value()) {
    prompt.push_back(*tokens.middle);
  } else {
    add_prefix();
  }
  return prompt;
}

}  // namespace millrace
