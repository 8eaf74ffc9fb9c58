// The server's address.
#ifndef MILLRACE_LOADTEST_URL_H_
#define MILLRACE_LOADTEST_URL_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace millrace {

struct ServerUrl {
  std::string host;  // a name or an address, IPv6 without brackets
  std::string port;
  bool has_tls = false;
  std::string path;  // before the endpoint's, without a slash at its end

  // Returns the value of the Host header.
  std::string Authority() const;
  std::string_view Scheme() const { return has_tls ? "https" : "http"; }
};

// Parses http[s]://HOST[:PORT][/PATH] or HOST:PORT. An error says what is allowed.
absl::StatusOr<ServerUrl> ParseUrl(std::string_view text);

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_URL_H_
