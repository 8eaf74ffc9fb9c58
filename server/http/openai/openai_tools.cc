#include "server/http/openai/openai_tools.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "formats/json/exact_json.h"
#include "server/http/json/api_error.h"
#include "server/http/openai/custom_tools.h"

namespace millrace {
namespace {

constexpr size_t kMaxToolsBytes = 1 << 20;
constexpr std::string_view kChoices =
    "auto, none, required, {\"type\": \"function\", \"function\": {\"name\": NAME}}, the same with "
    "custom, or {\"type\": \"allowed_tools\", \"allowed_tools\": {\"mode\": MODE, \"tools\": "
    "[...]}}";
constexpr std::string_view kToolTypes = "function, custom";

// Tools as the model is shown them: those of a request, by their places in it, that are no
// functions there.
using ShownTools = std::map<size_t, OrderedJson>;

// Returns the object that has the name of its type, or nullptr after an error.
const OrderedJson* Typed(FieldReader& fields, std::string& type, std::string_view allowed) {
  if (fields.Find("type") == nullptr) fields.FailMissing("type", kToolTypes);
  fields.Read("type", type);
  if (fields.ok() && type != "function" && type != "custom") {
    fields.FailValue("type", type, kToolTypes);
  }
  if (!fields.ok()) return nullptr;
  const OrderedJson* object = fields.Find(type);
  if (object == nullptr) fields.FailMissing(type, allowed);
  return object;
}

void ReadTool(FieldReader& tool, const std::string& path, size_t place, ShownTools& shown,
              TextTools& texts) {
  std::string type;
  tool.Find("cache_control");  // every prompt is cached
  const OrderedJson* object = Typed(tool, type, "an object with a name");
  if (object == nullptr) return;
  FieldReader reader(*object, StrCat(path, type, "."), tool.unknown_fields());
  if (type == "function") {
    CheckFunction(reader);
  } else {
    OrderedJson functions = OrderedJson::array();
    ReadCustomTool(reader, StrCat(path, "custom."), GrammarPlace::kObject, functions, texts);
    if (!functions.empty()) shown[place] = std::move(functions[0]);
  }
  tool.Fail(reader.Finish());
}

// Returns whether there are tools.
bool ReadToolList(FieldReader& fields, ShownTools& shown, TextTools& texts) {
  const OrderedJson* tools = fields.Find("tools");
  if (tools == nullptr) return false;
  if (!tools->is_array()) {
    fields.FailValue("tools", *tools, "a list of tools");
    return false;
  }
  if (tools->size() > kMaxTools) {
    fields.Fail("tools", "invalid_value",
                StrCat("tools has ", tools->size(), " tools; allowed: at most ", kMaxTools));
  }
  for (size_t i = 0; i < tools->size() && fields.ok(); ++i) {
    const std::string path = StrCat("tools[", i, "].");
    FieldReader tool((*tools)[i], path, fields.unknown_fields());
    ReadTool(tool, path, i, shown, texts);
    fields.Fail(tool.Finish());
  }
  return !tools->empty();
}

// {"type": "function", "function": {"name": "f"}}
ToolChoice::Named ReadNamed(FieldReader& reader, const std::string& path) {
  ToolChoice::Named read;
  std::string type;
  const OrderedJson* object = Typed(reader, type, "an object with the name of a tool");
  if (object == nullptr) return read;
  FieldReader named(*object, StrCat(path, type, "."), reader.unknown_fields());
  if (named.Find("name") == nullptr) named.FailMissing("name", "the name of a tool");
  named.Read("name", read.name);
  read.takes_text = type == "custom";
  reader.Fail(named.Finish());
  return read;
}

void ReadAllowedTools(FieldReader& reader, ToolChoice& choice) {
  const OrderedJson* object = reader.Find("allowed_tools");
  if (object == nullptr) return reader.FailMissing("allowed_tools", "an object");
  FieldReader allowed(*object, "tool_choice.allowed_tools.", reader.unknown_fields());
  ReadAllowedMode(allowed, choice);
  const OrderedJson* tools = allowed.Find("tools");
  if (tools == nullptr || !tools->is_array() || tools->empty()) {
    allowed.FailValue("tools", tools == nullptr ? OrderedJson() : *tools,
                      "a non-empty list of tools");
  }
  for (size_t i = 0; allowed.ok() && i < tools->size(); ++i) {
    const std::string path = StrCat("tool_choice.allowed_tools.tools[", i, "].");
    FieldReader tool((*tools)[i], path, reader.unknown_fields());
    choice.allowed.push_back(ReadNamed(tool, path));
    allowed.Fail(tool.Finish());
  }
  reader.Fail(allowed.Finish());
}

ToolChoice ReadToolChoice(FieldReader& fields) {
  ToolChoice choice;
  const OrderedJson* const object = ReadChoiceWord(fields, kChoices, choice);
  if (object == nullptr) return choice;
  FieldReader reader(*object, "tool_choice.", fields.unknown_fields());
  std::string type;
  reader.Read("type", type);
  if (reader.ok() && type == "allowed_tools") {
    ReadAllowedTools(reader, choice);
  } else if (reader.ok() && !object->contains(type)) {
    fields.FailValue("tool_choice", *object, kChoices);
  } else if (reader.ok()) {
    choice.kind = ToolChoice::Kind::kNamed;
    choice.named = ReadNamed(reader, "tool_choice.");
  }
  fields.Fail(reader.Finish());
  return choice;
}

// Returns an error unless the tools have the one that is named, as what it is named.
absl::Status CheckNamed(const ToolChoice::Named& named, const std::vector<std::string>& names,
                        const TextTools& texts) {
  std::string_view what;
  if (std::count(names.begin(), names.end(), named.name) == 0) {
    what = "";
  } else if (named.takes_text != texts.contains(named.name)) {
    what = named.takes_text ? ", which is a function" : ", which is a custom tool";
  } else {
    return absl::OkStatus();
  }
  return FieldError(
      "tool_choice", "invalid_value",
      StrCat("tool_choice names ", Printable(named.name), what,
             "; allowed: the name of one of the tools, ", JoinList(names), ", with its type"));
}

// Takes away the tools that the choice does not allow.
absl::Status KeepAllowed(const ToolChoice& choice, OrderedJson& tools,
                         std::vector<std::string>& names, TextTools& texts) {
  if (choice.allowed.empty()) return absl::OkStatus();
  OrderedJson kept = OrderedJson::array();
  std::vector<std::string> kept_names;
  for (const ToolChoice::Named& named : choice.allowed) {
    MILLRACE_RETURN_IF_ERROR(CheckNamed(named, names, texts));
  }
  for (size_t i = 0; i < names.size(); ++i) {
    if (std::none_of(choice.allowed.begin(), choice.allowed.end(),
                     [&](const ToolChoice::Named& named) { return named.name == names[i]; })) {
      texts.erase(names[i]);
      continue;
    }
    kept.push_back(std::move(tools[i]));
    kept_names.push_back(names[i]);
  }
  tools = std::move(kept);
  names = std::move(kept_names);
  return absl::OkStatus();
}

}  // namespace

void CheckFunction(FieldReader& function, std::string_view parameters_name) {
  std::string name;
  std::string description;
  bool strict = false;
  if (function.Find("name") == nullptr) return function.FailMissing("name", kToolNames);
  function.Read("name", name);
  if (function.ok() && !IsToolName(name)) function.FailValue("name", name, kToolNames);
  function.Read("description", description);
  const OrderedJson* parameters = function.Find(parameters_name);
  if (parameters != nullptr && !parameters->is_object()) {
    function.FailValue(parameters_name, *parameters, "a JSON schema, which is an object");
  }
  function.Read("strict", strict);
}

const OrderedJson* ReadChoiceWord(FieldReader& fields, std::string_view allowed,
                                  ToolChoice& choice) {
  const OrderedJson* const field = fields.Find("tool_choice");
  if (field == nullptr || *field == "auto") return nullptr;
  if (field->is_object()) return field;
  if (*field == "none") {
    choice.kind = ToolChoice::Kind::kNone;
  } else if (*field == "required") {
    choice.kind = ToolChoice::Kind::kAny;
  } else {
    fields.FailValue("tool_choice", *field, allowed);
  }
  return nullptr;
}

void ReadAllowedMode(FieldReader& fields, ToolChoice& choice) {
  constexpr std::string_view kModes = "auto, required";
  std::string mode;
  if (fields.Find("mode") == nullptr) return fields.FailMissing("mode", kModes);
  fields.Read("mode", mode);
  if (fields.ok() && mode != "auto" && mode != "required") fields.FailValue("mode", mode, kModes);
  if (mode == "required") choice.kind = ToolChoice::Kind::kAny;
}

absl::Status ApplyTools(OrderedJson tools, const ToolChoice& choice, bool auto_allowed, Chat& chat,
                        GenerateRequest& request) {
  const bool forced =
      choice.kind == ToolChoice::Kind::kAny || choice.kind == ToolChoice::Kind::kNamed;
  if (!tools.is_array() || tools.empty()) {
    if (!choice.allowed.empty()) {
      return FieldError("tool_choice", "invalid_value",
                        StrCat("tool_choice names ", Printable(choice.allowed[0].name),
                               "; allowed: the name of one of the tools, of which there are none"));
    }
    if (!forced) return absl::OkStatus();
    return FieldError("tool_choice", "invalid_value",
                      "tool_choice asks for a call; allowed: only with tools");
  }
  std::vector<std::string> names;
  for (const auto& tool : tools) names.push_back(tool["function"]["name"].get<std::string>());
  for (const auto& [name, text] : chat.text_tools) {
    if (std::count(names.begin(), names.end(), name) == 1) continue;
    return FieldError("tools", "invalid_value",
                      StrCat("tools has the name ", Printable(name),
                             " twice, one of which is a custom tool's; allowed: once"));
  }
  if (choice.kind == ToolChoice::Kind::kNamed) {
    MILLRACE_RETURN_IF_ERROR(CheckNamed(choice.named, names, chat.text_tools));
  }
  MILLRACE_RETURN_IF_ERROR(KeepAllowed(choice, tools, names, chat.text_tools));
  if (choice.kind == ToolChoice::Kind::kAuto && !auto_allowed) {
    return FieldError("tool_choice", "invalid_value",
                      "tool_choice is auto; allowed: none, required or a tool's name, since the "
                      "server runs with --enable-auto-tool-choice=false");
  }
  // A model that is not shown any tools calls none.
  if (choice.kind == ToolChoice::Kind::kNone) {
    chat.text_tools.clear();
    return absl::OkStatus();
  }
  std::string text = DumpExact(tools);
  if (text.size() > kMaxToolsBytes) {
    return FieldError(
        "tools", "invalid_value",
        StrCat("tools has ", text.size(), " bytes; allowed: at most ", kMaxToolsBytes));
  }
  chat.tools = std::move(text);
  chat.parse_tools = true;
  if (forced) {
    chat.forced_tool = names.size() == 1 ? names[0] : choice.named.name;
    request.parallel_tool_calls = false;  // exactly one
  }
  return absl::OkStatus();
}

void ReadChatTools(FieldReader& fields, bool auto_allowed, Chat& chat, GenerateRequest& request) {
  ShownTools shown;
  const bool any = ReadToolList(fields, shown, chat.text_tools);
  const ToolChoice choice = ReadToolChoice(fields);
  fields.Read("parallel_tool_calls", request.parallel_tool_calls);
  if (!fields.ok()) return;
  OrderedJson tools = OrderedJson::array();
  if (any) {
    tools = *fields.Find("tools");
    for (auto& [place, function] : shown) tools[place] = std::move(function);
    for (OrderedJson& tool : tools) tool.erase("cache_control");
  }
  fields.Fail(ApplyTools(std::move(tools), choice, auto_allowed, chat, request));
}

void ReadEffort(FieldReader& fields, std::string_view name, Chat& chat) {
  constexpr std::string_view kEfforts[] = {"none", "minimal", "low", "medium",
                                           "high", "xhigh",   "max"};
  if (fields.Find(name) == nullptr) return;
  fields.Read(name, chat.reasoning_effort);
  if (!fields.ok()) return;
  if (std::count(std::begin(kEfforts), std::end(kEfforts), chat.reasoning_effort) == 0) {
    fields.FailValue(name, chat.reasoning_effort, JoinList(kEfforts));
  }
}

void ReadReasoning(FieldReader& fields, bool& include_reasoning, Chat& chat,
                   GenerateRequest& request) {
  ReadEffort(fields, "reasoning_effort", chat);
  fields.Read("include_reasoning", include_reasoning);
  request.parse_reasoning = true;
  fields.Read("separate_reasoning", request.parse_reasoning);  // SGLang's
}

}  // namespace millrace
