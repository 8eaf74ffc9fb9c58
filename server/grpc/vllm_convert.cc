#include "server/grpc/vllm_convert.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>
#include <variant>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/request/sampling_defaults.h"
#include "server/grpc/take_fields.h"
#include "text/grammar/structural_tag.h"

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
  if (request.sampling_params().has_truncate_prompt_tokens()) {
    return Refused("truncate_prompt_tokens", "none");
  }
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
    case pb::SamplingParams::kStructuralTag: {
      to.grammar_field = "structural_tag";
      MILLRACE_ASSIGN_OR_RETURN(to.grammar,
                                ReadStructuralTag(from.structural_tag(), to.grammar_field));
      break;
    }
    case pb::SamplingParams::CONSTRAINT_NOT_SET:
      break;
  }
  return absl::OkStatus();
}

// A number without presence that is 0 counts as not given, as vLLM's server has it.
void TakeSampling(const pb::SamplingParams& from, GenerateRequest& to) {
  TakeFields(from, kVllmGrpcField, to);
  if (from.has_max_tokens()) to.max_tokens = ToInt32(from.max_tokens());
  to.stop.assign(from.stop().begin(), from.stop().end());
  to.stop_token_ids = ToTokens(from.stop_token_ids());
  if (from.n() != 0) to.n = ToInt32(from.n());
  if (from.has_seed()) to.seed = static_cast<uint32_t>(from.seed());
  for (const pb::LogitBiasEntry& bias : from.logit_bias()) {
    to.logit_bias.push_back({bias.key(), bias.value()});
  }
}

void AddTop(const TokenDetail& detail, int32_t top, pb::TopLogProbs& out) {
  const size_t shown = std::min(detail.top.size(), static_cast<size_t>(std::max(top, 0)));
  for (size_t i = 0; i < shown; ++i) {
    out.add_token_ids(static_cast<uint32_t>(detail.top[i].token));
    out.add_values(detail.top[i].logprob);
  }
}

void AddLogprobs(const std::vector<TokenDetail>& details, int32_t top, pb::OutputLogProbs& out) {
  for (const TokenDetail& detail : details) {
    out.add_token_ids(static_cast<uint32_t>(detail.token));
    out.add_token_logprobs(detail.logprob.value_or(0));
    if (top > 0) AddTop(detail, top, *out.add_top_logprobs());
  }
}

// Sets what is computed for the two kinds of log-probabilities; VllmOutput shows each its own.
absl::Status TakeLogprobs(const pb::SamplingParams& from, GenerateRequest& to) {
  if (from.has_logprobs()) to.logprobs = from.logprobs();
  if (!from.has_prompt_logprobs()) return absl::OkStatus();
  if (from.prompt_logprobs() < 0 || from.prompt_logprobs() > kMaxTopLogprobs) {
    return absl::InvalidArgumentError(
        StrCat("prompt_logprobs is ", from.prompt_logprobs(), "; allowed: 0 to ", kMaxTopLogprobs));
  }
  to.echo = true;
  to.logprobs = std::max(to.logprobs.value_or(0), from.prompt_logprobs());
  return absl::OkStatus();
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
  // Routers that speak this protocol render chats themselves.
  out.is_rendered_chat = true;
  TakeSampling(request.sampling_params(), out);
  MILLRACE_RETURN_IF_ERROR(TakeLogprobs(request.sampling_params(), out));
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

VllmOutput VllmOutput::Of(const pb::GenerateRequest& request) {
  const pb::SamplingParams& params = request.sampling_params();
  VllmOutput out = {.stream = request.stream()};
  if (params.has_logprobs()) out.logprobs = params.logprobs();
  if (params.has_prompt_logprobs()) out.prompt_logprobs = params.prompt_logprobs();
  return out;
}

std::shared_ptr<const pb::InputLogProbs> InputLogprobs(const std::vector<TokenDetail>& prompt,
                                                       int32_t top) {
  auto out = std::make_shared<pb::InputLogProbs>();
  for (const TokenDetail& detail : prompt) {
    out->add_token_ids(static_cast<uint32_t>(detail.token));
    pb::InputTokenLogProb& logprob = *out->add_token_logprobs();
    if (detail.logprob.has_value()) logprob.set_value(*detail.logprob);
    if (top > 0) AddTop(detail, top, *out->add_top_logprobs());
  }
  return out;
}

pb::GetModelInfoResponse ModelInfo(const EngineInfo& info) {
  pb::GetModelInfoResponse out;
  const bool generates = info.embedding_size == 0;
  out.set_model_path(info.model_name);
  out.set_served_model_name(info.model_name);
  out.set_is_generation(generates);
  out.set_max_context_length(static_cast<uint32_t>(info.max_model_len));
  out.set_vocab_size(static_cast<uint32_t>(info.vocab_size));
  out.set_model_type(info.architecture);
  for (const Token end : info.end_tokens) out.add_eos_token_ids(end);
  out.set_pad_token_id(info.tokenizer.pad_id.value_or(0));
  out.set_bos_token_id(info.tokenizer.bos_id.value_or(0));
  out.set_max_req_input_len(info.max_model_len - (generates ? 1 : 0));
  std::string json;
  for (const auto& [name, value] : NamedDefaults(info.sampling)) {
    json += StrCat(json.empty() ? "{" : ",", "\"", name, "\":", value);
  }
  if (!json.empty()) out.set_default_sampling_params_json(json + "}");
  return out;
}

pb::GetLoadsResponse Loads(const EngineInfo& info, const EngineStatus& status,
                           std::string_view version) {
  const SchedulerStats& stats = status.stats;
  pb::GetLoadsResponse out;
  out.set_timestamp(absl::FormatTime(absl::RFC3339_full, absl::Now(), absl::UTCTimeZone()));
  out.set_version(std::string(version));
  out.set_dp_rank_count(1);
  pb::SchedulerLoad& load = *out.add_loads();
  load.set_num_running_reqs(stats.num_running);
  load.set_num_waiting_reqs(stats.num_waiting + status.arriving);
  load.set_num_total_reqs(load.num_running_reqs() + load.num_waiting_reqs());
  load.set_num_used_tokens(stats.blocks_held * info.block_size);
  load.set_max_total_num_tokens(info.num_blocks * info.block_size);
  const auto share = [](auto part, auto whole) {
    return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
  };
  load.set_token_usage(stats.usage);
  load.set_cache_hit_rate(share(stats.prefix_hits, stats.prefix_queries));
  load.set_utilization(share(stats.num_running, info.max_num_seqs));
  load.set_max_running_requests(info.max_num_seqs);
  return out;
}

void VllmChoice::Add(const OutputEvent& event, std::vector<pb::GenerateResponse>& out) {
  if (event.prompt_tokens > 0) prompt_tokens_ = static_cast<uint32_t>(event.prompt_tokens);
  if (output_.stream) tokens_.Clear();
  for (const Token token : event.tokens) tokens_.add_output_ids(static_cast<uint32_t>(token));
  if (output_.logprobs.has_value() && !event.details.empty()) {
    AddLogprobs(event.details, *output_.logprobs, *tokens_.mutable_output_logprobs());
  }
  if (output_.stream && !event.tokens.empty()) {
    pb::GenerateStreamChunk& chunk = *out.emplace_back().mutable_chunk();
    *chunk.mutable_token_ids() = tokens_.output_ids();
    if (tokens_.has_output_logprobs()) {
      *chunk.mutable_output_logprobs() = tokens_.output_logprobs();
    }
    if (prompt_ != nullptr && !chunked_) *chunk.mutable_input_logprobs() = *prompt_;
    chunked_ = true;
    chunk.set_prompt_tokens(prompt_tokens_);
    chunk.set_completion_tokens(static_cast<uint32_t>(event.tokens.size()));
    chunk.set_index(index_);
  }
  if (!event.finish.has_value()) return;
  const Finish& finish = *event.finish;
  prompt_tokens_ = static_cast<uint32_t>(finish.usage.prompt_tokens);
  pb::GenerateComplete& complete = Complete(out);
  complete.set_finish_reason(std::string(Name(finish.reason)));
  complete.set_cached_tokens(static_cast<uint32_t>(finish.usage.cached_tokens));
  if (const Token* token = std::get_if<Token>(&finish.stopped_by)) {
    complete.set_matched_token_id(static_cast<uint32_t>(*token));
  } else if (const auto* text = std::get_if<std::string>(&finish.stopped_by)) {
    complete.set_matched_stop_str(*text);
  }
}

void VllmChoice::Abort(std::vector<pb::GenerateResponse>& out) {
  if (output_.stream) tokens_.Clear();
  Complete(out).set_finish_reason("abort");
}

pb::GenerateComplete& VllmChoice::Complete(std::vector<pb::GenerateResponse>& out) {
  pb::GenerateComplete& complete = *out.emplace_back().mutable_complete();
  complete.Swap(&tokens_);
  complete.set_index(index_);
  complete.set_prompt_tokens(prompt_tokens_);
  complete.set_completion_tokens(static_cast<uint32_t>(complete.output_ids_size()));
  if (prompt_ != nullptr) *complete.mutable_input_logprobs() = *prompt_;
  return complete;
}

}  // namespace millrace
