// Errors in the shape that OpenAI's clients read: {"error":{"message","type","param","code"}}.
#ifndef MILLRACE_SERVER_HTTP_JSON_API_ERROR_H_
#define MILLRACE_SERVER_HTTP_JSON_API_ERROR_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace millrace {

struct ApiError {
  int status = 500;   // HTTP's
  std::string type;   // "invalid_request_error", "rate_limit_error", "server_error"
  std::string code;   // empty: null
  std::string param;  // the field at fault; empty: null
  std::string message;
  std::optional<absl::Duration> retry_after;
};

// Returns an error of this HTTP status, with the type that belongs to it.
ApiError HttpError(int status, std::string_view code, std::string_view message);

// Returns a status that becomes an error with this `code` of OpenAI's.
absl::Status ErrorWithCode(absl::StatusCode status, std::string_view code,
                           std::string_view message);

// Returns InvalidArgument about the field `param` ("" for none).
absl::Status FieldError(std::string_view param, std::string_view code, std::string_view message);

// Converts any status of our own code to an HTTP error. The field at fault is FieldError's, or the
// word that the message begins with ("top_p is 3; allowed: …", "guided_json: …").
ApiError ErrorFromStatus(const absl::Status& status);

std::string ErrorJson(const ApiError& error);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_JSON_API_ERROR_H_
