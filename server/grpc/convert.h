// Converts the messages of millrace.v1 to the engine's requests, and its events to messages.
#ifndef MILLRACE_SERVER_GRPC_CONVERT_H_
#define MILLRACE_SERVER_GRPC_CONVERT_H_

#include <grpcpp/support/status.h>

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/request/request.h"
#include "millrace/v1/inference.pb.h"

namespace millrace {

// Returns the same code (absl's are gRPC's) and message.
grpc::Status ToGrpc(const absl::Status& status);

// Converts a request. InvalidArgument if there is no prompt. The engine checks ranges, for both
// endpoints. The caller fills in the id and the deadline.
absl::StatusOr<GenerateRequest> FromProto(v1::GenerateRequest&& request,
                                          const SamplingDefaults& defaults);
absl::StatusOr<TokenizeRequest> FromProto(v1::TokenizeRequest&& request);

// Converts a request; the caller fills in the id and the deadline. InvalidArgument: no inputs, too
// many, or one without text and tokens.
absl::StatusOr<EmbedRequest> FromProto(v1::EmbedRequest&& request);
void SetEmbeddings(const Embeddings& embeddings, v1::EmbedResponse& response);

// Adds an event to a response, behind what that has. `finish` is set only for an answer that ended
// by itself; any other end is the call's status.
void AddEvent(OutputEvent&& event, v1::GenerateResponse& response);

v1::Model ToProto(const EngineInfo& info);

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_CONVERT_H_
