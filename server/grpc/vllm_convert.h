// Converts between the messages of vllm.grpc.engine and the engine's requests and events.
#ifndef MILLRACE_SERVER_GRPC_VLLM_CONVERT_H_
#define MILLRACE_SERVER_GRPC_VLLM_CONVERT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/request/request.h"
#include "vllm/common.pb.h"
#include "vllm/engine.pb.h"

namespace millrace {

namespace vllm_pb = ::vllm::grpc::engine;
namespace smg_pb = ::smg::grpc::common;

// A Generate call shows this.
struct VllmOutput {
  bool stream = false;
  std::optional<int32_t> logprobs;         // so many of the likeliest beside each token
  std::optional<int32_t> prompt_logprobs;  // the same of the prompt

  static VllmOutput Of(const ::vllm::grpc::engine::GenerateRequest& request);
};

// Converts a request, without its id, deadline and tenant. InvalidArgument, naming the field, for
// what is not supported; the engine checks ranges.
absl::StatusOr<GenerateRequest> FromProto(const ::vllm::grpc::engine::GenerateRequest& request);
absl::StatusOr<EmbedRequest> FromProto(const ::vllm::grpc::engine::EmbedRequest& request);

std::shared_ptr<const ::vllm::grpc::engine::InputLogProbs> InputLogprobs(
    const std::vector<TokenDetail>& prompt, int32_t top);

::vllm::grpc::engine::GetModelInfoResponse ModelInfo(const EngineInfo& info);
::vllm::grpc::engine::GetLoadsResponse Loads(const EngineInfo& info, const EngineStatus& status,
                                             std::string_view version);

// One choice of a Generate call, from the engine's events to responses.
class VllmChoice {
 public:
  VllmChoice(uint32_t index, const VllmOutput& output) : index_(index), output_(output) {}

  // Sets what the prompt's tokens had, before the first event.
  void ShowPrompt(std::shared_ptr<const ::vllm::grpc::engine::InputLogProbs> prompt) {
    prompt_ = std::move(prompt);
  }

  // Adds an event, and appends the responses that it makes: a chunk of its tokens, if the call
  // streams, and at the end a `complete`. The event has no error.
  void Add(const OutputEvent& event, std::vector<::vllm::grpc::engine::GenerateResponse>& out);

  // Appends the `complete` of a choice that was aborted.
  void Abort(std::vector<::vllm::grpc::engine::GenerateResponse>& out);

 private:
  // Appends a `complete` with the tokens that `complete` is to show, and returns it.
  ::vllm::grpc::engine::GenerateComplete& Complete(
      std::vector<::vllm::grpc::engine::GenerateResponse>& out);

  const uint32_t index_;
  const VllmOutput output_;
  std::shared_ptr<const ::vllm::grpc::engine::InputLogProbs> prompt_;
  bool chunked_ = false;  // a chunk has gone out
  uint32_t prompt_tokens_ = 0;
  // It has all tokens and log-probabilities, or with `stream` the last step's.
  ::vllm::grpc::engine::GenerateComplete tokens_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_VLLM_CONVERT_H_
