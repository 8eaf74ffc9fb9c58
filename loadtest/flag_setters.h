// How flags read their values. Errors say what came and what is allowed, and name no flag.
#ifndef MILLRACE_LOADTEST_FLAG_SETTERS_H_
#define MILLRACE_LOADTEST_FLAG_SETTERS_H_

#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status.h"
#include "base/strings.h"
#include "loadtest/lengths.h"
#include "loadtest/numbers.h"
#include "loadtest/options.h"

namespace millrace {

using Setter = std::function<absl::Status(Options&, std::string_view)>;

inline absl::Status Expected(std::string_view text, std::string_view expected) {
  return absl::InvalidArgumentError(StrCat("got \"", Printable(text), "\", expected ", expected));
}

// Returns a setter of a whole number from `low` to `high`.
template <typename Number>
Setter SetWhole(Number Options::*field, Number low, Number high) {
  return [=](Options& options, std::string_view text) {
    const std::optional<Number> number = ParseNumber<Number>(text);
    if (!number || *number < low || *number > high) {
      return Expected(text, StrCat("a whole number from ", low, " to ", high));
    }
    options.*field = *number;
    return absl::OkStatus();
  };
}

// Returns a setter of a number from `low` to `high`, for a member that a double can be assigned to.
template <typename Member>
Setter SetReal(Member Options::*field, double low, double high) {
  return [=](Options& options, std::string_view text) {
    const std::optional<double> number = ParseDecimal(text);
    if (!number || *number < low || *number > high) {
      return Expected(text, StrCat("a number from ", low, " to ", high));
    }
    options.*field = *number;
    return absl::OkStatus();
  };
}

inline Setter SetSeconds(double Options::*field) {
  return [=](Options& options, std::string_view text) {
    const std::optional<double> seconds = ParseSeconds(text);
    if (!seconds) return Expected(text, "a time, as 30, 2.5s, 500ms, 10m or 1h");
    options.*field = *seconds;
    return absl::OkStatus();
  };
}

inline Setter SetText(std::string Options::*field) {
  return [=](Options& options, std::string_view text) {
    if (text.empty()) return Expected(text, "a text that is not empty");
    options.*field = std::string(text);
    return absl::OkStatus();
  };
}

template <typename Member>
Setter SetLengths(Member Options::*field) {
  return [=](Options& options, std::string_view text) {
    MILLRACE_ASSIGN_OR_RETURN(options.*field, Lengths::Parse(text));
    return absl::OkStatus();
  };
}

inline Setter SetSwitch(bool Options::*field, bool value) {
  return [=](Options& options, std::string_view) {
    options.*field = value;
    return absl::OkStatus();
  };
}

// Returns a setter of one of a few values, which have names.
template <typename Member, typename Value>
Setter SetOneOf(Member Options::*field, std::vector<std::pair<std::string_view, Value>> values) {
  return [=](Options& options, std::string_view text) {
    std::string allowed;
    for (const auto& [name, value] : values) {
      if (name == text) {
        options.*field = value;
        return absl::OkStatus();
      }
      allowed += StrCat(allowed.empty() ? "" : ", ", name);
    }
    return Expected(text, StrCat("one of ", allowed));
  };
}

// Returns a setter of numbers from `low` to `high`, separated by commas.
template <typename Number>
Setter SetList(std::vector<Number> Options::*field, double low, double high) {
  return [=](Options& options, std::string_view text) {
    (options.*field).clear();
    for (const std::string_view part : SplitList(text)) {
      const std::optional<double> number = ParseDecimal(part);
      const bool is_whole = number && *number == std::floor(*number);
      if (!number || *number < low || *number > high || (std::is_integral_v<Number> && !is_whole)) {
        return Expected(part, StrCat("numbers from ", low, " to ", high, ", separated by commas"));
      }
      (options.*field).push_back(static_cast<Number>(*number));
    }
    if ((options.*field).empty()) return Expected(text, "numbers, separated by commas");
    return absl::OkStatus();
  };
}

// Returns whether a header may have this value: gRPC ends the program on others.
bool IsPrintableAscii(std::string_view text);

// Setters of --header, --metadata, --arrival, --rate and --goodput.
absl::Status AddHeader(Options& options, std::string_view text);
absl::Status AddServerFact(Options& options, std::string_view text);
absl::Status SetArrival(Options& options, std::string_view text);
absl::Status SetRate(Options& options, std::string_view text);
absl::Status SetGoal(Options& options, std::string_view text);

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_FLAG_SETTERS_H_
