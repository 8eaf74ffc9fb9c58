// Decides which Host and Origin a request may name: a browser can reach 127.0.0.1, and a page of a
// stranger can make its own name point there (DNS rebinding).
#ifndef MILLRACE_SERVER_HTTP_API_HOST_POLICY_H_
#define MILLRACE_SERVER_HTTP_API_HOST_POLICY_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace millrace {

// "name", "name:port", "1.2.3.4:80", "[::1]:80", the name in lower case and without a final dot.
// Nothing if it is none of these.
struct Authority {
  std::string name;  // "::1" without brackets
  std::string port;  // may be empty
  static std::optional<Authority> Parse(std::string_view text);
};

bool IsLoopbackName(std::string_view name);  // localhost, 127.0.0.1, ::1
bool IsAddress(std::string_view name);       // an IPv4 or IPv6 address

// Allowed hosts are names, with a port or for every port; "*" stands for every name.
//
//   bound to           Host may be
//   loopback           localhost, 127.0.0.1, [::1], and the allowed hosts
//   elsewhere, a key   anything: a page elsewhere does not have the key. With allowed hosts given:
//   as below elsewhere, no key  any address (rebinding needs a name), localhost, and the allowed
//   hosts
//
// An Origin may be the request's own Host, an allowed host, or, when bound to loopback, a loopback
// name, of the scheme http or https. "null" and every other is foreign.
class HostPolicy {
 public:
  // Makes a policy. `setting`, which has the hosts, is what refusals name. InvalidArgument: an
  // allowed host is not a host.
  static absl::StatusOr<HostPolicy> Make(std::string_view bind_address,
                                         const std::vector<std::string>& allowed_hosts,
                                         bool has_key, std::string_view setting = "allowed-hosts");

  // Returns PermissionDenied, naming what came, for a foreign Host or Origin.
  absl::Status Check(std::string_view host, const std::optional<std::string>& origin) const;

 private:
  bool Allowed(const Authority& authority) const;
  bool HostOk(const Authority& host) const;
  absl::Status Foreign(std::string_view what, std::string_view code, std::string_view value) const;

  bool loopback_ = true;
  bool any_host_ = false;    // asks nothing of Host
  bool every_name_ = false;  // "*"
  std::vector<Authority> allowed_;
  std::string setting_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_API_HOST_POLICY_H_
