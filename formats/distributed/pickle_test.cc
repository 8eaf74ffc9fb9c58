#include "formats/distributed/pickle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/strings.h"
#include "formats/distributed/checkpoint_test_util.h"

namespace millrace {
namespace {

using testing::HasSubstr;
using namespace pickled;

constexpr std::string_view kGlobals[] = {"torch.Size", "collections.OrderedDict"};

// Returns an error's message; "(no error)" for a pickle that is read.
std::string Error(const std::string& bytes) {
  const absl::StatusOr<Pickle> pickle = Pickle::Read(BytesOf(bytes), kGlobals);
  return pickle.ok() ? "(no error)" : std::string(pickle.status().message());
}

TEST(PickleTest, ReadsValuesOfEveryKind) {
  const std::string bytes =
      Whole(Tuple({"N", "\x88", Int(-3), Int(1000), "M\x10\x27", "J\xff\xff\xff\xff", Text("abc"),
                   "C\x02xy", List({Int(1), Int(2)}), Dict({{"a", Int(7)}}), Size({2, 3}),
                   "G\x3f\xf0" + std::string(6, '\0')}));
  const absl::StatusOr<Pickle> pickle = Pickle::Read(BytesOf(bytes), kGlobals);
  ASSERT_TRUE(pickle.ok()) << pickle.status();
  const Pickle::Value root = pickle->root();
  ASSERT_EQ(root.size(), 12u);
  EXPECT_TRUE(root[0].is(PickleKind::kNone));
  EXPECT_TRUE(root[1].is(PickleKind::kBool));
  EXPECT_EQ(root[2].integer(), -3);
  EXPECT_EQ(root[3].integer(), 1000);
  EXPECT_EQ(root[4].integer(), 10000);
  EXPECT_EQ(root[5].integer(), -1);
  EXPECT_EQ(root[6].text(), "abc");
  EXPECT_TRUE(root[7].is(PickleKind::kBytes));
  EXPECT_EQ(root[8][1].integer(), 2);
  EXPECT_EQ(root[9].Find("a").integer(), 7);
  EXPECT_TRUE(root[9].Find("b").is(PickleKind::kNone));
  EXPECT_EQ(root[10].global(), "torch.Size");
  EXPECT_EQ(root[10].arguments()[0][1].integer(), 3);
  EXPECT_TRUE(root[11].is(PickleKind::kFloat));
  // What is not there is None, and not a crash.
  EXPECT_TRUE(root[12].is(PickleKind::kNone));
  EXPECT_TRUE(root[0][0].is(PickleKind::kNone));
  EXPECT_EQ(root[6].integer(), std::nullopt);
}

TEST(PickleTest, ListsGrowAndMemoIsShared) {
  std::string body = "]\x94";
  for (int i = 0; i < 1000; ++i) body += Int(1000 + i) + "a";
  const std::string bytes = Whole(StrCat("(", body, "h", std::string(1, '\0'), "t"));
  const absl::StatusOr<Pickle> pickle = Pickle::Read(BytesOf(bytes), kGlobals);
  ASSERT_TRUE(pickle.ok()) << pickle.status();
  ASSERT_EQ(pickle->root()[0].size(), 1000u);
  EXPECT_EQ(pickle->root()[1].size(), 1000u);
  EXPECT_EQ(pickle->root()[1][999].integer(), 1999);
}

TEST(PickleTest, AnOrderedDictIsADict) {
  const std::string bytes =
      Whole(Call(Global("collections", "OrderedDict"), {}) + "(" + Text("k") + Int(5) + "u");
  const absl::StatusOr<Pickle> pickle = Pickle::Read(BytesOf(bytes), kGlobals);
  ASSERT_TRUE(pickle.ok()) << pickle.status();
  EXPECT_EQ(pickle->root().Find("k").integer(), 5);
}

TEST(PickleTest, OtherClassesAreRefusedByTheirNames) {
  EXPECT_THAT(Error(Whole(Call(Global("os", "system"), {Text("id")}))), HasSubstr("os.system"));
  EXPECT_THAT(Error(Whole(Text("posix") + Text("system") + "\x93")), HasSubstr("posix.system"));
  // Neither the module nor the name alone is enough.
  EXPECT_THAT(Error(Whole(Global("torch", "Sized"))), HasSubstr("torch.Sized"));
  EXPECT_THAT(Error(Whole(Global("torc", "h.Size"))), HasSubstr("torc.h.Size"));
}

TEST(PickleTest, DamagedOnesAreRefused) {
  const std::string good = Whole(Dict({{"a", List({Int(1), Text("b")})}}));
  for (size_t size = 0; size < good.size(); ++size) {
    EXPECT_NE(Error(good.substr(0, size)), "(no error)") << size;
  }
  EXPECT_THAT(Error(good + "x"), HasSubstr("behind its end"));
  EXPECT_THAT(Error("\x80\x06N."), HasSubstr("protocol 6"));
  EXPECT_THAT(Error(Whole("i")), HasSubstr("opcode"));
  EXPECT_THAT(Error(Whole("h\x05")), HasSubstr("never set"));
  EXPECT_THAT(Error(Whole("Nr\xff\xff\xff\x7f")), HasSubstr("too large"));
  EXPECT_THAT(Error(Whole("0")), HasSubstr("stack is empty"));
  EXPECT_THAT(Error(Whole("N(0")), HasSubstr("stack is empty"));
  EXPECT_THAT(Error(Whole("t")), HasSubstr("no mark"));
  EXPECT_THAT(Error(Whole("NN")), HasSubstr("left on the stack"));
  EXPECT_THAT(Error(Whole("}(" + Text("a") + "u")), HasSubstr("no value"));
  EXPECT_THAT(Error(Whole("N" + Text("a") + "a")), HasSubstr("no collection"));
  EXPECT_THAT(Error(Whole("NNb")), HasSubstr("no object"));
  EXPECT_THAT(Error(Whole("NNR")), HasSubstr("not made of a class"));
  EXPECT_THAT(Error(Whole("X\xff\xff\xff\xff")), HasSubstr("ends inside"));
  EXPECT_THAT(Error(Whole("\x8a\x09" + std::string(9, '\1'))), HasSubstr("more than 64 bits"));
}

// A list that is in itself is read; nobody descends into it without an end.
TEST(PickleTest, AValueMayContainItself) {
  const std::string bytes = Whole(StrCat("]\x94h", std::string(1, '\0'), "a"));
  const absl::StatusOr<Pickle> pickle = Pickle::Read(BytesOf(bytes), kGlobals);
  ASSERT_TRUE(pickle.ok()) << pickle.status();
  EXPECT_EQ(pickle->root()[0][0].size(), 1u);
}

}  // namespace
}  // namespace millrace
