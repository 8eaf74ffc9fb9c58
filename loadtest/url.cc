#include "loadtest/url.h"

#include <cstdint>

#include "base/strings.h"

namespace millrace {

std::string ServerUrl::Authority() const {
  return host.find(':') == host.npos ? StrCat(host, ":", port) : StrCat("[", host, "]:", port);
}

absl::StatusOr<ServerUrl> ParseUrl(std::string_view text) {
  const auto wrong = [&](std::string_view expected) {
    return absl::InvalidArgumentError(
        StrCat("flag --url: got \"", Printable(text, 200), "\", expected ", expected));
  };
  std::string_view rest = text;
  constexpr std::string_view kForms = "http://HOST:PORT or https://HOST:PORT";
  ServerUrl url;
  url.has_tls = rest.starts_with("https://");
  if (url.has_tls) rest.remove_prefix(8);
  if (!url.has_tls && rest.starts_with("http://")) rest.remove_prefix(7);
  const size_t slash = std::min(rest.find('/'), rest.size());
  url.path = std::string(rest.substr(slash));
  while (url.path.ends_with('/')) url.path.pop_back();
  rest = rest.substr(0, slash);
  const size_t bracket = rest.starts_with('[') ? rest.find(']') : 0;
  if (bracket == rest.npos) return wrong(kForms);
  const size_t colon = rest.find(':', bracket);
  url.host = std::string(bracket > 0 ? rest.substr(1, bracket - 1) : rest.substr(0, colon));
  url.port =
      colon == rest.npos ? (url.has_tls ? "443" : "80") : std::string(rest.substr(colon + 1));
  const auto port = ParseNumber<uint16_t>(url.port);
  const bool is_odd = text.find_first_of(" \r\n\t\"<>@?#") != text.npos;
  if (url.host.empty() || !port || *port == 0 || is_odd) return wrong(kForms);
  return url;
}

}  // namespace millrace
