// Fuzzes the messages of millrace.v1 and their way into the engine's requests. The first byte
// chooses the message. What is taken is checked as the engine does.
#include "base/fuzz_test_util.h"
#include "engine/request/request.h"
#include "millrace/v1/inference.pb.h"
#include "server/grpc/convert.h"
#include "server/grpc/infer_convert.h"

namespace {

using millrace::FuzzCheck;

constexpr int32_t kVocabulary = 50'000;

void CheckRefusal(const absl::Status& status) {
  FuzzCheck(status.code() == absl::StatusCode::kInvalidArgument && !status.message().empty(),
            status.ToString());
  FuzzCheck(!millrace::ToGrpc(status).ok(), "a refusal becomes OK");
}

// Returns whether the bytes are such a message, as gRPC parses them.
template <typename Message>
bool Parse(std::string_view bytes, Message& message) {
  return message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

template <typename Message>
void Convert(std::string_view bytes) {
  Message message;
  if (!Parse(bytes, message)) return;
  const auto request = millrace::FromProto(std::move(message));
  if (!request.ok()) CheckRefusal(request.status());
}

void Generate(std::string_view bytes) {
  millrace::v1::GenerateRequest message;
  if (!Parse(bytes, message)) return;
  const auto request = millrace::FromProto(std::move(message), {});
  if (!request.ok()) return CheckRefusal(request.status());
  const absl::Status status = millrace::ValidateRequest(*request, kVocabulary);
  if (!status.ok()) CheckRefusal(status);
}

void Infer(std::string_view bytes) {
  millrace::v1::InferRequest message;
  if (!Parse(bytes, message)) return;
  static_cast<void>(millrace::OutputNames(message));
  const auto inputs = millrace::InputsFromProto(message);
  if (!inputs.ok()) return CheckRefusal(inputs.status());
  millrace::v1::InferResponse response;
  for (const auto& input : *inputs) {
    millrace::AddOutput(input.name, input.tensor, true, response);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  millrace::FuzzInput input(data, size);
  switch (input.Byte() % 4) {
    case 0:
      Generate(input.rest());
      break;
    case 1:
      Convert<millrace::v1::TokenizeRequest>(input.rest());
      break;
    case 2:
      Convert<millrace::v1::EmbedRequest>(input.rest());
      break;
    default:
      Infer(input.rest());
  }
  return 0;
}
