#include "engine/mask_workers.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/strings.h"

namespace millrace {
namespace {

constexpr size_t kUnbounded = std::numeric_limits<size_t>::max();
constexpr unsigned kMostThreads = 4;

}  // namespace

MaskWorkers::MaskWorkers(std::function<void()> wake)
    : wake_(std::move(wake)), jobs_(kUnbounded), made_(kUnbounded) {}

MaskWorkers::~MaskWorkers() {
  jobs_.Close();
  for (std::thread& thread : threads_) thread.join();
}

void MaskWorkers::Order(std::shared_ptr<LiveRequest> request, Token token) {
  if (threads_.empty()) {
    const unsigned count = std::clamp(std::thread::hardware_concurrency() / 2, 1U, kMostThreads);
    for (unsigned i = 0; i < count; ++i) threads_.emplace_back([this] { Run(); });
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

MaskWorkers::Made MaskWorkers::Follow(LiveRequest& request, Token token) {
  std::optional<ThinkingBudget>& budget = request.thinking_budget;
  std::optional<GrammarMatcher>& matcher = request.matcher;
  if ((budget.has_value() && !budget->Accept(token)) ||
      (matcher.has_value() && !matcher->Accept(token))) {
    return {.status = absl::InternalError(
                StrCat("the token ", token, " was sampled, which the grammar does not allow"))};
  }
  if (matcher.has_value() && matcher->finished()) return {.complete = true};
  absl::StatusOr<std::shared_ptr<const SampleMask>> mask = nullptr;
  if (budget.has_value()) mask = budget->Mask();
  if (matcher.has_value()) mask = matcher->Mask();
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
  return {.mask = *std::move(mask)};
}

}  // namespace millrace
