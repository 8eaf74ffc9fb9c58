#include "engine/mask_workers.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>

#include "base/control_group.h"
#include "base/strings.h"
#include "engine/prepare.h"

namespace millrace {
namespace {

constexpr size_t kUnbounded = std::numeric_limits<size_t>::max() / 2;
constexpr int kMostThreads = 4;
constexpr int kSpareThreads = 2;
// Masks are charged by their time, in microseconds where texts have bytes.
constexpr size_t kLeastMicroseconds = 10;

}  // namespace

MaskWorkers::Threads MaskWorkers::DefaultThreads() {
  return {.ordinary = std::clamp(UsableCores() / 2, 1, kMostThreads), .spare = kSpareThreads};
}

MaskWorkers::MaskWorkers(std::function<void()> wake, size_t least_forced, Threads threads)
    : wake_(std::move(wake)), least_forced_(least_forced), threads_(threads), made_(kUnbounded) {}

void MaskWorkers::Order(std::shared_ptr<LiveRequest> request, Token token) {
  if (!pool_.has_value()) {
    pool_.emplace(TextPool::Options{.threads = threads_.ordinary,
                                    .spare_threads = threads_.spare,
                                    .long_threads = 0,
                                    .long_bytes = kUnbounded,
                                    .capacity = kUnbounded,
                                    .waiting_bytes = kUnbounded,
                                    .job_bytes = kLeastMicroseconds});
  }
  const TenantShare share = ShareOf(request->request.tenant.get());
  const uint64_t key = request->key;
  // The last mask says best what the next one takes.
  const auto microseconds =
      std::chrono::duration_cast<std::chrono::microseconds>(request->mask_time).count();
  absl::Status taken =
      pool_->Submit(share, static_cast<size_t>(microseconds),
                    [this, request = std::move(request), token, ordered = Clock::Real().Now()] {
                      Run(*request, token, ordered);
                    });
  // Such a pool has no limit and is ended only with the workers. Were one to come, the request must
  // not wait for ever.
  if (taken.ok()) return;
  made_.TryPush({.key = key, .status = std::move(taken)});
  wake_();
}

void MaskWorkers::Run(LiveRequest& request, Token token, SteadyTime ordered) {
  const SteadyTime began = Clock::Real().Now();
  Made made = Follow(request, token);
  const SteadyTime now = Clock::Real().Now();
  request.mask_time = now - began;
  made.took = now - ordered;
  made.key = request.key;
  made_.TryPush(std::move(made));
  wake_();
}

MaskWorkers::Made MaskWorkers::Follow(LiveRequest& request, Token token) const {
  std::optional<ThinkingBudget>& budget = request.thinking_budget;
  std::optional<GuidedAnswer>& guided = request.guided;
  if ((budget.has_value() && !budget->Accept(token)) ||
      (guided.has_value() && !guided->Accept(token))) {
    return {.status = absl::InternalError(
                StrCat("the token ", token, " was sampled, which the grammar does not allow"))};
  }
  std::vector<Token> forced;
  if (guided.has_value() && request.jumps && guided->num_forced() >= least_forced_) {
    forced = guided->TakeForced();
    for (const Token one : forced) {
      if (budget.has_value()) budget->Accept(one);  // a grammar leaves reasoning its choice
    }
  }
  if (guided.has_value() && guided->finished()) {
    return {.complete = true, .forced = std::move(forced)};
  }
  absl::StatusOr<std::shared_ptr<const SampleMask>> mask = nullptr;
  if (guided.has_value()) {
    mask = guided->Mask();
    if (mask.ok() && budget.has_value()) mask = budget->Narrow(*std::move(mask));
  } else if (budget.has_value()) {
    mask = budget->Mask();
  }
  if (!mask.ok()) return {.status = std::move(mask).status()};
  if (request.token_bounds.has_value()) {
    request.token_bounds->Accept(token);
    *mask = request.token_bounds->Mask(mask->get());
  }
  const bool any = std::any_of((*mask)->begin(), (*mask)->end(), [](uint32_t w) { return w != 0; });
  if (!any) {
    return {
        .status = absl::FailedPreconditionError(
            "no token of the model's vocabulary may come next: what the answer is held to allows "
            "none")};
  }
  return {.forced = std::move(forced), .mask = *std::move(mask)};
}

}  // namespace millrace
