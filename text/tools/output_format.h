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
#include "text/tools/marked_parser.h"
#include "text/tools/output_parser.h"
#include "text/tools/think_parser.h"
#include "text/tools/xml_parser.h"

namespace millrace {

// How calls are written.
struct ToolFormat {
  std::string name;  // of the parser, as --tool-call-parser has it
  enum class Kind { kMarked, kXml, kHarmony } kind = Kind::kMarked;
  MarkedFormat marked = {};
  XmlFormat xml = {};
  // The texts before a call's name and between the name and its arguments. An answer that begins
  // so is a call.
  std::string call_begins;
  std::string arguments_begin;

  // Returns the texts that open a call, or a section of calls.
  std::vector<std::string> Opens() const;
};

struct ReasoningFormat {
  std::string name;  // as --reasoning-parser has it
  bool harmony = false;
  ThinkFormat think;
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
  std::string ForcedCall(std::string_view name, std::string_view prompt_end) const;

  struct Request {
    bool tools = false;
    bool reasoning = false;
    // Without `reasoning`: what the model thinks is content, with its markers.
    bool keeps_reasoning = false;
    std::vector<ToolSignature> signatures;
    bool inside_reasoning = false;
  };
  // Returns nullptr if there is nothing to find.
  std::unique_ptr<OutputParser> MakeParser(const Request& request) const;

 private:
  std::optional<ToolFormat> tools_;
  std::optional<ReasoningFormat> reasoning_;
};

// Derives how calls are written from an answer without and with one, as a template renders them
// after the same prompt. The call's tool is `name`. Nothing: it is no JSON object, or nothing
// stands before it by which it could be told from text.
std::optional<ToolFormat> DeriveToolFormat(std::string_view with_text, std::string_view text,
                                           std::string_view with_call, std::string_view name);

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOOLS_OUTPUT_FORMAT_H_
