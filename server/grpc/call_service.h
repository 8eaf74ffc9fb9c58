// Every method of the gRPC endpoint but Generate (generate_queue.h), over the bytes of their
// messages.
//
// gRPC reads the message of a unary call, and makes its objects, before it shows the call to
// anyone. Here a call is shown when its headers have come: the key is checked then, and a message
// is read only of who may call the method. Before objects are made of it, its bytes are measured.
#ifndef MILLRACE_SERVER_GRPC_CALL_SERVICE_H_
#define MILLRACE_SERVER_GRPC_CALL_SERVICE_H_

#include <google/protobuf/message.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/tenant_budget.h"
#include "server/frontend.h"
#include "server/grpc/callbacks.h"
#include "server/grpc/message_bounds.h"

namespace millrace {

// Reads a message of this type: takes what it becomes from the share, for as long as that lives.
// InvalidArgument: it is none, or becomes too large; ResourceExhausted: there is no room for it
// now.
absl::Status ReadMessage(std::string_view method, const MessageBounds& bounds,
                         const MessageLimits& limits, grpc::ByteBuffer& bytes,
                         TenantBudget::Share& share, google::protobuf::Message& message);

// The methods of the endpoint by their paths.
class CallService final : public grpc::CallbackGenericService {
 public:
  using Context = grpc::CallbackServerContext;
  // Returns the name of the tenant that makes a call (empty: none), by what its headers show, or
  // why the call may not be made.
  using Admit = std::function<absl::StatusOr<std::string>(const grpc::ServerContextBase& context,
                                                          Scope scope)>;

  // `budget`, which outlives it, is for the messages of all calls, from when they have come until
  // their calls end.
  CallService(Admit admit, TenantBudget& budget);
  ~CallService() override;

  // Adds a method with one request and one response. All take one of the generated service's
  // methods by its name, and `scope`: nothing: anyone may call it. `handler` outlives this.
  template <typename Handler, typename Request, typename Response>
  void AddUnary(std::string_view service, std::string_view name, std::optional<Scope> scope,
                Handler& handler,
                ServerCall* (Handler::*handle)(Context*, const Request*, Response*)) {
    Method method{.scope = scope,
                  .request = &Request::default_instance(),
                  .response = &Response::default_instance()};
    method.begin = [&handler, handle](Context* context, const google::protobuf::Message* request,
                                      google::protobuf::Message* response) {
      return (handler.*handle)(context, static_cast<const Request*>(request),
                               static_cast<Response*>(response));
    };
    Add(service, name, std::move(method));
  }

  // Adds a method with one request and a stream of responses. The request is gone when `handle` has
  // returned.
  template <typename Handler, typename Request>
  void AddStream(std::string_view service, std::string_view name, std::optional<Scope> scope,
                 Handler& handler, ServerCall* (Handler::*handle)(Context*, const Request*)) {
    Method method{.scope = scope, .request = &Request::default_instance()};
    method.begin = [&handler, handle](Context* context, const google::protobuf::Message* request,
                                      google::protobuf::Message*) {
      return (handler.*handle)(context, static_cast<const Request*>(request));
    };
    Add(service, name, std::move(method));
  }

  // Adds a method with streams both ways: `handle` is called before the first of the client's
  // messages, of type Request, is read.
  template <typename Request, typename Handler>
  void AddDialogue(std::string_view service, std::string_view name, std::optional<Scope> scope,
                   Handler& handler, ServerCall* (Handler::*handle)(Context*)) {
    Method method{.scope = scope, .request = &Request::default_instance(), .is_dialogue = true};
    method.begin = [&handler, handle](Context* context, const google::protobuf::Message*,
                                      google::protobuf::Message*) {
      return (handler.*handle)(context);
    };
    Add(service, name, std::move(method));
  }

 private:
  class End;
  struct Method {
    std::optional<Scope> scope;
    const google::protobuf::Message* request;
    const google::protobuf::Message* response = nullptr;
    bool is_dialogue = false;
    std::function<ServerCall*(Context*, const google::protobuf::Message*,
                              google::protobuf::Message*)>
        begin = nullptr;
    std::shared_ptr<const MessageBounds> bounds = nullptr;
    MessageLimits limits = {};
  };

  void Add(std::string_view service, std::string_view name, Method method);
  const Method* Find(const std::string& path) const;  // null: there is none
  grpc::ServerGenericBidiReactor* CreateReactor(
      grpc::GenericCallbackServerContext* context) override;

  const Admit admit_;
  TenantBudget& budget_;
  // The budget of methods that anyone may call: their messages are short, and are not refused for
  // others'.
  TenantBudget open_budget_{"the messages", std::numeric_limits<size_t>::max()};
  std::unordered_map<std::string, Method> methods_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_CALL_SERVICE_H_
