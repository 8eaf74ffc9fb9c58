// Connections' first bytes: judged in pieces as whole, and never for longer than they say.
#include <cstdint>
#include <span>

#include "base/fuzz_test_util.h"
#include "server/guard/first_bytes.h"

namespace {

using millrace::FirstBytes;
using millrace::FuzzCheck;

void Judge(std::span<const uint8_t> bytes, bool proxied, bool tls) {
  const FirstBytes whole = millrace::ReadFirstBytes(bytes, proxied, tls);
  size_t seen = 0;
  while (true) {
    const FirstBytes part = millrace::ReadFirstBytes(bytes.first(seen), proxied, tls);
    if (part.protocol != FirstBytes::Protocol::kUnknown) {
      FuzzCheck(part.protocol == whole.protocol, "more bytes change the protocol");
      return;
    }
    FuzzCheck(part.size > seen && part.size <= FirstBytes::kMostBytes, "it waits for no more");
    if (part.size > bytes.size()) return;
    seen = part.size;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  for (const bool proxied : {false, true}) {
    for (const bool tls : {false, true}) Judge({data, size}, proxied, tls);
  }
  return 0;
}
