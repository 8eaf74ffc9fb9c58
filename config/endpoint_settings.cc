#include "config/endpoint_settings.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/address_range.h"
#include "config/setting_makers.h"

namespace millrace {
namespace {

using setting_makers::Choice;
using setting_makers::Defaults;
using setting_makers::Make;
using setting_makers::Path;
using setting_makers::Size;
using setting_makers::Switch;
using setting_makers::Time;
using setting_makers::Whole;
using setting_makers::Words;

bool IsApiKey(std::string_view key) {
  return key.size() <= 512 &&
         std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 0x7F; });
}

// A host's name or address as a Host header carries it, perhaps with a port.
bool IsOneHost(std::string_view name) {
  return name.size() <= 255 && std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
                  std::string_view(".-_:[]").find(c) != std::string_view::npos;
         });
}

// As IsOneHost; or *.
bool IsHostName(std::string_view name) { return name == "*" || IsOneHost(name); }

// An Origin header's value, as browsers send it: a scheme, a host and perhaps a port; or *.
bool IsOrigin(std::string_view origin) {
  if (origin == "*") return true;
  const size_t scheme = origin.find("://");
  if (scheme == 0 || scheme == std::string_view::npos) return false;
  const std::string_view host = origin.substr(scheme + 3);
  return !host.empty() && host.find('*') == host.npos && IsHostName(host) &&
         std::all_of(origin.begin(), origin.begin() + static_cast<ptrdiff_t>(scheme),
                     [](char c) { return absl::ascii_islower(c) || c == '-' || c == '+'; });
}

}  // namespace

std::vector<Setting> EndpointSettings() {
  return {
      Make(
          {"host", "ADDRESS",
           "where HTTP and gRPC listen; beyond loopback only with --api-key, --keys or --insecure"},
          "an IPv4 or IPv6 address, or localhost", Defaults().host, &Settings::host,
          ParseBindAddress),
      Whole({"http-port", "PORT", "HTTP; 0: any free one"}, &Settings::http_port, 0, 65535),
      Whole({"grpc-port", "PORT",
             "gRPC; 0: any free one; the port of HTTP: both on that one (docs/security.md)"},
            &Settings::grpc_port, 0, 65535),
      Whole({"admin-port", "PORT",
             "metrics and administration, always on 127.0.0.1; 0: any free one"},
            &Settings::admin_port, 0, 65535),
      Make({"metrics-host", "ADDRESS",
            "where a listener has /metrics and the probes alone, which need no key there: for "
            "scrapers that reach a pod's address"},
           "an IPv4 or IPv6 address, or localhost", "", &Settings::metrics_host, ParseBindAddress),
      Whole({"metrics-port", "PORT", "of --metrics-host; 0: any free one"}, &Settings::metrics_port,
            0, 65535),
      Path({"ready-file", "PATH",
            "written when the server is ready: {\"http\":PORT,\"grpc\":PORT,\"admin\":PORT}, and "
            "\"metrics\" with --metrics-host"},
           &Settings::ready_file),
      Choice({"unknown-fields", "RULE",
              "what happens to a field of a request that this server does not know; refuse: the "
              "request gets 400 with the field's name; ignore: the field has no effect, and "
              "--log http=debug names it. Known fields with values that are not supported are "
              "refused either way"},
             &Settings::unknown_fields, std::array<std::string_view, 2>{"refuse", "ignore"}),
  };
}

std::vector<Setting> AccessSettings() {
  using namespace std::chrono_literals;
  Setting api_key = Words({"api-key", "KEY,...",
                           "keys that HTTP and gRPC clients must send one of; better given by file "
                           "or environment, where ps does not show it"},
                          "comma-separated keys of up to 512 visible ASCII characters",
                          &Settings::api_keys, IsApiKey);
  api_key.secret = true;
  return {
      std::move(api_key),
      Path({"keys", "FILE",
            "keys with tenants, scopes and limits (docs/tenants.md), read again when it changes; "
            "then all but probes, /metrics at --metrics-host and the console's files needs a key"},
           &Settings::keys),
      Switch("shared-prefix-cache",
             "let the tenants of --keys hit each other's prefixes, which cached_tokens then tells",
             &Settings::shared_prefix_cache),
      Switch("insecure", "listen beyond loopback without keys", &Settings::insecure),
      Words({"allowed-hosts", "NAME,...",
             "hosts that a request's Host or Origin may name besides the server's own; *: any"},
            "comma-separated host names or addresses, each with a port or for all, or *",
            &Settings::allowed_hosts, IsHostName),
      Words(
          {"admin-allowed-hosts", "NAME,...",
           "hosts that a request to --admin-port may name besides localhost, 127.0.0.1 and [::1]; "
           "--allowed-hosts does not count there"},
          "comma-separated host names or addresses, each with a port or for all",
          &Settings::admin_allowed_hosts, IsOneHost),
      Words({"metrics-allowed-hosts", "NAME,...",
             "hosts that a request to --metrics-host may name besides addresses and localhost; "
             "--allowed-hosts does not count there"},
            "comma-separated host names or addresses, each with a port or for all",
            &Settings::metrics_allowed_hosts, IsOneHost),
      Words({"trusted-proxies", "RANGE,...",
             "proxies whose connections begin with a PROXY header of version 2, which names the "
             "client; on the ports of HTTP and gRPC (docs/security.md)"},
            "comma-separated addresses, or ranges as 10.0.0.0/8", &Settings::trusted_proxies,
            [](std::string_view range) { return ParseAddressRange(range).has_value(); }),
      Whole({"max-connections", "N",
             "connections at once, of HTTP and of gRPC each; then idle ones give way to new ones"},
            &Settings::max_connections, 1, 1'000'000),
      Whole({"grpc-max-streams", "N", "calls at once on one gRPC connection"},
            &Settings::grpc_max_streams, 1, 100'000),
      Time({"header-timeout", "TIME",
            "how long a request's header, or a gRPC connection's first frames, may take to come"},
           &Settings::header_timeout, 100ms, 1h),
      Time(
          {"unread-timeout", "TIME",
           "how long a client may take no byte of what it was sent until its connection is closed, "
           "or its gRPC call reset"},
          &Settings::unread_timeout, 100ms, 1h),
      Size({"answer-memory", "BYTES",
            "memory of all answers that wait for their clients to read them; a tenant's may take a "
            "half of it. Beyond it those that are read too slowly are broken off, or new ones get "
            "429 or 503 (docs/security.md)"},
           &Settings::answer_memory, int64_t{1} << 20, int64_t{1} << 40, /*or_zero=*/false),
      Time({"sse-ping-interval", "TIME",
            "how long an HTTP stream may be quiet, in the queue say, until a comment is sent that "
            "keeps proxies from closing it; 0: none is"},
           &Settings::sse_ping_interval, 0ms, 1h),
      Words({"allowed-origins", "ORIGIN,...",
             "web pages whose scripts may call the HTTP API and read its answers (CORS); *: those "
             "of any page"},
            "comma-separated origins as https://app.example.com or http://localhost:3000, or *",
            &Settings::allowed_origins, IsOrigin),
  };
}

}  // namespace millrace
