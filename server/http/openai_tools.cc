#include "server/http/openai_tools.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/strings.h"
#include "formats/exact_json.h"
#include "server/http/api_error.h"

namespace millrace {
namespace {

constexpr size_t kMaxToolsBytes = 1 << 20;
constexpr std::string_view kNames = "1 to 128 letters, digits, _, -, . and /";
constexpr std::string_view kChoices =
    "auto, none, required, or {\"type\": \"function\", \"function\": {\"name\": NAME}}";

bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= 128 && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '-' || c == '.' || c == '/';
  });
}

void ReadTool(FieldReader& tool, const std::string& path) {
  std::string type;
  if (tool.Find("type") == nullptr) tool.FailMissing("type", "function");
  tool.Read("type", type);
  if (tool.ok() && type != "function") tool.FailValue("type", type, "function");
  if (!tool.ok()) return;
  const Json* function = tool.Find("function");
  if (function == nullptr) return tool.FailMissing("function", "an object with a name");
  FieldReader reader(*function, path + "function.", tool.unknown_fields());
  CheckFunction(reader);
  tool.Fail(reader.Finish());
}

// Returns whether there are tools.
bool ReadToolList(FieldReader& fields) {
  const Json* tools = fields.Find("tools");
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
    ReadTool(tool, path);
    fields.Fail(tool.Finish());
  }
  return !tools->empty();
}

ToolChoice ReadToolChoice(FieldReader& fields) {
  ToolChoice choice;
  const Json* field = fields.Find("tool_choice");
  if (field == nullptr) return choice;
  if (field->is_string()) {
    const auto& name = field->get_ref<const std::string&>();
    if (name == "none") {
      choice.kind = ToolChoice::Kind::kNone;
    } else if (name == "required") {
      choice.kind = ToolChoice::Kind::kAny;
    } else if (name != "auto") {
      fields.FailValue("tool_choice", *field, kChoices);
    }
    return choice;
  }
  if (!field->is_object()) {
    fields.FailValue("tool_choice", *field, kChoices);
    return choice;
  }
  FieldReader reader(*field, "tool_choice.", fields.unknown_fields());
  std::string type;
  reader.Read("type", type);
  const Json* function = reader.Find("function");
  if (reader.ok() && (type != "function" || function == nullptr)) {
    fields.FailValue("tool_choice", *field, kChoices);
  } else if (reader.ok()) {
    FieldReader named(*function, "tool_choice.function.", fields.unknown_fields());
    if (named.Find("name") == nullptr) named.FailMissing("name", "the name of a tool");
    named.Read("name", choice.name);
    reader.Fail(named.Finish());
  }
  fields.Fail(reader.Finish());
  choice.kind = ToolChoice::Kind::kNamed;
  return choice;
}

}  // namespace

void CheckFunction(FieldReader& function, std::string_view parameters_name) {
  std::string name;
  std::string description;
  bool strict = false;
  if (function.Find("name") == nullptr) return function.FailMissing("name", kNames);
  function.Read("name", name);
  if (function.ok() && !IsName(name)) function.FailValue("name", name, kNames);
  function.Read("description", description);
  const Json* parameters = function.Find(parameters_name);
  if (parameters != nullptr && !parameters->is_object()) {
    function.FailValue(parameters_name, *parameters, "a JSON schema, which is an object");
  }
  function.Read("strict", strict);
}

absl::Status ApplyTools(const OrderedJson& tools, const ToolChoice& choice, bool auto_allowed,
                        Chat& chat, GenerateRequest& request) {
  const bool forced =
      choice.kind == ToolChoice::Kind::kAny || choice.kind == ToolChoice::Kind::kNamed;
  if (!tools.is_array() || tools.empty()) {
    if (!forced) return absl::OkStatus();
    return FieldError("tool_choice", "invalid_value",
                      "tool_choice asks for a call; allowed: only with tools");
  }
  std::vector<std::string> names;
  for (const auto& tool : tools) names.push_back(tool["function"]["name"].get<std::string>());
  if (choice.kind == ToolChoice::Kind::kNamed &&
      std::count(names.begin(), names.end(), choice.name) == 0) {
    return FieldError("tool_choice", "invalid_value",
                      StrCat("tool_choice names ", Printable(choice.name),
                             "; allowed: the name of one of the tools, ", JoinList(names)));
  }
  if (choice.kind == ToolChoice::Kind::kAuto && !auto_allowed) {
    return FieldError("tool_choice", "invalid_value",
                      "tool_choice is auto; allowed: none, required or a tool's name, since the "
                      "server runs with --enable-auto-tool-choice=false");
  }
  // A model that is not shown any tools calls none.
  if (choice.kind == ToolChoice::Kind::kNone) return absl::OkStatus();
  std::string text = DumpExact(tools);
  if (text.size() > kMaxToolsBytes) {
    return FieldError(
        "tools", "invalid_value",
        StrCat("tools has ", text.size(), " bytes; allowed: at most ", kMaxToolsBytes));
  }
  chat.tools = std::move(text);
  chat.parse_tools = true;
  if (forced) {
    chat.forced_tool = names.size() == 1 ? names[0] : choice.name;
    request.parallel_tool_calls = false;  // exactly one
  }
  return absl::OkStatus();
}

void ReadChatTools(FieldReader& fields, std::string_view body, bool auto_allowed, Chat& chat,
                   GenerateRequest& request) {
  const bool any = ReadToolList(fields);
  const ToolChoice choice = ReadToolChoice(fields);
  fields.Read("parallel_tool_calls", request.parallel_tool_calls);
  if (!fields.ok()) return;
  OrderedJson tools = OrderedJson::array();
  if (any) {
    absl::StatusOr<OrderedJson> ordered = ParseOrdered(body);
    if (!ordered.ok()) return fields.Fail(ordered.status());
    tools = std::move((*ordered)["tools"]);
  }
  fields.Fail(ApplyTools(tools, choice, auto_allowed, chat, request));
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
