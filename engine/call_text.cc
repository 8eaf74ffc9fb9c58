#include "engine/call_text.h"

#include <nlohmann/json.hpp>

#include "base/strings.h"
#include "text/tools/json_call.h"

namespace millrace {
namespace {

std::string Elements(const XmlFormat& xml, std::string_view arguments) {
  const auto object = ParseOrdered(arguments, kCallJson);
  if (!object.ok() || !object->is_object()) return StrCat(arguments, "\n");
  const std::string_view line = xml.value_open.empty() ? "\n" : "";
  std::string text;
  for (const auto& [key, value] : object->items()) {
    text += StrCat(xml.key_open, key, xml.key_close, line, xml.value_open,
                   value.is_string() ? value.get<std::string>() : value.dump(), line,
                   xml.value_close, "\n");
  }
  return text;
}

}  // namespace

std::string CallText(const ToolFormat& format, std::string_view name, std::string_view arguments) {
  const std::string begin = StrCat(format.call_begins, name, format.arguments_begin);
  if (format.kind == ToolFormat::Kind::kHarmony) return StrCat(begin, arguments, "<|call|>");
  if (format.kind == ToolFormat::Kind::kXml) {
    std::string text = StrCat(begin, Elements(format.xml, arguments), format.xml.call_close);
    for (const std::string& around : format.xml.dropped) {
      // What opens the call has a counterpart.
      if (format.call_begins.starts_with(around)) text += StrCat("\n</", around.substr(1));
    }
    return text;
  }
  std::string text = StrCat(begin, arguments);
  if (format.marked.header) {
    if (format.arguments_begin.find("```") != std::string::npos) text += "\n```";
    for (const std::string& close : format.marked.close) text += close;
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

}  // namespace millrace
