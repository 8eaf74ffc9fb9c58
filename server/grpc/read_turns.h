// Decides whose request is read next.
#ifndef MILLRACE_SERVER_GRPC_READ_TURNS_H_
#define MILLRACE_SERVER_GRPC_READ_TURNS_H_

#include <cstddef>
#include <deque>
#include <map>
#include <string>

namespace millrace {

// Calls whose requests have not been read wait here, those of one payer in their order. Payers take
// turns. While the requests that were read and are not parsed have `most_held` bytes or more, only
// payers go on that have none of them: so that one payer's never keep another's out.
template <typename Call>
class ReadTurns {
 public:
  explicit ReadTurns(size_t most_held) : most_held_(most_held) {}

  void Add(const std::string& payer, Call* call) { payers_[payer].waiting.push_back(call); }

  // Counts the bytes of a request that was read, and, negative, of one that has been parsed.
  void Hold(const std::string& payer, ptrdiff_t bytes) {
    held_ += static_cast<size_t>(bytes);
    payers_[payer].held += static_cast<size_t>(bytes);
  }

  // Takes out the call whose request is to be read now. Returns null if there is none.
  Call* Next() {
    auto at = payers_.upper_bound(last_);
    for (size_t left = payers_.size(); left > 0; --left) {
      if (at == payers_.end()) at = payers_.begin();
      Payer& payer = at->second;
      if (payer.waiting.empty() && payer.held == 0) {
        at = payers_.erase(at);
        continue;
      }
      if (!payer.waiting.empty() && (held_ < most_held_ || payer.held == 0)) {
        last_ = at->first;
        Call* const call = payer.waiting.front();
        payer.waiting.pop_front();
        return call;
      }
      ++at;
    }
    return nullptr;
  }

 private:
  struct Payer {
    std::deque<Call*> waiting;
    size_t held = 0;  // bytes
  };

  const size_t most_held_;
  std::map<std::string, Payer> payers_;
  size_t held_ = 0;   // bytes of all
  std::string last_;  // the payer that had the last turn
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_READ_TURNS_H_
