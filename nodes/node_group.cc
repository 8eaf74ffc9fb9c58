#include "nodes/node_group.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "nodes/control.h"
#include "nodes/exchange.h"
#include "nodes/plan_messages.h"

namespace millrace {
namespace nodes {
namespace {

using namespace std::chrono_literals;

constexpr Logger kLog(LogComponent::kServer);

constexpr Duration kBeatEvery = 250ms;
constexpr Duration kRetryEvery = 200ms;
// A data connection that ends may have a reason that is on its way over gRPC.
constexpr Duration kReasonGrace = 500ms;
// How long the other end of a stream may take to see that all end in order.
constexpr Duration kEndGrace = 2s;
// How long the reason of a failure may take to be sent.
constexpr Duration kFailureGrace = 1s;
// A server that is no node 0 may take a call and never answer it.
constexpr Duration kWelcomeTimeout = 5s;
constexpr Duration kLeastWelcomeTimeout = 1s;
constexpr size_t kLongestReason = 1000;

SteadyTime Now() { return Clock::Real().Now(); }

v1::Message FailureMessage(const std::string& why) {
  v1::Message message;
  message.mutable_failure()->set_reason(why.substr(0, kLongestReason));
  return message;
}

// A node as seen from here.
struct Peer {
  Outbox outbox;
  std::string address;
  Token token = MakeToken();
  bool admitted = false;
  bool closed = false;  // its stream has ended
  SteadyTime heard;     // when something last came
};

class NodeGroupImpl final : public NodeGroup, private ControlListener {
 public:
  explicit NodeGroupImpl(NodeOptions options)
      : options_(std::move(options)),
        peers_(options_.nnodes),
        exchange_(options_.nnodes, options_.node_rank) {}

  ~NodeGroupImpl() override {
    End();
    client_.reset();
    server_.reset();
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (watcher_.joinable()) watcher_.join();
  }

  absl::Status Start(const std::function<bool()>& stop) {
    stop_ = stop;
    const SteadyTime deadline = Now() + options_.timeout;
    MILLRACE_RETURN_IF_ERROR(node() == 0 ? Lead(stop, deadline) : FindNode0(stop, deadline));
    kLog.Info("node ", node(), " of ", size(), ": connected to ",
              node() == 0 ? "all others" : StrCat("node 0 at ", peers_[0].address));
    return absl::OkStatus();
  }

  int size() const override { return options_.nnodes; }
  int node() const override { return options_.node_rank; }
  FileReading* reading() override { return server_ == nullptr ? nullptr : server_->reading(); }

  absl::Status AllGather(absl::Span<const char> mine,
                         std::vector<std::vector<char>>* all) override {
    MILLRACE_RETURN_IF_ERROR(failure());
    int to_blame = 0;
    absl::Status status = exchange_.AllGather(mine, all, &to_blame);
    if (status.ok()) return status;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kReasonGrace, [this] { return !failure_.ok() || in_order(); });
      if (failure_.ok() && in_order()) {
        return absl::CancelledError("all nodes end while the model is loaded");
      }
    }
    SetFailure(absl::UnavailableError(StrCat(Describe(to_blame), " is gone: ", status.message())));
    return failure();
  }

  absl::Status SendPlan(const StepPlan& plan) override {
    MILLRACE_RETURN_IF_ERROR(failure());
    v1::Message message;
    ToMessage(plan, *message.mutable_plan());
    SendToAll(message);
    return absl::OkStatus();
  }

  absl::StatusOr<std::optional<StepPlan>> NextPlan() override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !failure_.ok() || ended_ || !plans_.empty(); });
    if (!failure_.ok()) return failure_;
    if (plans_.empty()) return std::nullopt;
    std::optional<StepPlan> plan(std::move(plans_.front()));
    plans_.pop_front();
    return plan;
  }

  void Fail(const absl::Status& why) override {
    SetFailure(
        absl::UnavailableError(StrCat("node ", node(), " of ", size(), " failed: ", why.message())),
        /*own=*/true);
    FlushOutboxes();  // the process may end at once
  }

  void OnFailure(std::function<void(const absl::Status& why)> on_failure) override {
    const std::lock_guard callback_lock(callback_mutex_);
    on_failure_ = std::move(on_failure);
    const absl::Status failed = failure();
    if (on_failure_ && !failed.ok()) on_failure_(failed);
  }

  absl::Status BeginServing() override {
    const std::lock_guard lock(mutex_);
    MILLRACE_RETURN_IF_ERROR(failure_);
    if (ending_) return absl::CancelledError("all nodes have ended while the model was loaded");
    serving_ = true;
    return absl::OkStatus();
  }

  void End() override {
    v1::Message message;
    if (node() == 0) {
      message.mutable_end();
    } else {
      message.mutable_leave();
    }
    bool failed;
    {
      const std::lock_guard lock(mutex_);
      failed = !failure_.ok();
      if (!failed && !ending_) AddToAll(message);
      ending_ = true;
    }
    if (failed) {
      FlushOutboxes();
      return;
    }
    changed_.notify_all();
    WaitUntilClosed(kEndGrace);
    // Threads that wait here for ranks of nodes that have ended wait no longer.
    if (node() == 0) exchange_.Shutdown();
  }

 private:
  // Returns whether this node or node 0 ends in order. With the mutex held.
  bool in_order() const { return ended_ || ending_; }

  absl::Status failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  std::optional<TlsFiles> tls() const {
    if (options_.tls_certificate.empty()) return std::nullopt;
    return TlsFiles{options_.tls_certificate, options_.tls_key, options_.tls_authority};
  }

  std::string Describe(int node) const {
    const std::string& address = peers_[node].address;
    return StrCat("node ", node, " of ", size(), address.empty() ? "" : StrCat(" (", address, ")"));
  }

  // ---- How node 0 comes up. ----

  absl::Status Lead(const std::function<bool()>& stop, SteadyTime deadline) {
    MILLRACE_RETURN_IF_ERROR(ListenAnywhere(stop, deadline));
    watcher_ = std::thread([this] { Watch(); });
    exchange_.AcceptAll(
        listener_, [this](int node) { return TokenOf(node); },
        [&] { return stop() || Now() > deadline || !failure().ok(); });
    listener_ = Socket();
    MILLRACE_RETURN_IF_ERROR(failure());
    if (exchange_.complete()) return absl::OkStatus();
    if (stop()) return absl::CancelledError("ended by a signal while it waited for other nodes");
    absl::Status late =
        absl::DeadlineExceededError(StrCat(MissingNodes(), " of ", size(), " did not come within ",
                                           ToSeconds(options_.timeout), " s (--node-timeout)"));
    SetFailure(late, /*own=*/true);
    return late;
  }

  // The host's own name may not be known yet when it starts.
  absl::Status ListenAnywhere(const std::function<bool()>& stop, SteadyTime deadline) {
    for (bool first = true;; first = false) {
      absl::Status status = TryListen();
      if (!absl::IsFailedPrecondition(status) || Now() > deadline) return status;
      if (first) kLog.Warning("trying again: ", std::string(status.message()));
      if (stop()) return absl::CancelledError("ended by a signal while it waited for its address");
      std::this_thread::sleep_for(kRetryEvery);
    }
  }

  absl::Status TryListen() {
    const auto addresses = Resolve(options_.master_addr);
    if (!addresses.ok()) {
      return absl::FailedPreconditionError(StrCat("master-addr: ", addresses.status().message()));
    }
    absl::Status status;
    for (const std::string& address : *addresses) {
      absl::StatusOr<Socket> listener = Listen(address, options_.master_port + 1);
      if (!listener.ok()) {
        status = absl::IsFailedPrecondition(listener.status())
                     ? Annotate(listener.status(), "master-addr")
                     : Annotate(listener.status(), "master-port");
        continue;
      }
      listener_ = *std::move(listener);
      absl::StatusOr<std::unique_ptr<ControlServer>> server =
          ControlServer::Start(address, options_.master_port, options_.key, tls(), *this);
      if (!server.ok()) return server.status();
      server_ = *std::move(server);
      kLog.Info("node 0 of ", size(), ": waiting for the others at ",
                WithPort(address, options_.master_port), tls().has_value() ? ", by TLS" : "");
      return absl::OkStatus();
    }
    return status;
  }

  std::optional<Token> TokenOf(int node) const {
    const std::lock_guard lock(mutex_);
    if (!peers_[node].admitted) return std::nullopt;
    return peers_[node].token;
  }

  // Those without a data connection, which is the last thing that a node opens.
  std::string MissingNodes() const {
    std::vector<std::string> missing;
    for (int node = 1; node < size(); ++node) {
      if (!exchange_.connected(node)) missing.push_back(StrCat(node));
    }
    return StrCat(missing.size() == 1 ? "node " : "nodes ", JoinList(missing));
  }

  absl::StatusOr<Outbox*> Admit(const v1::Hello& hello, const std::string& address) override {
    const int node = hello.node_rank();
    if (hello.version() != options_.version) {
      return absl::FailedPreconditionError(StrCat("it is of version ", Printable(hello.version()),
                                                  ", and node 0 of ", options_.version));
    }
    if (hello.nnodes() != size()) {
      return absl::FailedPreconditionError(
          StrCat("its --nnodes is ", hello.nnodes(), ", and that of node 0 is ", size()));
    }
    if (node < 1 || node >= size()) {
      return absl::InvalidArgumentError(
          StrCat("its --node-rank is ", node, "; allowed: 1 to ", size() - 1));
    }
    const std::lock_guard lock(mutex_);
    if (!failure_.ok() || ending_) return absl::UnavailableError("node 0 is about to end");
    Peer& peer = peers_[node];
    if (peer.admitted) {
      return absl::AlreadyExistsError(StrCat("its --node-rank is ", node,
                                             ", and that node is here already, at ", peer.address));
    }
    peer.admitted = true;
    peer.address = address;
    peer.heard = Now();
    v1::Message message;
    message.mutable_welcome()->set_token(peer.token.data(), peer.token.size());
    peer.outbox.Add(std::move(message));
    return &peer.outbox;
  }

  // ---- How another node comes up. ----

  absl::Status FindNode0(const std::function<bool()>& stop, SteadyTime deadline) {
    kLog.Info("node ", node(), " of ", size(), ": looking for node 0 at ",
              WithPort(options_.master_addr, options_.master_port));
    absl::Status last;
    for (;;) {
      last = TryJoin(stop, deadline);
      if (!absl::IsUnavailable(last)) return last;
      if (stop()) return absl::CancelledError("ended by a signal while it looked for node 0");
      if (Now() > deadline) break;
      std::this_thread::sleep_for(kRetryEvery);
    }
    return absl::DeadlineExceededError(
        StrCat("master-addr: node 0 at ", WithPort(options_.master_addr, options_.master_port),
               " did not answer within ", ToSeconds(options_.timeout),
               " s (--node-timeout): ", last.message()));
  }

  absl::Status TryJoin(const std::function<bool()>& stop, SteadyTime deadline) {
    MILLRACE_ASSIGN_OR_RETURN(const auto addresses, Resolve(options_.master_addr));
    v1::Hello hello;
    hello.set_version(options_.version);
    hello.set_nnodes(size());
    hello.set_node_rank(node());
    absl::Status status = absl::UnavailableError("it has no address");
    for (const std::string& address : addresses) {
      {
        const std::lock_guard lock(mutex_);
        peers_[0].address = WithPort(address, options_.master_port);
        peers_[0].heard = Now();
      }
      const SteadyTime until =
          Now() + std::clamp(deadline - Now(), kLeastWelcomeTimeout, kWelcomeTimeout);
      auto client = ControlClient::Join({address, options_.master_addr, options_.master_port},
                                        options_.key, tls(), hello, peers_[0].outbox, *this,
                                        [&] { return stop() || Now() > until; });
      status = client.status();
      if (absl::IsUnavailable(status)) continue;
      MILLRACE_RETURN_IF_ERROR(status);
      client_ = *std::move(client);
      {
        const std::lock_guard lock(mutex_);
        peers_[0].admitted = true;
      }
      watcher_ = std::thread([this] { Watch(); });
      absl::Status opened = OpenExchange(address);
      if (!opened.ok()) Fail(opened);  // node 0 would wait for the connection
      return opened;
    }
    return status;
  }

  absl::Status OpenExchange(const std::string& address) {
    const std::string& token = client_->welcome().token();
    Token shown{};
    if (token.size() != shown.size()) return absl::InternalError("node 0's token is no token");
    std::copy(token.begin(), token.end(), shown.begin());
    absl::Status opened = exchange_.Open(address, options_.master_port + 1, shown);
    if (opened.ok()) return opened;
    return absl::FailedPreconditionError(
        StrCat("the port behind --master-port: ", opened.message()));
  }

  // ---- What comes over the streams. ----

  void Receive(int node, v1::Message message) override {
    {
      const std::lock_guard lock(mutex_);
      peers_[node].heard = Now();
    }
    switch (message.kind_case()) {
      case v1::Message::kFailure:
        SetFailure(absl::UnavailableError(message.failure().reason()));
        peers_[node].outbox.Close();  // the other end waits for the end of the stream
        return;
      case v1::Message::kLeave:
        kLog.Info(Describe(node), " asks all nodes to end");
        if (options_.on_leave) options_.on_leave();
        return;
      case v1::Message::kPlan: {
        StepPlan plan = FromMessage(message.plan());
        const std::lock_guard lock(mutex_);
        plans_.push_back(std::move(plan));
        break;
      }
      case v1::Message::kEnd: {
        // First: what sees `ended_` knows from `stop` that it is no failure.
        if (options_.on_end) options_.on_end();
        const std::lock_guard lock(mutex_);
        ended_ = true;
        peers_[0].outbox.Close();  // node 0 waits for the end of the stream
        break;
      }
      default:  // a beat
        return;
    }
    changed_.notify_all();
  }

  void Closed(int node) override {
    {
      const std::lock_guard lock(mutex_);
      peers_[node].closed = true;
    }
    changed_.notify_all();
    SetFailure(
        absl::UnavailableError(StrCat(Describe(node), " is gone: its connection has ended")));
  }

  // ---- What all nodes do. ----

  void SendToAll(const v1::Message& message) {
    const std::lock_guard lock(mutex_);
    AddToAll(message);
  }

  // With the mutex.
  void AddToAll(const v1::Message& message) {
    for (Peer& peer : peers_) {
      if (peer.admitted) peer.outbox.Add(message);
    }
  }

  // Ends or leaves the group once `stop` returns true, also while the threads that load the model
  // wait.
  void HandleStop() {
    {
      const std::lock_guard lock(mutex_);
      if (in_order() || serving_ || stop_handled_) return;
      stop_handled_ = true;
    }
    if (node() == 0) {
      End();
      if (options_.on_end) options_.on_end();
      return;
    }
    v1::Message message;
    message.mutable_leave();
    SendToAll(message);
    if (options_.on_leave) options_.on_leave();
  }

  // Sends beats and misses those of others, whatever else this process does.
  void Watch() {
    v1::Message beat;
    beat.mutable_beat();
    SteadyTime last = Now();
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kBeatEvery, [this] { return stopping_ || !failure_.ok(); })) {
      const SteadyTime now = Now();
      // Where this process itself stood still, what others sent in the meantime comes now.
      const bool stood_still = now - std::exchange(last, now) > options_.silence / 2;
      int silent = -1;
      for (int node = 0; node < size(); ++node) {
        Peer& peer = peers_[node];
        if (!peer.admitted || peer.closed) continue;
        if (stood_still) peer.heard = now;
        if (now - peer.heard > options_.silence) silent = node;
        peer.outbox.Add(beat);
      }
      lock.unlock();
      if (silent >= 0) {
        SetFailure(absl::UnavailableError(
            StrCat(Describe(silent), " has sent nothing for ", ToSeconds(options_.silence), " s")));
      } else if (stop_()) {
        HandleStop();
      }
      lock.lock();
    }
  }

  // `own`: this process knows it already.
  void SetFailure(const absl::Status& why, bool own = false) {
    {
      const std::lock_guard lock(mutex_);
      if (!failure_.ok() || in_order()) return;
      failure_ = why;
      AddToAll(FailureMessage(std::string(why.message())));
    }
    changed_.notify_all();
    exchange_.Shutdown();
    const std::lock_guard callback_lock(callback_mutex_);
    if (on_failure_) on_failure_(why);
    if (!own && options_.on_failure) options_.on_failure(why);
  }

  // After a failure: sends what is left in the outboxes, and waits until the other nodes have it.
  void FlushOutboxes() {
    for (Peer& peer : peers_) peer.outbox.Close();
    WaitUntilClosed(kFailureGrace);
  }

  // Waits until the streams have ended, which is how the other ends show that they have seen all.
  void WaitUntilClosed(Duration grace) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, grace, [this] {
      return ended_ || std::all_of(peers_.begin(), peers_.end(),
                                   [](const Peer& peer) { return !peer.admitted || peer.closed; });
    });
  }

  const NodeOptions options_;
  std::function<bool()> stop_;
  std::deque<Peer> peers_;  // by node; the one of this node is not used
  Exchange exchange_;
  Socket listener_;

  mutable std::mutex mutex_;  // guards peers_, but for their outboxes, and:
  std::condition_variable changed_;
  absl::Status failure_;
  std::deque<StepPlan> plans_;
  bool ended_ = false;   // node 0 has ended in order
  bool ending_ = false;  // this node does
  bool serving_ = false;
  bool stop_handled_ = false;
  bool stopping_ = false;

  std::mutex callback_mutex_;  // held during callbacks
  std::function<void(const absl::Status& why)> on_failure_;

  std::unique_ptr<ControlServer> server_;
  std::unique_ptr<ControlClient> client_;
  std::thread watcher_;
};

}  // namespace
}  // namespace nodes

absl::StatusOr<std::unique_ptr<NodeGroup>> NodeGroup::Join(NodeOptions options,
                                                           const std::function<bool()>& stop) {
  auto group = std::make_unique<nodes::NodeGroupImpl>(std::move(options));
  MILLRACE_RETURN_IF_ERROR(group->Start(stop));
  return group;
}

}  // namespace millrace
