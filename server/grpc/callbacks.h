// The server's ends of gRPC's callback API, behind which its templates stay.
//
// ThreadSanitizer watches our code but not gRPC's, whose locks it cannot see. A template of gRPC's
// that was compiled among our code would be watched, and reported for races that it does not have;
// so all of them are compiled in callbacks.cc, which is not watched, and what derives from these
// classes is. Each end passes a Fence as it finishes and again when gRPC is done with it: what a
// call's handler did happens before gRPC frees the call's messages, and ThreadSanitizer knows.
#ifndef MILLRACE_SERVER_GRPC_CALLBACKS_H_
#define MILLRACE_SERVER_GRPC_CALLBACKS_H_

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/server_interceptor.h>
#include <grpcpp/support/status.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "engine/trace.h"
#include "millrace/v1/inference.grpc.pb.h"

namespace millrace {

// The methods of millrace.v1.Inference that use gRPC's callback API, each added to those before it.
using InferenceMethods = v1::Inference::WithCallbackMethod_Embed<
    v1::Inference::WithCallbackMethod_Tokenize<v1::Inference::WithCallbackMethod_Detokenize<
        v1::Inference::WithCallbackMethod_Infer<v1::Inference::WithCallbackMethod_ModelMetadata<
            v1::Inference::WithCallbackMethod_ListModels<
                v1::Inference::WithCallbackMethod_GetServerInfo<v1::Inference::Service>>>>>>>;

// The base of a service of millrace.v1.Inference. A GenerateQueue takes the calls of Generate.
class InferenceCallbacks : public v1::Inference::WithRawMethod_Generate<InferenceMethods> {
 protected:
  InferenceCallbacks();
  ~InferenceCallbacks() override;
};

// All that a thread did before it passes happens before all that another does that passes later.
class Fence {
 public:
  void Pass() { const std::lock_guard lock(mutex_); }

 private:
  std::mutex mutex_;
};

// One unary call; a handler returns it, and it deletes itself when gRPC is done with it.
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  UnaryCall();

  // Sets what is called, from some thread, if the client leaves or its deadline passes before the
  // call has ended. Call before the handler returns.
  void WhenCancelled(std::function<void()> cancel);

  // Ends the call, from any thread, once.
  void End(const grpc::Status& status);

 private:
  ~UnaryCall() override;
  void OnCancel() override;
  void OnDone() override;

  Fence fence_;
  std::function<void()> cancel_;
};

// Returns the value of a client's metadata, valid as long as the call; empty if there is none.
std::string_view FindMetadata(const grpc::ServerContextBase& context, std::string_view key);

// Returns the caller's trace, from its metadata.
std::optional<TraceContext> TraceOf(const grpc::ServerContextBase& context);

// Returns whether "/package.Service/Method" is one of ours. A client may call any name, and each
// would be a series of the metrics.
bool IsMethod(std::string_view path);

inline constexpr const char* kGenerateMethod = "/millrace.v1.Inference/Generate";

// Returns the status of a call whose message is no protobuf of its method's type.
grpc::Status BrokenMessage(std::string_view method);

// A call's client, as its line in the log names it.
struct Caller {
  std::string address;
  std::string tenant;  // may be empty
};

// The tokens of a call.
struct CallTokens {
  int64_t prompt = 0;
  int64_t completion = 0;
};

// Hears of a server's calls as they end.
class CallLog {
 public:
  // `peer_of` returns the client's address for the descriptor that gRPC was given (Entrance),
  // `tenant_of` the name of a call's tenant; `on_end` is told of every call.
  CallLog(std::function<std::string(int fd)> peer_of,
          std::function<std::string(const grpc::ServerContextBase& context)> tenant_of,
          std::function<void(const char* method, grpc::StatusCode code)> on_end);

  // Returns a call's client, if its end is going to be logged.
  std::optional<Caller> CallerOf(const grpc::ServerContextBase& context) const;

  // Passes on the end of a call, and logs it if `caller` is known (component grpc, at debug):
  // method, status, how long it took, the client, of a refusal the field at fault, and else the
  // tokens where they are known.
  void OnEnd(const char* method, const grpc::Status& status,
             std::chrono::steady_clock::time_point began, const std::optional<Caller>& caller,
             const std::optional<CallTokens>& tokens = std::nullopt) const;

 private:
  const std::function<std::string(int fd)> peer_of_;
  const std::function<std::string(const grpc::ServerContextBase& context)> tenant_of_;
  const std::function<void(const char* method, grpc::StatusCode code)> on_end_;
};

// Refuses messages that are no protobuf with INVALID_ARGUMENT, names methods that are none, and
// tells `log`, which outlives the server, of its calls. Those of Generate, which would pay for it
// with each token, are a GenerateQueue's.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> WatchCalls(
    const CallLog& log);

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_CALLBACKS_H_
