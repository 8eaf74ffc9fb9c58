#include "server/http/api/api.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <variant>

#include "base/log.h"
#include "server/http/all_protocols.h"
#include "server/http/json/json_reader.h"
#include "server/http/scripted_engine_test_util.h"

namespace millrace {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Pair;

HttpRequestHead Head(std::string method, std::string path) {
  return {.method = std::move(method),
          .path = std::move(path),
          .host = "localhost",
          .content_type = "application/json"};
}

class ApiTest : public testing::Test {
 protected:
  static HostPolicy Hosts() { return *HostPolicy::Make("127.0.0.1", {}, false); }

  // The status that the header alone gets; 0: it passes.
  static int Checked(const Api& api, const HttpRequestHead& head) {
    const auto response = api.Check(head);
    return response ? response->status : 0;
  }
  static HttpResponse Get(const Api& api, const std::string& path) {
    return std::get<HttpResponse>(api.Handle(Head("GET", path), "", [] {}));
  }
  static HttpResponse Post(const Api& api, const std::string& path, const std::string& body) {
    Handled handled = api.Handle(Head("POST", path), body, [] {});
    if (auto* answer = std::get_if<std::unique_ptr<Answer>>(&handled)) {
      HttpResponse response;
      std::string unused;
      EXPECT_EQ((*answer)->Poll(response, unused), Answer::State::kWhole);
      return response;
    }
    return std::get<HttpResponse>(std::move(handled));
  }

  ScriptedFrontend frontend_;
  const Api api_{frontend_, Hosts(), {}, AllProtocols()};
  ScriptedFrontend locked_{"secret"};
  const Api locked_api_{locked_, Hosts(), {}, AllProtocols()};
  const Api admin_{locked_, Hosts(), {.listener = Listener::kAdmin}, AllProtocols()};
};

TEST_F(ApiTest, PathsAndMethods) {
  for (const char* path :
       {"/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/tokenize", "/detokenize"}) {
    EXPECT_EQ(Checked(api_, Head("POST", path)), 0) << path;
    EXPECT_EQ(Checked(api_, Head("GET", path)), 405) << path;
    EXPECT_EQ(Checked(api_, Head("OPTIONS", path)), 204) << path;
  }
  for (const char* path :
       {"/v1/models", "/v1/models/x", "/livez", "/readyz", "/health", "/metrics", "/version",
        "/server_info", "/get_server_info", "/model_info", "/get_model_info", "/health_generate"}) {
    EXPECT_EQ(Checked(api_, Head("GET", path)), 0) << path;
    EXPECT_EQ(Checked(api_, Head("HEAD", path)), 0) << path;
    EXPECT_EQ(Checked(api_, Head("DELETE", path)), 405) << path;
  }
  for (const char* path : {"", "/v1", "/v1/completions/", "/V1/completions", "/log", "*",
                           "/v1/rerank/x", "/../livez"}) {
    EXPECT_EQ(Checked(api_, Head("POST", path)), 404) << path;
  }
  const auto refusal = api_.Check(Head("PUT", "/v1/models"));
  EXPECT_THAT(refusal->headers, Contains(Pair("Allow", "GET, HEAD, OPTIONS")));
  EXPECT_EQ(Json::parse(refusal->body)["error"]["code"], "method_not_allowed");
}

TEST_F(ApiTest, OnlyHealthAnswersWithoutAKey) {
  for (const char* path : {"/livez", "/readyz", "/health"}) {
    EXPECT_EQ(Checked(locked_api_, Head("GET", path)), 0) << path;
  }
  for (const char* path : {"/v1/models", "/metrics", "/version", "/nowhere", "/v1/completions",
                           "/server_info", "/get_model_info", "/health_generate"}) {
    EXPECT_EQ(Checked(locked_api_, Head("GET", path)), 401) << path;
  }
  HttpRequestHead head = Head("POST", "/v1/completions");
  const auto refusal = locked_api_.Check(head);
  ASSERT_TRUE(refusal);
  EXPECT_THAT(refusal->headers, Contains(Pair("WWW-Authenticate", "Bearer")));
  EXPECT_EQ(Json::parse(refusal->body)["error"]["code"], "invalid_api_key");
  head.authorization = "Bearer wrong";
  EXPECT_EQ(Checked(locked_api_, head), 401);
  head.authorization = "Bearer secret";
  EXPECT_EQ(Checked(locked_api_, head), 0);
}

TEST_F(ApiTest, ForeignHostsAndOriginsAreRefusedBeforeAnythingElse) {
  HttpRequestHead head = Head("GET", "/version");
  head.host = "evil.com";
  EXPECT_EQ(Checked(locked_api_, head), 403);
  EXPECT_EQ(Json::parse(locked_api_.Check(head)->body)["error"]["code"], "foreign_host");
  head.host = "localhost:8000";
  head.origin = "http://evil.com";
  EXPECT_EQ(Checked(locked_api_, head), 403);
  EXPECT_EQ(Checked(admin_, head), 403);

  // A probe may come by any name, and still from no page.
  HttpRequestHead probe = Head("GET", "/livez");
  probe.host = "evil.com";
  EXPECT_EQ(Checked(locked_api_, probe), 0);
  probe.origin = "http://evil.com";
  EXPECT_EQ(Checked(locked_api_, probe), 403);
}

TEST_F(ApiTest, AListenerForMetricsHasThemAndProbesAlone) {
  const Api metrics(locked_, Hosts(), {.listener = Listener::kMetrics}, AllProtocols());
  for (const char* path : {"/metrics", "/livez", "/readyz", "/health"}) {
    EXPECT_EQ(Checked(metrics, Head("GET", path)), 0) << path;
  }
  for (const char* path : {"/v1/models", "/version", "/log", "/server_info", "/tokenizer_info"}) {
    EXPECT_EQ(Checked(metrics, Head("GET", path)), 404) << path;
  }
  EXPECT_EQ(Checked(metrics, Head("POST", "/v1/completions")), 404);
}

TEST_F(ApiTest, APreflightOfAnAllowedPageNeedsNoKey) {
  const Api api(locked_, Hosts(), {.allowed_origins = {"https://app.example"}}, AllProtocols());
  HttpRequestHead head = Head("OPTIONS", "/v1/completions");
  head.origin = "https://app.example";
  head.cors_method = "POST";
  head.cors_headers = "authorization";
  const auto answer = api.Check(head);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 204);
  EXPECT_THAT(answer->headers, Contains(Pair("Access-Control-Allow-Methods", "POST, OPTIONS")));
  EXPECT_THAT(answer->headers, Contains(Pair("Access-Control-Allow-Headers", "authorization")));
  head.cors_method.clear();
  EXPECT_EQ(Checked(api, head), 401);
  head.cors_method = "POST";
  head.origin = "https://other.example";
  EXPECT_EQ(Checked(api, head), 403);
}

TEST_F(ApiTest, ABodyMustBeJsonAndNotTooLarge) {
  HttpRequestHead head = Head("POST", "/v1/completions");
  for (const char* good : {"application/json", "Application/JSON",
                           "application/json; charset=utf-8", "application/json;charset=utf-8"}) {
    head.content_type = good;
    EXPECT_EQ(Checked(api_, head), 0) << good;
  }
  for (const char* bad : {"", "text/plain", "application/x-www-form-urlencoded",
                          "application/jsonl", "multipart/form-data"}) {
    head.content_type = bad;
    EXPECT_EQ(Checked(api_, head), 415) << bad;
  }
  head = Head("POST", "/v1/completions");
  head.content_encoding = "gzip";
  EXPECT_EQ(Checked(api_, head), 415);
  head = Head("POST", "/v1/completions");
  head.content_length = (32 << 20) + 1;
  EXPECT_EQ(Checked(api_, head), 413);
  head.content_length = 32 << 20;
  EXPECT_EQ(Checked(api_, head), 0);
}

TEST_F(ApiTest, WarmUpAndDrainRefuseWorkButNotQuestions) {
  for (std::atomic<bool>* flag : {&frontend_.is_ready, &frontend_.is_draining}) {
    *flag = flag == &frontend_.is_draining;
    const auto refusal = api_.Check(Head("POST", "/v1/chat/completions"));
    ASSERT_TRUE(refusal);
    EXPECT_EQ(refusal->status, 503);
    EXPECT_THAT(refusal->headers, Contains(Pair("Retry-After", "5")));
    EXPECT_EQ(Get(api_, "/livez").status, 200);
    EXPECT_EQ(Get(api_, "/readyz").status, 503);
    EXPECT_EQ(Get(api_, "/health").status, 503);
    EXPECT_EQ(Checked(api_, Head("GET", "/metrics")), 0);
    frontend_.is_ready = true;
  }
  frontend_.is_draining = false;
  EXPECT_EQ(Get(api_, "/readyz").status, 200);
  frontend_.is_live = false;
  for (const char* path : {"/livez", "/readyz", "/health"}) EXPECT_EQ(Get(api_, path).status, 503);
}

TEST_F(ApiTest, Models) {
  const Json list = Json::parse(Get(api_, "/v1/models").body);
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"], Json::parse(R"([{"id": "scripted", "object": "model",
      "created": 1700000000, "owned_by": "millrace", "root": "scripted", "parent": null,
      "max_model_len": 2048, "kv_cache_tokens": 1600,
      "state": [{"kind": "pages", "window": null, "block_bytes": 4096, "blocks": 100},
                {"kind": "pages", "window": 128, "block_bytes": 2048, "blocks": 20}],
      "architecture": "llama", "batch_invariant": true,
      "tensor_parallel_size": 1, "expert_parallel": false, "default_sampling_params": {}}])"));
  EXPECT_EQ(Json::parse(Get(api_, "/v1/models/scripted").body), list["data"][0]);
  EXPECT_EQ(Get(api_, "/v1/models/s%63ripted").status, 200);
  for (const char* path : {"/v1/models/other", "/v1/models/", "/v1/models/%", "/v1/models/%zz"}) {
    const HttpResponse response = Get(api_, path);
    EXPECT_EQ(response.status, 404) << path;
    EXPECT_EQ(Json::parse(response.body)["error"]["code"], "model_not_found");
  }
}

TEST_F(ApiTest, TokenizeAndDetokenize) {
  EXPECT_EQ(Json::parse(Post(api_, "/tokenize", R"({"prompt": "ab"})").body),
            Json::parse(R"({"count": 2, "max_model_len": 2048, "tokens": [97, 98],
                            "token_strs": null})"));
  EXPECT_EQ(Json::parse(Post(api_, "/tokenize", R"({"prompt": "ab", "return_token_strs": true})")
                            .body)["token_strs"],
            Json::parse(R"(["a", "b"])"));
  EXPECT_EQ(Json::parse(Post(api_, "/detokenize", R"({"tokens": [97, 98]})").body),
            Json::parse(R"({"prompt": "ab"})"));
  EXPECT_EQ(Post(api_, "/tokenize", R"({"prompt": "ab", "model": "other"})").status, 404);
  EXPECT_EQ(Post(api_, "/detokenize", R"({})").status, 400);
  EXPECT_EQ(Post(api_, "/tokenize", R"({"messages": [{"role": "user", "content": "x"}]})").status,
            400);
}

TEST_F(ApiTest, AnUnknownModelIsNotFound) {
  const HttpResponse response =
      Post(api_, "/v1/completions", R"({"model": "gpt-4", "prompt": "x"})");
  EXPECT_EQ(response.status, 404);
  EXPECT_EQ(Json::parse(response.body)["error"],
            Json::parse(R"({"message": "the model \"gpt-4\" does not exist",
                            "type": "invalid_request_error", "param": "model",
                            "code": "model_not_found"})"));
  EXPECT_EQ(frontend_.engine.num_requests(), 0u);
}

TEST_F(ApiTest, Metrics) {
  const HttpResponse response = Get(api_, "/metrics");
  EXPECT_EQ(response.content_type, "text/plain; version=0.0.4; charset=utf-8");
  EXPECT_THAT(response.body, HasSubstr("# HELP"));
  EXPECT_EQ(api_.CostOf(Head("GET", "/metrics"), 0), RequestCost::kRendering);
}

TEST_F(ApiTest, TheOperatorNeedsNoKeyAndSetsLogLevels) {
  EXPECT_EQ(Checked(admin_, Head("GET", "/metrics")), 0);
  EXPECT_EQ(Checked(admin_, Head("POST", "/v1/completions")), 403);  // for its own page alone
  EXPECT_EQ(Checked(admin_, Head("PUT", "/log")), 0);
  EXPECT_EQ(Checked(admin_, Head("DELETE", "/log")), 405);
  const auto put = [this](const std::string& levels) {
    return std::get<HttpResponse>(admin_.Handle(Head("PUT", "/log"), levels, [] {}));
  };
  const std::string before = LogLevels();
  EXPECT_EQ(put("engine=debug\n").status, 200);
  EXPECT_THAT(Get(admin_, "/log").body, HasSubstr("engine=debug"));
  EXPECT_EQ(put("engine=loud").status, 400);
  EXPECT_THAT(LogLevels(), HasSubstr("engine=debug"));
  ASSERT_TRUE(SetLogLevels(before).ok());
}

}  // namespace
}  // namespace millrace
