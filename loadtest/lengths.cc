#include "loadtest/lengths.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "base/strings.h"
#include "loadtest/numbers.h"

namespace millrace {
namespace {

constexpr int64_t kMost = 1'000'000;

absl::Status NotAllowed(std::string_view text) {
  return absl::InvalidArgumentError(
      StrCat("got \"", Printable(text),
             "\", expected a whole number from 1 to 1000000, uniform:LOW:HIGH, "
             "normal:MEAN:DEVIATION or lognormal:MEDIAN:SIGMA"));
}

}  // namespace

absl::StatusOr<Lengths> Lengths::Parse(std::string_view text) {
  const std::vector<std::string_view> parts = SplitList(text, ':');
  std::vector<double> numbers;
  for (size_t i = parts.size() == 1 ? 0 : 1; i < parts.size(); ++i) {
    const std::optional<double> number = ParseDecimal(parts[i]);
    if (!number || *number < 0 || *number > kMost) return NotAllowed(text);
    numbers.push_back(*number);
  }
  const bool fixed = parts.size() == 1 || (parts.size() == 2 && parts[0] == "fixed");
  const auto whole = [](double number) { return number >= 1 && number == std::floor(number); };
  if (fixed && !numbers.empty() && whole(numbers[0])) {
    return Lengths(static_cast<int64_t>(numbers[0]));
  }
  if (fixed || numbers.size() != 2) return NotAllowed(text);
  Lengths lengths;
  if (parts[0] == "uniform" && whole(numbers[0]) && whole(numbers[1]) && numbers[0] <= numbers[1]) {
    lengths.low_ = static_cast<int64_t>(numbers[0]);
    lengths.high_ = static_cast<int64_t>(numbers[1]);
    return lengths;
  }
  if (parts[0] != "normal" && parts[0] != "lognormal") return NotAllowed(text);
  if (numbers[0] < 1 || (parts[0] == "lognormal" && numbers[1] > 10)) return NotAllowed(text);
  lengths.kind_ = parts[0] == "normal" ? Kind::kNormal : Kind::kLogNormal;
  lengths.middle_ = numbers[0];
  lengths.spread_ = numbers[1];
  return lengths;
}

int64_t Lengths::Draw(Random& random) const {
  if (kind_ == Kind::kUniform) return low_ == high_ ? low_ : random.Between(low_, high_);
  const double normal = random.Normal() * spread_;
  const double drawn = kind_ == Kind::kNormal ? middle_ + normal : middle_ * std::exp(normal);
  return std::clamp<int64_t>(std::llround(std::min(drawn, 1e9)), 1, kMost);
}

int64_t Lengths::most() const { return kind_ == Kind::kUniform ? high_ : kMost; }

std::string Lengths::ToString() const {
  if (kind_ != Kind::kUniform) {
    return StrCat(kind_ == Kind::kNormal ? "normal:" : "lognormal:", middle_, ":", spread_);
  }
  return low_ == high_ ? StrCat(low_) : StrCat("uniform:", low_, ":", high_);
}

}  // namespace millrace
