#include "engine/text/call_text.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "base/strings.h"
#include "formats/json/exact_json.h"
#include "text/tools/json_call.h"
#include "text/tools/literal_reader.h"
#include "text/tools/recipient_parser.h"

namespace millrace {
namespace {

std::string Elements(const XmlFormat& xml, std::string_view arguments) {
  const auto object = ParseExact(arguments, kCallJson);
  if (!object.ok() || !object->is_object()) return StrCat(arguments, "\n");
  const std::string_view line = xml.value_open.empty() ? "\n" : "";
  std::string text;
  for (const auto& [key, value] : object->items()) {
    text += StrCat(xml.key_open, key, xml.key_close, line, xml.value_open, TextOrJson(value), line,
                   xml.value_close, "\n");
  }
  return text;
}

std::string Literals(ArgumentForm form, std::string_view arguments) {
  const auto object = ParseExact(arguments, kCallJson);
  if (!object.ok() || !object->is_object()) return std::string(arguments);
  return ArgumentsText(form, *object);
}

// Writes calls in one list, or a call on each line.
std::string PythonCalls(const ToolFormat& format, absl::Span<const ToolCall> calls) {
  const bool list = format.call_begins.ends_with('[');
  std::string text = format.call_begins;
  for (const ToolCall& call : calls) {
    if (&call != &calls.front()) text += list ? ", " : "\n";
    text += StrCat(call.name, "(", Literals(ArgumentForm::kPython, call.arguments), ")");
  }
  text += list ? "]" : "\n";
  // A list without a marker before it has none behind it.
  if (format.call_begins != "[") text += format.marked.close.front();
  return text;
}

// Returns one call with all that stands around it.
std::string CallText(const ToolFormat& format, const ToolCall& call, size_t before) {
  const std::string& arguments = call.arguments;
  const std::string begin = StrCat(format.call_begins, call.name, format.AfterName(before));
  if (format.kind == ToolFormat::Kind::kRecipients) {
    return StrCat(kRecipientOpen, begin, arguments);
  }
  const ArgumentForm form = format.marked.arguments;
  if (form != ArgumentForm::kJson) {
    return StrCat(begin, "{", Literals(form, arguments), "}", format.marked.close.front());
  }
  if (format.kind == ToolFormat::Kind::kHarmony) return StrCat(begin, arguments, "<|call|>");
  if (format.kind == ToolFormat::Kind::kXml) {
    std::string text = StrCat(begin, Elements(format.xml, arguments), format.xml.call_close);
    for (const std::string& around : format.xml.dropped) {
      // The marker that opens the call has a counterpart, which closes it.
      if (format.call_begins.starts_with(around)) text += StrCat("\n</", around.substr(1));
    }
    return text;
  }
  std::string text = StrCat(begin, arguments);
  if (format.marked.header) {
    const bool fenced = format.arguments_begin.find("```") != std::string::npos;
    if (fenced) text += "\n```";
    const std::string_view line = !fenced && format.arguments_begin.ends_with('\n') ? "\n" : "";
    for (const std::string& close : format.marked.close) text += StrCat(line, close);
    return text;
  }
  text += '}';
  if (format.call_begins.find('[') < format.call_begins.find('{') &&
      format.call_begins[format.call_begins.find('{') - 1] == '[') {
    text += ']';
  }
  if (format.marked.close.size() == 1) text += StrCat("\n", format.marked.close[0]);
  return text;
}

}  // namespace

std::string CallsText(const ToolFormat& format, absl::Span<const ToolCall> calls, size_t before) {
  if (format.marked.arguments == ArgumentForm::kPython) return PythonCalls(format, calls);
  std::string text;
  for (const ToolCall& call : calls) {
    if (!text.empty()) text += '\n';
    text += CallText(format, call, before++);
  }
  return text;
}

}  // namespace millrace
