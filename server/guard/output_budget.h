// The memory that answers may take while their clients read them, shared by all endpoints.
#ifndef MILLRACE_SERVER_GUARD_OUTPUT_BUDGET_H_
#define MILLRACE_SERVER_GUARD_OUTPUT_BUDGET_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace prometheus {
class Counter;
class Gauge;
class Registry;
}  // namespace prometheus

namespace millrace {

// Whom an answer waits for.
struct OutputOwner {
  std::string tenant;       // empty: none
  std::string connection;   // of several calls at once; empty: one answer at a time
  bool notes_taken = true;  // Share::NoteTaken is called while the client reads
};

// Thread-safe. The bytes of all answers that wait for a client are charged to the process, to the
// client's tenant and to its connection. Where one of these would exceed its limit, answers whose
// clients read too slowly give way, those that hold most first. Where all clients read, a large
// answer is refused, and a small one takes the place of the largest. None gives way to an answer
// that is refused all the same. An answer is charged with at
// most three quarters of a limit: one of any size goes through alone, and small ones beside it.
class OutputBudget {
 public:
  enum class Scope { kProcess, kTenant, kConnection };
  static constexpr size_t kScopes = 3;

  // A client that reads less a second than this is slow, beyond its first second of waiting. Where
  // only the end of its reading is seen, it is slow beyond the time that all takes at this rate.
  static constexpr uint64_t kSlowBytesPerSecond = 64 << 10;
  // The largest answer that is not refused while a larger one waits.
  static constexpr uint64_t kSmallBytes = 1 << 20;

  // `limit` is the process's; a tenant has a half of it, a connection a quarter. With a registry,
  // which outlives the budget, it has metrics.
  explicit OutputBudget(uint64_t limit, prometheus::Registry* registry = nullptr);
  OutputBudget(const OutputBudget&) = delete;
  OutputBudget& operator=(const OutputBudget&) = delete;

  // One answer that waits. Used by one thread at a time; releases what it has been charged.
  class Share {
   public:
    // `on_evicted` is called from any thread, under a lock, at most once, and not after Release: it
    // must end the connection later, on a thread of its own.
    Share(OutputBudget& budget, std::function<void()> on_evicted)
        : budget_(budget), on_evicted_(std::move(on_evicted)) {}
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    ~Share() { Release(); }

    // Charges an answer of `bytes`. Of several answers with the same `buffer`, which is the key of
    // the memory that they share, one is charged; null: the answer has its own. Returns false if
    // the answer must not wait; full() then says for want of what. Call once, or after Release.
    bool Charge(OutputOwner owner, uint64_t bytes, const void* buffer, SteadyTime now) {
      return budget_.Charge(*this, std::move(owner), bytes, buffer, now);
    }
    // Notes that the client took some of the answer.
    void NoteTaken(uint64_t bytes) { taken_.fetch_add(bytes, std::memory_order_relaxed); }
    void Release();

    // Returns whether the answer had to give way to others. May become true at any time.
    bool evicted() const { return evicted_; }
    Scope full() const { return full_; }

   private:
    friend class OutputBudget;
    OutputBudget& budget_;
    const std::function<void()> on_evicted_;
    Scope full_ = Scope::kProcess;
    std::atomic<uint64_t> taken_ = 0;
    std::atomic<bool> evicted_ = false;  // written under the budget's mutex
    // Guarded by the budget's mutex.
    bool charged_ = false;
    OutputOwner owner_;
    uint64_t bytes_ = 0;
    const void* buffer_ = nullptr;
    SteadyTime began_;
  };

  uint64_t used() const;   // by the process
  size_t waiting() const;  // answers

 private:
  // The charges of the answers of one scope.
  struct Account {
    uint64_t used = 0;
    size_t answers = 0;
    std::unordered_map<const void*, size_t> buffers;  // how many answers share each
  };
  using Accounts = std::map<std::string, Account, std::less<>>;

  bool Charge(Share& share, OutputOwner owner, uint64_t bytes, const void* buffer, SteadyTime now);
  // An answer that gives way, and by the limit of which scope.
  struct Eviction {
    Share* share;
    Scope scope;
  };

  // All with mutex_ held. MakeRoom uncharges those that give way in one scope, and adds them to
  // `evictions`. Returns false if the share does not fit even so.
  bool MakeRoom(const Share& share, Scope scope, SteadyTime now, std::vector<Eviction>& evictions);
  Share* Victim(const Share& share, Scope scope, SteadyTime now) const;
  void Add(Share& share);
  void Remove(Share& share);
  void Evict(const Eviction& eviction);
  void ShowUsed();
  uint64_t Limit(Scope scope) const { return limit_ >> static_cast<unsigned>(scope); }
  uint64_t Cost(Scope scope, uint64_t bytes) const;
  // Returns the name of the share's account in a scope; null if it has none there.
  static const std::string* AccountOf(const Share& share, Scope scope);

  const uint64_t limit_;
  mutable std::mutex mutex_;
  std::array<Accounts, kScopes> accounts_;  // guarded by mutex_
  std::unordered_set<Share*> shares_;       // guarded by mutex_: those that are charged
  // Null without a registry.
  prometheus::Gauge* bytes_shown_ = nullptr;
  prometheus::Gauge* answers_shown_ = nullptr;
  std::array<prometheus::Counter*, kScopes> refused_{};
  std::array<prometheus::Counter*, kScopes> evicted_{};
};

// Returns the scope as metrics name it: "tenant".
const char* OutputScopeName(OutputBudget::Scope scope);

}  // namespace millrace

#endif  // MILLRACE_SERVER_GUARD_OUTPUT_BUDGET_H_
