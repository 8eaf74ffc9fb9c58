// Who calls a method, and whether they may.
#ifndef MILLRACE_SERVER_GRPC_ACCESS_H_
#define MILLRACE_SERVER_GRPC_ACCESS_H_

#include <grpcpp/server_context.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/frontend.h"

namespace millrace {

// Returns the descriptor by which gRPC knows the connection of a call (Entrance); nothing if it is
// none of the entrance's.
std::optional<int> ConnectionOf(const grpc::ServerContextBase& context);

// Thread-safe.
class CallAccess {
 public:
  // Returns the names that the certificate of a connection's client stands for; null without one.
  using IdentitiesOf =
      std::function<std::shared_ptr<const std::vector<std::string>>(int connection)>;

  // `frontend` outlives it.
  CallAccess(const Frontend& frontend, IdentitiesOf identities_of);

  // Returns OK, or the Frontend's error if neither the call's metadata "authorization" nor the
  // client's certificate has the scope.
  absl::Status Authorize(const grpc::ServerContextBase& context, Scope scope = Scope::kAny,
                         std::shared_ptr<const Tenant>* tenant = nullptr) const;

  // Returns the name of the tenant that makes a call (empty: none), or Authorize's error.
  absl::StatusOr<std::string> Admit(const grpc::ServerContextBase& context, Scope scope) const;

  // Returns the name of the tenant whose key or certificate a call shows; empty if none.
  std::string TenantOf(const grpc::ServerContextBase& context) const;

 private:
  const Frontend& frontend_;
  const IdentitiesOf identities_of_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_ACCESS_H_
