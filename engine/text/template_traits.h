// Describes what a chat template writes of a conversation, and how a conversation is put so that
// the template writes all of it.
#ifndef MILLRACE_ENGINE_TEXT_TEMPLATE_TRAITS_H_
#define MILLRACE_ENGINE_TEXT_TEMPLATE_TRAITS_H_

#include <string>
#include <vector>

namespace millrace {

// How messages are put for one template. The defaults suit a template that writes everything as it
// comes.
struct MessageTraits {
  // Where messages of the system stand: where they came; joined to one that comes first; or before
  // the content of the first turn of the user.
  enum class System { kAnywhere, kFirst, kUser };
  System system = System::kAnywhere;
  bool developer = true;     // it has a developer role; otherwise developer messages are system's
  bool joins_turns = false;  // neighboring turns of one role become one, since roles must alternate

  bool user_first = false;  // a turn of the user, which may be empty, comes before the assistant's

  bool parts_only = false;  // content is a list of parts, always
  // Roles whose content may be a list of parts, which the template joins in its own way.
  std::vector<std::string> parts_roles;

  bool text_calls = false;        // it writes no calls: they become text of their turn
  bool text_results = false;      // it writes no results: they become text of a turn of the user
  bool text_arguments = false;    // a call's arguments are a text, not an object
  bool object_arguments = false;  // arguments that are no object would be refused or lost
  bool null_content = false;      // a turn with calls and no content has the content null
  bool one_call = false;          // a turn has one call; its result follows it
  bool result_names = false;      // a result shows the name of its tool
  // Ids of calls: as they come; nine letters and digits; or functions.NAME:N, by which the template
  // writes the name.
  enum class Ids { kAny, kNineLetters, kNamed };
  Ids ids = Ids::kAny;

  // Where the content of a turn with calls stands: in that turn; in it, after its reasoning, as
  // content; in a turn before it; or with all of the assistant's content since the last turn of
  // the user, in its final turn or else before the first call.
  enum class CallContent { kTogether, kWithReasoning, kApart, kGathered };
  CallContent content_now = CallContent::kTogether;     // since the last turn of the user
  CallContent content_before = CallContent::kTogether;  // before it

  bool reasoning_in_content = false;  // between the markers of the model's reasoning
};

// How a template takes tools.
struct ToolsTraits {
  // A variable; the member `tools` of the system message; or not at all, so that they are described
  // in the system message.
  enum class Place { kVariable, kSystemMember, kText };
  Place place = Place::kVariable;
  std::string variable = "tools";
  bool functions = false;  // without {"type": "function", "function": …} around them
  bool as_text = false;    // as JSON text
  bool completes = false;  // a tool needs a description and parameters
};

// All that was found out about a template by rendering it.
struct TemplateTraits {
  bool renders = false;      // a plain conversation comes out
  bool empty_tools = false;  // the tools' variable must be there without tools
  bool needs_date = false;   // it wants the variable `datetime`
  MessageTraits plain;       // for conversations without calls
  MessageTraits calls;       // for those with tools, calls or results
  ToolsTraits tools;
  bool shows_reasoning = true;  // of turns with calls since the last turn of the user
};

// Returns traits by which tools, calls and results are all text, which any template takes that
// takes a conversation.
TemplateTraits AsText(const TemplateTraits& traits);

// Returns, for people, what the template does with each kind of message: "tools: …".
std::vector<std::string> Describe(const TemplateTraits& traits);

}  // namespace millrace

#endif  // MILLRACE_ENGINE_TEXT_TEMPLATE_TRAITS_H_
