// One Embed call: waits for its inputs' embeddings.
#ifndef MILLRACE_SERVER_GRPC_EMBED_CALL_H_
#define MILLRACE_SERVER_GRPC_EMBED_CALL_H_

#include <vector>

#include "millrace/v1/inference.pb.h"
#include "server/engine.h"
#include "server/grpc/callbacks.h"

namespace millrace {

// The reactor of a call whose inputs go to `engine`; fills `response`. A client that leaves cancels
// what is unfinished.
UnaryCall* BeginEmbed(grpc::CallbackServerContext* context, Engine& engine, GenerateRequest options,
                      std::vector<Prompt> inputs, v1::EmbedResponse* response);

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_EMBED_CALL_H_
