#include "loadtest/http_request.h"

#include "base/strings.h"

namespace millrace {

HttpRequestWriter::HttpRequestWriter(const Options& options, const ServerUrl& url)
    : options_(options),
      extra_(options.extra_body.empty() ? nlohmann::json::object()
                                        : nlohmann::json::parse(options.extra_body)) {
  head_ = StrCat("POST ", url.path, options.endpoint, " HTTP/1.1\r\nHost: ", url.Authority(),
                 "\r\nUser-Agent: millrace-loadtest\r\nAccept: text/event-stream\r\n"
                 "Content-Type: application/json\r\n");
  if (!options.api_key.empty()) head_ += StrCat("Authorization: Bearer ", options.api_key, "\r\n");
  for (const auto& [name, value] : options.headers) head_ += StrCat(name, ": ", value, "\r\n");
  head_ += "Content-Length: ";
}

std::string HttpRequestWriter::Write(const Request& request) const {
  const std::string body = Body(request);
  return StrCat(head_, body.size(), "\r\n\r\n", body);
}

std::string HttpRequestWriter::Body(const Request& request) const {
  nlohmann::json body = {{"model", options_.model},
                         {"stream", true},
                         {"max_tokens", request.max_tokens},
                         {"temperature", options_.temperature}};
  if (options_.ignore_eos) body["ignore_eos"] = true;
  if (options_.usage != UsageReports::kNone) {
    body["stream_options"] = {{"include_usage", true}};
    if (options_.usage == UsageReports::kContinuous) {
      body["stream_options"]["continuous_usage_stats"] = true;
    }
  }
  if (request.seed) body["seed"] = *request.seed;
  if (!request.history.empty()) {
    // Messages and tools follow, as the texts that they are: their members keep their order.
  } else if (options_.chat()) {
    body["messages"] = nlohmann::json::array();
    for (const ChatTurn& turn : request.messages) {
      body["messages"].push_back({{"role", turn.role}, {"content", turn.text}});
    }
  } else if (!request.ids.empty()) {
    body["prompt"] = request.ids;
  } else {
    body["prompt"] = request.prompt;
  }
  body.update(extra_);
  if (request.extra) body.update(nlohmann::json::parse(*request.extra, nullptr, false));
  std::string text = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (request.history.empty()) return text;
  text.pop_back();
  if (request.tools && !body.contains("tools")) text += StrCat(",\"tools\":", *request.tools);
  text += ",\"messages\":[";
  for (const SharedJson& message : request.history) text += StrCat(*message, ",");
  text.back() = ']';
  return text + "}";
}

}  // namespace millrace
