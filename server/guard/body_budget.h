// The memory that request bodies may take while they come in, shared by all connections of an
// endpoint.
#ifndef MILLRACE_SERVER_GUARD_BODY_BUDGET_H_
#define MILLRACE_SERVER_GUARD_BODY_BUDGET_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <unordered_set>

#include "base/clock.h"

namespace millrace {

// Thread-safe. Bodies are charged as their bytes arrive. When the budget runs short, the body that
// has come most slowly gives way, so that a few clients which hold much and send little cannot keep
// the others out.
class BodyBudget {
 public:
  // One body that is coming in. Used by one thread, like the budget's calls that take it; releases
  // what it has been charged.
  class Body {
   public:
    explicit Body(BodyBudget& budget) : budget_(budget) {}
    Body(const Body&) = delete;
    Body& operator=(const Body&) = delete;
    ~Body() { Release(); }

    // Charges `bytes` that have arrived. Returns false if this body had to give way: it is then
    // charged nothing, and the request must be refused.
    bool Charge(uint64_t bytes, SteadyTime now) { return budget_.Charge(*this, bytes, now); }
    void Release();

    // Returns whether the body has given way to others. May become true at any time.
    bool evicted() const { return evicted_; }
    uint64_t bytes() const { return bytes_; }

   private:
    friend class BodyBudget;
    BodyBudget& budget_;
    SteadyTime began_;                   // of the first charge; guarded by the budget's mutex
    std::atomic<uint64_t> bytes_ = 0;    // written under the budget's mutex
    std::atomic<bool> evicted_ = false;  // written under the budget's mutex
  };

  explicit BodyBudget(uint64_t limit) : limit_(limit) {}

  uint64_t used() const;

 private:
  bool Charge(Body& body, uint64_t bytes, SteadyTime now);
  // With mutex_ held.
  Body* Slowest(SteadyTime now) const;
  void Remove(Body& body);

  const uint64_t limit_;
  mutable std::mutex mutex_;
  uint64_t used_ = 0;                 // guarded by mutex_
  std::unordered_set<Body*> bodies_;  // guarded by mutex_: those with a charge
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GUARD_BODY_BUDGET_H_
