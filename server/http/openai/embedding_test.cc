#include "server/http/openai/embedding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/strings.h"
#include "server/http/endpoint_test_util.h"
#include "server/http/json/json_reader.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kPath = "/v1/embeddings";

// Embeds each input as (number of its tokens or bytes, -0.5).
Embeddings Embed(const EmbedRequest& request) {
  Embeddings embeddings = {.size = 2};
  for (const Prompt& input : request.inputs) {
    const auto* text = std::get_if<std::string>(&input);
    const size_t size = text != nullptr ? text->size() : std::get<std::vector<Token>>(input).size();
    embeddings.values.insert(embeddings.values.end(), {static_cast<float>(size), -0.5f});
    embeddings.prompt_tokens += static_cast<int64_t>(size);
  }
  return embeddings;
}

class EmbeddingTest : public ::testing::Test {
 protected:
  EmbeddingTest() {
    endpoint_.Start();
    endpoint_.engine().set_embed_script(Embed);
    endpoint_.engine().set_embedding_size(2);
  }

  Json Answer(std::string_view body) const {
    const ClientResponse response = endpoint_.Ask("POST", kPath, body);
    EXPECT_EQ(response.status, 200) << response.body;
    return Json::parse(response.body);
  }
  // The param and the message of a refusal.
  std::pair<std::string, std::string> Refused(std::string_view body) const {
    const ClientResponse response = endpoint_.Ask("POST", kPath, body);
    EXPECT_EQ(response.status, 400) << response.body;
    const Json error = Json::parse(response.body)["error"];
    return {error["param"].is_string() ? error["param"].get<std::string>() : "",
            error["message"].get<std::string>()};
  }

  TestEndpoint endpoint_;
};

TEST_F(EmbeddingTest, HasOpenAisShape) {
  Json json = Answer(R"({"model": "scripted", "input": "four", "user": "u"})");
  EXPECT_GT(json["created"].get<int64_t>(), 1'700'000'000);
  EXPECT_THAT(json["id"].get<std::string>(), HasSubstr("embd-"));
  json.erase("created");
  json.erase("id");
  EXPECT_EQ(json, Json::parse(R"({"object": "list", "model": "scripted",
      "data": [{"object": "embedding", "index": 0, "embedding": [4, -0.5]}],
      "usage": {"prompt_tokens": 4, "total_tokens": 4}})"));
}

TEST_F(EmbeddingTest, TakesEveryKindOfInput) {
  const std::pair<const char*, std::vector<int>> kinds[] = {
      {R"(["a", "four", "abc"])", {1, 4, 3}}, {"[5, 6]", {2}}, {"[[5, 6, 7], [8]]", {3, 1}}};
  for (const auto& [input, sizes] : kinds) {
    const Json json = Answer(StrCat(R"({"input": )", input, "}"));
    ASSERT_EQ(json["data"].size(), sizes.size()) << input;
    int total = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      EXPECT_EQ(json["data"][i]["index"], i);
      EXPECT_EQ(json["data"][i]["embedding"][0], sizes[i]) << input;
      total += sizes[i];
    }
    EXPECT_EQ(json["usage"]["prompt_tokens"], total);
  }
}

TEST_F(EmbeddingTest, Base64IsLittleEndianFloats) {
  const Json json = Answer(R"({"input": "four", "encoding_format": "base64", "dimensions": 2})");
  std::string bytes;
  ASSERT_TRUE(absl::Base64Unescape(json["data"][0]["embedding"].get<std::string>(), &bytes));
  float values[2];
  ASSERT_EQ(bytes.size(), sizeof(values));
  std::memcpy(values, bytes.data(), sizeof(values));
  EXPECT_EQ(values[0], 4);
  EXPECT_EQ(values[1], -0.5f);
}

TEST_F(EmbeddingTest, PassesOnHowLongATextMayBeAndHowUrgentItIs) {
  Answer(R"({"input": "four", "truncate_prompt_tokens": -1, "priority": 3, "dimensions": 2})");
  EXPECT_EQ(endpoint_.engine().WaitEmbed().dimensions, 2);
  EXPECT_EQ(endpoint_.engine().WaitEmbed().truncate_prompt_tokens, -1);
  EXPECT_EQ(endpoint_.engine().WaitEmbed().priority, 3);
}

TEST_F(EmbeddingTest, RefusalsNameTheField) {
  endpoint_.engine().set_embed_script([](const EmbedRequest&) -> absl::StatusOr<Embeddings> {
    ADD_FAILURE() << "what is refused came to the engine";
    return absl::InternalError("");
  });
  EXPECT_EQ(Refused("{}").first, "input");
  EXPECT_EQ(Refused(R"({"input": ""})").first, "input");
  EXPECT_EQ(Refused(R"({"input": []})").first, "input");
  EXPECT_EQ(Refused(R"({"input": ["a", ""]})").first, "input[1]");
  EXPECT_EQ(Refused(R"({"input": [1, "a"]})").first, "input[1]");
  EXPECT_EQ(Refused(R"({"input": "a", "encoding_format": "int8"})").first, "encoding_format");
  EXPECT_EQ(Refused(R"({"input": "a", "add_special_tokens": false})").first, "add_special_tokens");
  EXPECT_EQ(Refused(R"({"input": "a", "inputs": "b"})").first, "inputs");
  EXPECT_EQ(Refused(R"({"input": "a", "dimensions": "2"})").first, "dimensions");
  std::string many = R"({"input": [)";
  for (int i = 0; i < 2049; ++i) many += i == 0 ? R"("a")" : R"(,"a")";
  EXPECT_EQ(Refused(many + "]}").second, "input is a list of 2049; allowed: at most 2048");
}

TEST_F(EmbeddingTest, AnErrorOfOneInputIsTheAnswer) {
  endpoint_.engine().set_embed_script([](const EmbedRequest& request) {
    return absl::OutOfRangeError(request.Name(1) + " has 9 tokens; allowed: at most 8");
  });
  const ClientResponse response = endpoint_.Ask("POST", kPath, R"({"input": ["a", "bad"]})");
  EXPECT_EQ(response.status, 400);
  const Json error = Json::parse(response.body)["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["param"], "input[1]");
}

TEST_F(EmbeddingTest, AClientThatLeavesGivesTheRequestUp) {
  endpoint_.engine().set_embed_script(nullptr);
  RawClient client(endpoint_.port());
  client.Request("POST", kPath, R"({"input": ["a", "b"]})");
  endpoint_.engine().WaitEmbed();
  client.Close();
  endpoint_.engine().WaitEmbedGivenUp();
}

}  // namespace
}  // namespace millrace
