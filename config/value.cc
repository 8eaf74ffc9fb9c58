#include "config/value.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <numeric>
#include <system_error>
#include <vector>

#include "absl/time/time.h"
#include "base/strings.h"

namespace millrace {

std::optional<int64_t> ParseSize(std::string_view text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  std::optional<int64_t> bytes = ParseNumber<int64_t>(text.substr(0, digits));
  const std::string_view unit = text.substr(digits);
  if (!bytes.has_value() || unit.empty()) return bytes;

  const size_t power = std::string_view("KMGT").find(unit[0]);
  const std::string_view rest = unit.substr(1);
  if (power == std::string_view::npos || (rest != "" && rest != "iB" && rest != "B")) {
    return std::nullopt;
  }
  for (size_t i = 0; i <= power; ++i) {
    if (__builtin_mul_overflow(*bytes, rest == "B" ? 1000 : 1024, &*bytes)) return std::nullopt;
  }
  return bytes;
}

std::string FormatSize(int64_t bytes) {
  constexpr std::string_view kUnits[] = {"", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  while (bytes != 0 && bytes % 1024 == 0 && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return StrCat(bytes, kUnits[unit]);
}

std::optional<double> ParseReal(std::string_view text) {
  double number;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number)) return {};
  return number;
}

std::optional<Duration> ParseDuration(std::string_view text) {
  // absl would also read ".5", "-1s", "+1s" and "inf".
  if (text.empty() || text[0] < '0' || text[0] > '9') return std::nullopt;
  std::string with_unit(text);
  if (text.find_first_not_of("0123456789.") == text.npos) with_unit += 's';
  absl::Duration duration;
  if (!absl::ParseDuration(with_unit, &duration) || duration > absl::Hours(24 * 365) ||
      duration % absl::Milliseconds(1) != absl::ZeroDuration()) {
    return std::nullopt;
  }
  return absl::ToChronoNanoseconds(duration);
}

std::string FormatDuration(Duration duration) {
  return absl::FormatDuration(absl::FromChrono(duration));
}

std::optional<bool> ParseBool(std::string_view text) {
  for (const std::string_view yes : {"true", "yes", "on", "1"}) {
    if (text == yes) return true;
  }
  for (const std::string_view no : {"false", "no", "off", "0"}) {
    if (text == no) return false;
  }
  return std::nullopt;
}

std::optional<std::string> ParseBindAddress(std::string_view text) {
  if (text == "localhost") return "localhost";
  const std::string address(text);
  in6_addr parsed;
  const bool whole = address.find('\0') == address.npos;  // inet_pton stops there
  if (whole && (inet_pton(AF_INET, address.c_str(), &parsed) == 1 ||
                inet_pton(AF_INET6, address.c_str(), &parsed) == 1)) {
    return address;
  }
  return std::nullopt;
}

bool IsLoopback(std::string_view address) {
  if (address == "localhost") return true;
  const std::string text(address);
  uint8_t v4[4];
  if (inet_pton(AF_INET, text.c_str(), v4) == 1) return v4[0] == 127;
  in6_addr v6;
  if (inet_pton(AF_INET6, text.c_str(), &v6) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127);
}

int EditDistance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);  // distances from a's prefix so far to each prefix of b
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    int diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const int replaced = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace millrace
