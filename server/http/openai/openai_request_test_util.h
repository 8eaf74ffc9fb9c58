// For tests of request bodies: the shortest ones, with a field more, parsed or refused.
#ifndef MILLRACE_SERVER_HTTP_OPENAI_OPENAI_REQUEST_TEST_UTIL_H_
#define MILLRACE_SERVER_HTTP_OPENAI_OPENAI_REQUEST_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <utility>

#include "server/http/json/api_error.h"
#include "server/http/json/json_reader.h"
#include "server/http/openai/openai_request.h"

namespace millrace {

inline constexpr std::string_view kCompletion = R"({"model": "m", "prompt": "p"})";
inline constexpr std::string_view kChat =
    R"({"model": "m", "messages": [{"role": "user", "content": "hi"}]})";

// The body with a field more (or another value for it).
inline std::string With(std::string_view body, std::string_view field, std::string_view value) {
  Json json = Json::parse(body);
  json[std::string(field)] = Json::parse(value);
  return json.dump();
}

inline std::string Body(ApiKind kind) {
  return std::string(kind == ApiKind::kCompletion ? kCompletion : kChat);
}

inline ApiRequest Parsed(ApiKind kind, std::string_view body) {
  auto request = ParseApiRequest(kind, body);
  EXPECT_TRUE(request.ok()) << body << ": " << request.status();
  return request.ok() ? *std::move(request) : ApiRequest();
}

inline ApiError Refused(ApiKind kind, std::string_view body) {
  const auto request = ParseApiRequest(kind, body);
  EXPECT_FALSE(request.ok()) << body;
  return request.ok() ? ApiError() : ErrorFromStatus(request.status());
}

// A field that a body has, and the field that a refusal names.
struct FieldCase {
  std::string field;
  std::string value;
  std::string param = "";  // if not `field`
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_OPENAI_OPENAI_REQUEST_TEST_UTIL_H_
