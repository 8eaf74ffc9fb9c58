#include "server/http/api/http_message.h"

#include "base/strings.h"
#include "engine/request/request.h"

namespace millrace {

void BeginEventStream(HttpResponse& response) {
  response.status = 200;
  response.content_type = "text/event-stream; charset=utf-8";
  response.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
}

HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response{
      .status = error.status, .body = ErrorJson(error), .reason = error.code, .param = error.param};
  if (error.retry_after) {
    response.headers.emplace_back("Retry-After", StrCat(RetrySeconds(*error.retry_after)));
  }
  // OpenAI's and Anthropic's clients would send the request again, which costs its time once more:
  // a second try has the deadline of the first, and the same fault.
  if (error.status == 400 || error.status == 504) {
    response.headers.emplace_back("x-should-retry", "false");
  }
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

HttpResponse ErrorResponse(const absl::Status& status) {
  return ErrorResponse(ErrorFromStatus(status));
}

}  // namespace millrace
