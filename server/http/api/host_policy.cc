#include "server/http/api/host_policy.h"

#include <arpa/inet.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "base/strings.h"
#include "config/value.h"
#include "server/http/json/api_error.h"

namespace millrace {
namespace {

constexpr size_t kLongestName = 255;

bool IsNameCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-' || c == '_' ||
         c == ':';
}

bool IsPort(std::string_view text) {
  return text.size() <= 5 && std::all_of(text.begin(), text.end(), [](char c) {
           return absl::ascii_isdigit(static_cast<unsigned char>(c));
         });
}

}  // namespace

std::optional<Authority> Authority::Parse(std::string_view text) {
  std::string_view name = text;
  std::string_view port;
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == text.npos) return std::nullopt;
    name = text.substr(1, end - 1);
    port = text.substr(end + 1);
    if (!port.empty() && port.front() != ':') return std::nullopt;
  } else if (const size_t colon = text.find(':'); colon != text.npos) {
    name = text.substr(0, colon);
    port = text.substr(colon);
  }
  if (!port.empty()) port.remove_prefix(1);
  if (name.ends_with('.')) name.remove_suffix(1);
  if (name.empty() || name.size() > kLongestName || !IsPort(port)) return std::nullopt;
  if (!std::all_of(name.begin(), name.end(), IsNameCharacter)) return std::nullopt;
  return Authority{absl::AsciiStrToLower(AbslView(name)), std::string(port)};
}

bool IsLoopbackName(std::string_view name) {
  return name == "localhost" || name == "127.0.0.1" || name == "::1";
}

bool IsAddress(std::string_view name) {
  const std::string text(name);
  in6_addr address;
  return inet_pton(AF_INET, text.c_str(), &address) == 1 ||
         inet_pton(AF_INET6, text.c_str(), &address) == 1;
}

absl::StatusOr<HostPolicy> HostPolicy::Make(std::string_view bind_address,
                                            const std::vector<std::string>& allowed_hosts,
                                            bool has_key, std::string_view setting) {
  HostPolicy policy;
  policy.setting_ = setting;
  policy.loopback_ = IsLoopback(bind_address);
  policy.any_host_ = !policy.loopback_ && has_key && allowed_hosts.empty();
  for (const std::string& text : allowed_hosts) {
    if (text == "*") {
      policy.every_name_ = true;
      continue;
    }
    const std::optional<Authority> host = Authority::Parse(text);
    if (!host) {
      return absl::InvalidArgumentError(
          StrCat(setting, " has \"", Printable(text),
                 "\"; allowed: host names, perhaps with a port, or *"));
    }
    policy.allowed_.push_back(*host);
  }
  return policy;
}

bool HostPolicy::Allowed(const Authority& authority) const {
  return every_name_ ||
         std::any_of(allowed_.begin(), allowed_.end(), [&authority](const Authority& allowed) {
           return allowed.name == authority.name &&
                  (allowed.port.empty() || allowed.port == authority.port);
         });
}

bool HostPolicy::HostOk(const Authority& host) const {
  return any_host_ || IsLoopbackName(host.name) || (!loopback_ && IsAddress(host.name)) ||
         Allowed(host);
}

absl::Status HostPolicy::Foreign(std::string_view what, std::string_view code,
                                 std::string_view value) const {
  return ErrorWithCode(
      absl::StatusCode::kPermissionDenied, code,
      StrCat(what, " \"", Printable(value),
             "\" is not one that this server answers to; the operator can allow it with --",
             setting_));
}

absl::Status HostPolicy::Check(std::string_view host,
                               const std::optional<std::string>& origin) const {
  // HTTP/1.0 may come without a Host, and no browser speaks it.
  const std::optional<Authority> parsed = Authority::Parse(host);
  if (!host.empty() && (!parsed || !HostOk(*parsed))) {
    return Foreign("the Host", "foreign_host", host);
  }
  if (!origin) return absl::OkStatus();
  const size_t scheme = origin->find("://");
  const std::string_view name =
      std::string_view(*origin).substr(0, std::min(scheme, origin->size()));
  const bool web = name == "http" || name == "https" || every_name_;
  const std::string_view rest =
      scheme == origin->npos ? std::string_view() : std::string_view(*origin).substr(scheme + 3);
  const std::optional<Authority> from = Authority::Parse(rest);
  const bool own = from && parsed && from->name == parsed->name && from->port == parsed->port;
  if (web && from && (own || Allowed(*from) || (loopback_ && IsLoopbackName(from->name)))) {
    return absl::OkStatus();
  }
  return Foreign("the Origin", "foreign_origin", *origin);
}

}  // namespace millrace
