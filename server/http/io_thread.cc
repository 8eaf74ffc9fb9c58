#include "server/http/io_thread.h"

#include <boost/asio/post.hpp>
#include <chrono>
#include <utility>

#include "server/http/connection.h"

namespace millrace {
namespace {

// How late a timeout may be seen. One timer for all connections: one each would cost more than the
// tokens that it guards.
constexpr std::chrono::milliseconds kTick(100);

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
  for (const std::shared_ptr<WakeSlot>& slot : batch_) {
    slot->queued.store(false);  // before the poll: what comes during it wakes again
    if (const auto connection = slot->connection.lock()) connection->OnWake();
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
