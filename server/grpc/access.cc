#include "server/grpc/access.h"

#include <span>
#include <string_view>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "engine/request/tenant.h"
#include "server/grpc/callbacks.h"

namespace millrace {

// gRPC knows the end of a socket pair: "fd:12". It closes it when the connection's last call is
// gone, so that no other connection can have the number while a call runs.
std::optional<int> ConnectionOf(const grpc::ServerContextBase& context) {
  const std::string peer = context.peer();
  return ParseNumber<int>(std::string_view(peer).substr(peer.find(':') + 1));
}

CallAccess::CallAccess(const Frontend& frontend, IdentitiesOf identities_of)
    : frontend_(frontend), identities_of_(std::move(identities_of)) {}

absl::Status CallAccess::Authorize(const grpc::ServerContextBase& context, Scope scope,
                                   std::shared_ptr<const Tenant>* tenant) const {
  Credentials shown{.authorization = FindMetadata(context, "authorization")};
  std::shared_ptr<const std::vector<std::string>> identities;
  if (shown.authorization.empty()) {
    if (const auto connection = ConnectionOf(context)) identities = identities_of_(*connection);
    if (identities != nullptr) shown.identities = *identities;
  }
  return frontend_.Authorize(shown, scope, tenant);
}

absl::StatusOr<std::string> CallAccess::Admit(const grpc::ServerContextBase& context,
                                              Scope scope) const {
  std::shared_ptr<const Tenant> tenant;
  MILLRACE_RETURN_IF_ERROR(Authorize(context, scope, &tenant));
  return TenantName(tenant);
}

std::string CallAccess::TenantOf(const grpc::ServerContextBase& context) const {
  return Admit(context, Scope::kAny).value_or("");
}

}  // namespace millrace
