// The administration's listener: the console's files, who may ask for what, and the drain.
#include "server/http/admin/admin_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <variant>

#include "server/http/all_protocols.h"
#include "server/http/api/api.h"
#include "server/http/scripted_engine_test_util.h"

namespace millrace {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Pair;

class AdminTest : public testing::Test {
 protected:
  static HttpRequestHead Head(std::string method, std::string path,
                              std::optional<std::string> origin = std::nullopt) {
    return {.method = std::move(method),
            .path = std::move(path),
            .host = "localhost:8002",
            .origin = std::move(origin),
            .content_type = "application/json"};
  }

  // The status that the header alone gets; 0: it passes.
  static int Checked(const Api& api, const HttpRequestHead& head) {
    const auto response = api.Check(head);
    return response ? response->status : 0;
  }

  ScriptedFrontend frontend_{"secret"};
  int drains_ = 0;
  const Api admin_{frontend_,
                   *HostPolicy::Make("127.0.0.1", {}, false),
                   {.listener = Listener::kAdmin, .drain = [this] { ++drains_; }},
                   AllProtocols()};
  const Api public_{frontend_, *HostPolicy::Make("127.0.0.1", {}, false), {}, AllProtocols()};
};

TEST_F(AdminTest, ServesThePageHereAlone) {
  for (const char* path : {"/", "/console/main.js", "/console/style.css", "/admin/status"}) {
    EXPECT_EQ(Checked(admin_, Head("GET", path)), 0) << path;
    HttpRequestHead head = Head("GET", path);
    head.authorization = "Bearer secret";
    // At the root others are told what this is.
    EXPECT_EQ(Checked(public_, head), std::string_view(path) == "/" ? 0 : 404) << path;
  }
  const auto page = std::get<HttpResponse>(admin_.Handle(Head("GET", "/"), "", [] {}));
  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.content_type, "text/html; charset=utf-8");
  EXPECT_THAT(page.headers,
              Contains(Pair("Content-Security-Policy", HasSubstr("default-src 'none'"))));
  EXPECT_THAT(page.headers, Contains(Pair("X-Content-Type-Options", "nosniff")));
  EXPECT_THAT(page.body, HasSubstr("<!doctype html>"));
  const std::string script =
      std::get<HttpResponse>(admin_.Handle(Head("GET", "/console/main.js"), "", [] {
      })).content_type;
  EXPECT_EQ(script, "text/javascript; charset=utf-8");
  for (const char* path : {"/console/", "/console/index.html", "/console/../main.js"}) {
    const Handled missing = admin_.Handle(Head("GET", path), "", [] {});
    EXPECT_EQ(std::get<HttpResponse>(missing).status, 404) << path;
  }
  EXPECT_EQ(Checked(admin_, Head("GET", "/x")), 404);  // "/" is no prefix
}

TEST_F(AdminTest, GeneratesForItsOwnPageAlone) {
  const std::string own = "http://localhost:8002";
  for (const char* path : {"/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"}) {
    EXPECT_EQ(Checked(admin_, Head("POST", path, own)), 0) << path;
    EXPECT_EQ(Checked(admin_, Head("POST", path)), 403) << path;
    EXPECT_EQ(Checked(admin_, Head("POST", path, "http://localhost:3000")), 403) << path;
    EXPECT_EQ(Checked(admin_, Head("POST", path, "http://evil.example")), 403) << path;
    EXPECT_EQ(Checked(admin_, Head("POST", path, "null")), 403) << path;
  }
  EXPECT_EQ(Checked(admin_, Head("POST", "/v1/embeddings", own)), 404);
  // The public port asks for a key still.
  EXPECT_EQ(Checked(public_, Head("POST", "/v1/chat/completions", own)), 401);
}

TEST_F(AdminTest, WhatChangesStateIsRefusedToOtherPages) {
  for (const auto& [method, path] : {std::pair("PUT", "/log"), std::pair("POST", "/admin/drain")}) {
    EXPECT_EQ(Checked(admin_, Head(method, path)), 0) << path;  // curl
    EXPECT_EQ(Checked(admin_, Head(method, path, "http://localhost:8002")), 0) << path;
    EXPECT_EQ(Checked(admin_, Head(method, path, "https://localhost:8002")), 0) << path;
    EXPECT_EQ(Checked(admin_, Head(method, path, "http://localhost:3000")), 403) << path;
    EXPECT_EQ(Checked(admin_, Head(method, path, "http://127.0.0.1:8002")), 403) << path;
    EXPECT_EQ(Checked(admin_, Head(method, path, "null")), 403) << path;
    HttpRequestHead rebound = Head(method, path, "http://evil.example:8002");
    rebound.host = "evil.example:8002";
    EXPECT_EQ(Checked(admin_, rebound), 403) << path;
  }
  EXPECT_EQ(Checked(admin_, Head("GET", "/admin/drain")), 405);
  HttpRequestHead form = Head("POST", "/admin/drain");
  form.content_type = "application/x-www-form-urlencoded";  // which a page may send unasked
  EXPECT_EQ(Checked(admin_, form), 415);
}

TEST_F(AdminTest, Drains) {
  const Handled handled = admin_.Handle(Head("POST", "/admin/drain"), "{}", [] {});
  EXPECT_EQ(std::get<HttpResponse>(handled).status, 202);
  EXPECT_EQ(drains_, 1);
}

// The scripted engine answers as one does that several others ask already.
TEST_F(AdminTest, AnEngineThatDoesNotAnswer) {
  const Handled handled = admin_.Handle(Head("GET", "/admin/status"), "", [] {});
  EXPECT_EQ(std::get<HttpResponse>(handled).status, 503);
}

}  // namespace
}  // namespace millrace
