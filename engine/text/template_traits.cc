#include "engine/text/template_traits.h"

#include "base/strings.h"

namespace millrace {
namespace {

using System = MessageTraits::System;
using Ids = MessageTraits::Ids;
using CallContent = MessageTraits::CallContent;
using Place = ToolsTraits::Place;

std::string SystemLine(System place) {
  switch (place) {
    case System::kAnywhere:
      return "where they stand";
    case System::kFirst:
      return "joined to one at the beginning";
    case System::kUser:
      return "in the first turn of the user";
  }
  return "";
}

std::string ToolsLine(const ToolsTraits& tools) {
  switch (tools.place) {
    case Place::kVariable:
      return StrCat("in the variable ", tools.variable);
    case Place::kSystemMember:
      return "in the member tools of the system message";
    case Place::kText:
      return "described in a system message";
  }
  return "";
}

std::string CallsLine(const MessageTraits& traits) {
  if (traits.text_calls) return "as text of their turn";
  std::string line = traits.text_arguments ? "arguments as text" : "arguments as an object";
  if (traits.one_call) line += ", one call a turn";
  if (traits.ids == Ids::kNineLetters) line += ", ids of nine letters and digits";
  if (traits.ids == Ids::kNamed) line += ", ids functions.NAME:N";
  return line;
}

std::string CallContentLine(CallContent place) {
  switch (place) {
    case CallContent::kTogether:
      return "in the same turn";
    case CallContent::kWithReasoning:
      return "in the same turn, after the reasoning";
    case CallContent::kApart:
      return "in a turn before the calls";
    case CallContent::kGathered:
      return "in one turn of the assistant";
  }
  return "";
}

}  // namespace

TemplateTraits AsText(const TemplateTraits& traits) {
  TemplateTraits text = traits;
  text.tools.place = Place::kText;
  text.calls = traits.plain;
  text.calls.text_calls = text.calls.text_results = true;
  return text;
}

std::vector<std::string> Describe(const TemplateTraits& traits) {
  if (!traits.renders) return {"conversations: refused by the template"};
  const MessageTraits& calls = traits.calls;
  std::vector<std::string> lines = {
      StrCat("system messages: ", SystemLine(traits.plain.system),
             traits.plain.system == calls.system
                 ? ""
                 : StrCat("; beside tools ", SystemLine(calls.system))),
      StrCat("developer messages: ", traits.plain.developer ? "a role" : "as system messages"),
      StrCat("turns of one role in a row: ", traits.plain.joins_turns ? "joined" : "as they come"),
      StrCat("conversations that the assistant begins: ",
             traits.plain.user_first ? "an empty turn of the user comes first" : "as they come"),
      StrCat("content in parts: ", traits.plain.parts_only ? "always"
                                   : calls.parts_roles.empty()
                                       ? "joined by line feeds"
                                       : "of " + JoinList(calls.parts_roles)),
      StrCat("tools: ", ToolsLine(traits.tools)),
      StrCat("calls: ", CallsLine(calls)),
      StrCat("results: ", calls.text_results ? "as text of a turn of the user" : "a role"),
  };
  if (!calls.text_calls) {
    lines.push_back(
        StrCat("content beside calls: ", CallContentLine(calls.content_now),
               calls.content_now == calls.content_before
                   ? ""
                   : StrCat("; of earlier turns ", CallContentLine(calls.content_before))));
  }
  lines.push_back(StrCat("reasoning: ", !traits.shows_reasoning      ? "left out"
                                        : calls.reasoning_in_content ? "in the content"
                                                                     : "as it comes"));
  return lines;
}

}  // namespace millrace
