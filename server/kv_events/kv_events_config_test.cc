#include "server/kv_events/kv_events_config.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

TEST(KvEventsConfigTest, TheDefaultsAreThoseOfVllm) {
  const KvEventsConfig config = *ParseKvEventsConfig(R"({"enable_kv_cache_events": true})");
  EXPECT_TRUE(config.enabled);
  EXPECT_EQ(config.endpoint, "tcp://*:5557");
  EXPECT_EQ(config.replay_endpoint, "");
  EXPECT_EQ(config.buffer_steps, 10'000);
  EXPECT_EQ(config.hwm, 100'000);
  EXPECT_EQ(config.max_queue_size, 100'000);
  EXPECT_EQ(config.topic, "");
  EXPECT_FALSE(ParseKvEventsConfig("")->enabled);
  EXPECT_FALSE(ParseKvEventsConfig("{}")->enabled);
}

TEST(KvEventsConfigTest, EveryKeyIsRead) {
  const KvEventsConfig config = *ParseKvEventsConfig(
      R"({"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://router:1",
          "replay_endpoint": "ipc:///tmp/x", "buffer_steps": 0, "hwm": 3, "max_queue_size": 4,
          "topic": "kv@pod@model"})");
  EXPECT_TRUE(config.enabled);
  EXPECT_EQ(config.endpoint, "tcp://router:1");
  EXPECT_EQ(config.replay_endpoint, "ipc:///tmp/x");
  EXPECT_EQ(config.buffer_steps, 0);
  EXPECT_EQ(config.hwm, 3);
  EXPECT_EQ(config.max_queue_size, 4);
  EXPECT_EQ(config.topic, "kv@pod@model");
}

TEST(KvEventsConfigTest, BothSwitchesMustAgree) {
  EXPECT_FALSE(
      ParseKvEventsConfig(R"({"enable_kv_cache_events": true, "publisher": "null"})")->enabled);
  EXPECT_FALSE(ParseKvEventsConfig(R"({"publisher": "zmq"})")->enabled);
}

TEST(KvEventsConfigTest, WhatIsWrongIsNamed) {
  const struct {
    std::string json, message;
  } kCases[] = {
      {"{", "kv-events-config: "},
      {"[]", "kv-events-config: is "},
      {R"({"snapshot_endpoint": "tcp://*:1"})",
       "snapshot_endpoint: is unknown; allowed: enable_kv_cache_events, publisher, endpoint, "
       "replay_endpoint, buffer_steps, hwm, max_queue_size, topic"},
      {R"({"enable_kv_cache_events": 1})", "kv-events-config: enable_kv_cache_events"},
      {R"({"publisher": "kafka"})", R"(publisher: is "kafka"; allowed: "zmq", "null")"},
      {R"({"endpoint": "tcp://*"})", R"(endpoint: is "tcp://*"; allowed: tcp://HOST:PORT, )"},
      {R"({"endpoint": "tcp://a:65536"})", R"(endpoint: is "tcp://a:65536")"},
      {R"({"endpoint": "inproc://a"})", R"(endpoint: is "inproc://a")"},
      {R"({"replay_endpoint": "ipc://"})", R"(replay_endpoint: is "ipc://")"},
      {R"({"buffer_steps": -1})", "kv-events-config: buffer_steps"},
      {R"({"hwm": 0.5})", "kv-events-config: hwm"},
      {R"({"hwm": 0})", "kv-events-config: hwm"},
      {R"({"max_queue_size": 0})", "kv-events-config: max_queue_size"},
      {R"({"topic": 7})", "kv-events-config: topic"},
      {R"({"topic": ")" + std::string(1025, 'a') + "\"}", "topic: has 1025 bytes; allowed: "},
  };
  for (const auto& [json, message] : kCases) {
    const auto config = ParseKvEventsConfig(json);
    ASSERT_FALSE(config.ok()) << json;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(message)) << json;
  }
}

TEST(KvEventsConfigTest, AnEndpointIsListenedAtOrConnectedToByTheRuleOfVllm) {
  for (const char* const endpoint : {"tcp://*:5557", "tcp://[::]:5557", "ipc:///tmp/events"}) {
    EXPECT_TRUE(Listens(endpoint)) << endpoint;
  }
  for (const char* const endpoint : {"tcp://router:5557", "tcp://10.0.0.1:5557"}) {
    EXPECT_FALSE(Listens(endpoint)) << endpoint;
  }
}

TEST(KvEventsConfigTest, OnlyLoopbackAndFilesAreLocal) {
  for (const char* const endpoint : {"tcp://127.0.0.1:1", "tcp://[::1]:1", "ipc:///tmp/events"}) {
    EXPECT_TRUE(IsLocal(endpoint)) << endpoint;
  }
  for (const char* const endpoint : {"tcp://0.0.0.0:1", "tcp://[::]:1", "tcp://10.0.0.1:1"}) {
    EXPECT_FALSE(IsLocal(endpoint)) << endpoint;
  }
}

TEST(KvEventsConfigTest, AStarIsTheAddressOfTheServer) {
  EXPECT_EQ(AtHost("tcp://*:5557", "127.0.0.1"), "tcp://127.0.0.1:5557");
  EXPECT_EQ(AtHost("tcp://*:5557", "localhost"), "tcp://127.0.0.1:5557");
  EXPECT_EQ(AtHost("tcp://*:5557", "::"), "tcp://[::]:5557");
  EXPECT_EQ(AtHost("tcp://[::]:5557", "127.0.0.1"), "tcp://[::]:5557");
  EXPECT_EQ(AtHost("ipc:///tmp/a*", "127.0.0.1"), "ipc:///tmp/a*");
}

}  // namespace
}  // namespace millrace
