// Settings' values as people write them.
#ifndef MILLRACE_CONFIG_VALUE_H_
#define MILLRACE_CONFIG_VALUE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"

namespace millrace {

// Parses a number of bytes: "4096", "512MiB", "2G" (K, M, G, T: powers of 1024), "2GB" (powers of
// 1000), as GNU's tools read them. Nothing: something else, or more than fits.
std::optional<int64_t> ParseSize(std::string_view text);
std::string FormatSize(int64_t bytes);

// Parses a finite decimal number: "0.9", "2", "1e-3".
std::optional<double> ParseReal(std::string_view text);

// Parses a duration: "30s", "500ms", "1m30s", or plain seconds "2.5". It must not be negative, and
// be whole milliseconds.
std::optional<Duration> ParseDuration(std::string_view text);
std::string FormatDuration(Duration duration);

// Parses true, false, yes, no, on, off, 1, 0.
std::optional<bool> ParseBool(std::string_view text);

// Parses an address to listen on: an IPv4 or IPv6 address as numbers, or localhost.
std::optional<std::string> ParseBindAddress(std::string_view text);

// Returns whether only this machine reaches what listens on `address` (as ParseBindAddress gives
// it).
bool IsLoopback(std::string_view address);

// Returns the fewest insertions, deletions and replacements of characters that turn one into the
// other (Levenshtein distance).
int EditDistance(std::string_view a, std::string_view b);

}  // namespace millrace

#endif  // MILLRACE_CONFIG_VALUE_H_
