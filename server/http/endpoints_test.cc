// Every endpoint that is registered: its access, its methods and its limits, as docs/http-api.md
// lists them and as Api enforces them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "server/http/all_protocols.h"
#include "server/http/api/api.h"
#include "server/http/api/endpoint.h"
#include "server/http/scripted_engine_test_util.h"
#include "server/http/transport/http_limits.h"

namespace millrace {
namespace {

// An endpoint without access does not compile.
template <typename T>
concept NeedsNoAccess = requires {
  T{.method = "GET", .path = "/"};
};
template <typename T>
concept TakesAccess = requires {
  T{.method = "GET", .path = "/", .access = Scope::kInfer};
};
static_assert(!NeedsNoAccess<HttpEndpoint> && TakesAccess<HttpEndpoint>);

constexpr Listener kListeners[] = {Listener::kPublic, Listener::kAdmin, Listener::kMetrics};
constexpr std::string_view kScopeNames[kNumScopes] = {"any", "infer", "metrics", "admin"};

std::vector<HttpEndpoint> AllEndpoints() {
  std::vector<HttpEndpoint> all;
  for (HttpProtocol& protocol : AllProtocols()) {
    for (HttpEndpoint& endpoint : protocol.endpoints) all.push_back(std::move(endpoint));
  }
  return all;
}

std::string KeyOf(const HttpEndpoint& endpoint) {
  if (endpoint.access.open()) return "none";
  const Scope scope = endpoint.access.scope();
  const std::string_view name = kScopeNames[static_cast<size_t>(scope)];
  return scope == Scope::kAny ? std::string(name) : StrCat("`", name, "`");
}

std::string PortsOf(const HttpEndpoint& endpoint) {
  constexpr std::pair<Listener, std::string_view> kPorts[] = {
      {Listener::kPublic, "HTTP"}, {Listener::kAdmin, "admin"}, {Listener::kMetrics, "metrics"}};
  std::vector<std::string> ports;
  for (const auto& [listener, name] : kPorts) {
    if (endpoint.listeners.Has(listener)) ports.emplace_back(name);
  }
  return JoinList(ports);
}

std::string BodyOf(const HttpEndpoint& endpoint) {
  const uint64_t most = std::min(endpoint.body.max_bytes, HttpLimits().body_bytes);
  const bool mebibytes = most % (1 << 20) == 0;
  const std::string limit = StrCat(most >> (mebibytes ? 20 : 10), mebibytes ? " MiB" : " KiB");
  switch (endpoint.body.media) {
    case BodyMedia::kJson:
      return StrCat("JSON, ", limit);
    case BodyMedia::kJsonOrTensors:
      return StrCat("JSON and tensors, ", limit);
    case BodyMedia::kAny:
      break;
  }
  return StrCat(endpoint.doc.body_media.empty() ? "not read, " : "text, ", limit);
}

// ctest runs in the root of the source tree.
TEST(EndpointsTest, TheDocumentedTableIsThisOne) {
  std::string table = "| method | path | key | ports | body |\n|---|---|---|---|---|\n";
  for (const HttpEndpoint& endpoint : AllEndpoints()) {
    table += StrCat("| ", endpoint.method, " | `", endpoint.path, "` | ", KeyOf(endpoint), " | ",
                    PortsOf(endpoint), " | ", BodyOf(endpoint), " |\n");
  }
  std::ifstream file("docs/http-api.md");
  const std::string document(std::istreambuf_iterator<char>(file), {});
  const std::string expected = StrCat("<!-- endpoints -->\n", table, "<!-- /endpoints -->\n");
  EXPECT_NE(document.find(expected), document.npos)
      << "The table of docs/http-api.md is not that of the endpoints. Put this between its "
         "markers:\n"
      << expected;
}

TEST(EndpointsTest, NoneIsThereTwice) {
  for (const Listener listener : kListeners) {
    std::set<std::string> seen;
    for (const HttpEndpoint& endpoint : AllEndpoints()) {
      if (!endpoint.listeners.Has(listener)) continue;
      const std::string name = StrCat(endpoint.method, " ", endpoint.fixed_path());
      EXPECT_TRUE(seen.insert(name).second) << name;
      EXPECT_TRUE(endpoint.handle) << name;
    }
  }
}

// Work that a key pays for is refused while the server is not ready; what a browser's form could
// send is refused everywhere.
TEST(EndpointsTest, APostReadsJsonAndAQuestionReadsNothing) {
  for (const HttpEndpoint& endpoint : AllEndpoints()) {
    const bool posts = endpoint.method == "POST";
    EXPECT_EQ(posts, endpoint.body.media != BodyMedia::kAny) << endpoint.path;
    if (!endpoint.serving) continue;
    EXPECT_TRUE(posts) << endpoint.path;
    EXPECT_EQ(endpoint.access.scope(), Scope::kInfer) << endpoint.path;
  }
}

// Its keys are named after the only scope that each has.
class ScopedFrontend : public ScriptedFrontend {
 public:
  using ScriptedFrontend::Authorize;
  absl::Status Authorize(const Credentials& shown, Scope scope,
                         std::shared_ptr<const Tenant>* /*tenant*/) const override {
    for (const Scope own : {Scope::kInfer, Scope::kMetrics, Scope::kAdmin}) {
      if (shown.authorization != kScopeNames[static_cast<size_t>(own)]) continue;
      if (scope == Scope::kAny || scope == own) return absl::OkStatus();
      return absl::PermissionDeniedError("the key lacks the scope");
    }
    return absl::UnauthenticatedError("a valid API key is needed");
  }
  bool guards_admin() const override { return true; }
};

class EndpointAccessTest : public testing::TestWithParam<Listener> {
 protected:
  // A request of the listener's own page.
  static HttpRequestHead Head(const HttpEndpoint& endpoint) {
    return {.method = std::string(endpoint.method),
            .path = std::string(endpoint.fixed_path()),
            .host = "localhost",
            .origin = "http://localhost",
            .content_type = "application/json"};
  }
  // Returns the status that the header alone gets; 0: it passes.
  int Checked(const HttpRequestHead& head) const {
    const auto response = api_.Check(head);
    return response ? response->status : 0;
  }

  ScopedFrontend frontend_;
  const Api api_{frontend_,
                 *HostPolicy::Make("127.0.0.1", {}, false),
                 {.listener = GetParam()},
                 AllProtocols()};
};

TEST_P(EndpointAccessTest, AKeyOpensItsOwnEndpointsAlone) {
  for (const HttpEndpoint* const endpoint : api_.endpoints()) {
    HttpRequestHead head = Head(*endpoint);
    const bool free = endpoint->access.open() || GetParam() == Listener::kMetrics;
    EXPECT_EQ(Checked(head), free ? 0 : 401) << head.method << " " << head.path;
    EXPECT_EQ(api_.IsOpen(head), endpoint->access.open()) << head.path;
    for (const Scope own : {Scope::kInfer, Scope::kMetrics, Scope::kAdmin}) {
      const Scope wanted = endpoint->access.scope();
      head.authorization = kScopeNames[static_cast<size_t>(own)];
      const bool opens = free || wanted == Scope::kAny || wanted == own;
      EXPECT_EQ(Checked(head), opens ? 0 : 403)
          << head.method << " " << head.path << " with " << head.authorization;
    }
  }
}

TEST_P(EndpointAccessTest, ABodyThatIsTooLongIsRefusedBeforeItComes) {
  for (const HttpEndpoint* const endpoint : api_.endpoints()) {
    HttpRequestHead head = Head(*endpoint);
    const Scope scope = endpoint->access.scope();
    head.authorization =
        kScopeNames[static_cast<size_t>(scope == Scope::kAny ? Scope::kInfer : scope)];
    head.content_length = api_.MaxBodyBytes(head);
    EXPECT_EQ(Checked(head), 0) << head.method << " " << head.path;
    ++*head.content_length;
    EXPECT_EQ(Checked(head), 413) << head.method << " " << head.path;
  }
}

TEST_P(EndpointAccessTest, OtherListenersEndpointsAreNotThere) {
  std::set<std::pair<std::string_view, std::string_view>> own;
  for (const HttpEndpoint* const endpoint : api_.endpoints()) {
    own.emplace(endpoint->method, endpoint->path);
  }
  for (const HttpEndpoint& endpoint : AllEndpoints()) {
    const bool there = own.contains({endpoint.method, endpoint.path});
    EXPECT_EQ(api_.HandlerOf(Head(endpoint)).name == endpoint.path, there)
        << endpoint.method << " " << endpoint.path;
  }
}

INSTANTIATE_TEST_SUITE_P(Listeners, EndpointAccessTest, testing::ValuesIn(kListeners));

}  // namespace
}  // namespace millrace
