#include "server/guard/entrance.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "server/guard/listen.h"
#include "server/guard/relay.h"
#include "server/guard/worker_loop.h"

namespace millrace {
namespace {

namespace net = boost::asio;
using boost::system::error_code;
using Tcp = net::ip::tcp;

constexpr Logger kLog(LogComponent::kGrpc);

constexpr std::chrono::milliseconds kTick(50);
constexpr std::chrono::milliseconds kAcceptRetry(100);
// As many connections may be leaving, whatever the limit.
constexpr size_t kFewLeave = 16;
// A client that means it has sent its first frames by then.
constexpr std::chrono::seconds kPromptHandshake(1);

// A connection takes a socket and both ends of a pair; half of the descriptors are for others.
GuardLimits WithinDescriptors(GuardLimits limits) {
  rlimit files;
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY) return limits;
  const size_t most = std::max<size_t>(files.rlim_cur / 6, 8);
  limits.connections = std::min(limits.connections, most);
  return limits;
}

// What counts as one address: of IPv6 the network, for a host has 2^64 addresses.
std::string AddressKey(const net::ip::address& address) {
  if (address.is_v4()) return address.to_string();
  const net::ip::address_v6 v6 = address.to_v6();
  if (v6.is_v4_mapped()) return net::ip::make_address_v4(net::ip::v4_mapped, v6).to_string();
  const auto bytes = v6.to_bytes();
  return {reinterpret_cast<const char*>(bytes.data()), 8};
}

struct Worker {
  net::io_context context{1};
  net::executor_work_guard<net::io_context::executor_type> work = net::make_work_guard(context);
  net::steady_timer timer{context};
  BufferPool buffers;
  std::unordered_set<std::shared_ptr<Relay>> relays;
  bool ended = false;  // of the worker's thread
  std::thread thread;

  void Tick() {
    timer.expires_after(kTick);
    timer.async_wait([this](const error_code& error) {
      // A timer that has run out can no longer be cancelled.
      if (error || ended) return;
      const SteadyTime now = Clock::Real().Now();
      // A relay that ends leaves the set at once, and no other one does.
      for (auto it = relays.begin(); it != relays.end();) {
        const std::shared_ptr<Relay> relay = *it++;
        relay->Tick(now);
      }
      Tick();
    });
  }
};

struct Listener {
  explicit Listener(Tcp::acceptor taken)
      : acceptor(std::move(taken)), retry(acceptor.get_executor()) {}
  Tcp::acceptor acceptor;
  net::steady_timer retry;
};

}  // namespace

class Entrance::Impl final : public RelayHost {
 public:
  Impl(EntranceOptions options, GuardMetrics& metrics, Attach attach)
      : options_(std::move(options)),
        shared_(WithinDescriptors(options_.limits)),
        metrics_(metrics),
        attach_(std::move(attach)) {}
  ~Impl() override { Close(absl::ZeroDuration()); }

  absl::StatusOr<int> Start();
  void DropHandshakes();
  void StopListening();
  void StopAccepting();
  void Close(absl::Duration grace);
  std::string PeerOf(int fd) const;

  // RelayHost, called on the relays' threads.
  GuardShared& shared() override { return shared_; }
  GuardMetrics& metrics() override { return metrics_; }
  const TransportRules& transport_rules() override { return options_.transport; }
  bool AttachServer(Relay& relay, int fd) override;
  void MakeRoomForStreams() override;
  void OnEnded(Relay& relay) override;

 private:
  struct Record {
    std::shared_ptr<Relay> relay;
    std::string address;
    bool leaving = false;  // was told to end, to make room
    int fd = -1;           // of the server's end
  };

  void Accept(Listener& listener);
  void CutFarewells();
  void OnAccepted(Listener& listener, const error_code& error, Tcp::socket socket, Worker& worker);
  bool MakeRoom(const std::string& newcomer);
  // With mutex_ held.
  void Forget(const std::string& address);
  void SendAway(Record& record, GuardReason reason, std::string text);
  template <typename Work>
  void OnEveryWorker(Work work);
  void CloseListeners(const Worker& worker);

  EntranceOptions options_;
  GuardShared shared_;
  GuardMetrics& metrics_;
  const Attach attach_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::unique_ptr<Listener>> listeners_;  // on the first worker
  size_t next_worker_ = 0;
  uint64_t next_id_ = 0;
  std::atomic<bool> stopping_ = false;

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::unordered_map<uint64_t, Record> records_;  // guarded by mutex_
  std::deque<uint64_t> leaving_;  // guarded by mutex_: sent away, in their order; some have ended
  std::unordered_map<std::string, size_t> per_address_;  // guarded by mutex_
  size_t staying_ = 0;                                   // guarded by mutex_: not leaving
  std::unordered_map<int, uint64_t> attached_;           // guarded by mutex_: fd to id
};

absl::StatusOr<int> Entrance::Impl::Start() {
  for (int i = 0; i < std::max(options_.threads, 1); ++i) {
    workers_.push_back(std::make_unique<Worker>());
  }
  MILLRACE_ASSIGN_OR_RETURN(auto acceptors, ListenOn(workers_.front()->context,
                                                     {.host = options_.host,
                                                      .port = static_cast<uint16_t>(options_.port),
                                                      .port_setting = "grpc-port"}));
  for (Tcp::acceptor& acceptor : acceptors) {
    listeners_.push_back(std::make_unique<Listener>(std::move(acceptor)));
  }
  const uint16_t chosen = listeners_.front()->acceptor.local_endpoint().port();
  for (const auto& listener : listeners_) Accept(*listener);
  for (const auto& worker : workers_) {
    worker->Tick();
    worker->thread = std::thread([&context = worker->context] { RunInBatches(context); });
  }
  return chosen;
}

void Entrance::Impl::Accept(Listener& listener) {
  if (!listener.acceptor.is_open()) return;  // StopListening
  Worker& worker = *workers_[next_worker_++ % workers_.size()];
  listener.acceptor.async_accept(
      worker.context, [this, &listener, &worker](const error_code& error, Tcp::socket socket) {
        OnAccepted(listener, error, std::move(socket), worker);
      });
}

void Entrance::Impl::OnAccepted(Listener& listener, const error_code& error, Tcp::socket socket,
                                Worker& worker) {
  if (error == net::error::operation_aborted || stopping_) return;
  if (error && !listener.acceptor.is_open()) return;
  if (error) {
    // No file descriptor is free, most likely: wait for connections to end.
    kLog.Warning("cannot accept a connection: ", error.message());
    listener.retry.expires_after(kAcceptRetry);
    listener.retry.async_wait([this, &listener](const error_code& cancelled) {
      if (!cancelled) Accept(listener);
    });
    return;
  }
  metrics_.OnOpened();
  error_code ignored;
  const std::string address = AddressKey(socket.remote_endpoint(ignored).address());
  const auto relay =
      std::make_shared<Relay>(std::move(socket), worker.context, worker.buffers, *this, next_id_++);
  const bool welcome = MakeRoom(address);
  {
    const std::lock_guard lock(mutex_);
    records_[relay->id()] = {.relay = relay, .address = address, .leaving = !welcome};
    ++per_address_[address];
    if (welcome) ++staying_;
    if (!welcome) leaving_.push_back(relay->id());
    CutFarewells();
  }
  net::post(worker.context, [relay, &worker, welcome] {
    worker.relays.insert(relay);
    if (welcome) return relay->Start();
    relay->End(GuardReason::kConnections, "the server has too many connections");
  });
  Accept(listener);
}

// Who is sent away keeps its descriptor until it has read why. Where new ones come faster, those
// that have been leaving for longest are closed now. With mutex_ held.
void Entrance::Impl::CutFarewells() {
  const size_t most = std::max(shared_.limits.connections / 3, kFewLeave);
  while (!leaving_.empty()) {
    const auto record = records_.find(leaving_.front());
    if (record != records_.end() && leaving_.size() <= most) return;
    leaving_.pop_front();
    if (record == records_.end()) continue;
    net::post(record->second.relay->context(),
              [relay = record->second.relay] { relay->Abort(GuardReason::kConnections); });
  }
}

// A connection of the address that has most gives way: one that has not begun for a while, else one
// that has no stream, else one that has not begun. One with streams gives way only to a newcomer
// whose address has less than half as many.
bool Entrance::Impl::MakeRoom(const std::string& newcomer) {
  const std::lock_guard lock(mutex_);
  if (staying_ < shared_.limits.connections) return true;
  const auto of = [this](const std::string& address) {
    const auto found = per_address_.find(address);
    return found == per_address_.end() ? size_t{0} : found->second;
  };
  const SteadyTime now = Clock::Real().Now();
  const size_t own = of(newcomer) + 1;
  Record* victim = nullptr;
  std::tuple<size_t, int, Duration::rep> most;
  for (auto& [id, record] : records_) {
    if (record.leaving) continue;
    const Relay::Activity activity = record.relay->activity();
    const SteadyTime since = record.relay->since();
    const size_t count = of(record.address);
    if (activity == Relay::Activity::kBusy && count <= 2 * own) continue;
    const bool begins = activity == Relay::Activity::kHandshake;
    const int order = begins && now - since > kPromptHandshake ? 3
                      : activity == Relay::Activity::kIdle     ? 2
                      : begins                                 ? 1
                                                               : 0;
    const std::tuple rank{count, order, (now - since).count()};
    if (victim != nullptr && rank <= most) continue;
    victim = &record;
    most = rank;
  }
  if (victim == nullptr) return false;
  SendAway(*victim, GuardReason::kConnections, "the server has too many connections");
  return true;
}

void Entrance::Impl::SendAway(Record& record, GuardReason reason, std::string text) {
  record.leaving = true;
  leaving_.push_back(record.relay->id());
  --staying_;
  net::post(record.relay->context(),
            [relay = record.relay, reason, text = std::move(text)] { relay->End(reason, text); });
}

void Entrance::Impl::MakeRoomForStreams() {
  const std::lock_guard lock(mutex_);
  Record* most = nullptr;
  for (auto& [id, record] : records_) {
    if (record.leaving) continue;
    if (most == nullptr || record.relay->streams() > most->relay->streams()) most = &record;
  }
  if (most == nullptr) return;
  SendAway(*most, GuardReason::kStreams, "the server has too many streams");
}

bool Entrance::Impl::AttachServer(Relay& relay, int fd) {
  if (stopping_) return false;
  {
    const std::lock_guard lock(mutex_);
    Record& record = records_[relay.id()];
    record.fd = fd;
    attached_[fd] = relay.id();
    // Behind a proxy the client's address is known by now.
    std::string address = AddressKey(relay.peer().address());
    ++per_address_[address];
    Forget(record.address);
    record.address = std::move(address);
  }
  attach_(fd);
  return true;
}

// One connection of the address is no more.
void Entrance::Impl::Forget(const std::string& address) {
  const auto found = per_address_.find(address);
  if (found != per_address_.end() && --found->second == 0) per_address_.erase(found);
}

void Entrance::Impl::OnEnded(Relay& relay) {
  const std::shared_ptr<Relay> self = relay.shared_from_this();
  for (const auto& worker : workers_) {
    if (&worker->context == &relay.context()) worker->relays.erase(self);
  }
  const std::lock_guard lock(mutex_);
  const auto found = records_.find(relay.id());
  if (found == records_.end()) return;
  const Record& record = found->second;
  if (!record.leaving) --staying_;
  Forget(record.address);
  // The server has closed its end perhaps, and the number may be another connection's by now.
  if (const auto peer = attached_.find(record.fd);
      peer != attached_.end() && peer->second == relay.id()) {
    attached_.erase(peer);
  }
  records_.erase(found);
  ended_.notify_all();
}

std::string Entrance::Impl::PeerOf(int fd) const {
  const std::lock_guard lock(mutex_);
  const auto id = attached_.find(fd);
  if (id == attached_.end()) return "";
  const Relay& relay = *records_.at(id->second).relay;
  const std::string_view name = relay.client_name();
  return StrCat(PeerText(relay.peer()), name.empty() ? "" : StrCat(" (", name, ")"));
}

template <typename Work>
void Entrance::Impl::OnEveryWorker(Work work) {
  std::vector<std::future<void>> done;
  for (const auto& worker : workers_) {
    if (!worker->thread.joinable()) continue;
    auto task = std::make_shared<std::packaged_task<void()>>([&work, &worker] { work(*worker); });
    done.push_back(task->get_future());
    net::post(worker->context, [task] { (*task)(); });
  }
  for (auto& one : done) one.wait();
}

void Entrance::Impl::DropHandshakes() {
  for (const auto& listener : listeners_) DropNewHandshakes(listener->acceptor);
}

void Entrance::Impl::StopListening() {
  // A client that is told to go elsewhere before the port is closed does not come back here.
  OnEveryWorker([](Worker& worker) {
    for (auto it = worker.relays.begin(); it != worker.relays.end();) {
      const std::shared_ptr<Relay> relay = *it++;
      relay->AnnounceEnd();
    }
  });
  OnEveryWorker([this](Worker& worker) { CloseListeners(worker); });
}

void Entrance::Impl::StopAccepting() {
  if (stopping_.exchange(true)) return;
  // When this has run, no relay is in the middle of attaching.
  OnEveryWorker([this](Worker& worker) { CloseListeners(worker); });
}

// All are the first worker's.
void Entrance::Impl::CloseListeners(const Worker& worker) {
  if (&worker != workers_.front().get()) return;
  for (const auto& listener : listeners_) {
    error_code ignored;
    listener->acceptor.close(ignored);
    listener->retry.cancel();
  }
}

void Entrance::Impl::Close(absl::Duration grace) {
  if (workers_.empty()) return;
  StopAccepting();
  const auto relays_of = [](Worker& worker) {
    return std::vector<std::shared_ptr<Relay>>(worker.relays.begin(), worker.relays.end());
  };
  // Those that have not begun have nothing to wait for.
  OnEveryWorker([&](Worker& worker) {
    for (const auto& relay : relays_of(worker)) {
      if (relay->activity() == Relay::Activity::kHandshake) relay->Abort(GuardReason::kShutdown);
    }
  });
  {
    std::unique_lock lock(mutex_);
    ended_.wait_for(lock, absl::ToChronoMilliseconds(grace), [this] { return records_.empty(); });
  }
  OnEveryWorker([&](Worker& worker) {
    for (const auto& relay : relays_of(worker)) relay->Abort(GuardReason::kShutdown);
    worker.ended = true;
    worker.timer.cancel();
    worker.work.reset();
  });
  for (const auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();
  }
  listeners_.clear();
  workers_.clear();
}

Entrance::Entrance(EntranceOptions options, GuardMetrics& metrics, Attach attach)
    : impl_(std::make_unique<Impl>(std::move(options), metrics, std::move(attach))) {}

Entrance::~Entrance() = default;

absl::StatusOr<int> Entrance::Start() { return impl_->Start(); }

void Entrance::DropHandshakes() { impl_->DropHandshakes(); }

void Entrance::StopListening() { impl_->StopListening(); }

void Entrance::StopAccepting() { impl_->StopAccepting(); }

void Entrance::Close(absl::Duration grace) { impl_->Close(grace); }

std::string Entrance::PeerOf(int fd) const { return impl_->PeerOf(fd); }

}  // namespace millrace
