// What --kv-events-config says.
#ifndef MILLRACE_SERVER_KV_EVENTS_KV_EVENTS_CONFIG_H_
#define MILLRACE_SERVER_KV_EVENTS_KV_EVENTS_CONFIG_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace millrace {

// The members are vLLM's KVEventsConfig, with its defaults.
struct KvEventsConfig {
  bool enabled = false;
  std::string endpoint = "tcp://*:5557";
  std::string replay_endpoint;  // empty: none
  int32_t buffer_steps = 10'000;
  int32_t hwm = 100'000;  // at least 1: to ZeroMQ 0 is no bound
  int32_t max_queue_size = 100'000;
  std::string topic;
};

// Reads a JSON object; the empty text is one without events. InvalidArgument names the key, what
// came and what is allowed.
absl::StatusOr<KvEventsConfig> ParseKvEventsConfig(std::string_view json);

// Returns whether the server listens at an endpoint, and does not connect to it: vLLM's rule, by
// which it does at ipc:// and where the host is * or has "::".
bool Listens(std::string_view endpoint);

// Returns whether only this machine reaches what listens at an endpoint, which has numbers.
bool IsLocal(std::string_view endpoint);

// Returns the endpoint with the address `host`, as --host has it, in the place of *. For localhost
// it is that of IPv4.
std::string AtHost(std::string_view endpoint, std::string_view host);

}  // namespace millrace

#endif  // MILLRACE_SERVER_KV_EVENTS_KV_EVENTS_CONFIG_H_
