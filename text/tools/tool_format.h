// How models write tool calls: the known formats by name, by a template's text, and by what a
// template renders.
#ifndef MILLRACE_TEXT_TOOLS_TOOL_FORMAT_H_
#define MILLRACE_TEXT_TOOLS_TOOL_FORMAT_H_

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tools/marked_parser.h"
#include "text/tools/xml_parser.h"

namespace millrace {

// How calls are written.
struct ToolFormat {
  std::string name;  // of the parser, as --tool-call-parser has it
  enum class Kind { kMarked, kXml, kHarmony, kRecipients } kind = Kind::kMarked;
  MarkedFormat marked = {};
  XmlFormat xml = {};
  // The texts before a call's name and between the name and its arguments. An answer that begins
  // so is a call.
  std::string call_begins;
  std::string arguments_begin;
  bool numbered = false;  // ":N" stands behind the name: its number in the conversation, from 0

  // Returns the text between the name of a call and its arguments, after so many calls.
  std::string AfterName(size_t calls_before) const;
  // Returns the texts that open a call, or a section of calls.
  std::vector<std::string> Opens() const;
};

// Returns the format of this name, as --tool-call-parser has it.
std::optional<ToolFormat> ToolFormatNamed(std::string_view name);
// Returns the names, those with the same format included.
std::vector<std::string> ToolFormatNames();
// Returns the format whose texts are in a chat template, or in the names of special tokens.
std::optional<ToolFormat> ToolFormatShown(std::string_view text);

// Derives how calls are written from an answer without and with one, as a template renders them
// after the same prompt. The call's tool is `name`. Nothing: it is no JSON object, or nothing
// stands before it by which it could be told from text.
std::optional<ToolFormat> DeriveToolFormat(std::string_view with_text, std::string_view text,
                                           std::string_view with_call, std::string_view name);

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOOLS_TOOL_FORMAT_H_
