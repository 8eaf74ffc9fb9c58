#include "loadtest/arrivals.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "loadtest/numbers.h"

namespace millrace {
namespace {

constexpr int64_t kLongest = 1'000'000;

absl::StatusOr<TraceEntry> ParseEntry(std::string_view line) {
  if (const std::optional<double> time = ParseDecimal(line); time && *time >= 0) {
    return TraceEntry{.time = *time};
  }
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object() || !json.contains("timestamp") || !json["timestamp"].is_number() ||
      json["timestamp"].get<double>() < 0) {
    return absl::InvalidArgumentError(
        StrCat("got \"", Printable(line),
               "\", expected seconds, or a JSON object with \"timestamp\" in milliseconds"));
  }
  TraceEntry entry{.time = json["timestamp"].get<double>() / 1e3};
  for (const auto& [name, length] : {std::pair{"input_length", &entry.input_len},
                                     std::pair{"output_length", &entry.output_len}}) {
    const auto field = json.find(name);
    if (field == json.end() || field->is_null()) continue;
    if (!field->is_number_integer() || *field < 1 || *field > kLongest) {
      return absl::InvalidArgumentError(StrCat(name, ": got ",
                                               Printable(field->dump(-1, ' ', true)),
                                               ", expected a whole number from 1 to 1000000"));
    }
    *length = field->get<int64_t>();
  }
  return entry;
}

}  // namespace

std::optional<double> Arrivals::Next() {
  const uint64_t index = index_++;
  switch (options_.kind) {
    case ArrivalKind::kConstant:
      return static_cast<double>(index) / options_.rate;
    case ArrivalKind::kBurst: {
      const auto size = static_cast<uint64_t>(options_.burst_size);
      const uint64_t first = index - index % size;  // of the burst
      return static_cast<double>(first) / options_.rate;
    }
    case ArrivalKind::kRamp:
      return NextOfRamp();
    case ArrivalKind::kTrace:
      if (index >= options_.trace->size()) return std::nullopt;
      return (*options_.trace)[index].time;
    case ArrivalKind::kPoisson:
      break;
  }
  const double shape = options_.burstiness;
  const double gap = shape == 1 ? random_.Exponential() : random_.Gamma(shape) / shape;
  return time_ += gap / options_.rate;
}

// A Poisson process whose rate r(t) rises linearly: the next arrival is where the integral of r has
// grown by an exponential draw.
double Arrivals::NextOfRamp() {
  mass_ += random_.Exponential();
  const double slope = (options_.rate - options_.ramp_start) / options_.ramp_time;
  const double whole = (options_.ramp_start + options_.rate) / 2 * options_.ramp_time;
  if (mass_ >= whole) return options_.ramp_time + (mass_ - whole) / options_.rate;
  if (slope == 0) return mass_ / options_.rate;
  const double start = options_.ramp_start;
  return (std::sqrt(std::max(0.0, start * start + 2 * slope * mass_)) - start) / slope;
}

absl::StatusOr<std::vector<TraceEntry>> ParseTrace(std::string_view text) {
  std::vector<TraceEntry> entries;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = Trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty()) continue;
    absl::StatusOr<TraceEntry> entry = ParseEntry(line);
    if (!entry.ok()) return Annotate(entry.status(), StrCat("line ", number));
    entries.push_back(*entry);
  }
  if (entries.empty()) return absl::InvalidArgumentError("the trace has no requests");
  std::stable_sort(entries.begin(), entries.end(),
                   [](const TraceEntry& a, const TraceEntry& b) { return a.time < b.time; });
  const double first = entries.front().time;
  for (TraceEntry& entry : entries) entry.time -= first;
  return entries;
}

}  // namespace millrace
