// Counts of HTTP requests, under the names and labels that vLLM's have
// (prometheus-fastapi-instrumentator), and of refusals by their reasons.
#ifndef MILLRACE_SERVER_HTTP_TRANSPORT_HTTP_METRICS_H_
#define MILLRACE_SERVER_HTTP_TRANSPORT_HTTP_METRICS_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "server/http/api/http_message.h"

namespace prometheus {
template <typename T>
class Family;
class Counter;
class Histogram;
class Registry;
class Summary;
}  // namespace prometheus

namespace millrace {

// A request at its end.
struct AccessRecord {
  std::string_view method;
  std::string_view path;
  std::string_view handler;  // the route's path, of which there are few; "none": there is no route
  bool routine = false;      // a probe or a scrape: logged at debug, and not counted, as in vLLM
  int status = 0;
  uint64_t request_bytes = 0;   // of the body
  uint64_t response_bytes = 0;  // header and body, as far as the client took them
  std::chrono::duration<double> took{0};
  std::string_view request_id;
  std::string_view client;  // the name in the client's certificate; empty: it showed none
  std::string_view from;    // the client's address, if a proxy has said it
  std::string_view tenant;  // whose key or certificate it showed; empty: none
  std::string_view reason;  // the error's code, or why the answer was not finished; else empty
  std::string_view param;   // the field at fault; empty: none
  std::optional<UsedTokens> tokens;  // that a model took and made
};

// Thread-safe. Several of one registry count together.
class HttpMetrics {
 public:
  explicit HttpMetrics(prometheus::Registry& registry);

  // Counts and logs a request.
  void OnRequest(const AccessRecord& record);
  // Counts a refusal. `reason` is a constant of ours: an error's code.
  void OnRefusal(std::string_view reason);

 private:
  prometheus::Family<prometheus::Counter>& requests_;
  prometheus::Family<prometheus::Counter>& refusals_;
  prometheus::Family<prometheus::Histogram>& durations_;
  prometheus::Family<prometheus::Summary>& request_sizes_;
  prometheus::Family<prometheus::Summary>& response_sizes_;
  prometheus::Histogram& all_durations_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_TRANSPORT_HTTP_METRICS_H_
