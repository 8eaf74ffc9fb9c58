#include "server/http/endpoint_test_util.h"

#include <utility>

#include "server/http/json/json_reader.h"

namespace millrace {

void SayHello(const GenerateRequest& /*request*/, ScriptedStream& stream) {
  stream.Push(TextEvent("Hel"));
  stream.Push(FinishEvent(FinishReason::kStop, "lo"));
}

void TestEndpoint::Start(HttpLimits limits, std::string key, int threads, const Clock& clock) {
  frontend_ = std::make_unique<ScriptedFrontend>(std::move(key));
  server_ = std::make_unique<HttpServer>(
      *frontend_, HttpOptions{.threads = threads, .limits = limits, .clock = &clock});
  port_ = server_->Start().value();
}

ClientResponse TestEndpoint::Ask(std::string_view method, std::string_view path,
                                 std::string_view body, std::string_view headers) const {
  RawClient client(port_);
  client.Request(method, path, body, headers);
  return client.Read(method == "HEAD");
}

int TestEndpoint::Raw(std::string_view bytes) const {
  RawClient client(port_);
  client.Send(bytes);
  const ClientResponse response = client.Read();
  if (response.status < 400) return response.status;
  const Json json = Json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  const bool shaped = json.is_object() && json.contains("error") &&
                      json["error"].contains("message") && json["error"].contains("code");
  return shaped ? response.status : -1;
}

}  // namespace millrace
