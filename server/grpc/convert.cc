#include "server/grpc/convert.h"

#include <string>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "server/grpc/take_fields.h"
#include "text/grammar/structural_tag.h"

namespace millrace {
namespace {

Chat FromProto(v1::ChatMessages&& from) {
  Chat chat;
  chat.messages.reserve(from.messages_size());
  for (v1::ChatMessage& message : *from.mutable_messages()) {
    chat.messages.push_back({.role = std::move(*message.mutable_role()),
                             .content = std::move(*message.mutable_content()),
                             .name = std::move(*message.mutable_name())});
  }
  return chat;
}

void TakeSampling(const v1::SamplingOptions& from, GenerateRequest& to) {
  TakeFields(from, kGrpcField, to);
  if (from.has_seed()) to.seed = from.seed();
  for (const v1::LogitBias& biased : from.logit_bias()) {
    to.logit_bias.push_back({biased.token(), biased.bias()});
  }
  if (from.allowed_token_ids_size() > 0) {
    to.allowed_token_ids.emplace(from.allowed_token_ids().begin(), from.allowed_token_ids().end());
  }
  to.bad_words.assign(from.bad_words().begin(), from.bad_words().end());
}

void TakeStopping(const v1::StopOptions& from, GenerateRequest& to) {
  TakeFields(from, kGrpcField, to);
  if (from.has_max_tokens()) to.max_tokens = from.max_tokens();
  to.stop.assign(from.stop().begin(), from.stop().end());
  to.stop_token_ids.assign(from.stop_token_ids().begin(), from.stop_token_ids().end());
}

// An expression or a grammar that is empty asks for nothing.
absl::Status CheckNotEmpty(const GenerateRequest& request) {
  if (!request.grammar->text.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      StrCat(request.grammar_field, " is \"\"; allowed: a string, not empty"));
}

absl::Status TakeStructuredOutput(v1::StructuredOutput&& from, GenerateRequest& to) {
  using Kind = GrammarSpec::Kind;
  to.grammar_field = "structured_output";
  switch (from.kind_case()) {
    case v1::StructuredOutput::kJsonObject:
      if (from.json_object()) to.grammar = {.kind = Kind::kJsonObject};
      break;
    case v1::StructuredOutput::kJsonSchema:
      to.grammar = {.kind = Kind::kJsonSchema, .text = std::move(*from.mutable_json_schema())};
      to.grammar_field += ".json_schema";
      break;
    case v1::StructuredOutput::kRegex:
      to.grammar = {.kind = Kind::kRegex, .text = std::move(*from.mutable_regex())};
      to.grammar_field += ".regex";
      return CheckNotEmpty(to);
    case v1::StructuredOutput::kChoice:
      to.grammar = {.kind = Kind::kChoice};
      for (std::string& choice : *from.mutable_choice()->mutable_choices()) {
        to.grammar->choices.push_back(std::move(choice));
      }
      to.grammar_field += ".choice";
      break;
    case v1::StructuredOutput::kGrammar:
      to.grammar = {.kind = Kind::kEbnf, .text = std::move(*from.mutable_grammar())};
      to.grammar_field += ".grammar";
      return CheckNotEmpty(to);
    case v1::StructuredOutput::kStructuralTag: {
      to.grammar_field += ".structural_tag";
      auto tag = ReadStructuralTag(from.structural_tag(), to.grammar_field);
      if (!tag.ok()) return tag.status();
      to.grammar = *std::move(tag);
      break;
    }
    case v1::StructuredOutput::KIND_NOT_SET:
      return absl::InvalidArgumentError(
          "structured_output: empty; one of json_object, json_schema, regex, choice, grammar, "
          "structural_tag is required");
  }
  return absl::OkStatus();
}

void SetDetail(TokenDetail&& from, v1::TokenLogprob& to) {
  to.set_token(from.token);
  to.set_bytes(std::move(from.bytes));
  if (from.logprob.has_value()) to.set_logprob(*from.logprob);
  to.set_rank(from.rank);
  int32_t rank = 0;
  for (TokenAlternative& alternative : from.top) {
    v1::TokenLogprob& top = *to.add_top();
    top.set_token(alternative.token);
    top.set_bytes(std::move(alternative.bytes));
    top.set_logprob(alternative.logprob);
    top.set_rank(++rank);
  }
}

void SetFinish(const Finish& from, v1::Finish& to) {
  to.set_reason(from.reason == FinishReason::kLength ? v1::FINISH_REASON_LENGTH
                                                     : v1::FINISH_REASON_STOP);
  if (const Token* token = std::get_if<Token>(&from.stopped_by)) to.set_stop_token_id(*token);
  if (const auto* text = std::get_if<std::string>(&from.stopped_by)) to.set_stop_string(*text);
  to.mutable_usage()->set_prompt_tokens(from.usage.prompt_tokens);
  to.mutable_usage()->set_completion_tokens(from.usage.completion_tokens);
  to.mutable_usage()->set_cached_tokens(from.usage.cached_tokens);
  to.mutable_timings()->set_queue_seconds(absl::ToDoubleSeconds(from.timings.queue));
  to.mutable_timings()->set_prefill_seconds(absl::ToDoubleSeconds(from.timings.prefill));
  to.mutable_timings()->set_decode_seconds(absl::ToDoubleSeconds(from.timings.decode));
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

absl::StatusOr<GenerateRequest> FromProto(v1::GenerateRequest&& request,
                                          const SamplingDefaults& defaults) {
  GenerateRequest out;
  Apply(defaults, &out);
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kText:
      out.prompt = std::move(*request.mutable_text());
      break;
    case v1::GenerateRequest::kChat:
      out.prompt = FromProto(std::move(*request.mutable_chat()));
      break;
    case v1::GenerateRequest::kTokenIds:
      out.prompt =
          std::vector<Token>(request.token_ids().ids().begin(), request.token_ids().ids().end());
      break;
    case v1::GenerateRequest::PROMPT_NOT_SET:
      return absl::InvalidArgumentError(
          "prompt: missing; one of text, chat, token_ids is required");
  }
  TakeFields(request, kGrpcField, out);
  TakeSampling(request.sampling(), out);
  TakeStopping(request.stopping(), out);
  if (request.has_logprobs()) out.logprobs = request.logprobs();
  out.echo = request.echo();
  out.suffix = std::move(*request.mutable_suffix());
  if (out.echo && !out.suffix.empty()) {
    return absl::InvalidArgumentError("echo is true; allowed: false beside suffix");
  }
  if (request.has_n()) out.n = request.n();
  if (request.has_structured_output()) {
    MILLRACE_RETURN_IF_ERROR(
        TakeStructuredOutput(std::move(*request.mutable_structured_output()), out));
  }
  return out;
}

absl::StatusOr<TokenizeRequest> FromProto(v1::TokenizeRequest&& request) {
  TokenizeRequest out;
  switch (request.prompt_case()) {
    case v1::TokenizeRequest::kText:
      out.prompt = std::move(*request.mutable_text());
      out.field = "text";
      break;
    case v1::TokenizeRequest::kChat:
      out.prompt = FromProto(std::move(*request.mutable_chat()));
      break;
    case v1::TokenizeRequest::PROMPT_NOT_SET:
      return absl::InvalidArgumentError("prompt: missing; one of text, chat is required");
  }
  if (request.has_add_special_tokens()) out.add_special_tokens = request.add_special_tokens();
  out.return_token_strs = request.return_token_strs();
  return out;
}

void AddEvent(OutputEvent&& event, v1::GenerateResponse& response) {
  if (event.echo) response.set_echo(true);
  if (!event.text.empty()) response.mutable_text()->append(event.text);
  response.mutable_token_ids()->Add(event.tokens.begin(), event.tokens.end());
  for (TokenDetail& detail : event.details) SetDetail(std::move(detail), *response.add_logprobs());
  if (event.finish.has_value() && event.finish->status.ok()) {
    SetFinish(*event.finish, *response.mutable_finish());
  }
}

absl::StatusOr<EmbedRequest> FromProto(v1::EmbedRequest&& request) {
  const auto count = static_cast<size_t>(request.inputs_size());
  if (count < 1 || count > kMaxEmbeddingInputs) {
    return absl::InvalidArgumentError(
        StrCat("inputs has ", count, "; allowed: 1 to ", kMaxEmbeddingInputs));
  }
  EmbedRequest out;
  out.field = "inputs";
  out.priority = request.priority();
  if (request.has_truncate_prompt_tokens()) {
    out.truncate_prompt_tokens = request.truncate_prompt_tokens();
  }
  if (request.has_dimensions()) out.dimensions = request.dimensions();
  for (v1::EmbedInput& input : *request.mutable_inputs()) {
    if (!input.text().empty()) {
      out.inputs.emplace_back(std::move(*input.mutable_text()));
    } else if (input.token_ids().ids_size() > 0) {
      out.inputs.emplace_back(
          std::vector<Token>(input.token_ids().ids().begin(), input.token_ids().ids().end()));
    } else {
      return absl::InvalidArgumentError(
          StrCat("inputs[", out.inputs.size(), "] is empty; allowed: text or token_ids"));
    }
  }
  return out;
}

void SetEmbeddings(const Embeddings& embeddings, v1::EmbedResponse& response) {
  for (auto at = embeddings.values.begin(); at != embeddings.values.end(); at += embeddings.size) {
    response.add_embeddings()->mutable_values()->Add(at, at + embeddings.size);
  }
  response.mutable_usage()->set_prompt_tokens(static_cast<int32_t>(embeddings.prompt_tokens));
}

v1::Model ToProto(const EngineInfo& info) {
  v1::Model out;
  out.set_name(info.model_name);
  out.set_architecture(info.architecture);
  out.set_created(absl::ToUnixSeconds(info.created));
  out.set_max_model_len(info.max_model_len);
  out.set_vocab_size(info.vocab_size);
  out.set_has_chat_template(info.has_chat_template);
  out.set_batch_invariant(info.batch_invariant);
  out.set_tensor_parallel_size(info.tensor_parallel_size);
  out.set_expert_parallel(info.expert_parallel);
  out.set_embedding_size(info.embedding_size);
  return out;
}

}  // namespace millrace
