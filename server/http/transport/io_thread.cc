#include "server/http/transport/io_thread.h"

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "server/http/transport/connection.h"

namespace millrace {
namespace {

// How late a timeout may be seen. One timer for all connections: one each would cost more than the
// tokens that it guards.
constexpr std::chrono::milliseconds kTick(100);

constexpr size_t kWakeGroup = 8;

}  // namespace

void WakeList::Push(std::shared_ptr<WakeSlot> slot) {
  std::lock_guard lock(mutex_);
  if (context_ == nullptr) return;
  slots_.push_back(std::move(slot));
  if (slots_.size() > 1) return;  // the thread has been told
  boost::asio::post(*context_, [self = shared_from_this()] { self->Drain(); });
}

void WakeList::Close() {
  std::lock_guard lock(mutex_);
  context_ = nullptr;
  slots_.clear();
}

void WakeList::Drain() {
  {
    std::lock_guard lock(mutex_);
    batch_.swap(slots_);
  }
  // Thousands of streams do not fit the caches, and a step visits each of them once. So what some
  // of them need is fetched while others are served.
  std::array<std::shared_ptr<Connection>, kWakeGroup> group;
  for (size_t begin = 0; begin < batch_.size(); begin += group.size()) {
    const size_t count = std::min(group.size(), batch_.size() - begin);
    for (size_t i = 0; i < count; ++i) {
      WakeSlot& slot = *batch_[begin + i];
      slot.queued.store(false);  // before the poll: what comes during it wakes again
      group[i] = slot.connection.lock();
      if (group[i]) group[i]->Prefetch();
    }
    for (size_t i = begin + count; i < std::min(begin + 2 * count, batch_.size()); ++i) {
      __builtin_prefetch(batch_[i].get());
    }
    for (size_t i = 0; i < count; ++i) {
      if (group[i]) group[i]->PrefetchAnswer();
    }
    for (size_t i = 0; i < count; ++i) {
      if (const auto connection = std::move(group[i])) connection->OnWake();
    }
  }
  batch_.clear();
}

IoThread::IoThread()
    : context_(/*concurrency_hint=*/1),
      work_(boost::asio::make_work_guard(context_)),
      timer_(context_),
      wakes_(std::make_shared<WakeList>(context_)) {}

IoThread::~IoThread() { wakes_->Close(); }

void IoThread::Start() {
  thread_ = std::thread([this] { context_.run(); });
}

void IoThread::Join() {
  boost::asio::post(context_, [this] {
    timer_.cancel();
    work_.reset();
  });
  thread_.join();
}

void IoThread::Add(Connection* connection) {
  connections_.insert(connection);
  if (!std::exchange(ticking_, true)) Tick();
}

void IoThread::Remove(Connection* connection) { connections_.erase(connection); }

void IoThread::Tick() {
  timer_.expires_after(kTick);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    const auto now = std::chrono::steady_clock::now();
    // A connection that closes leaves the set at once.
    for (auto it = connections_.begin(); it != connections_.end();) (*it++)->CheckDeadline(now);
    ticking_ = !connections_.empty();
    if (ticking_) Tick();
  });
}

bool IoThread::CloseLongestWaiting() {
  Connection* longest = nullptr;
  std::pair<bool, Connection::SteadyTime> least;
  for (Connection* const connection : connections_) {
    const auto since = connection->waiting_since();
    if (!since) continue;
    const std::pair rank{!connection->idle(), *since};
    if (longest != nullptr && rank >= least) continue;
    longest = connection;
    least = rank;
  }
  if (longest != nullptr) longest->Stop(WhichConnections::kAll);
  return longest != nullptr;
}

void IoThread::CloseConnections(WhichConnections which) {
  for (auto it = connections_.begin(); it != connections_.end();) (*it++)->Stop(which);
}

}  // namespace millrace
