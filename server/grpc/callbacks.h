// A call as its handler sees it, and what is common to all calls.
//
// ThreadSanitizer watches our code but not gRPC's, whose locks it cannot see. A template of gRPC's
// that was compiled among our code would be watched, and reported for races that it does not have;
// so all of them are compiled in callbacks.cc, call_service.cc and generate_queue.cc, which are not
// watched, and what derives from these classes is. Each call locks its mutex as it finishes and
// again when gRPC is done with it: what a call's handler did happens before gRPC frees what the
// call held, and ThreadSanitizer knows.
#ifndef MILLRACE_SERVER_GRPC_CALLBACKS_H_
#define MILLRACE_SERVER_GRPC_CALLBACKS_H_

#include <google/protobuf/message.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_interceptor.h>
#include <grpcpp/support/slice.h>
#include <grpcpp/support/status.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "engine/request/trace.h"

namespace millrace {

// gRPC's end of a call.
class CallEnd {
 public:
  // Writes `bytes`, if they are set, and ends the call, if `end` is: a unary one that ends well
  // with its response.
  struct Step {
    std::optional<grpc::ByteBuffer> bytes;
    std::optional<grpc::Status> end;
  };

  virtual ~CallEnd() = default;
  virtual void Do(Step step) = 0;
  // Reads the client's next message: the first is read without it.
  virtual void Read() = 0;
};

// A call as its handler answers it. What it does before it is bound to gRPC's end waits until then.
class ServerCall {
 public:
  ServerCall();
  ServerCall(const ServerCall&) = delete;
  ServerCall& operator=(const ServerCall&) = delete;

  // Called by gRPC's end, which is there until OnDone.
  void Bind(CallEnd& end);
  // Called by gRPC's end. A message has come, of a method whose clients send several; null: no more
  // do.
  virtual void OnMessage(const google::protobuf::Message* message);
  // `ok`: false if the client is gone. Not called for the write that ends the call.
  virtual void OnWriteDone(bool ok);
  // The client left, or its deadline passed, before the call's end.
  virtual void OnCancel();
  // gRPC is done with the call. The last that is called: deletes it, or has it deleted.
  virtual void OnDone() = 0;

 protected:
  virtual ~ServerCall();

  // Writes a response. One write runs at a time.
  void Write(const google::protobuf::Message& response);
  // Writes the last response and ends the call with OK.
  void WriteAndEnd(const google::protobuf::Message& response);
  void End(const grpc::Status& status);
  void ReadNext();
  // All that a thread did before it passes happens before all that another does that passes later.
  void Pass() { const std::lock_guard lock(mutex_); }

 private:
  void Do(CallEnd::Step step);

  std::mutex mutex_;
  CallEnd* end_ = nullptr;              // guarded by mutex_
  std::optional<CallEnd::Step> early_;  // guarded by mutex_: for when it is bound
};

// One unary call; a handler returns it, and it deletes itself when gRPC is done with it.
class UnaryCall final : public ServerCall {
 public:
  // Sets what is called, from some thread, if the client leaves or its deadline passes before the
  // call has ended. Call before the handler returns.
  void WhenCancelled(std::function<void()> cancel);

  // Ends the call, from any thread, once. With OK the response is sent that its handler was given.
  using ServerCall::End;

 private:
  ~UnaryCall() override;
  void OnCancel() override;
  void OnDone() override;

  std::function<void()> cancel_;
};

// Returns the bytes of a message, as gRPC sends them.
grpc::ByteBuffer Serialize(const google::protobuf::Message& message);
grpc::Slice SerializeToSlice(const google::protobuf::Message& message);

// Returns the value of a client's metadata, valid as long as the call; empty if there is none.
std::string_view FindMetadata(const grpc::ServerContextBase& context, std::string_view key);

// Returns the caller's trace, from its metadata.
std::optional<TraceContext> TraceOf(const grpc::ServerContextBase& context);

// Returns whether "/package.Service/Method" is one of ours. A client may call any name, and each
// would be a series of the metrics.
bool IsMethod(std::string_view path);

inline constexpr const char* kGenerateMethod = "/millrace.v1.Inference/Generate";

// Returns the status of a call whose message is missing, or no protobuf of its method's type.
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

// Tells `log`, which outlives the server, of its calls. Those of Generate, which would pay for it
// with each token, are a GenerateQueue's.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> WatchCalls(
    const CallLog& log);

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_CALLBACKS_H_
