// The memory that the incomplete first messages of TLS clients may take, over all connections of
// both endpoints.
#ifndef MILLRACE_SERVER_TLS_HELLO_BUDGET_H_
#define MILLRACE_SERVER_TLS_HELLO_BUDGET_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <span>
#include <vector>

namespace millrace {

// Thread-safe. When the budget runs short, the connection that has held bytes for longest gives way
// at once: its bytes are freed, whichever thread it lives on, and that thread closes it later. So
// clients that send half a message and then nothing cannot keep out one whose message comes in two
// packets, and the memory never exceeds the budget. A message that comes whole needs none of it.
class HelloBudget {
 public:
  // One connection's share. Its functions are called by one thread at a time.
  class Hello {
   public:
    explicit Hello(HelloBudget& budget) : budget_(budget) {}
    Hello(const Hello&) = delete;
    Hello& operator=(const Hello&) = delete;
    ~Hello();

    // Keeps `bytes`, which begin with those kept so far. Charges the memory that they take. Returns
    // false if this connection has given way: then nothing is kept.
    bool Keep(std::span<const uint8_t> bytes);
    // Copies what is kept to the beginning of `to`, and returns its size. `to` has enough space.
    size_t CopyTo(std::span<uint8_t> to) const;
    // The memory that is kept.
    size_t memory() const;
    // Charges `size` bytes in all, which lie in the socket. Returns what Keep does.
    bool Charge(size_t size);

    // Returns whether the connection has given way to others. May become true at any time.
    bool gave_way() const { return gave_way_; }

   private:
    friend class HelloBudget;
    HelloBudget& budget_;
    std::atomic<bool> gave_way_ = false;  // written under the budget's mutex, as is what follows
    std::vector<uint8_t> kept_;
    size_t charged_ = 0;
    std::list<Hello*>::iterator place_;  // while it is charged anything
  };

  // `limit`: bytes.
  explicit HelloBudget(size_t limit) : limit_(limit) {}

  size_t used() const;

 private:
  // With mutex_ held.
  bool SetCharge(Hello& hello, size_t size);
  void Remove(Hello& hello);

  const size_t limit_;
  mutable std::mutex mutex_;
  size_t used_ = 0;            // guarded by mutex_
  std::list<Hello*> charged_;  // guarded by mutex_: in the order of their first charges
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_TLS_HELLO_BUDGET_H_
