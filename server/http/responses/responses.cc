#include "server/http/responses/responses.h"

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "base/strings.h"
#include "server/http/json/json_writer.h"
#include "server/http/openai/custom_tools.h"

namespace millrace {
namespace {

// A response shares what it repeats of its request, and does not copy it, if that has more bytes
// than these. Then a poll returns so many at the most.
constexpr size_t kLongBytes = 64 << 10;

std::string_view Prefix(const AnswerBlock& block) {
  switch (block.kind) {
    case AnswerBlock::Kind::kReasoning:
      return "rs_";
    case AnswerBlock::Kind::kText:
      return "msg_";
    case AnswerBlock::Kind::kCall:
      return block.is_text ? "ctc_" : "fc_";
  }
  return "";
}

void AppendResponsesUsage(std::string& out, const Usage& usage) {
  out += StrCat(
      R"({"input_tokens":)", usage.prompt_tokens, R"(,"input_tokens_details":{"cached_tokens":)",
      usage.cached_tokens, R"(,"cache_write_tokens":0},"output_tokens":)", usage.completion_tokens,
      R"(,"output_tokens_details":{"reasoning_tokens":)", usage.reasoning_tokens,
      R"(},"total_tokens":)", int64_t{usage.prompt_tokens} + usage.completion_tokens, "}");
}

std::string_view StatusOf(const Finish& finish) {
  return finish.reason == FinishReason::kLength ? "incomplete" : "completed";
}

}  // namespace

ResponsesAnswer::ResponsesAnswer(ResponsesRequest request, std::vector<Turn> turns, std::string id,
                                 std::string owner, std::shared_ptr<ResponseStore> store,
                                 Engine& engine, const Wake& wake)
    : BlockAnswer(std::move(request.api), std::move(id), engine, wake),
      shown_(std::make_shared<const std::string>(std::move(request.shown))),
      namespaces_(std::move(request.namespaces)),
      owner_(std::move(owner)),
      store_(request.store ? std::move(store) : nullptr),
      turns_(std::move(turns)),
      messages_(std::move(request.conversation)) {}

void ResponsesAnswer::BeginEvent(std::string& body, std::string_view name) {
  body +=
      StrCat("event: ", name, "\ndata: {\"type\":\"", name, "\",\"sequence_number\":", sequence_++);
}

std::string ResponsesAnswer::ItemId(const AnswerBlock& block) const {
  return StrCat(Prefix(block), id().substr(id().find('_') + 1), "_", block.index);
}

// Appends where an event belongs; the items are the blocks, and each has one part of content.
void ResponsesAnswer::AppendPlace(std::string& body, const AnswerBlock& block, bool content) const {
  body += R"(,"item_id":)";
  AppendJsonString(body, ItemId(block));
  body += StrCat(R"(,"output_index":)", block.index, content ? R"(,"content_index":0)" : "");
}

void ResponsesAnswer::AppendContent(std::string& out, const AnswerBlock& block, bool whole) const {
  const bool reasoning = block.kind == AnswerBlock::Kind::kReasoning;
  out += reasoning ? R"({"type":"reasoning_text","text":)"
                   : R"({"type":"output_text","annotations":[],"logprobs":[],"text":)";
  AppendJsonString(out, whole ? block.text : "");
  out += '}';
}

void ResponsesAnswer::AppendItem(std::string& out, const AnswerBlock& block, bool whole,
                                 bool complete) const {
  out += R"({"id":)";
  AppendJsonString(out, ItemId(block));
  out += R"(,"status":)";
  AppendJsonString(out, !whole ? "in_progress" : complete ? "completed" : "incomplete");
  if (block.kind == AnswerBlock::Kind::kCall) {
    out += block.is_text ? R"(,"type":"custom_tool_call","call_id":)"
                         : R"(,"type":"function_call","call_id":)";
    AppendJsonString(out, block.id);
    out += R"(,"name":)";
    AppendJsonString(out, block.name);
    if (const auto of = namespaces_.find(block.name); of != namespaces_.end()) {
      out += R"(,"namespace":)";
      AppendJsonString(out, of->second);
    }
    out += block.is_text ? R"(,"input":)" : R"(,"arguments":)";
    AppendJsonString(out, whole ? block.text : "");
  } else {
    out += block.kind == AnswerBlock::Kind::kReasoning
               ? R"(,"type":"reasoning","summary":[],"content":[)"
               : R"(,"type":"message","role":"assistant","content":[)";
    if (whole) AppendContent(out, block, /*whole=*/true);
    out += ']';
  }
  out += '}';
}

void ResponsesAnswer::AppendHead(std::string& out, std::string_view status) const {
  out += R"({"id":)";
  AppendJsonString(out, id());
  out += StrCat(R"(,"object":"response","created_at":)", created(), R"(,"status":)");
  AppendJsonString(out, status);
  out += R"(,"error":null,"incomplete_details":)";
  out += status == "incomplete" ? R"({"reason":"max_output_tokens"})" : "null";
  out += R"(,"model":)";
  AppendJsonString(out, model());
  out += ',';
}

void ResponsesAnswer::AppendTail(std::string& out, std::string_view status,
                                 const Finish* finish) const {
  out += R"(,"output":[)";
  if (finish != nullptr) {
    for (const AnswerBlock& block : blocks()) {
      if (block.index > 0) out += ',';
      const bool last = block.index + 1 == blocks().size();
      AppendItem(out, block, /*whole=*/true, !last || status == "completed");
    }
  }
  out += R"(],"usage":)";
  if (finish != nullptr) {
    AppendResponsesUsage(out, finish->usage);
  } else {
    out += "null";
  }
  out += '}';
}

std::shared_ptr<const SharedBody> ResponsesAnswer::Response(std::string_view status,
                                                            const Finish* finish) const {
  std::string text;
  AppendHead(text, status);
  auto response = std::make_shared<SharedBody>();
  if (shown_->size() > kLongBytes) {
    response->Add(std::exchange(text, {}));
    response->Add(shown_);
  } else {
    text += *shown_;
  }
  AppendTail(text, status, finish);
  response->Add(std::move(text));
  return response;
}

void ResponsesAnswer::Append(const SharedBody& response, std::string& body) {
  for (const std::shared_ptr<const std::string>& piece : response.pieces()) {
    if (piece != shown_) {
      body += *piece;
      continue;
    }
    events_.Add(std::exchange(body, {}));
    events_.Add(piece);
  }
}

Answer::State ResponsesAnswer::Poll(HttpResponse& response, std::string& body) {
  if (shown_->size() <= kLongBytes) return BlockAnswer::Poll(response, body);
  if (events_.size() == 0) {
    std::string last;
    state_ = BlockAnswer::Poll(response, last);
    if (!last.empty()) events_.Add(std::move(last));
    if (events_.size() == 0) return state_;
    // Another event may have arrived and woken the connection before the last part is returned.
    if (state_ == State::kWaiting || state_ == State::kPause) state_ = State::kChunk;
  }
  const std::string_view some = events_.From(polled_).substr(0, kLongBytes);
  body += some;
  polled_ += some.size();
  if (polled_ < events_.size()) return State::kChunk;
  events_ = SharedBody();
  polled_ = 0;
  return state_;
}

// A comment must not come into the middle of an event.
bool ResponsesAnswer::Ping(HttpResponse& response, std::string& body) {
  return events_.size() == 0 && BlockAnswer::Ping(response, body);
}

// Counts a text that several events share once.
size_t ResponsesAnswer::held_bytes() const {
  size_t bytes = 0;
  for (const std::shared_ptr<const std::string>& piece : events_.pieces()) {
    if (piece != shown_) bytes += piece->size();
  }
  return bytes < events_.size() ? bytes + shown_->size() : bytes;
}

void ResponsesAnswer::Begin(std::string& body) {
  for (std::string_view name : {"response.created", "response.in_progress"}) {
    BeginEvent(body, name);
    body += R"(,"response":)";
    Append(*Response("in_progress", nullptr), body);
    body += "}\n\n";
  }
}

void ResponsesAnswer::Open(const AnswerBlock& block, std::string& body) {
  BeginEvent(body, "response.output_item.added");
  body += StrCat(R"(,"output_index":)", block.index, R"(,"item":)");
  AppendItem(body, block, /*whole=*/false, /*complete=*/false);
  body += "}\n\n";
  if (block.kind == AnswerBlock::Kind::kCall) return;
  BeginEvent(body, "response.content_part.added");
  AppendPlace(body, block, /*content=*/true);
  body += R"(,"part":)";
  AppendContent(body, block, /*whole=*/false);
  body += "}\n\n";
}

void ResponsesAnswer::Delta(const AnswerBlock& block, std::string_view text, std::string& body) {
  const bool call = block.kind == AnswerBlock::Kind::kCall;
  const bool reasoning = block.kind == AnswerBlock::Kind::kReasoning;
  BeginEvent(body, block.is_text ? "response.custom_tool_call_input.delta"
                   : call        ? "response.function_call_arguments.delta"
                   : reasoning   ? "response.reasoning_text.delta"
                                 : "response.output_text.delta");
  AppendPlace(body, block, !call);
  body += R"(,"delta":)";
  AppendJsonString(body, text);
  body += call || reasoning ? "}\n\n" : ",\"logprobs\":[]}\n\n";
}

void ResponsesAnswer::Close(const AnswerBlock& block, bool complete, std::string& body) {
  const bool call = block.kind == AnswerBlock::Kind::kCall;
  const bool reasoning = block.kind == AnswerBlock::Kind::kReasoning;
  BeginEvent(body, block.is_text ? "response.custom_tool_call_input.done"
                   : call        ? "response.function_call_arguments.done"
                   : reasoning   ? "response.reasoning_text.done"
                                 : "response.output_text.done");
  AppendPlace(body, block, !call);
  body += block.is_text ? R"(,"input":)" : call ? R"(,"arguments":)" : R"(,"text":)";
  AppendJsonString(body, block.text);
  if (call && !block.is_text) {
    body += R"(,"name":)";
    AppendJsonString(body, block.name);
  } else if (!call && !reasoning) {
    body += R"(,"logprobs":[])";
  }
  body += "}\n\n";
  if (!call) {
    BeginEvent(body, "response.content_part.done");
    AppendPlace(body, block, /*content=*/true);
    body += R"(,"part":)";
    AppendContent(body, block, /*whole=*/true);
    body += "}\n\n";
  }
  BeginEvent(body, "response.output_item.done");
  body += StrCat(R"(,"output_index":)", block.index, R"(,"item":)");
  AppendItem(body, block, /*whole=*/true, complete);
  body += "}\n\n";
}

void ResponsesAnswer::End(const Finish& finish, std::string& body) {
  std::shared_ptr<const SharedBody> response = Response(StatusOf(finish), &finish);
  BeginEvent(body, StrCat("response.", StatusOf(finish)));
  body += R"(,"response":)";
  Append(*response, body);
  body += "}\n\n";
  Keep(std::move(response));
}

std::shared_ptr<const SharedBody> ResponsesAnswer::Whole(const Finish& finish) {
  std::shared_ptr<const SharedBody> response = Response(StatusOf(finish), &finish);
  Keep(response);
  return response;
}

void ResponsesAnswer::Keep(std::shared_ptr<const SharedBody> json) {
  if (store_ == nullptr) return;
  ChatMessage answer{.role = "assistant"};
  for (const AnswerBlock& block : blocks()) {
    switch (block.kind) {
      case AnswerBlock::Kind::kReasoning:
        answer.reasoning += block.text;
        break;
      case AnswerBlock::Kind::kText:
        answer.content += block.text;
        break;
      case AnswerBlock::Kind::kCall:
        answer.tool_calls.push_back(
            {.id = block.id,
             .name = block.name,
             .arguments = block.is_text ? TextArguments(block.text) : block.text});
        break;
    }
  }
  messages_.push_back(std::move(answer));
  turns_.push_back(std::make_shared<const TurnMessages>(std::move(messages_)));
  store_->Put({.id = id(), .owner = owner_, .json = std::move(json), .turns = std::move(turns_)});
}

// The engine knows a prompt, whatever the field that it came in.
HttpResponse ResponsesAnswer::Refusal(const ApiError& error) {
  ApiError named = error;
  RenameField("reasoning_effort", "reasoning.effort", named);
  if (named.code == "context_length_exceeded") named.param = "input";
  return ErrorResponse(named);
}

void ResponsesAnswer::Break(const ApiError& error, std::string& body) {
  BeginEvent(body, "error");
  body += R"(,"code":)";
  AppendJsonString(body, error.code);
  body += R"(,"message":)";
  AppendJsonString(body, error.message);
  body += ",\"param\":null}\n\n";
}

}  // namespace millrace
