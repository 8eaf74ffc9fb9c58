// The grammar of a whole answer: what the model thinks, which is free, then a format or calls.
#ifndef MILLRACE_ENGINE_CONSTRAINTS_ANSWER_GRAMMAR_H_
#define MILLRACE_ENGINE_CONSTRAINTS_ANSWER_GRAMMAR_H_

#include <optional>

#include "absl/status/statusor.h"
#include "engine/request/request.h"
#include "text/grammar/grammar.h"
#include "text/tools/output_format.h"

namespace millrace {

// How an answer begins, which the end of its prompt tells.
enum class AnswerStart {
  kContent,      // what the model thinks has ended, or the prompt has begun the content
  kMayThink,     // the model may open its reasoning
  kInReasoning,  // the prompt has opened it
};

struct AnswerParts {
  const Chat* chat = nullptr;           // null: there are no tools
  const GrammarSpec* format = nullptr;  // what the content is held to; null: any text
  AnswerStart start = AnswerStart::kMayThink;
  bool parallel_tool_calls = true;
};

struct HeldAnswer {
  GrammarSpec grammar;
  // The model writes markers and calls of its own accord: with which tokens is its choice, too,
  // where the grammar leaves the text no other.
  bool free_tokens = false;
};

// Returns what an answer must be:
// - where a call is forced, the rest of the call, whose beginning the prompt has;
// - where there is a format, reasoning, and then the format or, if there are tools, calls;
// - where a tool is strict, reasoning, text and calls, of which those of strict tools are held to
//   their schemas;
// - else nothing.
// InvalidArgument, about `tools`: a schema that cannot be enforced in the model's form of calls.
absl::StatusOr<std::optional<HeldAnswer>> AnswerGrammar(const AnswerParts& parts,
                                                        const OutputFormat& format);

// Returns what ends a message of reasoning in channels and begins the next one: the content, or,
// with `calls`, one that may be a call.
GrammarSpec ChannelsAfterReasoning(bool calls);

}  // namespace millrace

#endif  // MILLRACE_ENGINE_CONSTRAINTS_ANSWER_GRAMMAR_H_
