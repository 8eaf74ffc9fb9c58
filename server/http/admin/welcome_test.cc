#include "server/http/admin/welcome.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "formats/json/json.h"
#include "server/http/all_protocols.h"
#include "server/http/api/api.h"
#include "server/http/scripted_engine_test_util.h"

namespace millrace {
namespace {

using testing::HasSubstr;
using testing::Not;

HttpRequestHead Get(const std::string& accept) {
  HttpRequestHead head;
  head.method = "GET";
  head.path = "/";
  head.host = "localhost";
  head.accept = accept;
  return head;
}

TEST(WelcomeTest, SaysWhatThisIsAndWhere) {
  ScriptedFrontend frontend;
  const HttpResponse text = WelcomeResponse(Get("*/*"), frontend, "http://127.0.0.1:8002/");
  EXPECT_EQ(text.content_type, "text/plain; charset=utf-8");
  EXPECT_THAT(text.body, HasSubstr("Millrace "));
  for (const char* path : {"/v1/chat/completions", "/v1/models", "/openapi.json", "/readyz",
                           "http://127.0.0.1:8002/ on the server's own machine"}) {
    EXPECT_THAT(text.body, HasSubstr(path));
  }
  EXPECT_THAT(text.body, Not(HasSubstr("Bearer")));
  const HttpResponse page =
      WelcomeResponse(Get("text/html,application/xhtml+xml,*/*;q=0.8"), frontend, "");
  EXPECT_EQ(page.content_type, "text/html; charset=utf-8");
  EXPECT_THAT(page.body, HasSubstr("<a href=\"/openapi.json\">"));
  EXPECT_THAT(page.body, Not(HasSubstr("Console")));
}

TEST(WelcomeTest, ClientsOfJsonGetJson) {
  ScriptedFrontend frontend;
  const HttpResponse response = WelcomeResponse(Get("application/json"), frontend, "");
  EXPECT_EQ(response.content_type, "application/json");
  const Json json = Json::parse(response.body);
  EXPECT_EQ(json["name"], "millrace");
  EXPECT_EQ(json["endpoints"]["messages"], "/v1/messages");
  EXPECT_EQ(json["models"].size(), 1u);
  EXPECT_EQ(json["needs_key"], false);
  EXPECT_EQ(WelcomeResponse(Get("text/html, application/json"), frontend, "").content_type,
            "text/html; charset=utf-8");
  // Who shows no key is not told the models' names.
  ScriptedFrontend locked("secret");
  const Json closed = Json::parse(WelcomeResponse(Get("application/json"), locked, "").body);
  EXPECT_FALSE(closed.contains("models"));
  EXPECT_EQ(closed["needs_key"], true);
}

TEST(WelcomeTest, NeedsNoKeyAndSaysThatOthersDo) {
  ScriptedFrontend locked("secret");
  const Api api(locked, *HostPolicy::Make("127.0.0.1", {}, true), {}, AllProtocols());
  EXPECT_FALSE(api.Check(Get("*/*")).has_value());
  EXPECT_THAT(WelcomeResponse(Get("*/*"), locked, "").body, HasSubstr("Authorization: Bearer KEY"));
  // A listener for metrics has them and the probes alone.
  const Api metrics(locked, *HostPolicy::Make("127.0.0.1", {}, true),
                    {.listener = Listener::kMetrics}, AllProtocols());
  EXPECT_EQ(metrics.Check(Get("*/*"))->status, 404);
}

}  // namespace
}  // namespace millrace
