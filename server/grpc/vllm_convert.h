// Converts between the messages of vllm.grpc.engine and the engine's requests and events.
#ifndef MILLRACE_SERVER_GRPC_VLLM_CONVERT_H_
#define MILLRACE_SERVER_GRPC_VLLM_CONVERT_H_

#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "vllm/engine.pb.h"

namespace millrace {

// Converts a request, without its id, deadline and tenant. InvalidArgument, naming the field, for
// what is not supported; the engine checks ranges.
absl::StatusOr<GenerateRequest> FromProto(const ::vllm::grpc::engine::GenerateRequest& request);
absl::StatusOr<EmbedRequest> FromProto(const ::vllm::grpc::engine::EmbedRequest& request);

// One choice of a Generate call, from the engine's events to responses.
class VllmChoice {
 public:
  VllmChoice(uint32_t index, bool stream) : index_(index), stream_(stream) {}

  // Adds an event, and appends the responses that it makes: a chunk of its tokens, if the call
  // streams, and at the end a `complete`. The event has no error.
  void Add(const OutputEvent& event, std::vector<::vllm::grpc::engine::GenerateResponse>& out);

  // Appends the `complete` of a choice that was aborted.
  void Abort(std::vector<::vllm::grpc::engine::GenerateResponse>& out) const;

 private:
  const uint32_t index_;
  const bool stream_;
  uint32_t prompt_tokens_ = 0;
  ::vllm::grpc::engine::GenerateComplete so_far_;  // its tokens and log-probabilities
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_VLLM_CONVERT_H_
