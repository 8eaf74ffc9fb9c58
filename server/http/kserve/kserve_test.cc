// The Open Inference Protocol over HTTP: a scripted model of embeddings, and the JSON of tensors.
#include "server/http/kserve/kserve.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "base/strings.h"
#include "formats/json/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/http/endpoint_test_util.h"
#include "server/http/kserve/kserve_json.h"
#include "server/kserve/tensor_query.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kInfer = "/v2/models/scripted/infer";

std::string Floats(std::vector<float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

// Embeds each text as (its bytes, -0.5).
Embeddings Embed(const EmbedRequest& request) {
  Embeddings embeddings = {.size = 2};
  for (const Prompt& input : request.inputs) {
    const auto size = static_cast<float>(std::get<std::string>(input).size());
    embeddings.values.insert(embeddings.values.end(), {size, -0.5f});
  }
  return embeddings;
}

class KserveTest : public ::testing::Test {
 protected:
  KserveTest() {
    endpoint_.Start();
    endpoint_.engine().set_embed_script(Embed);
    endpoint_.engine().set_embedding_size(2);
  }

  // The text of an error, which is all that its body has.
  std::string Error(int status, std::string_view method, std::string_view path,
                    std::string_view body = "", std::string_view headers = "") const {
    const ClientResponse response = endpoint_.Ask(method, path, body, headers);
    EXPECT_EQ(response.status, status) << path << " " << response.body;
    const Json json = Json::parse(response.body, nullptr, false);
    if (!json.is_object() || json.size() != 1 || !json.contains("error") ||
        !json["error"].is_string()) {
      ADD_FAILURE() << response.body;
      return "";
    }
    return json["error"];
  }

  TestEndpoint endpoint_;
};

TEST_F(KserveTest, SaysWhatTheServerAndTheModelAre) {
  const Json server = Json::parse(endpoint_.Ask("GET", "/v2").body);
  EXPECT_EQ(server["name"], "millrace");
  EXPECT_EQ(server["extensions"], Json::array({"binary_tensor_data"}));
  for (const char* path : {"/v2/models/scripted", "/v2/models/scripted/versions/1"}) {
    const Json model = Json::parse(endpoint_.Ask("GET", path).body);
    EXPECT_EQ(model["name"], "scripted");
    EXPECT_EQ(model["versions"], Json::array({"1"}));
    EXPECT_EQ(model["inputs"], Json::parse(R"([{"name":"text","datatype":"BYTES","shape":[-1]}])"));
    EXPECT_EQ(model["outputs"],
              Json::parse(R"([{"name":"embedding","datatype":"FP32","shape":[-1,2]}])"));
  }
}

TEST_F(KserveTest, HealthFollowsTheServer) {
  constexpr std::string_view kPaths[] = {"/v2/health/live", "/v2/health/ready",
                                         "/v2/models/scripted/ready",
                                         "/v2/models/scripted/versions/1/ready"};
  for (const std::string_view path : kPaths) EXPECT_EQ(endpoint_.Ask("GET", path).status, 200);
  endpoint_.frontend().is_ready = false;
  EXPECT_EQ(endpoint_.Ask("GET", kPaths[0]).status, 200);
  for (const std::string_view path : {kPaths[1], kPaths[2], kPaths[3]}) Error(503, "GET", path);
  endpoint_.frontend().is_live = false;
  Error(503, "GET", kPaths[0]);
}

TEST_F(KserveTest, TextsComeBackAsEmbeddings) {
  for (const std::string_view path :
       {kInfer, std::string_view("/v2/models/scripted/versions/1/infer")}) {
    const ClientResponse response = endpoint_.Ask(
        "POST", path,
        R"({"id": "mine", "inputs": [{"name": "text", "datatype": "BYTES", "shape": [2],
            "data": ["abc", "defg"]}], "parameters": {"priority": 3, "dimensions": 2}})");
    EXPECT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(Json::parse(response.body), Json::parse(R"({"model_name": "scripted",
        "model_version": "1", "id": "mine", "outputs": [{"name": "embedding", "datatype": "FP32",
        "shape": [2, 2], "data": [3, -0.5, 4, -0.5]}]})"));
    EXPECT_EQ(endpoint_.engine().WaitEmbed().priority, 3);
    EXPECT_EQ(endpoint_.engine().WaitEmbed().dimensions, 2);
  }
}

TEST_F(KserveTest, TensorsComeAndGoInBinary) {
  const std::string json =
      R"({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1, 1],
          "parameters": {"binary_data_size": 7}}], "parameters": {"binary_data_output": true}})";
  std::string body = json;
  AppendBytes("abc", body);
  const std::string length = StrCat("Inference-Header-Content-Length: ", json.size(), "\r\n");
  const ClientResponse response = endpoint_.Ask("POST", kInfer, body, length);
  ASSERT_EQ(response.status, 200) << response.body;
  const size_t end = response.body.find("]}") + 2;
  const Json head = Json::parse(response.body.substr(0, end));
  EXPECT_EQ(head["outputs"][0]["parameters"]["binary_data_size"], 8);
  EXPECT_EQ(response.body.substr(end), Floats({3, -0.5}));
  for (const char* wrong : {"-1", "x", "1e3", "99999999999999999999999"}) {
    Error(400, "POST", kInfer, body, StrCat("Inference-Header-Content-Length: ", wrong, "\r\n"));
  }
  EXPECT_THAT(Error(400, "POST", kInfer, body, "Inference-Header-Content-Length: 99999\r\n"),
              HasSubstr("Inference-Header-Content-Length is 99999; allowed: at most the body's"));
  EXPECT_THAT(Error(400, "POST", kInfer, body + "x", length), HasSubstr("1 bytes behind the JSON"));
  EXPECT_THAT(Error(400, "POST", kInfer, json, length),
              HasSubstr("inputs[0].parameters.binary_data_size is 7; allowed: up to the 0 bytes"));
}

TEST_F(KserveTest, ErrorsAreTextsOfTheirOwnShape) {
  EXPECT_THAT(Error(404, "GET", "/v2/models/other"), HasSubstr("other"));
  EXPECT_THAT(Error(404, "GET", "/v2/models/scripted/versions/2"), HasSubstr("version \"2\""));
  EXPECT_THAT(Error(404, "POST", "/v2/models/other/infer", R"({"inputs": []})"),
              HasSubstr("other"));
  Error(404, "GET", "/v2/health/other");
  EXPECT_THAT(Error(405, "GET", kInfer), HasSubstr("is POST"));
  Error(405, "POST", "/v2/models/scripted/ready", "{}");
  Error(405, "PUT", kInfer, "{}");
  Error(400, "POST", kInfer, "{");
  const auto refused = [&](std::string_view body) { return Error(400, "POST", kInfer, body); };
  EXPECT_THAT(refused("{}"), HasSubstr("inputs"));
  EXPECT_THAT(refused(R"({"inputs": [], "extra": 1})"), HasSubstr("extra"));
  EXPECT_THAT(refused(R"({"inputs": []})"), HasSubstr("input text is missing"));
  EXPECT_THAT(refused(R"({"inputs": [5]})"), HasSubstr("inputs[0]"));
  EXPECT_THAT(
      refused(R"({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [7]}]})"),
      HasSubstr("inputs[0].data[0] is 7; allowed: a string"));
  EXPECT_THAT(refused(R"({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [2],
                       "data": ["a"]}]})"),
              HasSubstr("input text: has 1 elements, by its shape 2"));
  EXPECT_THAT(refused(R"({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1],
                       "data": ["a"]}], "parameters": {"sequence_id": 3}})"),
              HasSubstr("parameters.sequence_id is 3"));
  EXPECT_THAT(refused(R"({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1],
                       "data": ["a"]}], "outputs": [{"name": "logits"}]})"),
              HasSubstr("output logits is not one of the model's; allowed: embedding"));
}

// Triton's clients say no type.
TEST_F(KserveTest, BodiesNeedNoType) {
  const std::string body =
      R"({"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": ["abc"]}]})";
  for (const auto& [type, status] : {std::pair<std::string_view, int>{"", 200},
                                     {"Content-Type: application/octet-stream\r\n", 200},
                                     {"Content-Type: application/json\r\n", 200},
                                     {"Content-Type: text/plain\r\n", 415}}) {
    RawClient client(endpoint_.port());
    client.Send(StrCat("POST ", kInfer, " HTTP/1.1\r\nHost: localhost\r\n", type,
                       "Content-Length: ", body.size(), "\r\n\r\n", body));
    EXPECT_EQ(client.Read().status, status) << type;
  }
}

TEST_F(KserveTest, AModelThatGeneratesHasNoTensors) {
  endpoint_.engine().set_embedding_size(0);
  const Json model = Json::parse(endpoint_.Ask("GET", "/v2/models/scripted").body);
  EXPECT_TRUE(model["inputs"].empty() && model["outputs"].empty());
  EXPECT_THAT(Error(400, "POST", kInfer, R"({"inputs": []})"), HasSubstr("which generates"));
}

TEST(KservePathTest, AModelsNameMayHaveSlashes) {
  const auto parse = [](std::string_view rest) {
    const KserveModelPath path = ParseKserveModelPath(rest);
    return StrCat(path.model, " ", path.version, " ", static_cast<int>(path.action));
  };
  EXPECT_EQ(parse("m"), "m  0");
  EXPECT_EQ(parse("m/ready"), "m  1");
  EXPECT_EQ(parse("m/versions/1/infer"), "m 1 2");
  EXPECT_EQ(parse("org/name/infer"), "org/name  2");
  EXPECT_EQ(parse("org%2Fname/versions/a%20b"), "org/name a b 0");
  EXPECT_EQ(parse(""), "  0");
}

// An input of each type, and the same as an output.
TEST(KserveJsonTest, ElementsOfEveryTypeComeAndGo) {
  for (const auto& [type, elements] :
       {std::pair<std::string_view, std::string_view>{"BOOL", "[true,false]"},
        {"UINT8", "[0,255]"},
        {"INT8", "[-128,127]"},
        {"INT16", "[-32768,32767]"},
        {"INT32", "[-2147483648,2147483647]"},
        {"INT64", "[-9223372036854775808,9223372036854775807]"},
        {"FP32", "[0.5,-1e+10]"},
        {"FP64", "[0.1,-1e+300]"}}) {
    const std::string body = StrCat(R"({"inputs":[{"name":"x","shape":[2],"datatype":")", type,
                                    R"(","data":)", elements, "}]}");
    absl::StatusOr<KserveRequest> request = ParseKserveRequest(body, std::nullopt);
    ASSERT_TRUE(request.ok()) << request.status();
    const auto reply = KserveReply(KserveRequest(), "m", request->query.inputs);
    ASSERT_TRUE(reply.ok()) << reply.status();
    EXPECT_THAT(reply->body, HasSubstr(StrCat(R"("data":)", elements)));
  }
  const auto nested = ParseKserveRequest(
      R"({"inputs":[{"name":"x","shape":[2,2],"datatype":"FP32","data":[[1,2],[3,4]]}]})",
      std::nullopt);
  EXPECT_EQ(nested->query.inputs[0].data, Floats({1, 2, 3, 4}));
}

TEST(KserveJsonTest, RefusesElementsOutOfRange) {
  for (const auto& [type, element] : {std::pair<std::string_view, std::string_view>{"UINT8", "256"},
                                      {"INT8", "-129"},
                                      {"INT64", "9223372036854775808"},
                                      {"INT32", "1.5"},
                                      {"BOOL", "1"},
                                      {"FP32", "\"1\""},
                                      {"FP16", "1"},
                                      {"UINT64", "1"},
                                      {"TEXT", "1"}}) {
    const std::string body = StrCat(R"({"inputs":[{"name":"x","shape":[1],"datatype":")", type,
                                    R"(","data":[)", element, "]}]}");
    const absl::Status status = ParseKserveRequest(body, std::nullopt).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("inputs[0].d")) << type;
  }
}

TEST(KserveJsonTest, WhatJsonDoesNotHaveGoesOutInBinary) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<WireTensor> floats = {
      {.name = "y", .datatype = "FP32", .shape = {2}, .data = Floats({infinity, 1})}};
  EXPECT_THAT(KserveReply(KserveRequest(), "m", floats)->body, HasSubstr("[null,1]"));
  const std::vector<WireTensor> halves = {
      {.name = "h", .datatype = "FP16", .shape = {1}, .data = "ab"}};
  EXPECT_THAT(std::string(KserveReply(KserveRequest(), "m", halves).status().message()),
              HasSubstr("allowed: binary_data"));
  KserveRequest binary;
  binary.query.outputs = {"h"};
  binary.binary = {true};
  const auto reply = KserveReply(binary, "m", halves);
  ASSERT_TRUE(reply.ok());
  EXPECT_EQ(reply->content_type, "application/octet-stream");
  EXPECT_TRUE(reply->body.ends_with("]}ab"));
  EXPECT_EQ(reply->headers[0].second, StrCat(reply->body.size() - 2));
}

}  // namespace
}  // namespace millrace
