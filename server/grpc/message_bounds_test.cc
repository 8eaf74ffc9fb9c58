#include "server/grpc/message_bounds.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "kserve/v2/inference.pb.h"
#include "millrace/v1/inference.pb.h"

namespace millrace {
namespace {

using google::protobuf::Message;
using google::protobuf::io::CodedInputStream;
using testing::HasSubstr;

absl::StatusOr<size_t> MeasureBytes(const Message& type, const std::string& bytes,
                                    const MessageLimits& limits = {}) {
  CodedInputStream input(reinterpret_cast<const uint8_t*>(bytes.data()),
                         static_cast<int>(bytes.size()));
  return MessageBounds(type.GetDescriptor()).Measure(input, limits);
}

absl::StatusOr<size_t> Measure(const Message& message, const MessageLimits& limits = {}) {
  return MeasureBytes(message, message.SerializeAsString(), limits);
}

void ExpectBounded(const Message& message) {
  const std::string bytes = message.SerializeAsString();
  const std::unique_ptr<Message> parsed(message.New());
  ASSERT_TRUE(parsed->ParseFromString(bytes));
  const absl::StatusOr<size_t> measured = MeasureBytes(message, bytes);
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_GE(*measured, parsed->SpaceUsedLong());
  EXPECT_LE(*measured, 4 * parsed->SpaceUsedLong() + 4096);
}

std::string Repeat(const std::string& piece, size_t times) {
  std::string out;
  for (size_t i = 0; i < times; ++i) out += piece;
  return out;
}

TEST(MessageBoundsTest, IsAtLeastWhatTheMessageTakes) {
  v1::GenerateRequest generate;
  ExpectBounded(generate);
  generate.set_text("");  // takes a string's memory, too
  ExpectBounded(generate);
  generate.set_text("eighteen character");
  ExpectBounded(generate);
  generate.set_text(std::string(100'000, 'x'));
  generate.mutable_stopping()->add_stop("a stop of more than fifteen bytes");
  generate.mutable_sampling()->set_temperature(1);
  for (int i = 0; i < 300; ++i) {
    generate.mutable_sampling()->add_logit_bias()->set_token(i);
    generate.mutable_sampling()->add_allowed_token_ids(i);
  }
  ExpectBounded(generate);
  generate.mutable_chat()->add_messages()->set_content("Hello, whoever reads this.");
  for (int i = 0; i < 1000; ++i) generate.mutable_chat()->add_messages();
  ExpectBounded(generate);

  inference::ModelInferRequest infer;
  infer.add_raw_input_contents(std::string(1 << 20, '\0'));
  auto& contents = *infer.add_inputs()->mutable_contents();
  for (int i = 0; i < 10'000; ++i) {
    contents.add_fp32_contents(0.5F);
    contents.add_fp64_contents(0.5);
    contents.add_int64_contents(-1);
    contents.add_bool_contents(true);
    contents.add_bytes_contents("text");
  }
  ExpectBounded(infer);
}

TEST(MessageBoundsTest, BoundsSubmessages) {
  // Two bytes on the wire each: an input of nothing.
  const std::string inputs = Repeat(std::string("\x2a\0", 2), 1001);
  const inference::ModelInferRequest type;
  EXPECT_TRUE(MeasureBytes(type, inputs, {.parts = 1001}).ok());
  const absl::Status refused = MeasureBytes(type, inputs, {.parts = 1000}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("inputs: it makes more than 1000 submessages"));
}

TEST(MessageBoundsTest, BoundsSubmessagesOfAllDepthsTogether) {
  inference::ModelInferRequest request;
  for (int i = 0; i < 10; ++i) {
    auto& input = *request.add_inputs();
    for (int j = 0; j < 10; ++j) input.add_parameters()->mutable_value();
  }
  EXPECT_TRUE(Measure(request, {.parts = 210}).ok());
  EXPECT_THAT(Measure(request, {.parts = 209}).status().message(), HasSubstr("value: "));
}

TEST(MessageBoundsTest, BoundsTextsOfLists) {
  v1::StopOptions stops;
  for (int i = 0; i < 100; ++i) stops.add_stop("");
  EXPECT_TRUE(Measure(stops, {.parts = 100}).ok());
  EXPECT_THAT(Measure(stops, {.parts = 99}).status().message(), HasSubstr("stop: "));
}

TEST(MessageBoundsTest, BoundsUnknownFields) {
  const v1::GenerateRequest type;
  for (const std::string& unknown :
       {std::string("\xc0\x3e\0", 3), std::string("\xc2\x3e\0", 3),  // field 1000
        std::string("\x08\0", 2)}) {  // a number where the model's name is expected
    EXPECT_TRUE(MeasureBytes(type, Repeat(unknown, 50), {.parts = 50}).ok());
    EXPECT_TRUE(
        absl::IsInvalidArgument(MeasureBytes(type, Repeat(unknown, 51), {.parts = 50}).status()));
  }
}

TEST(MessageBoundsTest, BoundsNumbersInEitherForm) {
  v1::DetokenizeRequest packed;
  for (int i = 0; i < 10'000; ++i) packed.add_token_ids(1);
  EXPECT_THAT(Measure(packed, {.bytes = 60'000}).status().message(),
              HasSubstr("token_ids: with it the message takes more than 60000 bytes"));
  EXPECT_TRUE(Measure(packed, {.bytes = 100'000}).ok());
  const std::string single = Repeat("\x10\x01", 10'000);
  EXPECT_FALSE(MeasureBytes(packed, single, {.bytes = 60'000}).ok());
  EXPECT_TRUE(MeasureBytes(packed, single, {.bytes = 100'000}).ok());
}

TEST(MessageBoundsTest, RefusesWhatIsNoMessage) {
  const v1::GenerateRequest type;
  for (const std::string& broken :
       {std::string("\xff\xff\xff"), std::string("\x0a\x05xy"), std::string("\x2a\x02\x0d\x01"),
        std::string("\0", 1), std::string("\x2a\x02\x0a\x05hello"),
        std::string("\xc3\x3e\xc4\x3e")}) {  // a group
    EXPECT_TRUE(absl::IsDataLoss(MeasureBytes(type, broken).status()));
  }
}

}  // namespace
}  // namespace millrace
