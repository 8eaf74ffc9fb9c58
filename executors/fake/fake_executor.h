// An executor without a model: stated times, predictable tokens, a strict eye on plans.
#ifndef MILLRACE_EXECUTORS_FAKE_FAKE_EXECUTOR_H_
#define MILLRACE_EXECUTORS_FAKE_FAKE_EXECUTOR_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "executors/executor.h"
#include "executors/factory.h"

namespace millrace {

// Bytes 0 to 255, then BOS and EOS.
inline constexpr int32_t kFakeVocabSize = 258;

// The context where none is asked for, and what a token takes of the KV memory.
inline constexpr int32_t kFakeMaxModelLen = 8192;
inline constexpr int64_t kFakeBytesPerToken = 1024;

// What the fake samples at `position` after `previous`: a printable ASCII character that is not
// banned, a function of the arguments alone. With temperature 0 of (position, previous) alone.
Token FakeToken(const SamplingParams& sampling, int32_t position, Token previous);

// A step takes fake_step_us + fake_token_us * (its input tokens), from the end of the one before it
// or from its submission, whichever is later: the schedule is absolute, so that a late wake-up does
// not slow the next step.
//
// Fault points, armed by tests (base/fault_points.h):
//   fake.row_error     the step's first row fails alone
//   fake.device_error  the step fails, and with it the device
//   fake.hang          the step takes 10 ms longer, and asks again: fake.hang=1000000 never ends
// Plans that break the contract in a way that only block contents show are refused as well
// (BlockLedger).
absl::StatusOr<std::unique_ptr<Executor>> LoadFakeExecutor(const DeviceSpec& device);

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_FAKE_FAKE_EXECUTOR_H_
