// Fuzzes the bodies of all requests. The first byte chooses the route. What is taken is checked as
// the engine does, and a refusal must name what it refuses in text that JSON can hold.
#include <nlohmann/json.hpp>

#include "base/fuzz_test_util.h"
#include "engine/request/request.h"
#include "server/http/api/http_message.h"
#include "server/http/json/api_error.h"
#include "server/http/messages/messages.h"
#include "server/http/openai/openai_request.h"
#include "server/http/responses/responses.h"

namespace {

using millrace::ApiRequest;
using millrace::FuzzCheck;

constexpr int32_t kVocabulary = 50'000;
constexpr size_t kMostMessage = 4096;

void CheckRefusal(const absl::Status& status) {
  FuzzCheck(status.code() == absl::StatusCode::kInvalidArgument, status.ToString());
  FuzzCheck(!status.message().empty() && status.message().size() <= kMostMessage,
            "the message's length is wrong");
  const millrace::HttpResponse response =
      millrace::ErrorResponse(millrace::ErrorFromStatus(status));
  FuzzCheck(nlohmann::json::accept(response.body), "the answer is not JSON: " + response.body);
}

void Validate(const ApiRequest& request) {
  FuzzCheck(!request.prompts.empty() && request.n >= 1, "a request without prompts");
  millrace::GenerateRequest one = request.options;
  for (const millrace::Prompt& prompt : request.prompts) {
    one.prompt = prompt;
    const absl::Status status = millrace::ValidateRequest(one, kVocabulary);
    if (!status.ok()) CheckRefusal(status);
  }
}

template <typename T>
bool Taken(const absl::StatusOr<T>& request) {
  if (!request.ok()) CheckRefusal(request.status());
  return request.ok();
}

void Parse(int route, std::string_view body, millrace::UnknownFields unknown) {
  switch (route) {
    case 0:
    case 1: {
      const auto kind = route == 0 ? millrace::ApiKind::kCompletion : millrace::ApiKind::kChat;
      const auto request = millrace::ParseApiRequest(kind, body, nullptr, unknown);
      if (Taken(request)) Validate(*request);
      return;
    }
    case 2: {
      const auto request = millrace::ParseResponsesRequest(body, nullptr, unknown, true);
      if (Taken(request)) {
        Validate(request->api);
        FuzzCheck(nlohmann::json::accept("{" + request->shown + "}"),
                  "what a response repeats is not JSON: " + request->shown);
      }
      return;
    }
    case 3:
    case 4: {
      const auto request = millrace::ParseMessagesRequest(body, route == 4, nullptr, unknown, true);
      if (Taken(request)) Validate(*request);
      return;
    }
    case 5:
      Taken(millrace::ParseEmbeddingRequest(body, unknown));
      return;
    case 6:
      Taken(millrace::ParseTokenizeRequest(body, unknown));
      return;
    default:
      Taken(millrace::ParseDetokenizeRequest(body, unknown));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  millrace::FuzzInput input(data, size);
  const uint8_t choice = input.Byte();
  Parse(choice % 8, input.rest(),
        choice & 8 ? millrace::UnknownFields::kIgnore : millrace::UnknownFields::kRefuse);
  return 0;
}
