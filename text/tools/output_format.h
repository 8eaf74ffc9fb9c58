// How a model writes tool calls and reasoning: the known formats by name, and the choice of them by
// the model's chat template.
#ifndef MILLRACE_TEXT_TOOLS_OUTPUT_FORMAT_H_
#define MILLRACE_TEXT_TOOLS_OUTPUT_FORMAT_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "text/tools/output_parser.h"
#include "text/tools/think_parser.h"
#include "text/tools/tool_format.h"

namespace millrace {

struct ReasoningFormat {
  std::string name;  // as --reasoning-parser has it
  bool harmony = false;
  ThinkFormat think;

  // Returns the texts that end the reasoning.
  std::vector<std::string> Closes() const;
};

// Immutable: any number of threads may use one.
class OutputFormat {
 public:
  // The names mean: "auto", as the template has it; "none", no parser; or one of the names below.
  // `own_tools`: whether the template writes the tools itself. InvalidArgument: no such parser.
  static absl::StatusOr<OutputFormat> Choose(std::string_view chat_template,
                                             std::string_view tool_parser,
                                             std::string_view reasoning_parser);

  static std::vector<std::string> ToolParsers();
  static std::vector<std::string> ReasoningParsers();

  const ToolFormat* tools() const { return tools_ ? &*tools_ : nullptr; }
  const ReasoningFormat* reasoning() const { return reasoning_ ? &*reasoning_ : nullptr; }
  // Takes a format that was derived from what the template renders.
  void SetTools(ToolFormat tools) { tools_ = std::move(tools); }

  // Returns the texts that structure an answer, which a special token may write.
  std::vector<std::string> Markers() const;

  // Returns whether a prompt that ends so has opened the reasoning. `prefill`: the beginning of the
  // answer that a client gave, which the prompt ends with.
  bool BeginsReasoning(std::string_view prompt_end, std::string_view prefill = "") const;

  // Returns the text that makes the answer a call, of the tool `name` or, if that is empty, of any.
  // It follows a prompt that ends with `prompt_end`, whose reasoning it closes.
  // `calls_before`: the calls in the conversation.
  std::string ForcedCall(std::string_view name, std::string_view prompt_end,
                         size_t calls_before = 0) const;

  struct Request {
    bool tools = false;
    bool reasoning = false;
    // Without `reasoning`: what the model thinks is content, with its markers.
    bool keeps_reasoning = false;
    bool chat = false;  // the prompt is a chat's
    std::vector<ToolSignature> signatures;
    bool inside_reasoning = false;
  };
  // Returns nullptr if there is nothing to find.
  std::unique_ptr<OutputParser> MakeParser(const Request& request) const;

 private:
  std::optional<ToolFormat> tools_;
  std::optional<ReasoningFormat> reasoning_;
};

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOOLS_OUTPUT_FORMAT_H_
