#include "server/kv_events/kv_events_config.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "config/value.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"

namespace millrace {
namespace {

constexpr std::string_view kKeys[] = {
    "enable_kv_cache_events", "publisher", "endpoint",       "replay_endpoint",
    "buffer_steps",           "hwm",       "max_queue_size", "topic",
};
constexpr int64_t kMostCount = 100'000'000;
constexpr size_t kMostTopic = 1024;  // bytes

absl::Status CheckNames(const JsonFields& fields) {
  for (const auto& [name, value] : fields.object().items()) {
    if (std::find(std::begin(kKeys), std::end(kKeys), name) == std::end(kKeys)) {
      return fields.Bad(Printable(name),
                        StrCat("is unknown; allowed: ", JoinList(std::vector<std::string_view>(
                                                            std::begin(kKeys), std::end(kKeys)))));
    }
  }
  return absl::OkStatus();
}

bool IsEndpoint(std::string_view text) {
  constexpr std::string_view kIpc = "ipc://";
  if (text.starts_with(kIpc)) return text.size() > kIpc.size();
  constexpr std::string_view kTcp = "tcp://";
  const size_t colon = text.rfind(':');
  if (!text.starts_with(kTcp) || colon <= kTcp.size()) return false;
  const auto port = ParseNumber<int32_t>(text.substr(colon + 1));
  return port.has_value() && *port >= 0 && *port <= 65535;
}

absl::Status ReadEndpoint(const JsonFields& fields, std::string_view name, std::string& endpoint) {
  if (fields.Find(name) == nullptr) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(endpoint, fields.String(name));
  if (IsEndpoint(endpoint)) return absl::OkStatus();
  return fields.Bad(name, StrCat("is \"", Printable(endpoint),
                                 "\"; allowed: tcp://HOST:PORT, tcp://*:PORT or ipc://PATH"));
}

absl::Status ReadCount(const JsonFields& fields, std::string_view name, int64_t least,
                       int32_t& count) {
  if (fields.Find(name) == nullptr) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(const int64_t value, fields.Int(name, least, kMostCount));
  count = static_cast<int32_t>(value);
  return absl::OkStatus();
}

// As with vLLM, nothing is published unless both agree; without a publisher the switch decides.
absl::Status ReadEnabled(const JsonFields& fields, bool& enabled) {
  MILLRACE_ASSIGN_OR_RETURN(enabled, fields.BoolOr("enable_kv_cache_events", false));
  if (fields.Find("publisher") == nullptr) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view publisher, fields.String("publisher"));
  if (publisher != "zmq" && publisher != "null") {
    return fields.Bad("publisher",
                      StrCat("is \"", Printable(publisher), "\"; allowed: \"zmq\", \"null\""));
  }
  enabled = enabled && publisher == "zmq";
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<KvEventsConfig> ParseKvEventsConfig(std::string_view json) {
  KvEventsConfig config;
  if (json.empty()) return config;
  constexpr std::string_view kName = "kv-events-config: ";
  absl::StatusOr<Json> parsed = ParseJson(json, JsonLimits());
  MILLRACE_RETURN_IF_ERROR(Annotate(parsed.status(), "kv-events-config"));
  if (!parsed->is_object()) {
    return absl::InvalidArgumentError(
        StrCat(kName, "is ", Describe(*parsed), "; allowed: a JSON object"));
  }
  const JsonFields fields(*parsed, std::string(kName));
  MILLRACE_RETURN_IF_ERROR(CheckNames(fields));
  MILLRACE_RETURN_IF_ERROR(ReadEnabled(fields, config.enabled));
  MILLRACE_RETURN_IF_ERROR(ReadEndpoint(fields, "endpoint", config.endpoint));
  MILLRACE_RETURN_IF_ERROR(ReadEndpoint(fields, "replay_endpoint", config.replay_endpoint));
  MILLRACE_RETURN_IF_ERROR(ReadCount(fields, "buffer_steps", 0, config.buffer_steps));
  MILLRACE_RETURN_IF_ERROR(ReadCount(fields, "hwm", 1, config.hwm));
  MILLRACE_RETURN_IF_ERROR(ReadCount(fields, "max_queue_size", 1, config.max_queue_size));
  if (fields.Find("topic") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(config.topic, fields.String("topic"));
    if (config.topic.size() > kMostTopic) {
      return fields.Bad(
          "topic", StrCat("has ", config.topic.size(), " bytes; allowed: at most ", kMostTopic));
    }
  }
  return config;
}

bool Listens(std::string_view endpoint) {
  return endpoint.starts_with("ipc://") || endpoint.find('*') != endpoint.npos ||
         endpoint.find("::") != endpoint.npos;
}

bool IsLocal(std::string_view endpoint) {
  constexpr std::string_view kTcp = "tcp://";
  if (!endpoint.starts_with(kTcp)) return true;
  std::string_view host = endpoint.substr(kTcp.size());
  host = host.substr(0, host.rfind(':'));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return IsLoopback(host);
}

std::string AtHost(std::string_view endpoint, std::string_view host) {
  const size_t star = endpoint.find('*');
  if (star == endpoint.npos || !endpoint.starts_with("tcp://")) return std::string(endpoint);
  if (host == "localhost") host = "127.0.0.1";  // ZeroMQ listens at numbers alone
  const bool is_ipv6 = host.find(':') != host.npos;
  return StrCat(endpoint.substr(0, star), is_ipv6 ? "[" : "", host, is_ipv6 ? "]" : "",
                endpoint.substr(star + 1));
}

}  // namespace millrace
