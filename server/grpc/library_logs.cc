#include "server/grpc/library_logs.h"

#include <google/protobuf/stubs/logging.h>
#include <grpc/support/log.h>

#include <string>

#include "base/log.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kGrpc);

void OnGrpc(gpr_log_func_args* said) {
  if (said->severity == GPR_LOG_SEVERITY_ERROR) {
    kLog.Warning("gRPC: ", said->message);
  } else {
    kLog.Debug("gRPC: ", said->message);
  }
}

void OnProtobuf(google::protobuf::LogLevel level, const char* /*file*/, int /*line*/,
                const std::string& message) {
  // The library ends the process itself after a fatal message.
  if (level == google::protobuf::LOGLEVEL_FATAL) {
    kLog.Error("protobuf: ", message);
  } else {
    kLog.Debug("protobuf: ", message);
  }
}

}  // namespace

void LogWhatLibrariesSay() {
  gpr_set_log_function(OnGrpc);
  google::protobuf::SetLogHandler(OnProtobuf);
}

}  // namespace millrace
