#include "server/http/messages/messages.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/strings.h"
#include "formats/json/json.h"
#include "server/http/json/json_writer.h"

namespace millrace {
namespace {

std::string_view ErrorTypeOf(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    case 504:
      return "timeout_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

// Appends an event's beginning, up to its data's index.
void BeginMessagesEvent(std::string& body, std::string_view name) {
  body += StrCat("event: ", name, "\ndata: {\"type\":\"", name, "\"");
}

// `most`: the max_tokens of the request, of which only the part that fits is generated.
void AppendStop(std::string& out, const Finish& finish, bool called, std::optional<int32_t> most) {
  const auto* text = std::get_if<std::string>(&finish.stopped_by);
  std::string_view reason = "end_turn";
  if (finish.reason == FinishReason::kLength) {
    const bool cut = most.has_value() && finish.usage.completion_tokens < *most;
    reason = cut ? "model_context_window_exceeded" : "max_tokens";
  } else if (text != nullptr) {
    reason = "stop_sequence";
  } else if (called) {
    reason = "tool_use";
  }
  out += R"("stop_reason":)";
  AppendJsonString(out, reason);
  out += R"(,"stop_sequence":)";
  if (text != nullptr) {
    AppendJsonString(out, *text);
  } else {
    out += "null";
  }
}

// Anthropic counts cached tokens apart from the input.
void AppendMessagesUsage(std::string& out, const Usage& usage) {
  out += StrCat(R"("usage":{"input_tokens":)", usage.prompt_tokens - usage.cached_tokens,
                R"(,"cache_creation_input_tokens":0,"cache_read_input_tokens":)",
                usage.cached_tokens, R"(,"output_tokens":)", usage.completion_tokens, "}");
}

void AppendMessageHead(std::string& out, const std::string& id, const std::string& model) {
  out += R"({"id":)";
  AppendJsonString(out, id);
  out += R"(,"type":"message","role":"assistant","model":)";
  AppendJsonString(out, model);
  out += R"(,"content":[)";
}

// Appends a block; a stream's begins empty.
void AppendBlock(std::string& out, const AnswerBlock& block, bool whole) {
  switch (block.kind) {
    case AnswerBlock::Kind::kReasoning:
      out += R"({"type":"thinking","signature":"","thinking":)";
      AppendJsonString(out, whole ? block.text : "");
      break;
    case AnswerBlock::Kind::kText:
      out += R"({"type":"text","citations":null,"text":)";
      AppendJsonString(out, whole ? block.text : "");
      break;
    case AnswerBlock::Kind::kCall: {
      out += R"({"type":"tool_use","id":)";
      AppendJsonString(out, block.id);
      out += R"(,"name":)";
      AppendJsonString(out, block.name);
      out += R"(,"input":)";
      // Arguments that were cut off, or are no object, cannot be shown as one.
      const Json json =
          whole ? Json::parse(block.text, nullptr, /*allow_exceptions=*/false) : Json();
      out += json.is_object() ? block.text : "{}";
      break;
    }
  }
  out += '}';
}

}  // namespace

std::string MessagesErrorJson(const ApiError& error) {
  std::string out = R"({"type":"error","error":{"type":)";
  AppendJsonString(out, ErrorTypeOf(error.status));
  out += R"(,"message":)";
  AppendJsonString(out, error.message);
  out += "}}";
  return out;
}

HttpResponse MessagesError(const ApiError& error) {
  HttpResponse response = ErrorResponse(error);
  response.body = MessagesErrorJson(error);
  return response;
}

HttpResponse MessagesError(const absl::Status& status) {
  return MessagesError(ErrorFromStatus(status));
}

void MessagesAnswer::Begin(std::string& body) {
  BeginMessagesEvent(body, "message_start");
  body += R"(,"message":)";
  AppendMessageHead(body, id(), model());
  body += R"(],"stop_reason":null,"stop_sequence":null,)";
  AppendMessagesUsage(body, {.prompt_tokens = prompt_tokens()});
  body += "}}\n\n";
}

void MessagesAnswer::Open(const AnswerBlock& block, std::string& body) {
  BeginMessagesEvent(body, "content_block_start");
  body += StrCat(",\"index\":", block.index, ",\"content_block\":");
  AppendBlock(body, block, /*whole=*/false);
  body += "}\n\n";
}

void MessagesAnswer::Delta(const AnswerBlock& block, std::string_view text, std::string& body) {
  BeginMessagesEvent(body, "content_block_delta");
  body += StrCat(",\"index\":", block.index, ",\"delta\":");
  switch (block.kind) {
    case AnswerBlock::Kind::kReasoning:
      body += R"({"type":"thinking_delta","thinking":)";
      break;
    case AnswerBlock::Kind::kText:
      body += R"({"type":"text_delta","text":)";
      break;
    case AnswerBlock::Kind::kCall:
      body += R"({"type":"input_json_delta","partial_json":)";
      break;
  }
  AppendJsonString(body, text);
  body += "}}\n\n";
}

void MessagesAnswer::Close(const AnswerBlock& block, bool /*complete*/, std::string& body) {
  BeginMessagesEvent(body, "content_block_stop");
  body += StrCat(",\"index\":", block.index, "}\n\n");
}

void MessagesAnswer::End(const Finish& finish, std::string& body) {
  BeginMessagesEvent(body, "message_delta");
  body += R"(,"delta":{)";
  AppendStop(body, finish, called(), request().options.default_max_tokens);
  body += "},";
  AppendMessagesUsage(body, finish.usage);
  body += "}\n\n";
  BeginMessagesEvent(body, "message_stop");
  body += "}\n\n";
}

std::shared_ptr<const SharedBody> MessagesAnswer::Whole(const Finish& finish) {
  std::string out;
  AppendMessageHead(out, id(), model());
  for (const AnswerBlock& block : blocks()) {
    if (block.index > 0) out += ',';
    AppendBlock(out, block, /*whole=*/true);
  }
  out += "],";
  AppendStop(out, finish, called(), request().options.default_max_tokens);
  out += ',';
  AppendMessagesUsage(out, finish.usage);
  out += '}';
  return std::make_shared<const SharedBody>(std::move(out));
}

HttpResponse MessagesAnswer::Refusal(const ApiError& error) {
  ApiError named = error;
  RenameField("reasoning_effort", "output_config.effort", named);
  RenameField("stop", "stop_sequences", named);
  return MessagesError(named);
}

void MessagesAnswer::Break(const ApiError& error, std::string& body) {
  body += StrCat("event: error\ndata: ", MessagesErrorJson(error), "\n\n");
}

}  // namespace millrace
