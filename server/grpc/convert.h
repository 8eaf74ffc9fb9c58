// Converts the messages of millrace.v1 to the engine's requests, and its events to messages.
#ifndef MILLRACE_SERVER_GRPC_CONVERT_H_
#define MILLRACE_SERVER_GRPC_CONVERT_H_

#include <grpcpp/support/status.h>

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "millrace/v1/inference.pb.h"

namespace millrace {

// The same code (absl's are gRPC's) and message.
grpc::Status ToGrpc(const absl::Status& status);

// InvalidArgument when there is no prompt. Ranges are checked by the engine, for both endpoints.
// The id and the deadline are the caller's to fill in.
absl::StatusOr<GenerateRequest> FromProto(v1::GenerateRequest&& request,
                                          const SamplingDefaults& defaults);
absl::StatusOr<TokenizeRequest> FromProto(v1::TokenizeRequest&& request);

// The id and the deadline are the caller's to fill in. InvalidArgument: no inputs, too many, or one
// without text and tokens.
absl::StatusOr<EmbedRequest> FromProto(v1::EmbedRequest&& request);
void SetEmbeddings(const Embeddings& embeddings, v1::EmbedResponse& response);

// `finish` is set only for an answer that ended by itself; any other end is the call's status.
v1::GenerateResponse ToProto(OutputEvent&& event);

v1::Model ToProto(const EngineInfo& info);

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_CONVERT_H_
