// Chats with tools, and helpers that say what their grammars take, for tests of these grammars.
#ifndef MILLRACE_ENGINE_CONSTRAINTS_ANSWER_GRAMMAR_TEST_UTIL_H_
#define MILLRACE_ENGINE_CONSTRAINTS_ANSWER_GRAMMAR_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/constraints/answer_grammar.h"
#include "engine/text/chat_format.h"
#include "text/grammar/test_limits.h"

namespace millrace {

inline constexpr char kTwoTools[] =
    R"([{"type":"function","function":{"name":"f","strict":true,"parameters":{"type":"object",
        "properties":{"n":{"type":"integer"},"s":{"type":"string"}},"required":["n"],
        "additionalProperties":false}}},
        {"type":"function","function":{"name":"g"}}])";
inline constexpr char kFreeTools[] =
    R"([{"type":"function","function":{"name":"f","parameters":{"type":"object",
        "properties":{"n":{"type":"integer"}}}}}])";

inline Chat WithTools(std::string tools, std::optional<std::string> forced = std::nullopt) {
  Chat chat;
  chat.tools = std::move(tools);
  chat.parse_tools = true;
  chat.forced_tool = std::move(forced);
  return chat;
}
inline Chat Forced(std::string tool, std::string tools = kTwoTools) {
  return WithTools(std::move(tools), std::move(tool));
}

struct Asked {
  Chat chat;
  std::string parser = "hermes";
  std::string reasoning = "qwen3";
  std::string format;  // a regular expression
  AnswerStart start = AnswerStart::kMayThink;
  bool parallel = true;
};

inline absl::StatusOr<std::shared_ptr<const Grammar>> Made(const Asked& asked) {
  const auto form = OutputFormat::Choose("", asked.parser, asked.reasoning);
  EXPECT_TRUE(form.ok()) << form.status();
  const GrammarSpec format{.kind = GrammarSpec::Kind::kRegex, .text = asked.format};
  const auto spec = AnswerGrammar({.chat = &asked.chat,
                                   .format = asked.format.empty() ? nullptr : &format,
                                   .start = asked.start,
                                   .parallel_tool_calls = asked.parallel},
                                  *form);
  if (!spec.ok()) return spec.status();
  EXPECT_TRUE(spec->has_value());
  return Grammar::Compile((*spec)->grammar, kUnhurried);
}

inline bool Takes(const Asked& asked, std::string_view text) {
  const auto grammar = Made(asked);
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  return grammar.ok() && (*grammar)->Matches(text);
}
inline bool Takes(const Chat& chat, const std::string& parser, std::string_view text) {
  return Takes({.chat = chat, .parser = parser}, text);
}

}  // namespace millrace

#endif  // MILLRACE_ENGINE_CONSTRAINTS_ANSWER_GRAMMAR_TEST_UTIL_H_
