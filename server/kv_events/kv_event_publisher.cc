#include "server/kv_events/kv_event_publisher.h"

#include <prometheus/counter.h>
#include <prometheus/registry.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kServer);
constexpr int64_t kMostRequestBytes = 2048;  // of a frame: a subscription has a topic
// Messages beyond those of a whole replay that may wait for one that asked.
constexpr int kMoreReplies = 4096;
constexpr uint64_t kEndSequence = ~uint64_t{0};
constexpr std::string_view kSnapshotRequest = "snapshot";

double UnixTime() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string BigEndian(uint64_t value) {
  std::string bytes(sizeof(value), '\0');
  for (auto it = bytes.rbegin(); it != bytes.rend(); ++it, value >>= 8) {
    *it = static_cast<char>(value);
  }
  return bytes;
}

uint64_t FromBigEndian(std::string_view bytes) {
  uint64_t value = 0;
  for (const char byte : bytes) value = value << 8 | static_cast<uint8_t>(byte);
  return value;
}

// Sends a message of some frames. False: whom it is for has left too much unread, or is gone.
bool Send(void* socket, std::initializer_list<std::string_view> frames) {
  size_t left = frames.size();
  for (const std::string_view frame : frames) {
    const int flags = ZMQ_DONTWAIT | (--left > 0 ? ZMQ_SNDMORE : 0);
    if (zmq_send(socket, frame.data(), frame.size(), flags) < 0) return false;
  }
  return true;
}

// Returns the frames of the next message, of which those after the fourth are dropped; nothing if
// there is none.
std::optional<std::vector<std::string>> Receive(void* socket) {
  constexpr size_t kMost = 4;
  std::vector<std::string> frames;
  for (bool more = true; more;) {
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    if (zmq_msg_recv(&frame, socket, ZMQ_DONTWAIT) < 0) {
      zmq_msg_close(&frame);
      return std::nullopt;
    }
    if (frames.size() < kMost) {
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&frame)), zmq_msg_size(&frame));
    }
    more = zmq_msg_more(&frame) != 0;
    zmq_msg_close(&frame);
  }
  return frames;
}

prometheus::Family<prometheus::Counter>& Batches(prometheus::Registry& registry) {
  return prometheus::BuildCounter()
      .Name("millrace_kv_event_batches_total")
      .Help(
          "Batches of KV events, by whether they were published or, since the queue was full, "
          "merged into others.")
      .Register(registry);
}

prometheus::Family<prometheus::Counter>& Requests(prometheus::Registry& registry) {
  return prometheus::BuildCounter()
      .Name("millrace_kv_event_requests_total")
      .Help("Requests of listeners to KV events, by what they asked for.")
      .Register(registry);
}

}  // namespace

void KvEventPublisher::EndContext::operator()(void* context) const { zmq_ctx_term(context); }
void KvEventPublisher::CloseSocket::operator()(void* socket) const { zmq_close(socket); }

KvEventPublisher::KvEventPublisher(const KvEventsConfig& config, prometheus::Registry& registry)
    : config_(config),
      published_(&Batches(registry).Add({{"result", "published"}})),
      merged_(&Batches(registry).Add({{"result", "merged"}})),
      replays_(&Requests(registry).Add({{"request", "replay"}})),
      snapshots_(&Requests(registry).Add({{"request", "snapshot"}})),
      context_(zmq_ctx_new()),
      queue_(static_cast<size_t>(config.max_queue_size)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

absl::StatusOr<std::unique_ptr<KvEventPublisher>> KvEventPublisher::Open(
    const KvEventsConfig& config, std::string_view host, prometheus::Registry& registry) {
  std::unique_ptr<KvEventPublisher> publisher(new KvEventPublisher(config, registry));
  if (publisher->context_ == nullptr || publisher->wake_ < 0) {
    return absl::ResourceExhaustedError(
        "kv-events-config: the system gives no file descriptor for its thread");
  }
  MILLRACE_ASSIGN_OR_RETURN(
      publisher->events_, publisher->OpenSocket(ZMQ_PUB, "endpoint", AtHost(config.endpoint, host),
                                                config.hwm, publisher->endpoint_));
  if (!config.replay_endpoint.empty()) {
    MILLRACE_ASSIGN_OR_RETURN(
        publisher->replay_,
        publisher->OpenSocket(ZMQ_ROUTER, "replay_endpoint", AtHost(config.replay_endpoint, host),
                              config.buffer_steps + kMoreReplies, publisher->replay_endpoint_));
  }
  return publisher;
}

KvEventPublisher::~KvEventPublisher() {
  stopping_ = true;
  Wake();
  if (thread_.joinable()) thread_.join();
  if (wake_ >= 0) close(wake_);
}

// A replay endpoint is always listened at.
absl::StatusOr<KvEventPublisher::Socket> KvEventPublisher::OpenSocket(int type,
                                                                      std::string_view name,
                                                                      const std::string& endpoint,
                                                                      int high_water_mark,
                                                                      std::string& opened) {
  const auto failed = [&] {
    return absl::UnavailableError(StrCat("kv-events-config: ", name, ": ", Printable(endpoint),
                                         ": ", zmq_strerror(zmq_errno())));
  };
  Socket socket(zmq_socket(context_.get(), type));
  if (socket == nullptr) return failed();
  const int none = 0;
  const bool listens = type == ZMQ_ROUTER || Listens(config_.endpoint);
  zmq_setsockopt(socket.get(), ZMQ_LINGER, &none, sizeof(none));
  // An IPv4 address that is listened at as IPv6 would have another name.
  const int ipv6 = !listens || endpoint.find('[') != endpoint.npos ? 1 : 0;
  zmq_setsockopt(socket.get(), ZMQ_IPV6, &ipv6, sizeof(ipv6));
  zmq_setsockopt(socket.get(), ZMQ_SNDHWM, &high_water_mark, sizeof(high_water_mark));
  zmq_setsockopt(socket.get(), ZMQ_MAXMSGSIZE, &kMostRequestBytes, sizeof(kMostRequestBytes));
  // So that an answer ends where its listener takes no more, instead of losing messages.
  const int mandatory = 1;
  if (type == ZMQ_ROUTER) {
    zmq_setsockopt(socket.get(), ZMQ_ROUTER_MANDATORY, &mandatory, sizeof(mandatory));
  }
  if ((listens ? zmq_bind : zmq_connect)(socket.get(), endpoint.c_str()) != 0) return failed();
  std::array<char, 1024> last{};
  size_t size = last.size();
  const bool told = zmq_getsockopt(socket.get(), ZMQ_LAST_ENDPOINT, last.data(), &size) == 0;
  opened = told ? std::string(last.data()) : endpoint;
  return socket;
}

void KvEventPublisher::Start(StateLayout state) {
  log_ = std::make_unique<KvEventLog>(std::move(state), static_cast<size_t>(config_.buffer_steps));
  thread_ = std::thread([this] { Run(); });
}

void KvEventPublisher::OnBlocks(std::vector<BlockEvent> events) {
  queue_.Push(std::move(events), UnixTime());
  Wake();
}

void KvEventPublisher::Wake() {
  const uint64_t one = 1;
  // It fails only where the thread has been woken very often, and has yet to look.
  (void)!write(wake_, &one, sizeof(one));
}

void KvEventPublisher::Run() {
  const KvEventMessage first = log_->Begin(UnixTime());
  Send(events_.get(), {config_.topic, BigEndian(first.sequence), *first.payload});
  std::array<zmq_pollitem_t, 2> items = {
      {{nullptr, wake_, ZMQ_POLLIN, 0}, {replay_.get(), 0, ZMQ_POLLIN, 0}}};
  while (!stopping_) {
    // It returns at once while requests remain.
    if (zmq_poll(items.data(), replay_ == nullptr ? 1 : 2, -1) < 0 && zmq_errno() != EINTR) {
      kLog.Error("kv-events-config: no more events: ", zmq_strerror(zmq_errno()));
      return;
    }
    uint64_t woken;
    (void)!read(wake_, &woken, sizeof(woken));
    PublishWaiting();
    if (replay_ != nullptr) AnswerRequest();
  }
}

void KvEventPublisher::PublishWaiting() {
  for (KvEventBatch& batch : queue_.TakeAll()) {
    for (const KvEventMessage& message : log_->Append(std::move(batch))) {
      Send(events_.get(), {config_.topic, BigEndian(message.sequence), *message.payload});
    }
    published_->Increment();
  }
  const int64_t merged = queue_.num_merged();
  merged_->Increment(static_cast<double>(merged - std::exchange(known_merged_, merged)));
}

// What is in the queue when the request comes is published before it is answered: of two requests
// of one listener, the second says no less.
void KvEventPublisher::AnswerRequest() {
  const std::optional<std::vector<std::string>> frames = Receive(replay_.get());
  if (!frames.has_value()) return;
  if (frames->size() != 3 || !(*frames)[1].empty()) {
    kLog.Debug("kv-events-config: a request of ", frames->size(),
               " frames; expected: an empty one and one more");
    return;
  }
  Answer((*frames)[0], (*frames)[2]);
}

void KvEventPublisher::Answer(const std::string& requester, std::string_view request) {
  std::vector<KvEventMessage> messages;
  if (request == kSnapshotRequest) {
    snapshots_->Increment();
    messages = log_->Snapshot(UnixTime());
  } else if (request.size() == sizeof(uint64_t)) {
    replays_->Increment();
    messages = log_->Replay(FromBigEndian(request));
  }
  for (const KvEventMessage& message : messages) {
    if (!Send(replay_.get(),
              {requester, "", config_.topic, BigEndian(message.sequence), *message.payload})) {
      return;
    }
  }
  Send(replay_.get(), {requester, "", "", BigEndian(kEndSequence), ""});
}

}  // namespace millrace
