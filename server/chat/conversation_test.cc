#include "server/chat/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace millrace {
namespace {

using testing::HasSubstr;
using Json = nlohmann::ordered_json;
using Next = Conversation::Next;

TEST(ConversationTest, ARequestHasTheWholeChat) {
  Conversation chat("m", "Be brief.");
  std::string reply;
  EXPECT_EQ(chat.Take("Hello", reply), Next::kAsk);
  chat.Answer("Hi.");
  EXPECT_EQ(chat.Take("And now?", reply), Next::kAsk);
  EXPECT_EQ(chat.Request(), Json::parse(R"({"model": "m", "stream": true, "messages": [
    {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "And now?"}]})"));
}

TEST(ConversationTest, AnUnansweredMessageIsTakenBack) {
  Conversation chat("m", "");
  std::string reply;
  chat.Take("one", reply);
  chat.Answer("");
  EXPECT_TRUE(chat.Request()["messages"].empty());
  EXPECT_EQ(chat.Take("/retry", reply), Next::kRead);
  EXPECT_THAT(reply, HasSubstr("no answer"));
  chat.Take("two", reply);
  chat.Answer("broken o");
  EXPECT_EQ(chat.Take("/retry", reply), Next::kAsk);
  EXPECT_EQ(chat.Request()["messages"], Json::parse(R"([{"role": "user", "content": "two"}])"));
}

TEST(ConversationTest, Commands) {
  Conversation chat("m", "");
  std::string reply;
  EXPECT_EQ(chat.Take("  ", reply), Next::kRead);
  EXPECT_EQ(chat.Take("/help", reply), Next::kRead);
  for (const char* word : {"/system", "/set", "/retry", "/clear", "/exit", "Ctrl-C"}) {
    EXPECT_THAT(reply, HasSubstr(word));
  }
  EXPECT_EQ(chat.Take("/nothing here", reply), Next::kRead);
  EXPECT_EQ(reply, "There is no /nothing; /help lists what there is.\n");
  chat.Take("/system You are a pirate.", reply);
  chat.Take("Ahoy", reply);
  chat.Answer("Arr");
  chat.Take("/clear", reply);
  EXPECT_EQ(chat.Request()["messages"],
            Json::parse(R"([{"role": "system", "content": "You are a pirate."}])"));
  chat.Take("/system", reply);
  EXPECT_TRUE(chat.Request()["messages"].empty());
  for (const char* word : {"/exit", "/bye", "/quit"}) EXPECT_EQ(chat.Take(word, reply), Next::kEnd);
}

TEST(ForTerminalTest, AModelGivesTheTerminalNoOrders) {
  EXPECT_EQ(ForTerminal("a\033[2Jb\a\tc\nd\x7F\r"), "a[2Jb\tc\nd");
  EXPECT_EQ(ForTerminal("\u00E9\u009Bx\u2014\U0001F600"), "\u00E9x\u2014\U0001F600");
}

TEST(ConversationTest, FieldsOfRequests) {
  Conversation chat("m", "");
  std::string reply;
  chat.SetField("top_p", 0.5);
  chat.Take("/set temperature 0.25", reply);
  EXPECT_EQ(reply, "");
  chat.Take("/set stop END", reply);
  Json body = chat.Request();
  EXPECT_EQ(body["temperature"], 0.25);
  EXPECT_EQ(body["stop"], "END");
  EXPECT_EQ(body["top_p"], 0.5);
  chat.Take("/set temperature", reply);
  EXPECT_THAT(reply, HasSubstr("left to the server"));
  EXPECT_FALSE(chat.Request().contains("temperature"));
  chat.Take("/set model other", reply);
  EXPECT_THAT(reply, HasSubstr("/set NAME VALUE"));
  EXPECT_EQ(chat.Request()["model"], "m");
}

}  // namespace
}  // namespace millrace
