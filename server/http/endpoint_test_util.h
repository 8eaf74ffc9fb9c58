// An endpoint with a scripted engine behind it, and one-line clients of it.
#ifndef MILLRACE_SERVER_HTTP_ENDPOINT_TEST_UTIL_H_
#define MILLRACE_SERVER_HTTP_ENDPOINT_TEST_UTIL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "server/http/http_client_test_util.h"
#include "server/http/http_server.h"
#include "server/http/scripted_engine_test_util.h"

namespace millrace {

inline constexpr std::string_view kWholeBody = R"({"prompt": "p"})";
inline constexpr std::string_view kStreamBody = R"({"prompt": "p", "stream": true})";

// A script: "Hello" in two events.
void SayHello(const GenerateRequest& request, ScriptedStream& stream);

class TestEndpoint {
 public:
  // Ends the program if it cannot listen.
  void Start(HttpLimits limits = {}, std::string key = "", int threads = 2,
             const Clock& clock = Clock::Real());

  ScriptedFrontend& frontend() { return *frontend_; }
  ScriptedEngine& engine() { return frontend_->engine; }
  HttpServer& server() { return *server_; }
  uint16_t port() const { return port_; }

  // One request on a connection of its own.
  ClientResponse Ask(std::string_view method, std::string_view path, std::string_view body = "",
                     std::string_view headers = "") const;
  // Sends bytes as they are, and returns the status that comes back; -1 if it is an error without
  // OpenAI's shape.
  int Raw(std::string_view bytes) const;

 private:
  std::unique_ptr<ScriptedFrontend> frontend_;
  std::unique_ptr<HttpServer> server_;
  uint16_t port_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_ENDPOINT_TEST_UTIL_H_
