#include "scheduler/timed_device_test_util.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

#include "gtest/gtest.h"
#include "scheduler/block_hash.h"

namespace millrace {

TimedDevice::TimedDevice(const SchedulerOptions& options, Formula formula)
    : scheduler_(*Scheduler::Create(options)),
      num_slots_(options.limits.max_num_seqs),
      state_(options.limits.state),
      formula_(std::move(formula)) {}

SequenceId TimedDevice::Add(int32_t prompt_tokens, int32_t max_tokens, TenantShare tenant,
                            int32_t priority) {
  SequenceRequest request{.id = next_id_++};
  for (int i = 0; i < prompt_tokens; ++i) {
    request.prompt.push_back(static_cast<Token>((request.id * 7919 + i) % 1000));
  }
  request.prompt_hashes = HashPrompt({}, request.prompt, state_.block_size);
  request.stop.max_tokens = max_tokens;
  request.priority = priority;
  request.tenant = tenant;
  auto sampling = std::make_shared<SamplingParams>();
  sampling->seed = request.id;  // by which Submit knows who starts
  request.sampling = std::move(sampling);
  lives_[request.id] = {.tenant = tenant.id,
                        .added = now_,
                        .steps_before = steps_.size(),
                        .prompt_tokens = prompt_tokens,
                        .max_tokens = max_tokens};
  const SequenceId id = request.id;
  const absl::Status status = scheduler_->Add(std::move(request));
  EXPECT_TRUE(status.ok()) << status;
  return id;
}

void TimedDevice::Submit(const StepPlan& plan) {
  const SchedulerStats stats = scheduler_->stats();
  Step step{.could_begin = stats.num_waiting > 0 && stats.num_running < num_slots_};
  for (const SlotStart& start : plan.starts) {
    of_slot_[start.slot] = start.sampling->seed;
    lives_.at(start.sampling->seed).first_step = steps_.size();
  }
  for (const auto& [id, life] : lives_) {
    if (life.first_step && !life.ended) {
      step.ready_prompt += std::max(life.prompt_tokens - life.planned, 0);
    }
  }
  InFlight in_flight{.result = {.id = plan.id}};
  for (const StepRow& row : plan.rows) {
    Life& life = lives_.at(of_slot_.at(row.slot));
    const int32_t end = row.start + row.num_tokens;
    if (row.start >= life.prompt_tokens && row.num_tokens == 1) {
      ++step.work.decode_rows;
      step.work.decode_context += end;
    } else {
      step.work.AddPrompt(row.num_tokens, row.start);
    }
    served_[life.tenant] += std::max(end - std::max(row.start, life.planned), 0);
    life.planned = std::max(life.planned, end);
    RowResult& out = in_flight.result.rows.emplace_back(RowResult{.slot = row.slot});
    out.tokens.begin = static_cast<int32_t>(in_flight.result.tokens.size());
    for (int i = 0; i < row.logits.size(); ++i) in_flight.result.tokens.push_back({.token = 1});
    out.tokens.end = static_cast<int32_t>(in_flight.result.tokens.size());
  }
  for (const StateMove& move : plan.moves) {
    step.work.moved_bytes += state_.MoveBytes(move.group);
  }
  step.milliseconds = formula_(step.work);
  in_flight.milliseconds = step.milliseconds;
  steps_.push_back(step);
  in_flight_.push_back(std::move(in_flight));
}

void TimedDevice::Plan() {
  if (std::optional<StepPlan> plan = scheduler_->Plan(now_)) Submit(*std::move(plan));
}

bool TimedDevice::RunStep() {
  if (in_flight_.empty()) Plan();
  if (in_flight_.empty()) return false;
  const SteadyTime end =
      now_ + std::chrono::duration_cast<Duration>(
                 std::chrono::duration<double, std::milli>(in_flight_.front().milliseconds));
  now_ = std::clamp(scheduler_->PlanFrom(), now_, end);
  Plan();
  now_ = end;
  std::vector<TokenEvent> events;
  const absl::Status status = scheduler_->Commit(in_flight_.front().result, now_, &events);
  EXPECT_TRUE(status.ok()) << status;
  in_flight_.pop_front();
  for (const TokenEvent& event : events) {
    Life& life = lives_.at(event.id);
    life.generated += event.sampled.size();
    if (event.sampled.size() > 0 && !life.first_token) life.first_token = now_;
    if (event.end) life.ended = now_;
  }
  return true;
}

void TimedDevice::Learn(int before, int prompts, int32_t least, int32_t more) {
  for (int i = 0; i < before; ++i) RunStep();
  for (int i = 0; i < prompts; ++i) {
    Add(least + more * i, 1);
    for (int j = 0; j < 4; ++j) RunStep();
  }
}

std::vector<TimedDevice::Step> TimedDevice::RunPrompt(int32_t prompt_tokens) {
  const SequenceId id = Add(prompt_tokens, 1);
  const size_t first = steps_.size();
  bool runs = true;
  while (runs && !life(id).ended) runs = RunStep();
  EXPECT_TRUE(runs) << "the prompt has not ended";
  return {steps_.begin() + static_cast<std::ptrdiff_t>(first), steps_.end()};
}

int64_t TimedDevice::served(uint32_t tenant) const {
  const auto found = served_.find(tenant);
  return found == served_.end() ? 0 : found->second;
}

}  // namespace millrace
