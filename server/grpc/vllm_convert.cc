#include "server/grpc/vllm_convert.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <variant>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

namespace pb = ::vllm::grpc::engine;

int32_t ToInt32(uint32_t number) {
  return static_cast<int32_t>(std::min<uint32_t>(number, std::numeric_limits<int32_t>::max()));
}

template <typename Ids>
std::vector<Token> ToTokens(const Ids& ids) {
  std::vector<Token> tokens;
  tokens.reserve(ids.size());
  for (const uint32_t id : ids) tokens.push_back(ToInt32(id));
  return tokens;
}

absl::Status Refused(std::string_view field, std::string_view allowed) {
  return absl::InvalidArgumentError(StrCat(field, " is set; allowed: ", allowed));
}

absl::Status CheckSupported(const pb::GenerateRequest& request) {
  if (request.has_kv_transfer_params() || request.has_kv_transfer_params_json()) {
    return Refused("kv_transfer_params", "none, since the KV cache stays on its device");
  }
  if (request.has_mm_inputs() || request.extra_mm_inputs_size() > 0 || request.has_media_refs()) {
    return Refused("mm_inputs", "none, since models of text alone are served");
  }
  if (request.data_parallel_rank() != 0) {
    return absl::InvalidArgumentError(
        StrCat("data_parallel_rank is ", request.data_parallel_rank(), "; allowed: 0"));
  }
  const pb::SamplingParams& params = request.sampling_params();
  if (params.has_prompt_logprobs()) return Refused("prompt_logprobs", "none over this protocol");
  if (params.has_truncate_prompt_tokens()) return Refused("truncate_prompt_tokens", "none");
  return absl::OkStatus();
}

absl::Status TakeConstraint(const pb::SamplingParams& from, GenerateRequest& to) {
  using Kind = GrammarSpec::Kind;
  switch (from.constraint_case()) {
    case pb::SamplingParams::kJsonSchema:
      to.grammar = {.kind = Kind::kJsonSchema, .text = from.json_schema()};
      to.grammar_field = "json_schema";
      break;
    case pb::SamplingParams::kRegex:
      to.grammar = {.kind = Kind::kRegex, .text = from.regex()};
      to.grammar_field = "regex";
      break;
    case pb::SamplingParams::kGrammar:
      to.grammar = {.kind = Kind::kEbnf, .text = from.grammar()};
      to.grammar_field = "grammar";
      break;
    case pb::SamplingParams::kJsonObject:
      if (from.json_object()) to.grammar = {.kind = Kind::kJsonObject};
      to.grammar_field = "json_object";
      break;
    case pb::SamplingParams::kChoice:
      to.grammar = {.kind = Kind::kChoice};
      to.grammar->choices.assign(from.choice().choices().begin(), from.choice().choices().end());
      to.grammar_field = "choice";
      break;
    case pb::SamplingParams::kStructuralTag:
      return Refused("structural_tag", "json_schema, regex, grammar, json_object, choice");
    case pb::SamplingParams::CONSTRAINT_NOT_SET:
      break;
  }
  return absl::OkStatus();
}

// A number without presence that is 0 counts as not given, as vLLM's server has it.
void TakeSampling(const pb::SamplingParams& from, GenerateRequest& to) {
  to.temperature = from.has_temperature() ? from.temperature() : 1;
  if (from.top_p() != 0) to.top_p = from.top_p();
  to.top_k = ToInt32(from.top_k());
  to.min_p = from.min_p();
  to.frequency_penalty = from.frequency_penalty();
  to.presence_penalty = from.presence_penalty();
  if (from.repetition_penalty() != 0) to.repetition_penalty = from.repetition_penalty();
  if (from.has_max_tokens()) to.max_tokens = ToInt32(from.max_tokens());
  to.min_tokens = ToInt32(from.min_tokens());
  to.stop.assign(from.stop().begin(), from.stop().end());
  to.stop_token_ids = ToTokens(from.stop_token_ids());
  to.skip_special_tokens = from.skip_special_tokens();
  to.ignore_eos = from.ignore_eos();
  if (from.n() != 0) to.n = ToInt32(from.n());
  if (from.has_logprobs()) to.logprobs = from.logprobs();
  if (from.has_seed()) to.seed = static_cast<uint32_t>(from.seed());
  to.include_stop_str_in_output = from.include_stop_str_in_output();
  for (const pb::LogitBiasEntry& bias : from.logit_bias()) {
    to.logit_bias.push_back({bias.key(), bias.value()});
  }
}

void AddLogprobs(const std::vector<TokenDetail>& details, pb::OutputLogProbs& out) {
  for (const TokenDetail& detail : details) {
    out.add_token_ids(detail.token);
    out.add_token_logprobs(detail.logprob.value_or(0));
    pb::TopLogProbs& top = *out.add_top_logprobs();
    for (const TokenAlternative& alternative : detail.top) {
      top.add_token_ids(alternative.token);
      top.add_values(alternative.logprob);
    }
  }
}

}  // namespace

absl::StatusOr<GenerateRequest> FromProto(const pb::GenerateRequest& request) {
  MILLRACE_RETURN_IF_ERROR(CheckSupported(request));
  GenerateRequest out;
  if (request.has_tokenized()) {
    out.prompt = ToTokens(request.tokenized().input_ids());
  } else if (request.input_case() == pb::GenerateRequest::kText) {
    out.prompt = request.text();
  } else {
    return absl::InvalidArgumentError("input: missing; one of tokenized, text is required");
  }
  TakeSampling(request.sampling_params(), out);
  MILLRACE_RETURN_IF_ERROR(TakeConstraint(request.sampling_params(), out));
  return out;
}

absl::StatusOr<EmbedRequest> FromProto(const pb::EmbedRequest& request) {
  if (request.tokenized().input_ids_size() == 0) {
    return absl::InvalidArgumentError("tokenized.input_ids: missing; at least one is required");
  }
  EmbedRequest out;
  out.field = "tokenized.input_ids";
  out.inputs.emplace_back(ToTokens(request.tokenized().input_ids()));
  return out;
}

void VllmChoice::Add(const OutputEvent& event, std::vector<pb::GenerateResponse>& out) {
  if (event.prompt_tokens > 0) prompt_tokens_ = static_cast<uint32_t>(event.prompt_tokens);
  for (const Token token : event.tokens) so_far_.add_output_ids(token);
  if (!event.details.empty()) AddLogprobs(event.details, *so_far_.mutable_output_logprobs());
  if (stream_ && !event.tokens.empty()) {
    pb::GenerateStreamChunk& chunk = *out.emplace_back().mutable_chunk();
    for (const Token token : event.tokens) chunk.add_token_ids(token);
    if (!event.details.empty()) AddLogprobs(event.details, *chunk.mutable_output_logprobs());
    chunk.set_prompt_tokens(prompt_tokens_);
    chunk.set_completion_tokens(so_far_.output_ids_size());
    chunk.set_index(index_);
  }
  if (!event.finish.has_value()) return;
  const Finish& finish = *event.finish;
  pb::GenerateComplete& complete = *out.emplace_back().mutable_complete();
  complete.Swap(&so_far_);
  complete.set_index(index_);
  complete.set_finish_reason(std::string(Name(finish.reason)));
  complete.set_prompt_tokens(finish.usage.prompt_tokens);
  complete.set_completion_tokens(finish.usage.completion_tokens);
  complete.set_cached_tokens(finish.usage.cached_tokens);
  if (const Token* token = std::get_if<Token>(&finish.stopped_by)) {
    complete.set_matched_token_id(*token);
  } else if (const auto* text = std::get_if<std::string>(&finish.stopped_by)) {
    complete.set_matched_stop_str(*text);
  }
}

void VllmChoice::Abort(std::vector<pb::GenerateResponse>& out) const {
  pb::GenerateComplete& complete = *out.emplace_back().mutable_complete();
  complete = so_far_;
  complete.set_index(index_);
  complete.set_finish_reason("abort");
  complete.set_prompt_tokens(prompt_tokens_);
  complete.set_completion_tokens(so_far_.output_ids_size());
}

}  // namespace millrace
