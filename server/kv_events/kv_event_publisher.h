// Publishes the prefix cache's events by ZeroMQ, as vLLM does.
#ifndef MILLRACE_SERVER_KV_EVENTS_KV_EVENT_PUBLISHER_H_
#define MILLRACE_SERVER_KV_EVENTS_KV_EVENT_PUBLISHER_H_

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/block_event_sink.h"
#include "plan/state_layout.h"
#include "server/kv_events/kv_event_log.h"
#include "server/kv_events/kv_event_queue.h"
#include "server/kv_events/kv_events_config.h"

namespace prometheus {
class Counter;
class Registry;
}  // namespace prometheus

namespace millrace {

// A thread with two sockets. A PUB socket sends the frames [topic, sequence number, batch], the
// number as 8 bytes, the highest first, the batch as KvEventEncoder writes it. A ROUTER socket, if
// there is a replay endpoint, answers the request [empty, text] with as many messages [empty,
// topic, sequence number, batch] as it takes, and [empty, empty, -1, empty] at the end:
//
//   8 bytes, a sequence number   the batches that are kept, from that number on
//   "snapshot"                   all blocks that there are (KvEventLog::Snapshot)
//   anything else                none
//
// Requests are answered one at a time, and what waits to be published goes before each. An answer
// that its listener does not take is broken off: it has no end.
//
// The engine never waits for any of this: a full queue merges batches (KvEventQueue), a listener
// that does not read loses messages beyond the high-water mark, and sees it by the numbers.
class KvEventPublisher final : public BlockEventSink {
 public:
  // Opens the sockets; `host` is what * stands for. Unavailable: an endpoint cannot be listened at.
  static absl::StatusOr<std::unique_ptr<KvEventPublisher>> Open(const KvEventsConfig& config,
                                                                std::string_view host,
                                                                prometheus::Registry& registry);
  KvEventPublisher(const KvEventPublisher&) = delete;
  KvEventPublisher& operator=(const KvEventPublisher&) = delete;
  // Closes, once the answer that is being sent is done: what still waits, here or for a listener,
  // is dropped.
  ~KvEventPublisher() override;

  // Begins to publish the events of a model with this state. Called once, before the first
  // OnBlocks.
  void Start(StateLayout state);

  void OnBlocks(std::vector<BlockEvent> events) override;

  // Return where the sockets are, ports chosen by the system included. The latter: empty if there
  // is none.
  const std::string& endpoint() const { return endpoint_; }
  const std::string& replay_endpoint() const { return replay_endpoint_; }

 private:
  struct EndContext {
    void operator()(void* context) const;
  };
  struct CloseSocket {
    void operator()(void* socket) const;
  };
  using Socket = std::unique_ptr<void, CloseSocket>;

  KvEventPublisher(const KvEventsConfig& config, prometheus::Registry& registry);
  absl::StatusOr<Socket> OpenSocket(int type, std::string_view name, const std::string& endpoint,
                                    int high_water_mark, std::string& opened);
  void Wake();
  void Run();
  void PublishWaiting();
  void AnswerRequest();
  void Answer(const std::string& requester, std::string_view request);

  const KvEventsConfig config_;
  prometheus::Counter* published_;
  prometheus::Counter* merged_;
  prometheus::Counter* replays_;
  prometheus::Counter* snapshots_;
  std::unique_ptr<void, EndContext> context_;
  Socket events_;  // from Start on the thread's
  Socket replay_;  // likewise; null: no endpoint
  std::string endpoint_;
  std::string replay_endpoint_;
  KvEventQueue queue_;
  std::unique_ptr<KvEventLog> log_;  // the thread's
  int64_t known_merged_ = 0;         // the thread's: those that the counter has
  int wake_ = -1;                    // an eventfd: events wait, or the thread is to end
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_KV_EVENTS_KV_EVENT_PUBLISHER_H_
