#include "server/server.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>

#include "server/model_location.h"

namespace millrace {
namespace {

TEST(ServerTest, ASignalWhileItLoadsEndsItBeforeItIsReady) {
  Settings settings;
  settings.device = Device::kFake;
  settings.http_port = settings.grpc_port = settings.admin_port = 0;
  settings.max_num_batched_tokens = 512;
  settings.block_size = 16;
  settings.kv_cache_memory = 1 << 20;
  settings.ready_file = testing::TempDir() + "server_test_ready";
  const std::atomic<bool> stop = true;
  const auto server = Server::Start(settings, {[] {}, [] {}, [] {}}, stop);
  EXPECT_TRUE(absl::IsCancelled(server.status())) << server.status();
  EXPECT_NE(access(settings.ready_file.c_str(), F_OK), 0);
}

TEST(ModelLocationTest, AModelThatIsSplitHasTheNameOfItsParts) {
  EXPECT_EQ(ModelName(Settings(), "/x/m-Q4_0-00001-of-00003.gguf"), "m-Q4_0");
  EXPECT_EQ(ModelName(Settings(), "/x/m-Q4_0.gguf"), "m-Q4_0");
}

}  // namespace
}  // namespace millrace
