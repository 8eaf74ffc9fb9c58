#include "engine/request/request.h"

#include <functional>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kVocab = 100;
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Case {
  const char* name;
  std::function<void(GenerateRequest&)> change;
  const char* error;  // a part of the message; null: accepted
};

class ValidateRequestTest : public ::testing::TestWithParam<Case> {};

TEST_P(ValidateRequestTest, Table) {
  GenerateRequest request;
  request.prompt.emplace<std::string>("hello");
  GetParam().change(request);
  const absl::Status status = ValidateRequest(request, kVocab);
  if (GetParam().error == nullptr) {
    EXPECT_TRUE(status.ok()) << status;
    return;
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().error));
}

const Case kCases[] = {
    {"Defaults", [](auto&) {}, nullptr},
    {"EmptyText", [](auto& r) { r.prompt.template emplace<std::string>(); }, "prompt is empty"},
    {"EmptyTokens", [](auto& r) { r.prompt = std::vector<Token>{}; }, "prompt is empty"},
    {"EmptyMessages", [](auto& r) { r.prompt = Chat{}; }, "messages is empty"},
    {"Tokens",
     [](auto& r) {
       r.prompt = std::vector<Token>{0, 99};
     },
     nullptr},
    {"TokenTooLarge",
     [](auto& r) {
       r.prompt = std::vector<Token>{0, 100};
     },
     "prompt[1] is 100; allowed: 0 to 99"},
    {"TokenNegative", [](auto& r) { r.prompt = std::vector<Token>{-1}; }, "prompt[0] is -1"},
    {"Roles",
     [](auto& r) {
       r.prompt =
           Chat{{{"system", ""}, {"developer", ""}, {"user", ""}, {"assistant", ""}, {"tool", ""}}};
     },
     nullptr},
    {"UnknownRole",
     [](auto& r) {
       r.prompt = Chat{{{"user", ""}, {"root", ""}}};
     },
     "messages[1].role is \"root\"; allowed: system, developer"},
    {"Choices", [](auto& r) { r.n = 128; }, nullptr},
    {"NoChoice", [](auto& r) { r.n = 0; }, "n is 0; allowed: 1 to 128"},
    {"ManyChoices", [](auto& r) { r.n = 129; }, "n is 129"},
    {"TypicalPZero", [](auto& r) { r.typical_p = 0; }, "typical_p is 0; allowed: above 0"},
    {"TypicalPNan", [](auto& r) { r.typical_p = kNan; }, "typical_p is nan"},
    {"RepetitionPenalty", [](auto& r) { r.repetition_penalty = 0.5f; }, nullptr},
    {"RepetitionPenaltyZero", [](auto& r) { r.repetition_penalty = 0; },
     "repetition_penalty is 0; allowed: above 0, at most 100"},
    {"FrequencyPenalty", [](auto& r) { r.frequency_penalty = -2; }, nullptr},
    {"FrequencyPenaltyLarge", [](auto& r) { r.frequency_penalty = 2.5f; },
     "frequency_penalty is 2.5; allowed: -2 to 2"},
    {"PresencePenaltyNan", [](auto& r) { r.presence_penalty = kNan; }, "presence_penalty is nan"},
    {"LogitBias",
     [](auto& r) {
       r.logit_bias = {{99, -100}, {0, 100}};
     },
     nullptr},
    {"LogitBiasToken",
     [](auto& r) {
       r.logit_bias = {{100, 1}};
     },
     "logit_bias has token 100; allowed: 0 to 99"},
    {"LogitBiasValue",
     [](auto& r) {
       r.logit_bias = {{7, 100.5f}};
     },
     "logit_bias has 100.5 for token 7; allowed: -100 to 100"},
    {"LogitBiasTwice",
     [](auto& r) {
       r.logit_bias = {{7, 1}, {3, 1}, {7, 2}};
     },
     "logit_bias has token 7 twice"},
    {"LogitBiasMany", [](auto& r) { r.logit_bias.resize(1025); },
     "logit_bias has 1025 tokens; allowed: at most 1024"},
    {"MaxTokensOne", [](auto& r) { r.max_tokens = 1; }, nullptr},
    {"MaxTokensZero", [](auto& r) { r.max_tokens = 0; }, "max_tokens is 0; allowed: at least 1"},
    {"MaxTokensZeroEcho",
     [](auto& r) {
       r.max_tokens = 0;
       r.echo = true;
     },
     nullptr},
    {"MaxTokensNegativeEcho",
     [](auto& r) {
       r.max_tokens = -1;
       r.echo = true;
     },
     "max_tokens is -1; allowed: at least 0"},
    {"MinTokensNegative", [](auto& r) { r.min_tokens = -1; }, "min_tokens is -1"},
    {"MinTokensEqual",
     [](auto& r) {
       r.min_tokens = 4;
       r.max_tokens = 4;
     },
     nullptr},
    {"MinTokensAboveMax",
     [](auto& r) {
       r.min_tokens = 5;
       r.max_tokens = 4;
     },
     "min_tokens is 5; allowed: at most max_tokens, which is 4"},
    {"TemperatureZero", [](auto& r) { r.temperature = 0; }, nullptr},
    {"TemperatureTwo", [](auto& r) { r.temperature = 2; }, nullptr},
    {"TemperatureHigh", [](auto& r) { r.temperature = 2.01f; }, "temperature is 2.01; allowed: 0"},
    {"TemperatureNegative", [](auto& r) { r.temperature = -0.1f; }, "temperature is -0.1"},
    {"TemperatureNan", [](auto& r) { r.temperature = kNan; }, "temperature is nan"},
    {"TopKOff", [](auto& r) { r.top_k = -1; }, nullptr},
    {"TopKLow", [](auto& r) { r.top_k = -2; }, "top_k is -2"},
    {"TopPZero", [](auto& r) { r.top_p = 0; }, "top_p is 0; allowed: above 0, at most 1"},
    {"TopPHigh", [](auto& r) { r.top_p = 1.5f; }, "top_p is 1.5"},
    {"TopPNan", [](auto& r) { r.top_p = kNan; }, "top_p is nan"},
    {"MinPOne", [](auto& r) { r.min_p = 1; }, nullptr},
    {"MinPNegative", [](auto& r) { r.min_p = -0.5f; }, "min_p is -0.5; allowed: 0 to 1"},
    {"MinPNan", [](auto& r) { r.min_p = kNan; }, "min_p is nan"},
    {"LogprobsTwenty", [](auto& r) { r.logprobs = 20; }, nullptr},
    {"LogprobsHigh", [](auto& r) { r.logprobs = 21; }, "logprobs is 21; allowed: 0 to 20"},
    {"LogprobsNegative", [](auto& r) { r.logprobs = -1; }, "logprobs is -1"},
    {"Stops", [](auto& r) { r.stop.assign(16, "x"); }, nullptr},
    {"TooManyStops", [](auto& r) { r.stop.assign(17, "x"); },
     "stop has 17 strings; allowed: at most 16"},
    {"EmptyStop",
     [](auto& r) {
       r.stop = {"a", ""};
     },
     "stop[1] has 0 bytes; allowed: 1 to 1024"},
    {"LongStop", [](auto& r) { r.stop = {std::string(1025, 'x')}; }, "stop[0] has 1025 bytes"},
    {"StopToken", [](auto& r) { r.stop_token_ids = {99}; }, nullptr},
    {"StopTokenHigh",
     [](auto& r) {
       r.stop_token_ids = {1, 100};
     },
     "stop_token_ids[1] is 100"},
    {"TooManyStopTokens", [](auto& r) { r.stop_token_ids.assign(1025, 1); },
     "stop_token_ids has 1025 ids; allowed: at most 1024"},
};

INSTANTIATE_TEST_SUITE_P(Fields, ValidateRequestTest, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return info.param.name; });

TEST(RetryAfterTest, TravelsWithTheStatus) {
  const absl::Status plain = absl::ResourceExhaustedError("full");
  EXPECT_EQ(RetryAfter(plain), std::nullopt);
  const absl::Status hinted = WithRetryAfter(plain, absl::Milliseconds(1500));
  EXPECT_EQ(hinted.code(), plain.code());
  EXPECT_EQ(RetryAfter(hinted), absl::Milliseconds(1500));
}

}  // namespace
}  // namespace millrace
