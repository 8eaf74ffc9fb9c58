#include "server/grpc/read_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <string>
#include <vector>

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr ptrdiff_t kMost = 100;

class ReadTurnsTest : public ::testing::Test {
 protected:
  void Add(const std::string& payer, const std::string& name) {
    turns_.Add(payer, &calls_.emplace_back(name));
  }
  // Returns the calls that may be read now.
  std::vector<std::string> TakeAll() {
    std::vector<std::string> names;
    while (const std::string* const call = turns_.Next()) names.push_back(*call);
    return names;
  }

  std::deque<std::string> calls_;
  ReadTurns<std::string> turns_{kMost};
};

TEST_F(ReadTurnsTest, PayersTakeTurnsAndEachHasItsOrder) {
  EXPECT_THAT(TakeAll(), IsEmpty());
  for (const char* name : {"b1", "b2", "b3"}) Add("b", name);
  Add("a", "a1");
  Add("c", "c1");
  Add("c", "c2");
  EXPECT_THAT(TakeAll(), ElementsAre("a1", "b1", "c1", "b2", "c2", "b3"));
}

TEST_F(ReadTurnsTest, ATurnIsRememberedWhereOnlyOneMayBeTaken) {
  for (const char* name : {"a1", "a2"}) Add("a", name);
  for (const char* name : {"b1", "b2"}) Add("b", name);
  EXPECT_EQ(*turns_.Next(), "a1");
  EXPECT_EQ(*turns_.Next(), "b1");
  EXPECT_EQ(*turns_.Next(), "a2");
  Add("a", "a3");
  EXPECT_EQ(*turns_.Next(), "b2");
}

TEST_F(ReadTurnsTest, OnesRequestsThatWaitToBeParsedKeepNoOtherOut) {
  Add("b", "b1");
  EXPECT_THAT(TakeAll(), ElementsAre("b1"));
  turns_.Hold("b", kMost);
  Add("b", "b2");
  Add("b", "b3");
  EXPECT_THAT(TakeAll(), IsEmpty());
  Add("a", "a1");
  Add("a", "a2");
  EXPECT_EQ(*turns_.Next(), "a1");
  turns_.Hold("a", 1);
  EXPECT_THAT(TakeAll(), IsEmpty());  // a has one of its own now
  turns_.Hold("a", -1);
  EXPECT_THAT(TakeAll(), ElementsAre("a2"));
  turns_.Hold("b", -kMost);
  EXPECT_THAT(TakeAll(), ElementsAre("b2", "b3"));
}

}  // namespace
}  // namespace millrace
