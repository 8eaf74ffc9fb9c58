#include "server/http/openai/openai_response.h"

#include <variant>

#include "base/sha256.h"
#include "base/strings.h"
#include "config/help.h"
#include "server/http/json/json_writer.h"

namespace millrace {
namespace {

std::string_view ObjectName(const ApiRequest& request) {
  if (request.kind == ApiKind::kCompletion) return "text_completion";
  return request.stream ? "chat.completion.chunk" : "chat.completion";
}

// Appends the counts without the closing brace.
void AppendCounts(std::string& out, const Usage& usage) {
  out += R"({"prompt_tokens":)";
  AppendJsonNumber(out, usage.prompt_tokens);
  out += R"(,"completion_tokens":)";
  AppendJsonNumber(out, usage.completion_tokens);
  out += R"(,"total_tokens":)";
  AppendJsonNumber(out, int64_t{usage.prompt_tokens} + usage.completion_tokens);
}

void AppendUsage(std::string& out, ApiKind kind, const Usage& usage) {
  AppendCounts(out, usage);
  out += R"(,"prompt_tokens_details":{"cached_tokens":)";
  AppendJsonNumber(out, usage.cached_tokens);
  if (kind == ApiKind::kChat) {
    out += R"(},"completion_tokens_details":{"reasoning_tokens":)";
    AppendJsonNumber(out, usage.reasoning_tokens);
    if (usage.predicted.has_value()) {
      out += R"(,"accepted_prediction_tokens":)";
      AppendJsonNumber(out, usage.predicted->accepted);
      out += R"(,"rejected_prediction_tokens":)";
      AppendJsonNumber(out, usage.predicted->rejected);
    }
  }
  out += "}}";
}

// `called`: the answer is one or more calls that the model chose to make.
void AppendFinish(std::string& out, const Finish* finish, bool called) {
  if (finish == nullptr) {
    out += R"(,"finish_reason":null,"stop_reason":null)";
    return;
  }
  out += R"(,"finish_reason":)";
  const bool calls = called && finish->reason == FinishReason::kStop;
  AppendJsonString(out, calls ? "tool_calls" : Name(finish->reason));
  out += R"(,"stop_reason":)";
  if (const auto* token = std::get_if<Token>(&finish->stopped_by)) {
    AppendJsonNumber(out, *token);
  } else if (const auto* text = std::get_if<std::string>(&finish->stopped_by)) {
    AppendJsonString(out, *text);
  } else {
    out += "null";
  }
}

// Appends a field unless it is empty.
void AppendList(std::string& out, std::string_view name, std::string_view list) {
  if (list.empty()) return;
  out += StrCat(",\"", name, "\":");
  out += list;
}

}  // namespace

void MergeCalls(std::vector<ToolCallDelta> from, std::vector<ToolCallDelta>& calls) {
  for (ToolCallDelta& call : from) {
    if (call.name.empty() && !calls.empty() && calls.back().index == call.index) {
      calls.back().arguments += call.arguments;
    } else {
      calls.push_back(std::move(call));
    }
  }
}

std::string ToolCallId(std::string_view answer_id, size_t choice, int32_t index) {
  constexpr std::string_view kDigits =
      "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  std::string id;
  for (const uint8_t byte : Sha256Of(StrCat(answer_id, "/", choice, "/", index))) {
    if (id.size() < 9) id += kDigits[byte % kDigits.size()];
  }
  return id;
}

AnswerWriter::AnswerWriter(const ApiRequest& request, std::string_view id, std::string_view model,
                           int64_t created)
    : kind_(request.kind),
      id_(id),
      named_call_(request.named_call),
      return_token_ids_(request.return_token_ids),
      continuous_usage_(request.continuous_usage) {
  head_ = R"({"id":)";
  AppendJsonString(head_, id);
  head_ += R"(,"object":)";
  AppendJsonString(head_, ObjectName(request));
  head_ += R"(,"created":)";
  AppendJsonNumber(head_, created);
  head_ += R"(,"model":)";
  AppendJsonString(head_, model);
  head_ += R"(,"system_fingerprint":)";
  AppendJsonString(head_, StrCat("millrace-", Version()));
  head_ += R"(,"choices":[)";
  rest_ = request.include_usage && !continuous_usage_ ? R"(],"usage":null)" : "]";
}

void AnswerWriter::BeginChoice(std::string& out, size_t index) {
  out += R"({"index":)";
  AppendJsonNumber(out, static_cast<int64_t>(index));
}

void AnswerWriter::EndChoice(std::string& out, const ChoicePart& part) const {
  out += R"(,"logprobs":)";
  out += part.logprobs.empty() ? "null" : part.logprobs;
  AppendFinish(out, part.finish, part.called && !named_call_);
  if (kind_ == ApiKind::kCompletion) AppendList(out, "prompt_logprobs", part.prompt_logprobs);
  if (kind_ == ApiKind::kCompletion && !part.prompt_token_ids.empty()) {
    out += R"(,"prompt_token_ids":)";
    AppendJsonNumbers(out, part.prompt_token_ids);
  }
  if (return_token_ids_) {
    out += R"(,"token_ids":)";
    AppendJsonNumbers(out, part.token_ids);
  }
  out += '}';
}

void AnswerWriter::AppendText(std::string& out, const ChoicePart& part) {
  out += R"(,"text":)";
  AppendJsonString(out, part.text);
}

void AnswerWriter::AppendMessage(std::string& out, size_t index, const ChoicePart& part) const {
  out += R"(,"message":{"role":"assistant","content":)";
  if (part.text.empty() && !part.calls.empty()) {
    out += "null";
  } else {
    AppendJsonString(out, part.text);
  }
  out += R"(,"refusal":null)";
  AppendReasoning(out, part);
  AppendCalls(out, index, part, /*whole=*/true);
  out += '}';
}

// Goes into `out` without a string of its own: a stream has one for each of its tokens.
void AnswerWriter::AppendDelta(std::string& out, size_t index, const ChoicePart& part,
                               bool first) const {
  out += R"(,"delta":{)";
  if (first) out += R"("role":"assistant","content":"")";
  const size_t begin = out.size();
  if (!first && !part.text.empty()) {
    out += R"(,"content":)";
    AppendJsonString(out, part.text);
  }
  AppendReasoning(out, part);
  AppendCalls(out, index, part, /*whole=*/false);
  if (out.size() > begin) out.erase(begin, 1);  // the comma before the first field
  out += '}';
}

// Under both names that clients look for.
void AnswerWriter::AppendReasoning(std::string& out, const ChoicePart& part) const {
  if (part.reasoning.empty()) return;
  for (std::string_view name : {R"(,"reasoning_content":)", R"(,"reasoning":)"}) {
    out += name;
    AppendJsonString(out, part.reasoning);
  }
}

void AnswerWriter::AppendCalls(std::string& out, size_t choice, const ChoicePart& part,
                               bool whole) const {
  if (part.calls.empty()) return;
  out += R"(,"tool_calls":[)";
  for (const ToolCallDelta& call : part.calls) {
    if (out.back() != '[') out += ',';
    out += '{';
    const std::string_view kind = call.is_text ? "custom" : "function";
    if (!whole) {
      out += R"("index":)";
      AppendJsonNumber(out, call.index);
      out += ',';
    }
    if (!call.name.empty()) {
      out += R"("id":)";
      AppendJsonString(out, call.id.empty() ? ToolCallId(id_, choice, call.index) : call.id);
      out += StrCat(R"(,"type":")", kind, R"(",")", kind, R"(":{"name":)");
      AppendJsonString(out, call.name);
      out += ',';
    } else {
      out += StrCat("\"", kind, "\":{");
    }
    out += call.is_text ? R"("input":)" : R"("arguments":)";
    AppendJsonString(out, call.arguments);
    out += "}}";
  }
  out += ']';
}

void AnswerWriter::AppendWhole(std::string& out, std::span<const ChoicePart> choices,
                               const Usage& usage) const {
  out += head_;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (i > 0) out += ',';
    BeginChoice(out, i);
    if (kind_ == ApiKind::kChat) {
      AppendMessage(out, i, choices[i]);
    } else {
      AppendText(out, choices[i]);
    }
    EndChoice(out, choices[i]);
  }
  out += R"(],"usage":)";
  AppendUsage(out, kind_, usage);
  if (kind_ == ApiKind::kChat) {
    AppendList(out, "prompt_logprobs", choices.front().prompt_logprobs);
  }
  if (kind_ == ApiKind::kChat && !choices.front().prompt_token_ids.empty()) {
    out += R"(,"prompt_token_ids":)";
    AppendJsonNumbers(out, choices.front().prompt_token_ids);
  }
  out += '}';
}

void AnswerWriter::AppendChunk(std::string& out, size_t index, const ChoicePart& part,
                               bool first) const {
  out += "data: ";
  out += head_;
  BeginChoice(out, index);
  if (kind_ == ApiKind::kChat) {
    AppendDelta(out, index, part, first);
  } else {
    AppendText(out, part);
  }
  EndChoice(out, part);
  out += rest_;
  if (continuous_usage_) {
    // The number of cached tokens is known at the end alone.
    out += R"(,"usage":)";
    AppendCounts(out, part.usage);
    out += '}';
  }
  if (kind_ == ApiKind::kChat && !part.prompt_token_ids.empty()) {
    out += R"(,"prompt_token_ids":)";
    AppendJsonNumbers(out, part.prompt_token_ids);
  }
  out += "}\n\n";
}

void AnswerWriter::AppendUsageChunk(std::string& out, const Usage& usage) const {
  out += "data: ";
  out += head_;
  out += R"(],"usage":)";
  AppendUsage(out, kind_, usage);
  out += "}\n\n";
}

void AnswerWriter::AppendDone(std::string& out) { out += "data: [DONE]\n\n"; }

void AnswerWriter::AppendError(std::string& out, const ApiError& error) {
  out += "data: ";
  out += ErrorJson(error);
  out += "\n\n";
}

}  // namespace millrace
