// Every row of engine/request/request_fields.h against all that goes by it: each protocol's reader,
// with what it takes and refuses, /openapi.json, and the table of docs/http-api.md.
#include "engine/request/request_fields.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status.h"
#include "base/strings.h"
#include "config/settings.h"
#include "engine/request/request.h"
#include "millrace/v1/inference.pb.h"
#include "server/grpc/convert.h"
#include "server/grpc/vllm_convert.h"
#include "server/http/messages/messages.h"
#include "server/http/openai/openai_request.h"
#include "server/http/openai/openai_request_test_util.h"
#include "server/http/openapi/openapi_schemas.h"
#include "server/http/responses/responses.h"
#include "vllm/engine.pb.h"

namespace millrace {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Value = nlohmann::json;

constexpr UnknownFields kRefuse = UnknownFields::kRefuse;

struct Protocol {
  FieldProtocol bit;
  std::string_view name;    // in the table of docs/http-api.md
  std::string_view schema;  // in /openapi.json; empty: not there
  // Reads the shortest request with this field more.
  std::function<absl::StatusOr<GenerateRequest>(const char* field, const Value& value)> read;
  // Returns where a message has the field; null: nowhere, or the protocol is JSON.
  std::function<const FieldDescriptor*(const char* field)> find;
};

const FieldDescriptor* FindIn(const Message& message, const char* field) {
  return message.GetDescriptor()->FindFieldByName(field);
}

// Sets the field if the message has it.
void Set(Message& message, const char* name, const Value& value) {
  const FieldDescriptor* field = FindIn(message, name);
  if (field == nullptr) return;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_FLOAT:
      return message.GetReflection()->SetFloat(&message, field, value.get<float>());
    case FieldDescriptor::CPPTYPE_INT32:
      return message.GetReflection()->SetInt32(&message, field, value.get<int32_t>());
    case FieldDescriptor::CPPTYPE_UINT32:
      return message.GetReflection()->SetUInt32(&message, field, value.get<uint32_t>());
    case FieldDescriptor::CPPTYPE_BOOL:
      return message.GetReflection()->SetBool(&message, field, value.get<bool>());
    default:
      ADD_FAILURE() << name << " has a type that take_fields.cc does not read";
  }
}

absl::StatusOr<GenerateRequest> ReadOpenAi(ApiKind kind, const std::string& body) {
  MILLRACE_ASSIGN_OR_RETURN(ApiRequest request, ParseApiRequest(kind, body));
  return std::move(request.options);
}

const std::vector<Protocol>& Protocols() {
  static const auto& protocols = *new std::vector<Protocol>{
      {kOpenAiField, "OpenAI", "CompletionRequest",
       [](const char* field, const Value& value) {
         const std::string body = With(kCompletion, "max_tokens", "2147483647");
         return ReadOpenAi(ApiKind::kCompletion, With(body, field, value.dump()));
       },
       nullptr},
      {kOpenAiField, "OpenAI", "ChatRequest",
       [](const char* field, const Value& value) {
         return ReadOpenAi(ApiKind::kChat, With(kChat, field, value.dump()));
       },
       nullptr},
      {kResponsesField, "Responses", "ResponsesRequest",
       [](const char* field, const Value& value) -> absl::StatusOr<GenerateRequest> {
         MILLRACE_ASSIGN_OR_RETURN(
             ResponsesRequest request,
             ParseResponsesRequest(With(R"({"input": "hi"})", field, value.dump()), nullptr,
                                   kRefuse, true));
         return std::move(request.api.options);
       },
       nullptr},
      {kMessagesField, "Messages", "MessagesRequest",
       [](const char* field, const Value& value) -> absl::StatusOr<GenerateRequest> {
         const std::string body = With(kChat, "max_tokens", "1");
         MILLRACE_ASSIGN_OR_RETURN(
             ApiRequest request,
             ParseMessagesRequest(With(body, field, value.dump()), false, nullptr, kRefuse, true));
         return std::move(request.options);
       },
       nullptr},
      {kGrpcField, "gRPC", "",
       [](const char* field, const Value& value) {
         v1::GenerateRequest request;
         request.set_text("hi");
         Set(request, field, value);
         Set(*request.mutable_sampling(), field, value);
         Set(*request.mutable_stopping(), field, value);
         return FromProto(std::move(request), SamplingDefaults());
       },
       [](const char* field) {
         const FieldDescriptor* in_request = FindIn(v1::GenerateRequest(), field);
         const FieldDescriptor* in_sampling = FindIn(v1::SamplingOptions(), field);
         if (in_request != nullptr) return in_request;
         return in_sampling != nullptr ? in_sampling : FindIn(v1::StopOptions(), field);
       }},
      {kVllmGrpcField, "vLLM's gRPC", "",
       [](const char* field, const Value& value) {
         vllm_pb::GenerateRequest request;
         request.set_text("hi");
         Set(*request.mutable_sampling_params(), field, value);
         return FromProto(request);
       },
       [](const char* field) { return FindIn(vllm_pb::SamplingParams(), field); }},
  };
  return protocols;
}

// Reads a request with the field, and checks its ranges as the engine does.
absl::StatusOr<GenerateRequest> Ask(const Protocol& protocol, const char* field,
                                    const Value& value) {
  MILLRACE_ASSIGN_OR_RETURN(GenerateRequest request, protocol.read(field, value));
  request.prompt.emplace<std::string>("hi");
  MILLRACE_RETURN_IF_ERROR(ValidateRequest(request, /*vocab_size=*/100));
  return request;
}

// Whether a message of the protocol can say that a field is this number.
bool CanSay(const Protocol& protocol, const char* field, double number) {
  const FieldDescriptor* found = protocol.find == nullptr ? nullptr : protocol.find(field);
  if (found == nullptr) return true;
  if (number == 0 && !found->has_presence()) return false;  // counts as left out
  return number >= 0 || found->cpp_type() != FieldDescriptor::CPPTYPE_UINT32;
}

// Calls visit(protocol, row) for each protocol of each row.
template <typename Visit>
void ForEachReader(const Visit& visit) {
  ForEachRequestField([&](const auto& row) {
    for (const Protocol& protocol : Protocols()) {
      if ((row.protocols & protocol.bit) != 0) visit(protocol, row);
    }
  });
}

// Returns numbers just outside of a row's range; none where the type has no place for them.
template <typename Row>
std::vector<double> OutOfRange(const Row& row) {
  using Given = typename Row::Given;
  std::vector<double> values;
  double below = static_cast<double>(row.least) - 1;
  if (row.neutral.has_value() && below == static_cast<double>(*row.neutral)) below -= 1;
  const double above = static_cast<double>(row.most) + 1;
  if (std::is_same_v<Given, float> || below >= INT32_MIN) values.push_back(below);
  if (std::is_same_v<Given, float> || above <= INT32_MAX) values.push_back(above);
  if (row.above_least) values.push_back(static_cast<double>(row.least));
  return values;
}

TEST(RequestFieldsTest, EachProtocolTakesBothEndsOfARange) {
  ForEachReader([](const Protocol& protocol, const auto& row) {
    using Given = typename std::decay_t<decltype(row)>::Given;
    Given least = row.least;
    if constexpr (std::is_same_v<Given, float>) {
      if (row.above_least) least += (row.most - row.least) / 1024;
    }
    for (const Given value : {least, row.most}) {
      if (!CanSay(protocol, row.name, static_cast<double>(value))) continue;
      const auto request = Ask(protocol, row.name, value);
      ASSERT_TRUE(request.ok()) << protocol.name << ": " << request.status();
      EXPECT_EQ(row.Get(*request), value) << protocol.name << " " << row.name;
    }
  });
}

TEST(RequestFieldsTest, EachProtocolRefusesWhatIsOutsideByNameAndRange) {
  ForEachReader([](const Protocol& protocol, const auto& row) {
    using Given = typename std::decay_t<decltype(row)>::Given;
    if constexpr (!std::is_same_v<Given, bool>) {
      for (const double value : OutOfRange(row)) {
        if (!CanSay(protocol, row.name, value)) continue;
        const auto request = Ask(protocol, row.name, static_cast<Given>(value));
        EXPECT_EQ(request.status().code(), absl::StatusCode::kInvalidArgument)
            << protocol.name << " " << row.name << " " << value;
        EXPECT_THAT(std::string(request.status().message()),
                    StartsWith(StrCat(row.name, " is ", static_cast<Given>(value),
                                      "; allowed: ", row.allowed)));
      }
    }
  });
}

TEST(RequestFieldsTest, JsonOfAnotherTypeIsRefused) {
  ForEachReader([](const Protocol& protocol, const auto& row) {
    if (protocol.find != nullptr) return;
    for (const Value& value : {Value("1"), Value::array()}) {
      const auto request = Ask(protocol, row.name, value);
      EXPECT_THAT(std::string(request.status().message()),
                  StartsWith(StrCat(row.name, " is ", value.dump(), "; allowed: ")));
    }
  });
}

TEST(RequestFieldsTest, ANeutralValueCountsAsLeftOut) {
  int seen = 0;
  ForEachReader([&](const Protocol& protocol, const auto& row) {
    if (!row.neutral.has_value()) return;
    ++seen;
    EXPECT_FALSE(row.Allows(*row.neutral)) << row.name << ": it is in the range";
    const auto request = Ask(protocol, row.name, *row.neutral);
    ASSERT_TRUE(request.ok()) << protocol.name << ": " << request.status();
    EXPECT_EQ(row.Get(*request), row.Get(RequestFields())) << protocol.name << " " << row.name;
  });
  EXPECT_GT(seen, 0);
}

// vLLM's message has no presence for it, and its default is the other one.
TEST(RequestFieldsTest, ASwitchWithoutPresenceAlwaysSaysSomething) {
  vllm_pb::GenerateRequest request;
  request.set_text("hi");
  EXPECT_FALSE(FromProto(request)->skip_special_tokens);
  v1::GenerateRequest own;
  own.set_text("hi");
  EXPECT_TRUE(FromProto(std::move(own), SamplingDefaults())->skip_special_tokens);
}

// A field of a message without the protocol's bit in its row would not be read.
TEST(RequestFieldsTest, TheMessagesHaveTheFieldsThatTheirRowsSay) {
  ForEachRequestField([](const auto& row) {
    for (const Protocol& protocol : Protocols()) {
      if (protocol.find == nullptr) continue;
      EXPECT_EQ(protocol.find(row.name) != nullptr, (row.protocols & protocol.bit) != 0)
          << protocol.name << " " << row.name;
    }
  });
}

TEST(RequestFieldsTest, OpenApiHasEachRow) {
  const nlohmann::ordered_json schemas = OpenApiSchemas(kRefuse);
  ForEachReader([&](const Protocol& protocol, const auto& row) {
    if (protocol.schema.empty()) return;
    const auto& properties = schemas.at(std::string(protocol.schema)).at("properties");
    ASSERT_TRUE(properties.contains(row.name)) << protocol.schema << " " << row.name;
    const auto& schema = properties.at(row.name);
    const std::string description = schema.value("description", "");
    EXPECT_THAT(description, HasSubstr(row.meaning));
    EXPECT_THAT(description, HasSubstr(StrCat("Default: ", DefaultOf(row))));
    if (schema["type"][0] == "boolean") return;
    EXPECT_THAT(description, HasSubstr(row.allowed));
    EXPECT_EQ(schema.value(row.above_least ? "exclusiveMinimum" : "minimum", 1e9),
              static_cast<double>(row.neutral.value_or(row.least)));
    EXPECT_EQ(schema["maximum"], row.most);
  });
}

// ctest runs in the root of the source tree.
TEST(RequestFieldsTest, TheDocumentedTableIsThisOne) {
  std::string table =
      "| field | allowed | default | protocols | meaning |\n|---|---|---|---|---|\n";
  ForEachRequestField([&](const auto& row) {
    std::vector<std::string> protocols;
    for (const Protocol& protocol : Protocols()) {
      if ((row.protocols & protocol.bit) == 0) continue;
      if (protocols.empty() || protocols.back() != protocol.name) {
        protocols.emplace_back(protocol.name);
      }
    }
    table += StrCat("| `", row.name, "` | ", row.allowed, " | ", DefaultOf(row), " | ",
                    JoinList(protocols), " | ", row.meaning, " |\n");
  });
  std::ifstream file("docs/http-api.md");
  const std::string document(std::istreambuf_iterator<char>(file), {});
  const std::string expected = StrCat("<!-- fields -->\n", table, "<!-- /fields -->\n");
  EXPECT_NE(document.find(expected), document.npos)
      << "The table of docs/http-api.md is not that of engine/request/request_fields.h. Put this "
         "between "
         "its markers:\n"
      << expected;
}

}  // namespace
}  // namespace millrace
