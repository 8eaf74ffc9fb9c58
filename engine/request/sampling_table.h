// Lists the numeric sampling parameters, one row each, with the member that holds it in a request,
// in SamplingParams and in generation_config.json. HTTP bodies, gRPC's SamplingOptions and messages
// use the row's name. plan/sampling_params.h has its default and range.
#ifndef MILLRACE_ENGINE_REQUEST_SAMPLING_TABLE_H_
#define MILLRACE_ENGINE_REQUEST_SAMPLING_TABLE_H_

#include <cstdint>
#include <optional>

#include "engine/request/request.h"
#include "formats/generation_config.h"
#include "plan/sampling_params.h"

namespace millrace {

template <typename Number>
struct SamplingField {
  const SamplingNumber<Number>& number;
  Number GenerateRequest::*request;
  Number SamplingParams::*params;
  std::optional<Number> GenerationConfig::*config;  // null: the file does not say it
};

// Calls visit(SamplingField) for each row, in the order in which errors are looked for.
template <typename Visit>
void ForEachSamplingField(const Visit& visit) {
  using R = GenerateRequest;
  using P = SamplingParams;
  using C = GenerationConfig;
  using Float = SamplingField<float>;
  using Int = SamplingField<int32_t>;
  visit(Float{kTemperature, &R::temperature, &P::temperature, &C::temperature});
  visit(Int{kTopK, &R::top_k, &P::top_k, &C::top_k});
  visit(Float{kTopP, &R::top_p, &P::top_p, &C::top_p});
  visit(Float{kMinP, &R::min_p, &P::min_p, &C::min_p});
  visit(Float{kTypicalP, &R::typical_p, &P::typical_p, &C::typical_p});
  visit(Float{kRepetitionPenalty, &R::repetition_penalty, &P::repetition_penalty,
              &C::repetition_penalty});
  visit(Float{kFrequencyPenalty, &R::frequency_penalty, &P::frequency_penalty, nullptr});
  visit(Float{kPresencePenalty, &R::presence_penalty, &P::presence_penalty, nullptr});
}

}  // namespace millrace

#endif  // MILLRACE_ENGINE_REQUEST_SAMPLING_TABLE_H_
