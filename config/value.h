// Settings' values as people write them.
#ifndef MILLRACE_CONFIG_VALUE_H_
#define MILLRACE_CONFIG_VALUE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace millrace {

// Bytes: "4096", "512MiB", "2G" (K, M, G, T: powers of 1024), "2GB" (powers of 1000), as GNU's
// tools read them. Nothing: something else, or more than fits.
std::optional<int64_t> ParseSize(std::string_view text);
std::string FormatSize(int64_t bytes);

// A decimal number: "0.9", "2", "1e-3". Finite.
std::optional<double> ParseReal(std::string_view text);

// "30s", "500ms", "1m30s", or plain seconds "2.5". Not negative; whole milliseconds.
std::optional<Duration> ParseDuration(std::string_view text);
std::string FormatDuration(Duration duration);

// true, false, yes, no, on, off, 1, 0.
std::optional<bool> ParseBool(std::string_view text);

// An address to listen on, as numbers: an IPv4 or IPv6 address, or localhost (127.0.0.1).
std::optional<std::string> ParseBindAddress(std::string_view text);

// Returns whether only this machine reaches what listens on `address` (as ParseBindAddress gives
// it).
bool IsLoopback(std::string_view address);

// The fewest insertions, deletions and replacements of characters that turn one into the other
// (Levenshtein distance).
int EditDistance(std::string_view a, std::string_view b);

}  // namespace millrace

#endif  // MILLRACE_CONFIG_VALUE_H_
