#include "engine/mask_workers.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/control_group.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr size_t kUnbounded = std::numeric_limits<size_t>::max();
constexpr int kMostThreads = 4;

}  // namespace

MaskWorkers::MaskWorkers(std::function<void()> wake, size_t least_forced)
    : wake_(std::move(wake)), least_forced_(least_forced), jobs_(kUnbounded), made_(kUnbounded) {}

MaskWorkers::~MaskWorkers() {
  jobs_.Close();
  for (std::thread& thread : threads_) thread.join();
}

void MaskWorkers::Order(std::shared_ptr<LiveRequest> request, Token token) {
  if (threads_.empty()) {
    const int count = std::clamp(UsableCores() / 2, 1, kMostThreads);
    for (int i = 0; i < count; ++i) threads_.emplace_back([this] { Run(); });
  }
  jobs_.TryPush({std::move(request), token, Clock::Real().Now()});
}

void MaskWorkers::Run() {
  while (std::optional<Job> job = jobs_.Pop()) {
    Made made = Follow(*job->request, job->token);
    made.took = Clock::Real().Now() - job->ordered;
    made.key = job->request->key;
    made_.TryPush(std::move(made));
    wake_();
  }
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
