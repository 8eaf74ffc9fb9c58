// Connections of gRPC, with or without TLS.
#ifndef MILLRACE_LOADTEST_GRPC_CHANNELS_H_
#define MILLRACE_LOADTEST_GRPC_CHANNELS_H_

#include <grpcpp/channel.h>
#include <grpcpp/security/credentials.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "loadtest/options.h"
#include "loadtest/url.h"

namespace millrace {

// Thread-safe.
class GrpcChannels {
 public:
  // An error names a flag.
  static absl::StatusOr<std::unique_ptr<GrpcChannels>> Make(const Options& options,
                                                            const ServerUrl& url);

  // Returns a channel with a connection of its own.
  std::shared_ptr<grpc::Channel> Connect();
  const std::string& server() const { return server_; }

 private:
  GrpcChannels(std::string server, std::shared_ptr<grpc::ChannelCredentials> credentials);

  const std::string server_;  // HOST:PORT
  const std::shared_ptr<grpc::ChannelCredentials> credentials_;
  std::atomic<int> number_ = 0;
};

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_GRPC_CHANNELS_H_
