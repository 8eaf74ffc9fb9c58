// The grammars of tool calls, in each form that models write them in.
#ifndef MILLRACE_ENGINE_CONSTRAINTS_CALL_GRAMMAR_H_
#define MILLRACE_ENGINE_CONSTRAINTS_CALL_GRAMMAR_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/constraints/element_objects.h"
#include "engine/request/request.h"
#include "text/grammar/grammar.h"
#include "text/tools/output_format.h"

namespace millrace {

// Shorthands for the parts of a grammar.
GrammarSpec SequenceOf(std::vector<GrammarSpec> parts);
GrammarSpec OneOf(std::vector<GrammarSpec> parts);
GrammarSpec Repeated(GrammarSpec part, int32_t min, int32_t max);
GrammarSpec OptionalPart(GrammarSpec part);
GrammarSpec MarkerSpec(std::string_view text);
GrammarSpec LiteralSpec(std::string_view text);
GrammarSpec RegexSpec(std::string_view regex);
GrammarSpec TextWithout(std::vector<std::string> texts);
// White space as models write it between the parts of an answer, bounded so that it ends.
GrammarSpec ShortSpace();

struct GrammarTool {
  std::string name;
  nlohmann::ordered_json parameters;  // a schema, or null
  bool strict = false;
  std::optional<GrammarSpec> text = std::nullopt;  // of kTextArgument, the only argument; is strict
};
// Returns the tools of a JSON list of OpenAI's tools. Those in `texts` with a grammar are strict.
std::vector<GrammarTool> ReadGrammarTools(const std::string& text, const TextTools& texts);

// Builds the grammars of one format's calls. The arguments of a strict tool are held to its schema.
// InvalidArgument: a schema that cannot be enforced in this form of calls.
class CallGrammar {
 public:
  // `format` has tools, and outlives this.
  explicit CallGrammar(const OutputFormat& format);

  // Returns the rest of a call whose beginning the prompt has: from the name on, or from the
  // arguments on. Those of a tool that is not strict are held to what of its schema can be
  // enforced. `calls_before`: the calls in the conversation.
  absl::StatusOr<GrammarSpec> Forced(const GrammarTool& tool, bool with_name,
                                     size_t calls_before) const;

  // Returns one to `most` calls, as the model writes them of its own accord. The arguments of a
  // tool that is not strict are any.
  absl::StatusOr<GrammarSpec> Calls(const std::vector<GrammarTool>& tools, int32_t most) const;

  // Returns text and calls in any order. Where a call needs no marker at the start of an answer,
  // the text does not begin with `not_first`, behind which there might be another start.
  absl::StatusOr<GrammarSpec> TextAndCalls(const std::vector<GrammarTool>& tools,
                                           std::string_view not_first) const;

  // Returns a text in which markers may be special tokens.
  GrammarSpec Text(std::string_view text) const;

  // Returns one call as its channel has it (harmony): from its recipient to its arguments.
  absl::StatusOr<GrammarSpec> ChannelCall(const std::vector<GrammarTool>& tools) const;

 private:
  enum class Hold { kFree, kLenient, kStrict };

  absl::StatusOr<GrammarSpec> Arguments(const GrammarTool& tool, Hold hold) const;
  GrammarSpec TextArgument(GrammarSpec text) const;
  absl::StatusOr<GrammarSpec> Elements(const GrammarTool& tool, Hold hold) const;
  // One of an object's properties, and the element that writes it.
  struct ListedElement {
    std::string key;
    GrammarSpec element;
    bool required = false;
  };
  static std::optional<GrammarSpec> Listed(const ElementObject& object,
                                           absl::Span<const ListedElement> elements,
                                           const std::set<std::string, std::less<>>& keys);
  GrammarSpec Element(const std::string& key, GrammarSpec value, std::string_view type,
                      std::string_view line = "\\n?") const;
  GrammarSpec FreeElements(GrammarSpec value) const;
  GrammarSpec Value(const GrammarTool& tool, const nlohmann::ordered_json& schema, Hold hold) const;
  absl::StatusOr<std::vector<GrammarSpec>> EachTool(
      const std::vector<GrammarTool>& tools,
      absl::StatusOr<GrammarSpec> (CallGrammar::*make)(const GrammarTool&, Hold) const) const;
  absl::StatusOr<GrammarSpec> ObjectCall(const GrammarTool& tool, Hold hold) const;
  absl::StatusOr<GrammarSpec> PythonCall(const GrammarTool& tool, Hold hold) const;
  absl::StatusOr<GrammarSpec> RecipientCall(const GrammarTool& tool, Hold hold) const;
  absl::StatusOr<GrammarSpec> HeaderCall(const GrammarTool& tool, Hold hold) const;
  absl::StatusOr<GrammarSpec> ElementCall(const GrammarTool& tool, Hold hold) const;
  absl::StatusOr<GrammarSpec> Section(const std::vector<GrammarTool>& tools, int32_t most) const;
  absl::StatusOr<GrammarSpec> BareCalls(const std::vector<GrammarTool>& tools, int32_t most) const;
  absl::StatusOr<GrammarSpec> PythonSection(const std::vector<GrammarTool>& tools,
                                            int32_t most) const;
  GrammarSpec AnyMarker(const std::vector<std::string>& markers) const;
  bool python() const { return tools_.marked.arguments == ArgumentForm::kPython; }
  bool recipients() const { return tools_.kind == ToolFormat::Kind::kRecipients; }

  const ToolFormat& tools_;
  std::vector<std::string> markers_;
};

}  // namespace millrace

#endif  // MILLRACE_ENGINE_CONSTRAINTS_CALL_GRAMMAR_H_
