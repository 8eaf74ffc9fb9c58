#include "base/fault_points.h"

#include <optional>
#include <utility>
#include <vector>

#include "base/strings.h"

namespace millrace {
namespace {

// Head of the list of points. It is filled by constructors before main, hence constant-initialized.
constinit std::atomic<FaultPoint*> all_points{nullptr};

struct Order {
  std::string_view name;
  int64_t times = 1;
  int64_t skip = 0;
};

// A parsed "name[=times][@skip]".
std::optional<Order> ParseOrder(std::string_view text) {
  Order order;
  const auto cut = [&text](char mark, int64_t& number) {
    const size_t at = text.find(mark);
    if (at == text.npos) return true;
    const auto parsed = ParseNumber<int64_t>(text.substr(at + 1));
    number = parsed.value_or(-1);
    text = text.substr(0, at);
    return number >= 0;
  };
  if (!cut('@', order.skip) || !cut('=', order.times)) return std::nullopt;
  order.name = text;
  return order;
}

}  // namespace

FaultPoint::FaultPoint(std::string_view name) : name_(name), next_(all_points.exchange(this)) {}

void FaultPoint::Arm(int64_t times, int64_t skip) {
  std::lock_guard lock(mutex_);
  times_ = times;
  skip_ = skip;
  armed_.store(times > 0, std::memory_order_relaxed);
}

bool FaultPoint::FiresArmed() {
  std::lock_guard lock(mutex_);
  if (times_ == 0) return false;
  if (skip_ > 0) {
    --skip_;
    return false;
  }
  if (--times_ == 0) armed_.store(false, std::memory_order_relaxed);
  return true;
}

absl::Status ArmFaultPoints(std::string_view spec) {
  std::vector<std::pair<FaultPoint*, Order>> found;
  for (const std::string_view text : SplitList(spec)) {
    std::optional<Order> order = ParseOrder(text);
    if (!order.has_value()) {
      return absl::InvalidArgumentError(
          StrCat("fault point \"", text, "\": expected name[=times][@skip]"));
    }
    FaultPoint* point = all_points;
    std::vector<std::string_view> names;
    for (; point != nullptr && point->name_ != order->name; point = point->next_) {
      names.push_back(point->name_);
    }
    if (point == nullptr) {
      return absl::InvalidArgumentError(
          StrCat("no fault point \"", order->name, "\"; there are: ", JoinList(names)));
    }
    found.emplace_back(point, *order);
  }
  for (auto& [point, order] : found) point->Arm(order.times, order.skip);
  return absl::OkStatus();
}

void DisarmFaultPoints() {
  for (FaultPoint* point = all_points; point != nullptr; point = point->next_) point->Disarm();
}

}  // namespace millrace
