#include "server/chat/chat_client.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;

// Of a message that a server sends in place of an answer. More is not kept.
constexpr size_t kMostErrorBytes = 64 << 10;
constexpr size_t kShownErrorBytes = 2048;

std::string BaseOf(std::string url) {
  while (url.ends_with('/')) url.pop_back();
  if (url.ends_with("/v1")) url.erase(url.size() - 3);
  return url;
}

std::string TextOf(const Json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// Returns the message of an error's body; the body itself where it has none.
std::string ErrorMessage(const std::string& body) {
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains("error")) {
    const Json& error = json["error"];
    const std::string message =
        error.is_string() ? error.get<std::string>() : TextOf(error, "message");
    if (!message.empty()) return Printable(message, kShownErrorBytes);
  }
  return Printable(body, kShownErrorBytes);
}

absl::Status StatusOf(const HttpReply& reply, const std::string& body) {
  if (reply.status == 200) return absl::OkStatus();
  std::string message = StrCat("the server answered ", reply.status, ": ", ErrorMessage(body));
  if (reply.status == 401) message += " (--api-key KEY, or MILLRACE_API_KEY)";
  return reply.status == 401 || reply.status == 403 ? absl::UnauthenticatedError(message)
                                                    : absl::UnavailableError(message);
}

}  // namespace

std::vector<std::string> EventReader::Add(std::string_view bytes) {
  std::vector<std::string> events;
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    line_ += bytes.substr(0, end);
    if (end == bytes.npos) break;
    bytes.remove_prefix(end + 1);
    if (line_.ends_with('\r')) line_.pop_back();
    TakeLine(line_, events);
    line_.clear();
  }
  return events;
}

void EventReader::TakeLine(std::string_view line, std::vector<std::string>& events) {
  constexpr std::string_view kData = "data:";
  if (line.empty()) {
    if (has_data_) events.push_back(std::exchange(event_, ""));
    has_data_ = false;
  } else if (line.starts_with(kData)) {
    line.remove_prefix(kData.size());
    if (line.starts_with(' ')) line.remove_prefix(1);
    if (has_data_) event_ += '\n';
    event_ += line;
    has_data_ = true;
  }
}

absl::StatusOr<ChatDelta> ReadDelta(std::string_view data) {
  if (data == "[DONE]") return ChatDelta();
  const Json json = Json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::UnavailableError(
        StrCat("the server sent what is no event of a chat: ", Printable(data, kShownErrorBytes)));
  }
  if (json.contains("error")) return absl::UnavailableError(ErrorMessage(std::string(data)));
  ChatDelta delta;
  const auto choices = json.find("choices");
  if (choices == json.end() || !choices->is_array() || choices->empty()) return delta;
  const Json& choice = choices->front();
  delta.finish_reason = TextOf(choice, "finish_reason");
  const auto part = choice.is_object() ? choice.find("delta") : choice.end();
  if (part == choice.end()) return delta;
  delta.text = TextOf(*part, "content");
  delta.reasoning = TextOf(*part, "reasoning_content");
  if (delta.reasoning.empty()) delta.reasoning = TextOf(*part, "reasoning");
  return delta;
}

ChatClient::ChatClient(const std::string& url, std::string key, const std::atomic<bool>* stop)
    : base_(BaseOf(url)), key_(std::move(key)), http_(stop) {}

absl::StatusOr<std::string> ChatClient::FirstModel() {
  std::string body;
  const auto keep = [&body](const HttpReply&, std::string_view bytes) {
    body += bytes;
    return body.size() <= kMostErrorBytes * 16;
  };
  MILLRACE_ASSIGN_OR_RETURN(
      const HttpReply reply,
      http_.Send({.url = base_ + "/v1/models", .wants_errors = true, .token = key_}, keep));
  MILLRACE_RETURN_IF_ERROR(StatusOf(reply, body));
  const Json json = Json::parse(body, nullptr, /*allow_exceptions=*/false);
  const auto data = json.is_object() ? json.find("data") : json.end();
  if (data == json.end() || !data->is_array() || data->empty()) {
    return absl::NotFoundError(StrCat(base_, "/v1/models names no model"));
  }
  return TextOf(data->front(), "id");
}

absl::Status ChatClient::Ask(const Json& body,
                             const std::function<void(const ChatDelta&)>& on_delta) {
  EventReader reader;
  std::string error;
  absl::Status failed;
  const auto take = [&](const HttpReply& reply, std::string_view bytes) {
    if (reply.status != 200) {
      error += bytes.substr(0, kMostErrorBytes - std::min(error.size(), kMostErrorBytes));
      return true;
    }
    for (const std::string& event : reader.Add(bytes)) {
      const absl::StatusOr<ChatDelta> delta = ReadDelta(event);
      if (!delta.ok()) {
        failed = delta.status();
        return false;
      }
      on_delta(*delta);
    }
    return true;
  };
  const absl::StatusOr<HttpReply> reply =
      http_.Send({.url = base_ + "/v1/chat/completions",
                  .body = body.dump(-1, ' ', false, Json::error_handler_t::replace),
                  .content_type = "application/json",
                  .wants_errors = true,
                  .token = key_},
                 take);
  if (!failed.ok()) return failed;
  return reply.ok() ? StatusOf(*reply, error) : reply.status();
}

}  // namespace millrace
