#include "scheduler/draft_record.h"

#include <algorithm>
#include <cmath>

namespace millrace {
namespace {

// A token counts half after so many others that were compared.
constexpr double kHalfLife = 32;
// A draft is to be worth this much more than its positions cost: what they cost is an estimate.
constexpr double kMargin = 1.1;

}  // namespace

void DraftRecord::Observe(absl::Span<const Token> draft, absl::Span<const Token> came) {
  static const double kKeep = std::exp2(-1 / kHalfLife);
  const size_t most = std::min(draft.size(), came.size());
  for (size_t i = 0; i < most; ++i) {
    const bool is_right = draft[i] == came[i];
    right_ = right_ * kKeep + (is_right ? 1 : 0);
    wrong_ = wrong_ * kKeep + (is_right ? 0 : 1);
    if (!is_right) return;
  }
}

int32_t DraftRecord::WorthDrafting(double cost, int32_t most) const {
  const double right = acceptance();
  int32_t count = 0;
  for (double all_right = right; count < most && all_right > kMargin * cost; all_right *= right) {
    ++count;
  }
  return count;
}

}  // namespace millrace
