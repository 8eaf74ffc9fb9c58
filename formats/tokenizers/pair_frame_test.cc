#include "formats/tokenizers/pair_frame.h"

#include <string>

#include "base/strings.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

// "7 A 8 | B 8": | stands before the first part of the second type.
std::string Frame(const char* json) {
  std::string out;
  bool second_type = false;
  for (const PairPart& part : ReadPairFrame(Json::parse(json))) {
    if (part.second_type && !second_type) out += "| ";
    second_type = part.second_type;
    const bool token = part.kind == PairPart::Kind::kToken;
    const bool first = part.kind == PairPart::Kind::kFirstText;
    out += (token ? StrCat(part.token) : std::string(first ? "A" : "B")) + " ";
  }
  return out;
}

TEST(PairFrameTest, ReadsWhatBertAndRobertaPutAroundTwoTexts) {
  EXPECT_EQ(Frame(R"({"type": "BertProcessing", "cls": ["c", 7], "sep": ["s", 8]})"),
            "7 A 8 | B 8 ");
  EXPECT_EQ(Frame(R"({"type": "RobertaProcessing", "cls": ["c", 7], "sep": ["s", 8]})"),
            "7 A 8 8 B 8 ");
  EXPECT_EQ(Frame(R"({"type": "Sequence", "processors": [{"type": "ByteLevel"},
      {"type": "TemplateProcessing", "special_tokens": {"s": {"id": "s", "ids": [8]}}, "pair": [
        {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "s", "type_id": 0}},
        {"Sequence": {"id": "B", "type_id": 1}}]}]})"),
            "A 8 | B ");
}

TEST(PairFrameTest, IsEmptyWhereATemplateCannotBeUsed) {
  for (const char* pair :
       {"null", "[]", "[3]", R"([{"Sequence": {"id": "A", "type_id": 0}}])",
        R"([{"Sequence": {"id": "B", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}])",
        R"([{"Sequence": {"id": "A", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 0}}])",
        R"([{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 2}}])",
        R"([{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "x", "type_id": 0}}])"}) {
    EXPECT_EQ(
        Frame(StrCat(R"({"type": "TemplateProcessing", "special_tokens": {}, "pair": )", pair, "}")
                  .c_str()),
        "")
        << pair;
  }
  EXPECT_EQ(Frame("null"), "");
}

}  // namespace
}  // namespace millrace
