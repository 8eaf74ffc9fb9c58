#include "server/guard/entrance.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "server/guard/acceptor.h"
#include "server/guard/listen.h"
#include "server/guard/relay.h"
#include "server/guard/relay_worker.h"
#include "server/guard/worker_loop.h"

namespace millrace {
namespace {

namespace net = boost::asio;
using boost::system::error_code;
using Tcp = net::ip::tcp;

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
  void Adopt(int fd) { acceptor_->Adopt(fd); }
  std::string PeerOf(int fd) const;
  std::shared_ptr<const std::vector<std::string>> IdentitiesOf(int fd) const;

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

  void OnAccepted(Tcp::socket socket, RelayWorker& worker);
  void CutFarewells();
  bool MakeRoom(const std::string& newcomer);
  // With mutex_ held.
  void Forget(const std::string& address);
  void SendAway(Record& record, GuardReason reason, std::string text);
  template <typename Work>
  void OnEveryWorker(Work work);
  void CloseAcceptor();

  EntranceOptions options_;
  GuardShared shared_;
  GuardMetrics& metrics_;
  const Attach attach_;
  std::vector<std::unique_ptr<RelayWorker>> workers_;
  std::optional<Acceptor> acceptor_;  // on the first worker
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
    workers_.push_back(std::make_unique<RelayWorker>());
  }
  std::vector<net::io_context*> contexts;
  for (const auto& worker : workers_) contexts.push_back(&worker->context);
  acceptor_.emplace(std::move(contexts), options_.component,
                    [this](Tcp::socket socket, size_t worker) {
                      OnAccepted(std::move(socket), *workers_[worker]);
                    });
  int chosen = 0;
  if (options_.listens) {
    MILLRACE_ASSIGN_OR_RETURN(chosen,
                              acceptor_->Listen({.host = options_.host,
                                                 .port = static_cast<uint16_t>(options_.port),
                                                 .host_setting = options_.host_setting,
                                                 .port_setting = options_.port_setting}));
  }
  for (const auto& worker : workers_) {
    worker->Tick();
    worker->thread = std::thread([&context = worker->context] { RunInBatches(context); });
  }
  return chosen;
}

void Entrance::Impl::OnAccepted(Tcp::socket socket, RelayWorker& worker) {
  if (stopping_) return;
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

std::shared_ptr<const std::vector<std::string>> Entrance::Impl::IdentitiesOf(int fd) const {
  const std::lock_guard lock(mutex_);
  const auto id = attached_.find(fd);
  return id == attached_.end() ? nullptr : records_.at(id->second).relay->client_identities();
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

void Entrance::Impl::DropHandshakes() { acceptor_->DropHandshakes(); }

void Entrance::Impl::StopListening() {
  // A client that is told to go elsewhere before the port is closed does not come back here.
  OnEveryWorker([](RelayWorker& worker) {
    for (auto it = worker.relays.begin(); it != worker.relays.end();) {
      const std::shared_ptr<Relay> relay = *it++;
      relay->AnnounceEnd();
    }
  });
  CloseAcceptor();
}

void Entrance::Impl::StopAccepting() {
  if (stopping_.exchange(true)) return;
  // When this has run, no relay is in the middle of attaching.
  CloseAcceptor();
}

void Entrance::Impl::CloseAcceptor() {
  OnEveryWorker([this](RelayWorker& worker) {
    if (&worker == workers_.front().get()) acceptor_->Close();
  });
}

void Entrance::Impl::Close(absl::Duration grace) {
  if (workers_.empty()) return;
  StopAccepting();
  const auto relays_of = [](RelayWorker& worker) {
    return std::vector<std::shared_ptr<Relay>>(worker.relays.begin(), worker.relays.end());
  };
  // Those that have not begun have nothing to wait for.
  OnEveryWorker([&](RelayWorker& worker) {
    for (const auto& relay : relays_of(worker)) {
      if (relay->activity() == Relay::Activity::kHandshake) relay->Abort(GuardReason::kShutdown);
    }
  });
  {
    std::unique_lock lock(mutex_);
    ended_.wait_for(lock, absl::ToChronoMilliseconds(grace), [this] { return records_.empty(); });
  }
  OnEveryWorker([&](RelayWorker& worker) {
    for (const auto& relay : relays_of(worker)) relay->Abort(GuardReason::kShutdown);
    worker.ended = true;
    worker.timer.cancel();
    worker.work.reset();
  });
  for (const auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();
  }
  acceptor_.reset();
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

void Entrance::Adopt(int fd) { impl_->Adopt(fd); }

std::string Entrance::PeerOf(int fd) const { return impl_->PeerOf(fd); }

std::shared_ptr<const std::vector<std::string>> Entrance::IdentitiesOf(int fd) const {
  return impl_->IdentitiesOf(fd);
}

}  // namespace millrace
