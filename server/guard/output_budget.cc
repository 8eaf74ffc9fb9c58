#include "server/guard/output_budget.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <algorithm>

namespace millrace {
namespace {

using Scope = OutputBudget::Scope;

constexpr std::array<Scope, OutputBudget::kScopes> kAllScopes = {Scope::kConnection, Scope::kTenant,
                                                                 Scope::kProcess};

}  // namespace

const char* OutputScopeName(Scope scope) {
  switch (scope) {
    case Scope::kProcess:
      return "process";
    case Scope::kTenant:
      return "tenant";
    case Scope::kConnection:
      return "connection";
  }
  return "";
}

OutputBudget::OutputBudget(uint64_t limit, prometheus::Registry* registry) : limit_(limit) {
  if (registry == nullptr) return;
  bytes_shown_ = &prometheus::BuildGauge()
                      .Name("millrace_unread_answer_bytes")
                      .Help("Memory of answers that wait for their clients, of --answer-memory.")
                      .Register(*registry)
                      .Add({});
  answers_shown_ = &prometheus::BuildGauge()
                        .Name("millrace_unread_answers")
                        .Help("Answers that wait for their clients to read them.")
                        .Register(*registry)
                        .Add({});
  auto& refused = prometheus::BuildCounter()
                      .Name("millrace_unread_answers_refused_total")
                      .Help("Answers that were not begun for want of --answer-memory, by whose.")
                      .Register(*registry);
  auto& evicted = prometheus::BuildCounter()
                      .Name("millrace_unread_answers_evicted_total")
                      .Help(
                          "Answers read too slowly that gave way to others, by whose memory was "
                          "short.")
                      .Register(*registry);
  for (const Scope scope : kAllScopes) {
    const auto index = static_cast<size_t>(scope);
    refused_[index] = &refused.Add({{"scope", OutputScopeName(scope)}});
    evicted_[index] = &evicted.Add({{"scope", OutputScopeName(scope)}});
  }
}

void OutputBudget::Share::Release() {
  const std::lock_guard lock(budget_.mutex_);
  if (!charged_) return;
  budget_.Remove(*this);
  budget_.ShowUsed();
}

uint64_t OutputBudget::used() const {
  const std::lock_guard lock(mutex_);
  const Accounts& process = accounts_[static_cast<size_t>(Scope::kProcess)];
  return process.empty() ? 0 : process.begin()->second.used;
}

size_t OutputBudget::waiting() const {
  const std::lock_guard lock(mutex_);
  return shares_.size();
}

uint64_t OutputBudget::Cost(Scope scope, uint64_t bytes) const {
  const uint64_t limit = Limit(scope);
  return std::min(bytes, limit - limit / 4);
}

const std::string* OutputBudget::AccountOf(const Share& share, Scope scope) {
  static const std::string kProcess;
  switch (scope) {
    case Scope::kProcess:
      return &kProcess;
    case Scope::kTenant:
      return share.owner_.tenant.empty() ? nullptr : &share.owner_.tenant;
    case Scope::kConnection:
      return share.owner_.connection.empty() ? nullptr : &share.owner_.connection;
  }
  return nullptr;
}

void OutputBudget::Add(Share& share) {
  for (const Scope scope : kAllScopes) {
    const std::string* const name = AccountOf(share, scope);
    if (name == nullptr) continue;
    Account& account = accounts_[static_cast<size_t>(scope)][*name];
    ++account.answers;
    if (share.buffer_ == nullptr || ++account.buffers[share.buffer_] == 1) {
      account.used += Cost(scope, share.bytes_);
    }
  }
  share.charged_ = true;
  shares_.insert(&share);
}

void OutputBudget::Remove(Share& share) {
  for (const Scope scope : kAllScopes) {
    const std::string* const name = AccountOf(share, scope);
    if (name == nullptr) continue;
    Accounts& accounts = accounts_[static_cast<size_t>(scope)];
    const auto found = accounts.find(*name);
    Account& account = found->second;
    if (share.buffer_ == nullptr || --account.buffers[share.buffer_] == 0) {
      account.buffers.erase(share.buffer_);
      account.used -= Cost(scope, share.bytes_);
    }
    if (--account.answers == 0) accounts.erase(found);
  }
  share.charged_ = false;
  shares_.erase(&share);
}

void OutputBudget::ShowUsed() {
  if (bytes_shown_ == nullptr) return;
  const Accounts& process = accounts_[static_cast<size_t>(Scope::kProcess)];
  bytes_shown_->Set(process.empty() ? 0 : static_cast<double>(process.begin()->second.used));
  answers_shown_->Set(static_cast<double>(shares_.size()));
}

void OutputBudget::Evict(const Eviction& eviction) {
  eviction.share->evicted_ = true;
  if (auto* counter = evicted_[static_cast<size_t>(eviction.scope)]) counter->Increment();
  if (eviction.share->on_evicted_) eviction.share->on_evicted_();
}

// Returns the answer that gives way to `share` in one of its accounts: of those that are read too
// slowly the one that holds most, where others that share its memory hold a part of it; else, if
// `share` is small, the largest. Null: `share` itself must.
OutputBudget::Share* OutputBudget::Victim(const Share& share, Scope scope, SteadyTime now) const {
  const std::string& name = *AccountOf(share, scope);
  const Account& account = accounts_[static_cast<size_t>(scope)].find(name)->second;
  Share* slow = nullptr;
  Share* largest = nullptr;
  uint64_t slow_held = 0;
  for (Share* const other : shares_) {
    const std::string* const of = AccountOf(*other, scope);
    if (of == nullptr || *of != name) continue;
    const size_t sharers = other->buffer_ == nullptr ? 1 : account.buffers.at(other->buffer_);
    const uint64_t held = other->bytes_ / sharers;
    if (largest == nullptr || other->bytes_ > largest->bytes_) largest = other;
    const uint64_t seen = other->owner_.notes_taken ? other->taken_.load() : other->bytes_;
    const double waited = ToSeconds(now - other->began_);
    if (waited < 1 || static_cast<double>(seen) >= waited * kSlowBytesPerSecond) continue;
    if (slow == nullptr || held > slow_held) {
      slow = other;
      slow_held = held;
    }
  }
  if (slow != nullptr) return slow;
  const bool gives_way = share.bytes_ > kSmallBytes || largest->bytes_ <= share.bytes_;
  return gives_way ? nullptr : largest;
}

bool OutputBudget::MakeRoom(const Share& share, Scope scope, SteadyTime now,
                            std::vector<Eviction>& evictions) {
  const std::string* const name = AccountOf(share, scope);
  if (name == nullptr) return true;
  const Accounts& accounts = accounts_[static_cast<size_t>(scope)];
  for (auto found = accounts.find(*name); found != accounts.end(); found = accounts.find(*name)) {
    if (share.buffer_ != nullptr && found->second.buffers.contains(share.buffer_)) return true;
    if (found->second.used + Cost(scope, share.bytes_) <= Limit(scope)) return true;
    Share* const victim = Victim(share, scope, now);
    if (victim == nullptr) return false;
    Remove(*victim);
    evictions.push_back({.share = victim, .scope = scope});
  }
  return true;
}

bool OutputBudget::Charge(Share& share, OutputOwner owner, uint64_t bytes, const void* buffer,
                          SteadyTime now) {
  const std::lock_guard lock(mutex_);
  if (share.charged_) Remove(share);
  share.owner_ = std::move(owner);
  share.bytes_ = bytes;
  share.buffer_ = buffer;
  share.began_ = now;
  share.taken_ = 0;
  share.evicted_ = false;
  std::vector<Eviction> evictions;
  for (const Scope scope : kAllScopes) {
    if (MakeRoom(share, scope, now, evictions)) continue;
    for (const Eviction& eviction : evictions) Add(*eviction.share);  // none gives way for nothing
    share.full_ = scope;
    if (auto* counter = refused_[static_cast<size_t>(scope)]) counter->Increment();
    ShowUsed();
    return false;
  }
  for (const Eviction& eviction : evictions) Evict(eviction);
  Add(share);
  ShowUsed();
  return true;
}

}  // namespace millrace
