// A generation of a scripted engine, for tests of what it answers.
#ifndef MILLRACE_SERVER_HTTP_OPENAI_GENERATION_TEST_UTIL_H_
#define MILLRACE_SERVER_HTTP_OPENAI_GENERATION_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "server/http/json/json_reader.h"
#include "server/http/openai/generation.h"
#include "server/http/scripted_engine_test_util.h"

namespace millrace {

// One generation, polled by hand.
struct Running {
  Running(ApiKind kind, std::string_view body) {
    auto request = ParseApiRequest(kind, body);
    EXPECT_TRUE(request.ok()) << request.status();
    answer =
        std::make_unique<Generation>(*std::move(request), "cmpl-1", engine, [this] { ++wakes; });
  }

  Answer::State Poll() { return answer->Poll(response, body); }
  ScriptedStream& stream(size_t n = 0) { return *engine.WaitStream(n); }

  // The JSON of each "data:" line; "[DONE]" as a string.
  std::vector<Json> Events() const {
    std::vector<Json> events;
    for (const std::string& part : std::vector<std::string>(absl::StrSplit(body, "\n\n"))) {
      if (part.empty()) continue;
      EXPECT_EQ(part.substr(0, 6), "data: ");
      EXPECT_EQ(part.find('\n'), part.npos);
      events.push_back(part == "data: [DONE]" ? Json("[DONE]") : Json::parse(part.substr(6)));
    }
    return events;
  }

  ScriptedEngine engine;
  int wakes = 0;
  std::unique_ptr<Generation> answer;
  HttpResponse response;
  std::string body;
};

inline TokenDetail Detail(std::string bytes, std::optional<float> logprob,
                          std::vector<TokenAlternative> top = {}) {
  return {.token = 'x', .bytes = std::move(bytes), .logprob = logprob, .top = std::move(top)};
}

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_OPENAI_GENERATION_TEST_UTIL_H_
