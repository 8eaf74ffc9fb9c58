#include "server/grpc/reflection_service.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <string_view>
#include <unordered_set>
#include <utility>

#include "grpc/reflection/v1/reflection.pb.h"
#include "grpc/reflection/v1alpha/reflection.pb.h"

namespace millrace {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;

// The two versions of the protocol differ in their names alone.
namespace alpha = grpc::reflection::v1alpha;
namespace current = grpc::reflection::v1;

const DescriptorPool& Pool() { return *DescriptorPool::generated_pool(); }

// The file and, depth first, all that it imports, each once.
template <typename FileDescriptorResponse>
void AddFile(const FileDescriptor& file, std::unordered_set<const FileDescriptor*>& seen,
             FileDescriptorResponse& out) {
  if (!seen.insert(&file).second) return;
  google::protobuf::FileDescriptorProto proto;
  file.CopyTo(&proto);
  out.add_file_descriptor_proto(proto.SerializeAsString());
  for (int i = 0; i < file.dependency_count(); ++i) AddFile(*file.dependency(i), seen, out);
}

template <typename Response>
void SetFile(const FileDescriptor* file, const std::string& asked, Response& out) {
  if (file == nullptr) {
    out.mutable_error_response()->set_error_code(grpc::StatusCode::NOT_FOUND);
    out.mutable_error_response()->set_error_message("not found: " + asked);
    return;
  }
  std::unordered_set<const FileDescriptor*> seen;
  AddFile(*file, seen, *out.mutable_file_descriptor_response());
}

template <typename Response>
void SetExtensionNumbers(const std::string& type, Response& out) {
  const Descriptor* const message = Pool().FindMessageTypeByName(type);
  if (message == nullptr) {
    SetFile(nullptr, type, out);
    return;
  }
  std::vector<const FieldDescriptor*> extensions;
  Pool().FindAllExtensions(message, &extensions);
  out.mutable_all_extension_numbers_response()->set_base_type_name(type);
  for (const FieldDescriptor* extension : extensions) {
    out.mutable_all_extension_numbers_response()->add_extension_number(extension->number());
  }
}

template <typename ExtensionRequest>
const FileDescriptor* FileOfExtension(const ExtensionRequest& request) {
  const Descriptor* const type = Pool().FindMessageTypeByName(request.containing_type());
  if (type == nullptr) return nullptr;
  const FieldDescriptor* const field =
      Pool().FindExtensionByNumber(type, request.extension_number());
  return field == nullptr ? nullptr : field->file();
}

template <typename Request, typename Response>
Response Answer(const std::vector<std::string>& services, const Request& request) {
  Response out;
  out.set_valid_host(request.host());
  *out.mutable_original_request() = request;
  switch (request.message_request_case()) {
    case Request::kFileByFilename:
      SetFile(Pool().FindFileByName(request.file_by_filename()), request.file_by_filename(), out);
      break;
    case Request::kFileContainingSymbol:
      SetFile(Pool().FindFileContainingSymbol(request.file_containing_symbol()),
              request.file_containing_symbol(), out);
      break;
    case Request::kFileContainingExtension:
      SetFile(FileOfExtension(request.file_containing_extension()),
              request.file_containing_extension().containing_type(), out);
      break;
    case Request::kAllExtensionNumbersOfType:
      SetExtensionNumbers(request.all_extension_numbers_of_type(), out);
      break;
    case Request::kListServices:
      for (const std::string& name : services) {
        out.mutable_list_services_response()->add_service()->set_name(name);
      }
      break;
    case Request::MESSAGE_REQUEST_NOT_SET:
      out.mutable_error_response()->set_error_code(grpc::StatusCode::INVALID_ARGUMENT);
      out.mutable_error_response()->set_error_message("message_request: missing");
      break;
  }
  return out;
}

// One question after the other, each answered before the next is read.
template <typename Request, typename Response>
class ReflectionCall final : public ServerCall {
 public:
  explicit ReflectionCall(const std::vector<std::string>& services) : services_(services) {}

 private:
  void OnMessage(const google::protobuf::Message* message) override {
    if (message == nullptr) return End(grpc::Status::OK);
    Write(Answer<Request, Response>(services_, static_cast<const Request&>(*message)));
  }

  void OnWriteDone(bool ok) override {
    if (ok) {
      ReadNext();
    } else {
      End(grpc::Status::CANCELLED);
    }
  }

  void OnDone() override {
    Pass();
    delete this;
  }

  const std::vector<std::string>& services_;
};

}  // namespace

ReflectionService::ReflectionService(std::vector<std::string> services)
    : services_(std::move(services)) {}

template <typename Request, typename Response>
ServerCall* ReflectionService::Begin(grpc::CallbackServerContext* /*context*/) {
  return new ReflectionCall<Request, Response>(services_);
}

void ReflectionService::Register(CallService& calls) {
  constexpr std::string_view kName = "ServerReflectionInfo";
  calls.AddDialogue<alpha::ServerReflectionRequest>(
      "grpc.reflection.v1alpha.ServerReflection", kName, Scope::kAny, *this,
      &ReflectionService::Begin<alpha::ServerReflectionRequest, alpha::ServerReflectionResponse>);
  calls.AddDialogue<current::ServerReflectionRequest>(
      "grpc.reflection.v1.ServerReflection", kName, Scope::kAny, *this,
      &ReflectionService::Begin<current::ServerReflectionRequest,
                                current::ServerReflectionResponse>);
}

}  // namespace millrace
