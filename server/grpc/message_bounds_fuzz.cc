// Fuzzes the walk over messages before they are parsed. The first byte chooses the message's type:
// one of those that the methods of the endpoint take.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <vector>

#include "base/fuzz_test_util.h"
#include "grpc/health/v1/health.pb.h"
#include "grpc/reflection/v1/reflection.pb.h"
#include "grpc/reflection/v1alpha/reflection.pb.h"
#include "kserve/v2/inference.pb.h"
#include "millrace/v1/inference.pb.h"
#include "server/grpc/message_bounds.h"
#include "vllm/engine.pb.h"

namespace {

using google::protobuf::Descriptor;
using google::protobuf::Message;
using millrace::FuzzCheck;

constexpr millrace::MessageLimits kLimits = {.parts = 500, .bytes = 200'000};

struct Type {
  explicit Type(const Descriptor* descriptor)
      : descriptor(descriptor),
        bounds(descriptor),
        prototype(
            *google::protobuf::MessageFactory::generated_factory()->GetPrototype(descriptor)) {}

  const Descriptor* const descriptor;
  const millrace::MessageBounds bounds;
  const Message& prototype;
};

// Returns the types of all requests, each once. Of each file with a service a type is named, so
// that it is linked in.
std::vector<std::unique_ptr<const Type>> MakeTypes() {
  std::vector<std::unique_ptr<const Type>> types;
  for (const Descriptor* of_file : {
           millrace::v1::GenerateRequest::descriptor(),
           inference::ModelInferRequest::descriptor(),
           vllm::grpc::engine::GenerateRequest::descriptor(),
           grpc::health::v1::HealthCheckRequest::descriptor(),
           grpc::reflection::v1::ServerReflectionRequest::descriptor(),
           grpc::reflection::v1alpha::ServerReflectionRequest::descriptor(),
       }) {
    const google::protobuf::FileDescriptor& file = *of_file->file();
    for (int s = 0; s < file.service_count(); ++s) {
      for (int m = 0; m < file.service(s)->method_count(); ++m) {
        const Descriptor* const taken = file.service(s)->method(m)->input_type();
        const bool known = std::any_of(types.begin(), types.end(),
                                       [&](const auto& type) { return type->descriptor == taken; });
        if (!known) types.push_back(std::make_unique<const Type>(taken));
      }
    }
  }
  return types;
}

void Measure(const Type& type, std::string_view bytes) {
  google::protobuf::io::CodedInputStream input(reinterpret_cast<const uint8_t*>(bytes.data()),
                                               static_cast<int>(bytes.size()));
  const absl::StatusOr<size_t> measured = type.bounds.Measure(input, kLimits);
  if (!measured.ok()) {
    FuzzCheck(absl::IsDataLoss(measured.status()) || absl::IsInvalidArgument(measured.status()),
              measured.status().ToString());
    return;
  }
  FuzzCheck(*measured <= kLimits.bytes, "a message beyond the limit passes");
  const std::unique_ptr<Message> message(type.prototype.New());
  if (!message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  FuzzCheck(message->SpaceUsedLong() <= *measured, "a message takes more than was measured");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<std::unique_ptr<const Type>>& types =
      *new std::vector<std::unique_ptr<const Type>>(MakeTypes());
  millrace::FuzzInput input(data, size);
  const Type& type = *types[input.Byte() % types.size()];
  Measure(type, input.rest());
  return 0;
}
