#include "server/kv_events/kv_event_publisher.h"

#include <prometheus/registry.h>
#include <unistd.h>
#include <zmq.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "formats/json/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using Frames = std::vector<std::string>;

constexpr int kHangGuardMs = 30'000;

std::string Number(uint64_t value) {
  std::string bytes;
  for (int i = 7; i >= 0; --i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

// A socket of a listener.
class Client {
 public:
  Client(int type, const std::string& endpoint) : socket_(zmq_socket(Context(), type)) {
    const int none = 0;
    zmq_setsockopt(socket_, ZMQ_LINGER, &none, sizeof(none));
    if (type == ZMQ_SUB) zmq_setsockopt(socket_, ZMQ_SUBSCRIBE, "kv@", 3);
    EXPECT_EQ(zmq_connect(socket_, endpoint.c_str()), 0);
  }
  ~Client() { zmq_close(socket_); }

  void Send(const Frames& frames) {
    for (size_t i = 0; i < frames.size(); ++i) {
      const int flags = i + 1 < frames.size() ? ZMQ_SNDMORE : 0;
      EXPECT_GE(zmq_send(socket_, frames[i].data(), frames[i].size(), flags), 0);
    }
  }

  // Sends a request unless too many wait.
  void TryToSend(const std::string& request) {
    constexpr int kFlags = ZMQ_DONTWAIT | ZMQ_SNDMORE;
    if (zmq_send(socket_, "", 0, kFlags) < 0) return;
    EXPECT_GE(zmq_send(socket_, request.data(), request.size(), 0), 0);
  }

  // Returns the next message's frames; none where it does not come in time.
  Frames Receive(int milliseconds = kHangGuardMs) {
    zmq_setsockopt(socket_, ZMQ_RCVTIMEO, &milliseconds, sizeof(milliseconds));
    Frames frames;
    for (int more = 1; more != 0;) {
      char buffer[4096];
      const int size = zmq_recv(socket_, buffer, sizeof(buffer), 0);
      if (size < 0) return {};
      frames.emplace_back(buffer, size);
      size_t length = sizeof(more);
      zmq_getsockopt(socket_, ZMQ_RCVMORE, &more, &length);
    }
    return frames;
  }

  // Returns the messages that a request gets, without their first, empty frame.
  std::vector<Frames> Ask(const std::string& request) {
    Send({"", request});
    std::vector<Frames> messages;
    for (;;) {
      Frames frames = Receive();
      if (frames.size() != 4) {
        ADD_FAILURE() << frames.size() << " frames";
        return messages;
      }
      frames.erase(frames.begin());
      if (frames == Frames{"", std::string(8, '\xff'), ""}) return messages;
      messages.push_back(std::move(frames));
    }
  }

 private:
  static void* Context() {
    static void* const context = zmq_ctx_new();
    return context;
  }

  void* socket_;
};

std::vector<BlockEvent> Store(uint8_t hash) {
  BlockEvent event{.stored = true, .tokens = {1, 2}};
  event.hash.back() = hash;
  return {event};
}

Json Events(const Frames& message) { return Json::from_msgpack(message[2]).at(1); }

class KvEventPublisherTest : public testing::Test {
 protected:
  void Open(int32_t max_queue_size = 100) {
    const std::string base = StrCat("ipc://", testing::TempDir(), "kv_events_", getpid());
    KvEventsConfig config;
    config.endpoint = StrCat(base, "_pub");
    config.replay_endpoint = StrCat(base, "_replay");
    config.buffer_steps = 3;
    config.max_queue_size = max_queue_size;
    config.topic = "kv@pod@model";
    auto opened = KvEventPublisher::Open(config, "127.0.0.1", registry_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    publisher_ = *std::move(opened);
  }

  double Count(const std::string& name, const std::string& label) {
    for (const auto& family : registry_.Collect()) {
      for (const auto& metric : family.metric) {
        if (family.name == name && metric.label[0].value == label) return metric.counter.value;
      }
    }
    return -1;
  }

  prometheus::Registry registry_;
  std::unique_ptr<KvEventPublisher> publisher_;
  const StateLayout layout_ = StateLayout::OnePool(2);
};

TEST_F(KvEventPublisherTest, ListenersHearBatchesAndAskForMore) {
  Open();
  publisher_->Start(layout_);
  Client listener(ZMQ_SUB, publisher_->endpoint());
  Client asker(ZMQ_DEALER, publisher_->replay_endpoint());
  // Nothing tells that a subscription has arrived: batches are sent until one of them does.
  uint8_t last = 0;
  Frames heard;
  while (heard.empty()) {
    ASSERT_LT(last, 200);
    publisher_->OnBlocks(Store(++last));
    heard = listener.Receive(/*milliseconds=*/100);
  }
  while (heard.size() == 3 && heard[1] != Number(last)) heard = listener.Receive();
  publisher_->OnBlocks(Store(++last));
  heard = listener.Receive();
  ASSERT_EQ(heard.size(), 3u);
  EXPECT_EQ(heard[0], "kv@pod@model");
  EXPECT_EQ(heard[1], Number(last));
  EXPECT_EQ(Events(heard).at(0).at("block_hashes"), Json::array({last}));

  std::vector<Frames> replayed = asker.Ask(Number(last));
  ASSERT_EQ(replayed.size(), 1u);
  EXPECT_EQ(replayed[0], heard);
  EXPECT_EQ(asker.Ask(Number(0)).size(), 3u);  // buffer_steps
  EXPECT_TRUE(asker.Ask(Number(last + 1)).empty());

  asker.Send({"no empty frame"});
  EXPECT_TRUE(asker.Ask("what is this").empty());
  const std::vector<Frames> snapshot = asker.Ask("snapshot");
  ASSERT_EQ(snapshot.size(), 1u);
  EXPECT_EQ(snapshot[0][0], "kv@pod@model");
  EXPECT_EQ(snapshot[0][1], Number(last + 1));
  const Json events = Events(snapshot[0]);
  EXPECT_EQ(events.size(), 1u + last);  // each block is a chain of its own
  EXPECT_EQ(events[0].at("type"), "AllBlocksCleared");
  EXPECT_EQ(Count("millrace_kv_event_batches_total", "published"), last);
  EXPECT_EQ(Count("millrace_kv_event_batches_total", "merged"), 0);
  EXPECT_EQ(Count("millrace_kv_event_requests_total", "replay"), 3);
  EXPECT_EQ(Count("millrace_kv_event_requests_total", "snapshot"), 1);
}

TEST_F(KvEventPublisherTest, AFullQueueLeavesNoGap) {
  Open(/*max_queue_size=*/1);
  for (uint8_t i = 1; i <= 3; ++i) publisher_->OnBlocks(Store(i));
  publisher_->Start(layout_);
  Client asker(ZMQ_DEALER, publisher_->replay_endpoint());
  const std::vector<Frames> messages = asker.Ask(Number(0));
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[0][1], Number(0));
  EXPECT_EQ(Events(messages[0]), Json::parse(R"([{"type": "AllBlocksCleared"}])"));
  EXPECT_EQ(messages[1][1], Number(1));
  EXPECT_EQ(Events(messages[1]).size(), 2u);
  EXPECT_EQ(messages[2][1], Number(2));
  EXPECT_EQ(Count("millrace_kv_event_batches_total", "published"), 2);
  EXPECT_EQ(Count("millrace_kv_event_batches_total", "merged"), 1);
}

TEST_F(KvEventPublisherTest, RequestsWithoutEndHoldUpNeitherOthersNorTheEnd) {
  Open();
  publisher_->Start(layout_);
  std::atomic<bool> done = false;
  // It reads no answer, either.
  std::thread flood([&done, endpoint = publisher_->replay_endpoint()] {
    Client client(ZMQ_DEALER, endpoint);
    while (!done) client.TryToSend("snapshot");
  });
  Client asker(ZMQ_DEALER, publisher_->replay_endpoint());
  while (Count("millrace_kv_event_requests_total", "snapshot") < 10'000) std::this_thread::yield();
  for (uint8_t i = 1; i <= 3; ++i) {
    publisher_->OnBlocks(Store(i));
    const std::vector<Frames> messages = asker.Ask(Number(i));
    EXPECT_EQ(messages.size(), 1u);
    if (messages.empty()) break;
    EXPECT_EQ(Events(messages[0]).at(0).at("block_hashes"), Json::array({i}));
  }
  publisher_.reset();  // while requests still come
  done = true;
  flood.join();
}

TEST_F(KvEventPublisherTest, AnEndpointThatIsTakenIsNamed) {
  KvEventsConfig config;
  config.endpoint = "tcp://*:0";
  const auto first = KvEventPublisher::Open(config, "127.0.0.1", registry_);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_THAT((*first)->endpoint(), testing::StartsWith("tcp://127.0.0.1:"));
  EXPECT_EQ((*first)->replay_endpoint(), "");
  config.endpoint = "tcp://*:0";
  config.replay_endpoint = (*first)->endpoint();
  const auto second = KvEventPublisher::Open(config, "127.0.0.1", registry_);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()),
              testing::StartsWith("kv-events-config: replay_endpoint: tcp://127.0.0.1:"));
}

}  // namespace
}  // namespace millrace
