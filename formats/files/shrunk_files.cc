#include "formats/files/shrunk_files.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>

namespace millrace {
namespace {

// A mapping, as the handler of SIGBUS needs to know it, which may neither lock nor allocate.
struct Mapping {
  std::atomic<bool> taken = false;
  std::atomic<const uint8_t*> begin = nullptr;  // set last
  size_t size = 0;
  std::array<char, 256> name{};  // ends with a zero
};

// Files beyond these, of which no model has as many, end the process without the line.
constinit std::array<Mapping, 2048> mappings;

void Say(const char* text) { (void)!write(STDERR_FILENO, text, strlen(text)); }

void OnBusError(int number, siginfo_t* info, void* /*context*/) {
  const auto* const address = static_cast<const uint8_t*>(info->si_addr);
  for (const Mapping& mapping : mappings) {
    const uint8_t* const begin = mapping.begin.load(std::memory_order_acquire);
    if (begin == nullptr || address < begin || address >= begin + mapping.size) continue;
    Say("millraced: ");
    Say(mapping.name.data());
    Say(": the file has shrunk, or cannot be read, while it was being read; put a model in place "
        "by renaming it, when it is complete\n");
    _exit(EXIT_FAILURE);
  }
  signal(number, SIG_DFL);  // The instruction runs again, and this time ends the process.
}

}  // namespace

void ExplainShrunkFiles() {
  struct sigaction action = {};
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

void AddMapping(absl::Span<const uint8_t> bytes, const std::string& base_name) {
  for (Mapping& mapping : mappings) {
    if (mapping.taken.exchange(true)) continue;
    mapping.size = bytes.size();
    mapping.name.fill(0);
    std::copy_n(base_name.data(), std::min(base_name.size(), mapping.name.size() - 1),
                mapping.name.data());
    mapping.begin.store(bytes.data(), std::memory_order_release);
    return;
  }
}

void RemoveMapping(absl::Span<const uint8_t> bytes) {
  for (Mapping& mapping : mappings) {
    if (mapping.begin.load(std::memory_order_relaxed) != bytes.data()) continue;
    mapping.begin.store(nullptr, std::memory_order_relaxed);
    mapping.taken = false;
    return;
  }
}

}  // namespace millrace
