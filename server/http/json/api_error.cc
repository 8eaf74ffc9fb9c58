#include "server/http/json/api_error.h"

#include "absl/strings/cord.h"
#include "base/strings.h"
#include "engine/request/error_field.h"
#include "engine/request/request.h"
#include "engine/start_rate.h"
#include "server/http/json/json_writer.h"

namespace millrace {
namespace {

constexpr char kParamUrl[] = "millrace/http-param";
constexpr char kCodeUrl[] = "millrace/http-code";

struct Meaning {
  int status;
  std::string_view code;
};

Meaning MeaningOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
      return {400, "invalid_value"};
    case absl::StatusCode::kOutOfRange:
      return {400, "context_length_exceeded"};
    case absl::StatusCode::kUnimplemented:
      return {400, "unsupported_parameter"};
    case absl::StatusCode::kUnauthenticated:
      return {401, "invalid_api_key"};
    case absl::StatusCode::kPermissionDenied:
      return {403, "permission_denied"};
    case absl::StatusCode::kNotFound:
      return {404, "model_not_found"};
    case absl::StatusCode::kResourceExhausted:
      return {429, "rate_limit_exceeded"};
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
      return {503, "service_unavailable"};
    case absl::StatusCode::kDeadlineExceeded:
      return {504, "deadline_exceeded"};
    default:
      return {500, "internal_error"};
  }
}

std::string_view TypeOf(int status) {
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

std::string Payload(const absl::Status& status, const char* url) {
  const auto payload = status.GetPayload(url);
  return payload.has_value() ? std::string(*payload) : "";
}

void AppendOptional(std::string& out, std::string_view text) {
  if (text.empty()) {
    out += "null";
  } else {
    AppendJsonString(out, text);
  }
}

}  // namespace

ApiError HttpError(int status, std::string_view code, std::string_view message) {
  return {.status = status,
          .type = std::string(TypeOf(status)),
          .code = std::string(code),
          .message = std::string(message)};
}

absl::Status ErrorWithCode(absl::StatusCode status, std::string_view code,
                           std::string_view message) {
  absl::Status error(status, AbslView(message));
  error.SetPayload(kCodeUrl, absl::Cord(AbslView(code)));
  return error;
}

absl::Status FieldError(std::string_view param, std::string_view code, std::string_view message) {
  absl::Status error = ErrorWithCode(absl::StatusCode::kInvalidArgument, code, message);
  if (!param.empty()) error.SetPayload(kParamUrl, absl::Cord(AbslView(param)));
  return error;
}

ApiError ErrorFromStatus(const absl::Status& status) {
  const std::string_view message(status.message().data(), status.message().size());
  auto [http, code] = MeaningOf(status.code());
  if (Payload(status, kHttpStatusUrl) == "503") {
    http = 503;
    code = "service_unavailable";
  }
  ApiError error = HttpError(http, code, message);
  if (std::string own = Payload(status, kCodeUrl); !own.empty()) error.code = std::move(own);
  error.param = Payload(status, kParamUrl);
  if (http == 400 && error.param.empty()) error.param = LeadingField(message);
  if (http == 404) error.param = "model";
  error.retry_after = RetryAfter(status);
  if ((http == 429 || http == 503) && !error.retry_after) error.retry_after = absl::Seconds(1);
  return error;
}

std::string ErrorJson(const ApiError& error) {
  std::string out = R"({"error":{"message":)";
  AppendJsonString(out, error.message);
  out += R"(,"type":)";
  AppendJsonString(out, error.type);
  out += R"(,"param":)";
  AppendOptional(out, error.param);
  out += R"(,"code":)";
  AppendOptional(out, error.code);
  out += "}}";
  return out;
}

}  // namespace millrace
