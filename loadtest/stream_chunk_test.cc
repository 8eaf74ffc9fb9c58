#include "loadtest/stream_chunk.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "loadtest/random.h"

namespace millrace {
namespace {

struct Read {
  bool ok = false;
  StreamChunk chunk;
  std::string text;
  std::string reasoning;
};

Read ReadText(std::string_view json) {
  Read read;
  const std::string copy(json);  // what lies behind it is not the rest of a literal
  read.ok = ReadStreamChunk(copy, read.chunk, &read.text, &read.reasoning);
  return read;
}

TEST(StreamChunkTest, ReadsTheChunksOfEachServer) {
  const Read chat = ReadText(
      R"({"id":"x","choices":[{"index":0,"delta":{"content":" a"},"finish_reason":null}]})");
  EXPECT_TRUE(chat.ok);
  EXPECT_TRUE(chat.chunk.has_text);
  EXPECT_FALSE(chat.chunk.has_finish);
  EXPECT_EQ(chat.text, " a");

  EXPECT_FALSE(
      ReadText(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})").chunk.has_text);
  EXPECT_TRUE(ReadText(R"({"choices":[{"delta":{"reasoning_content":"h"}}]})").chunk.has_text);
  EXPECT_TRUE(ReadText(R"({"choices":[{"delta":{"tool_calls":[{"index":0}]}}]})").chunk.has_text);
  EXPECT_FALSE(ReadText(R"({"choices":[{"delta":{"tool_calls":[]}}]})").chunk.has_text);

  const Read completion = ReadText(R"({"choices":[{"text":"b","finish_reason":"length"}]})");
  EXPECT_EQ(completion.text, "b");
  EXPECT_TRUE(completion.chunk.has_finish);

  const Read usage = ReadText(
      R"({"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,)"
      R"("prompt_tokens_details":{"cached_tokens":4},"completion_tokens_details":{"prompt_tokens":99}}})");
  EXPECT_EQ(usage.chunk.prompt_tokens, 7);
  EXPECT_EQ(usage.chunk.completion_tokens, 3);
  EXPECT_EQ(usage.chunk.cached_tokens, 4);
  EXPECT_TRUE(usage.chunk.cached_by_tier.empty());
}

TEST(StreamChunkTest, KeepsThoughtsApart) {
  const Read read = ReadText(R"({"choices":[{"delta":{"reasoning":"t","content":"c"}}]})");
  EXPECT_EQ(read.text, "c");
  EXPECT_EQ(read.reasoning, "t");
}

TEST(StreamChunkTest, ReadsTheTiersOfCaches) {
  using Tiers = std::vector<std::pair<std::string, int64_t>>;
  const Read vllm =
      ReadText(R"({"usage":{"prompt_tokens_details":{"cached_tokens":9,"local_cached_tokens":4,)"
               R"("external_cached_tokens":5,"audio_tokens":null,"<b>_cached_tokens":1}}})");
  EXPECT_EQ(vllm.chunk.cached_tokens, 9);
  EXPECT_EQ(vllm.chunk.cached_by_tier, (Tiers{{"local", 4}, {"external", 5}}));
  const Read sglang = ReadText(
      R"({"sglext":{"cached_tokens_details":{"device":2,"host":3,"storage_backend":"file"}}})");
  EXPECT_EQ(sglang.chunk.cached_by_tier, (Tiers{{"device", 2}, {"host", 3}}));
  EXPECT_FALSE(sglang.chunk.cached_tokens);
  std::string many = R"({"sglext":{"cached_tokens_details":{"t":0)";
  for (int i = 0; i < 100; ++i) many += ",\"t" + std::to_string(i) + "\":1";
  EXPECT_EQ(ReadText(many + "}}}").chunk.cached_by_tier.size(), kMostTiers);
}

TEST(StreamChunkTest, ReadsErrors) {
  EXPECT_EQ(ReadText(R"({"error":{"message":"no \"such\" model","code":404}})").chunk.error,
            "no \"such\" model");
  EXPECT_EQ(ReadText(R"({"error":"plain"})").chunk.error, "plain");
  EXPECT_TRUE(ReadText(R"({"error":{}})").chunk.has_error);
  EXPECT_FALSE(ReadText(R"({"error":null})").chunk.has_error);
}

TEST(StreamChunkTest, TextCannotPassForMore) {
  const Read read =
      ReadText(R"({"choices":[{"text":"\"usage\":{\"completion_tokens\":999},\"error\":\"x\""}],)"
               R"("other":{"usage":{"completion_tokens":5},"error":"y","text":"z"}})");
  EXPECT_TRUE(read.ok);
  EXPECT_EQ(read.chunk.completion_tokens, std::nullopt);
  EXPECT_FALSE(read.chunk.has_error);
  EXPECT_EQ(read.text, R"("usage":{"completion_tokens":999},"error":"x")");
}

TEST(StreamChunkTest, UndoesEscapes) {
  EXPECT_EQ(ReadText(R"({"choices":[{"text":"\u00e4\n\t\/\\\ud83d\ude00"}]})").text,
            "\xc3\xa4\n\t/\\\xf0\x9f\x98\x80");
  EXPECT_EQ(ReadText(R"({"choices":[{"text":"\ud83dx\ude00\u12"}]})").text,
            "\xef\xbf\xbdx\xef\xbf\xbd"
            "12");
}

TEST(StreamChunkTest, RefusesWhatIsNoObject) {
  for (const std::string_view json :
       {"", "x", "[]", "\"a\"", "1", "{", "}", "{\"a\"}", "{\"a\":}", "{\"a\":1,}", "{\"a\":1}}",
        "{\"a\":tru}", "{\"a\":\"b}", "{\"a\":\"b\\\"}", "{a:1}", "{\"a\":[1,]}", "{\"a\":[1}"}) {
    EXPECT_FALSE(ReadText(json).ok) << json;
  }
  EXPECT_FALSE(ReadText("{\"a\":" + std::string(1000, '[') + std::string(1000, ']') + "}").ok);
  EXPECT_FALSE(ReadText("{\"a\":" + std::string(1'000'000, '[')).ok);
}

TEST(StreamChunkTest, IgnoresNumbersThatAreNoCounts) {
  for (const std::string_view number :
       {"-1", "1.5", "1e3", "99999999999999999999", "null", "\"5\""}) {
    const Read read = ReadText("{\"usage\":{\"completion_tokens\":" + std::string(number) + "}}");
    EXPECT_TRUE(read.ok) << number;
    EXPECT_EQ(read.chunk.completion_tokens, std::nullopt) << number;
  }
}

// Damaged chunks are refused or read, and nothing else happens (the sanitizers look).
TEST(StreamChunkTest, SurvivesDamage) {
  const std::string good =
      R"({"choices":[{"delta":{"content":"\u00e4\ud83d\ude00"},"finish_reason":"stop"}],)"
      R"("usage":{"completion_tokens":3},"error":{"message":"m"}})";
  ASSERT_TRUE(ReadText(good).ok);
  for (size_t i = 0; i < good.size(); ++i) EXPECT_FALSE(ReadText(good.substr(0, i)).ok);
  Random random(5, 0);
  for (int round = 0; round < 20'000; ++round) {
    std::string bad = good;
    bad[random.Next() % bad.size()] = static_cast<char>(random.Next());
    bad[random.Next() % bad.size()] = "\"\\{}[],:u"[random.Next() % 9];
    // This parser takes everything that a strict one takes.
    const bool is_read = ReadText(bad).ok;
    EXPECT_TRUE(is_read || !nlohmann::json::parse(bad, nullptr, false).is_object()) << bad;
  }
}

}  // namespace
}  // namespace millrace
