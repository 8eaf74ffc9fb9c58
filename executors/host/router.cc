#include "executors/host/router.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace millrace {
namespace {

constexpr float kLeast = -INFINITY;

// Puts the first `count` of the order's indices by their ranks in front: the highest rank first,
// and of equal ones the lower index.
void PutBestFirst(absl::Span<const float> ranks, int count, std::vector<int32_t>* order) {
  std::partial_sort(
      order->begin(), order->begin() + count, order->end(),
      [&](int32_t a, int32_t b) { return ranks[a] != ranks[b] ? ranks[a] > ranks[b] : a < b; });
}

}  // namespace

// Leaves the experts of the best groups, a group counting as the sum of its two best.
void ExpertChooser::KeepBestGroups(const RouterConfig& router) {
  const int size = router.experts / router.groups;
  std::vector<float> sums(router.groups);
  for (int group = 0; group < router.groups; ++group) {
    float best = kLeast, second = kLeast;
    for (int i = group * size; i < (group + 1) * size; ++i) {
      if (ranks_[i] > best) {
        second = best;
        best = ranks_[i];
      } else {
        second = std::max(second, ranks_[i]);
      }
    }
    sums[group] = size > 1 ? best + second : best;
  }
  std::vector<int32_t> groups(router.groups);
  std::iota(groups.begin(), groups.end(), 0);
  PutBestFirst(sums, router.chosen_groups, &groups);
  for (auto group = groups.begin() + router.chosen_groups; group != groups.end(); ++group) {
    std::fill_n(ranks_.begin() + *group * size, size, kLeast);
  }
}

void ExpertChooser::Choose(const RouterConfig& router, absl::Span<const float> logits,
                           absl::Span<const float> correction, absl::Span<RoutedExpert> chosen) {
  const int experts = router.experts;
  const bool softmax = router.scores == RouterConfig::Scores::kSoftmax;
  scores_.resize(experts);
  ranks_.resize(experts);
  order_.resize(experts);
  std::iota(order_.begin(), order_.end(), 0);
  const float largest = *std::max_element(logits.begin(), logits.end());
  float sum = 0;
  for (int i = 0; i < experts; ++i) {
    scores_[i] = softmax ? std::exp(logits[i] - largest) : 1 / (1 + std::exp(-logits[i]));
    sum += scores_[i];
  }
  for (int i = 0; i < experts; ++i) {
    if (softmax) scores_[i] /= sum;
    // Logits, which rounding has not made equal, rank as their softmax does.
    const float rank = softmax && correction.empty()
                           ? logits[i]
                           : scores_[i] + (correction.empty() ? 0 : correction[i]);
    ranks_[i] = std::isnan(rank) ? kLeast : rank;
  }
  if (router.groups > 1) KeepBestGroups(router);
  PutBestFirst(ranks_, router.chosen, &order_);
  float total = 0;
  for (int i = 0; i < router.chosen; ++i) {
    chosen[i] = {.expert = order_[i], .score = scores_[order_[i]]};
    total += chosen[i].score;
  }
  float factor = static_cast<float>(router.factor);
  if (router.renormalize) factor /= total + 1e-20F;  // sigmoids may all be 0
  for (RoutedExpert& expert : chosen) expert.score *= factor;
}

}  // namespace millrace
