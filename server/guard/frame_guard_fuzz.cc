// Fuzzes the checks of HTTP/2's frames, and the sizes of header blocks. The first byte tells what
// the rest is: bytes of a client after the preface and its SETTINGS, the same from the very first
// byte, or header blocks, each with its length before it. What a client sends must be judged alike
// however the network cuts it.
#include <chrono>

#include "base/fuzz_test_util.h"
#include "server/guard/frame_guard.h"

namespace {

using millrace::FrameGuard;
using millrace::FuzzCheck;
using millrace::http2::Bytes;

const millrace::SteadyTime kNow = millrace::SteadyTime() + std::chrono::hours(1);

struct Verdict {
  size_t passed = 0;
  int reason = -1;
  size_t resets = 0;
  size_t streams = 0;

  bool operator==(const Verdict&) const = default;
};

Bytes AsBytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// Returns how the guard judges `sent`, which comes in pieces of at most `most` bytes. Every time is
// the same, so that only the cuts differ.
Verdict Judge(std::string_view sent, size_t most) {
  millrace::GuardShared shared{millrace::GuardLimits()};
  FrameGuard guard(shared);
  Verdict verdict;
  millrace::FuzzRandom random(sent);
  size_t come = 0;
  while (come < sent.size() && !guard.violation()) {
    come = most == 0 ? sent.size() : std::min(sent.size(), come + 1 + random.Below(most));
    const std::string_view held = sent.substr(verdict.passed, come - verdict.passed);
    const size_t passed = guard.FromClient(AsBytes(held), kNow);
    FuzzCheck(passed <= held.size(), "more was let through than came");
    verdict.passed += passed;
    verdict.resets += guard.TakeResets().size();
  }
  if (guard.violation()) verdict.reason = static_cast<int>(guard.violation()->reason);
  verdict.streams = guard.streams();
  FuzzCheck(guard.streams() <= shared.limits.streams, "too many streams");
  guard.CheckTimes(kNow + std::chrono::hours(1));
  return verdict;
}

void JudgeBlocks(millrace::FuzzInput input) {
  millrace::HeaderSizes sizes;
  uint32_t limit = 4096;
  while (!input.rest().empty()) {
    const uint8_t length = input.Byte();
    if (length == 255) {
      limit = uint32_t{input.Byte()} << 5;
      sizes.SetTableLimit(limit);
      continue;
    }
    std::string block;
    for (int i = 0; i < length && !input.rest().empty(); ++i) {
      block += static_cast<char>(input.Byte());
    }
    if (!sizes.Add(AsBytes(block), 64 << 10)) return;
    FuzzCheck(sizes.table_bytes() <= 255 << 5, "the dynamic table is too large");
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  millrace::FuzzInput input(data, size);
  const int kind = input.Byte() % 3;
  if (kind == 2) {
    JudgeBlocks(input);
    return 0;
  }
  std::string sent;
  if (kind == 0) {
    sent = millrace::http2::kPreface;
    sent.append("\0\0\0\4\0\0\0\0\0", 9);
  }
  sent += input.rest();
  const Verdict whole = Judge(sent, 0);
  FuzzCheck(Judge(sent, 7) == whole && Judge(sent, 64) == whole, "pieces change the verdict");

  // The server is trusted, but its bytes must not be read beyond their end.
  millrace::GuardShared shared{millrace::GuardLimits()};
  FrameGuard guard(shared);
  const std::string_view server = input.rest();
  FuzzCheck(guard.FromServer(AsBytes(server), kNow) <= server.size(), "more than came");
  return 0;
}
