// The numbers and switches of a request to generate. Each is declared once, in this file: a member
// of RequestFields, whose initializer is its default, and a row of ForEachRequestField with its
// name, its range, the protocols that have it and a line for readers.
//
// Everything that knows a field goes by its row: the readers of HTTP bodies
// (server/http/json/request_fields_reader.h) and of gRPC messages (server/grpc/take_fields.h),
// ValidateRequest with its refusals, /openapi.json, and the table of docs/http-api.md, which
// server/request_fields_test.cc compares. Fields of another shape (prompts, lists, objects) have
// readers of their own.
#ifndef MILLRACE_ENGINE_REQUEST_REQUEST_FIELDS_H_
#define MILLRACE_ENGINE_REQUEST_REQUEST_FIELDS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include "base/strings.h"
#include "formats/generation_config.h"
#include "plan/sampling_params.h"

namespace millrace {

// The names, defaults and meaning are vLLM's (typical_p is Hugging Face's). SamplingParams gives
// the order in which sampling applies those that it has, too.
struct RequestFields {
  float temperature = kTemperature.otherwise;
  int32_t top_k = kTopK.otherwise;
  float top_p = kTopP.otherwise;
  float min_p = kMinP.otherwise;
  float typical_p = kTypicalP.otherwise;
  float repetition_penalty = kRepetitionPenalty.otherwise;
  float frequency_penalty = kFrequencyPenalty.otherwise;
  float presence_penalty = kPresencePenalty.otherwise;
  int32_t min_tokens = 0;
  std::optional<int32_t> thinking_token_budget;  // unset: no bound
  bool ignore_eos = false;
  bool include_stop_str_in_output = false;
  bool skip_special_tokens = true;
  bool detokenize = true;
  int32_t priority = 0;
  bool speculative = true;
};

// The protocols that have a field, as bits. It has the same name in all of them. Only readers and
// descriptions look at these: the engine obeys a field wherever it came from.
enum FieldProtocol : unsigned {
  kOpenAiField = 1,     // completions and chats
  kResponsesField = 2,  // OpenAI's responses
  kMessagesField = 4,   // Anthropic's messages
  kGrpcField = 8,       // millrace.v1: in GenerateRequest, SamplingOptions or StopOptions
  kVllmGrpcField = 16,  // vllm.grpc.engine: in SamplingParams
};

// The type of a field's value where it is given.
template <typename Value>
struct GivenValue {
  using Type = Value;
};
template <typename Value>
struct GivenValue<std::optional<Value>> {
  using Type = Value;
};

template <typename Value>
struct RequestField {
  using Given = typename GivenValue<Value>::Type;

  const char* name;
  Value RequestFields::*member;
  unsigned protocols;
  const char* meaning;
  Given least = Given(0);
  Given most = Given(1);
  const char* allowed = "true or false";  // the range in words, for messages
  bool above_least = false;               // the minimum itself is not allowed
  std::optional<Given> neutral = {};      // counts as left out, though it is out of the range

  bool Allows(Given value) const {
    return (above_least ? value > least : value >= least) && value <= most;
  }
  std::optional<Given> Get(const RequestFields& request) const { return request.*member; }
  // Takes a value away that counts as left out.
  void DropNeutral(RequestFields& request) const {
    if constexpr (!std::is_same_v<Value, Given>) {
      if (request.*member == neutral) request.*member = std::nullopt;
    }
  }
};

// A number that reaches the sampler. plan/sampling_params.h has its name, default and range.
template <typename Number>
struct SamplingField : RequestField<Number> {
  SamplingField(const SamplingNumber<Number>& declared, Number RequestFields::*in_request,
                Number SamplingParams::*in_params, std::optional<Number> GenerationConfig::*in_file,
                unsigned protocols, const char* meaning)
      : RequestField<Number>{declared.name,  in_request,    protocols,        meaning,
                             declared.least, declared.most, declared.allowed, declared.above_least},
        params(in_params),
        config(in_file) {}

  Number SamplingParams::*params;
  std::optional<Number> GenerationConfig::*config;  // null: the file does not say it
};

// Calls visit(SamplingField) for each number that reaches the sampler, in the order in which errors
// are looked for.
template <typename Visit>
void ForEachSamplingField(const Visit& visit) {
  using R = RequestFields;
  using P = SamplingParams;
  using C = GenerationConfig;
  using Float = SamplingField<float>;
  using Int = SamplingField<int32_t>;
  constexpr unsigned kOwn = kOpenAiField | kResponsesField | kGrpcField;
  constexpr unsigned kVllm = kOwn | kVllmGrpcField;
  constexpr unsigned kAll = kVllm | kMessagesField;
  visit(Float(kTemperature, &R::temperature, &P::temperature, &C::temperature, kAll,
              "Divides the logits; 0 takes the likeliest token."));
  visit(
      Int(kTopK, &R::top_k, &P::top_k, &C::top_k, kAll, "Keeps so many of the likeliest tokens."));
  visit(Float(kTopP, &R::top_p, &P::top_p, &C::top_p, kAll,
              "Keeps the fewest of the likeliest tokens whose probabilities reach this sum."));
  visit(Float(kMinP, &R::min_p, &P::min_p, &C::min_p, kVllm,
              "Drops tokens that are less likely than this times the likeliest."));
  visit(Float(kTypicalP, &R::typical_p, &P::typical_p, &C::typical_p, kOwn,
              "Keeps the fewest of the most typical tokens whose probabilities reach this sum."));
  visit(Float(kRepetitionPenalty, &R::repetition_penalty, &P::repetition_penalty,
              &C::repetition_penalty, kVllm,
              "Makes the tokens of the prompt and of the answer less likely; below 1, more."));
  visit(Float(kFrequencyPenalty, &R::frequency_penalty, &P::frequency_penalty, nullptr, kVllm,
              "Is taken from a token's logit for each time that the answer has the token."));
  visit(Float(kPresencePenalty, &R::presence_penalty, &P::presence_penalty, nullptr, kVllm,
              "Is taken from the logit of each token that the answer has."));
}

// Calls visit(RequestField) for each field, in the order in which errors are looked for.
template <typename Visit>
void ForEachRequestField(const Visit& visit) {
  using R = RequestFields;
  using Int = RequestField<int32_t>;
  using Switch = RequestField<bool>;
  constexpr unsigned kOwn = kOpenAiField | kGrpcField;
  ForEachSamplingField(visit);
  visit(Int{"min_tokens", &R::min_tokens, kOwn | kVllmGrpcField,
            "The answer has so many tokens before a stop token or a stop string may end it.", 0,
            INT32_MAX, "at least 0"});
  visit(RequestField<std::optional<int32_t>>{
      .name = "thinking_token_budget",
      .member = &R::thinking_token_budget,
      .protocols = kOwn,
      .meaning = "The most tokens of reasoning, after which its end is forced.",
      .least = 0,
      .most = INT32_MAX,
      .allowed = "-1 (none), or a number from 0",
      .neutral = -1});
  visit(Switch{"ignore_eos", &R::ignore_eos, kOwn | kResponsesField | kVllmGrpcField,
               "The answer goes on behind the model's end-of-sequence tokens."});
  visit(Switch{"include_stop_str_in_output", &R::include_stop_str_in_output, kOwn | kVllmGrpcField,
               "The text ends with the stop string or the stop token that ended it."});
  visit(Switch{"skip_special_tokens", &R::skip_special_tokens, kOwn | kVllmGrpcField,
               "The text has no special tokens."});
  visit(Switch{"detokenize", &R::detokenize, kOpenAiField,
               "False: the answer has no text, reasoning and calls; its token ids come with "
               "`return_token_ids`. Log-probabilities keep their texts."});
  visit(Int{"priority", &R::priority, kOwn | kResponsesField, "Lower first; a key may bound it.",
            INT32_MIN, INT32_MAX, "any integer of 32 bits"});
  visit(Switch{"speculative", &R::speculative, kOwn | kResponsesField | kMessagesField,
               "False: nothing of the answer is drafted; it is the same, bit for bit."});
}

// Returns the default of a field, a RequestField or a SamplingField, in words.
template <typename Field>
std::string DefaultOf(const Field& field) {
  const auto value = field.Get(RequestFields());
  if (!value.has_value()) return "none";
  if constexpr (std::is_same_v<typename Field::Given, bool>) return *value ? "true" : "false";
  if constexpr (requires { field.params; }) return StrCat("the model's, else ", *value);
  return StrCat(*value);
}

}  // namespace millrace

#endif  // MILLRACE_ENGINE_REQUEST_REQUEST_FIELDS_H_
