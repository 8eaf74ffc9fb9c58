// An executor without a model: configured times, predictable tokens, and strict checks of plans.
#ifndef MILLRACE_EXECUTORS_FAKE_FAKE_EXECUTOR_H_
#define MILLRACE_EXECUTORS_FAKE_FAKE_EXECUTOR_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "executors/device_spec.h"
#include "executors/executor.h"

namespace millrace {

// Bytes 0 to 255, then BOS and EOS.
inline constexpr int32_t kFakeVocabSize = 258;

// The default context length, and the KV memory that a token takes.
inline constexpr int32_t kFakeMaxModelLen = 8192;
inline constexpr int64_t kFakeBytesPerToken = 1024;

// Returns the token sampled at `position` after `previous`: a printable ASCII character that is not
// banned. It is a function of the arguments alone; with temperature 0, of (position, previous)
// alone.
Token FakeToken(const SamplingParams& sampling, int32_t position, Token previous);

// Returns how long a step takes: step_us + token_us * (its input tokens); where it has a prompt,
// more than one token of a sequence, also prompt_us, and its tokens count as whole tiles.
Duration FakeStepTime(const FakeSpec& device, const StepPlan& plan);

// Loads an executor without a model. A step takes FakeStepTime, from the end of the previous step
// or from its submission, whichever is later. The schedule is absolute, so that a late wake-up does
// not slow the next step. With FakeSpec::answer every sequence samples its bytes and then EOS; one
// that was preempted begins it again.
//
// Fault points, armed by tests (base/fault_points.h):
//   fake.row_error     the step's first row fails alone
//   fake.device_error  the step fails, and with it the device
//   fake.hang          the step takes 10 ms longer and passes the point again, so that
//                      fake.hang=1000000 never ends
// Plans that violate the contract in a way that only block contents show are refused as well
// (BlockLedger).
absl::StatusOr<std::unique_ptr<Executor>> LoadFakeExecutor(const FakeSpec& device);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_FAKE_FAKE_EXECUTOR_H_
