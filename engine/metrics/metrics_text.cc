#include "engine/metrics/metrics_text.h"

#include <array>
#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>

#include "base/strings.h"

namespace millrace {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricType;

// Below the first and from the second on Python's client writes exponents.
constexpr double kMostSmallExponent = 1e-4;
constexpr double kLeastExponent = 1e6;

// The shortest decimals that read back as the same number.
std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return std::string(text.data(), end);
}

std::string_view TypeName(MetricType type) {
  switch (type) {
    case MetricType::Counter:
      return "counter";
    case MetricType::Gauge:
      return "gauge";
    case MetricType::Summary:
      return "summary";
    case MetricType::Histogram:
      return "histogram";
    default:
      return "untyped";
  }
}

void AppendEscaped(std::string_view text, bool quoted, std::string& out) {
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\\' || (quoted && c == '"')) {
      out += '\\';
      out += c;
    } else {
      out += c;
    }
  }
}

// Writes the series of one metric.
class Writer {
 public:
  Writer(std::string_view name, const ClientMetric& metric, std::string& out)
      : name_(name), metric_(metric), out_(out) {}

  void Series(std::string_view suffix, double value, std::string_view label = {},
              std::string_view label_value = {}) const {
    out_ += name_;
    out_ += suffix;
    char separator = '{';
    for (const auto& [key, text] : metric_.label) AppendLabel(key, text, separator);
    if (!label.empty()) AppendLabel(label, label_value, separator);
    if (separator == ',') out_ += '}';
    out_ += ' ';
    out_ += Number(value);
    if (metric_.timestamp_ms != 0) out_ += StrCat(" ", metric_.timestamp_ms);
    out_ += '\n';
  }

  void Histogram() const {
    const auto& histogram = metric_.histogram;
    bool closed = false;  // the last bucket has all
    for (const auto& bucket : histogram.bucket) {
      Series("_bucket", static_cast<double>(bucket.cumulative_count), "le",
             BucketBound(bucket.upper_bound));
      closed = std::isinf(bucket.upper_bound);
    }
    if (!closed) Series("_bucket", static_cast<double>(histogram.sample_count), "le", "+Inf");
    Series("_sum", histogram.sample_sum);
    Series("_count", static_cast<double>(histogram.sample_count));
  }

  void Summary() const {
    for (const auto& quantile : metric_.summary.quantile) {
      Series("", quantile.value, "quantile", BucketBound(quantile.quantile));
    }
    Series("_sum", metric_.summary.sample_sum);
    Series("_count", static_cast<double>(metric_.summary.sample_count));
  }

 private:
  void AppendLabel(std::string_view key, std::string_view value, char& separator) const {
    out_ += std::exchange(separator, ',');
    out_ += key;
    out_ += "=\"";
    AppendEscaped(value, /*quoted=*/true, out_);
    out_ += '"';
  }

  const std::string_view name_;
  const ClientMetric& metric_;
  std::string& out_;
};

}  // namespace

std::string BucketBound(double bound) {
  if (!std::isfinite(bound)) return Number(bound);
  const double size = std::abs(bound);
  const bool fixed = size == 0 || (size >= kMostSmallExponent && size < kLeastExponent);
  std::array<char, 64> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), bound,
                                 fixed ? std::chars_format::fixed : std::chars_format::scientific)
                       .ptr;
  std::string text(digits.data(), end);
  if (fixed && text.find('.') == text.npos) text += ".0";
  return text;
}

std::string MetricsText(const std::vector<prometheus::MetricFamily>& families) {
  std::string out;
  for (const prometheus::MetricFamily& family : families) {
    if (family.metric.empty()) continue;
    out += StrCat("# HELP ", family.name, " ");
    AppendEscaped(family.help, /*quoted=*/false, out);
    out += StrCat("\n# TYPE ", family.name, " ", TypeName(family.type), "\n");
    for (const ClientMetric& metric : family.metric) {
      const Writer writer(family.name, metric, out);
      switch (family.type) {
        case MetricType::Counter:
          writer.Series("", metric.counter.value);
          break;
        case MetricType::Gauge:
          writer.Series("", metric.gauge.value);
          break;
        case MetricType::Histogram:
          writer.Histogram();
          break;
        case MetricType::Summary:
          writer.Summary();
          break;
        default:
          writer.Series("", metric.untyped.value);
      }
    }
  }
  return out;
}

}  // namespace millrace
