#include "config/node_checks.h"

#include <string>
#include <vector>

#include "config/load.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;

using Flags = std::vector<std::string>;

// Node 0 of two.
Flags Two(const Flags& more = {}) {
  Flags flags = {"--tensor-parallel-size=2", "--nnodes=2", "--master-addr=10.0.0.7",
                 "--node-key=0123456789abcdef"};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

std::string ErrorOf(const Flags& flags, const Flags& environment = {}) {
  return std::string(LoadSettings(flags, environment).status().message());
}

TEST(NodeChecksTest, TakesTheSettingsOfSeveralHosts) {
  const auto startup =
      LoadSettings(Two({"--node-rank=1", "--master-port=4000", "--node-timeout=5s",
                        "--node-tls-cert=a", "--node-tls-key=b", "--node-tls-ca=c"}),
                   {});
  ASSERT_TRUE(startup.ok()) << startup.status();
  const Settings& settings = startup->settings;
  EXPECT_EQ(settings.nnodes, 2);
  EXPECT_EQ(settings.node_rank, 1);
  EXPECT_EQ(settings.master_addr, "10.0.0.7");
  EXPECT_EQ(settings.master_port, 4000);
  EXPECT_EQ(settings.node_key, "0123456789abcdef");
  EXPECT_EQ(settings.node_timeout, std::chrono::seconds(5));
  EXPECT_EQ(settings.node_tls_ca, "c");
  EXPECT_THAT(startup->given, HasSubstr("node-key=a secret"));
  // There may be several hosts of 8 ranks each.
  EXPECT_TRUE(
      LoadSettings(Two({"--device=cuda", "--tensor-parallel-size=16", "--devices=0,1,2,3,4,5,6,7"}),
                   {})
          .ok());
}

TEST(NodeChecksTest, RefusesWhatDoesNotGoTogether) {
  EXPECT_EQ(ErrorOf({"--node-rank=1"}),
            "flag --node-rank: got \"1\", allowed only with --nnodes of 2 or more");
  EXPECT_EQ(ErrorOf({}, {"MILLRACE_NODE_KEY=0123456789abcdef"}),
            "environment MILLRACE_NODE_KEY: got a secret, allowed only with --nnodes of 2 or more");
  EXPECT_THAT(ErrorOf(Two({"--tensor-parallel-size=3"})),
              HasSubstr("flag --nnodes: got \"2\", but --tensor-parallel-size is 3: expected as "
                        "many ranks on each node"));
  EXPECT_THAT(ErrorOf(Two({"--node-rank=2"})), HasSubstr("allowed with --nnodes 2: 0 to 1"));
  EXPECT_THAT(ErrorOf({"--tensor-parallel-size=2", "--nnodes=2"}),
              HasSubstr("but no --master-addr says where node 0 is"));
  EXPECT_THAT(ErrorOf({"--tensor-parallel-size=2", "--nnodes=2", "--master-addr=a"}),
              HasSubstr("but there is no --node-key"));
  EXPECT_THAT(ErrorOf(Two({"--node-key=short"})),
              HasSubstr("flag --node-key: got a secret, expected 16 to 512 visible ASCII"));
  EXPECT_THAT(ErrorOf(Two({"--node-tls-key=b"})), HasSubstr("but TLS needs all of"));
  EXPECT_THAT(ErrorOf(Two({"--device=cuda", "--virtual-ranks"})), HasSubstr("all on one GPU"));
  EXPECT_THAT(ErrorOf({"--device=fake", "--nnodes=2"}),
              HasSubstr("allowed only with --device cpu or cuda"));
  EXPECT_THAT(ErrorOf(Two({"--device=cuda", "--devices=0,1"})),
              HasSubstr("expected as many as there are ranks on this node: 1"));
  EXPECT_THAT(ErrorOf(Two({"--device=cuda", "--tensor-parallel-size=18"})),
              HasSubstr("allowed with --device cuda: 1 to 16"));
}

TEST(NodeChecksTest, TheSameCommandIsForAllNodesButForTheirRank) {
  for (const char* rank : {"--node-rank=0", "--node-rank=1"}) {
    EXPECT_EQ(ErrorOf(Two({rank, "--http-port=80", "--host=0.0.0.0", "--api-key=secret",
                           "--served-model-name=mine", "--metrics-host=0.0.0.0", "--drain-delay=5s",
                           "--log-prompts"})),
              "");
  }
}

TEST(NodeChecksTest, NcclAddsTheSumsOfSeveralGpus) {
  const Flags two = {"--device=cuda", "--tensor-parallel-size=2", "--all-reduce=nccl"};
  EXPECT_TRUE(LoadSettings(two, {}).ok());
  EXPECT_THAT(ErrorOf({"--device=cuda", "--all-reduce=nccl"}), HasSubstr("but there is one rank"));
  EXPECT_THAT(ErrorOf({"--device=cuda", "--tensor-parallel-size=2", "--virtual-ranks",
                       "--all-reduce=nccl"}),
              HasSubstr("but --virtual-ranks share a GPU"));
  EXPECT_THAT(ErrorOf({"--all-reduce=nccl"}), HasSubstr("allowed only with --device cuda"));
}

TEST(NodeChecksTest, BenchTakesNoNodes) {
  Flags flags = Two();
  flags.insert(flags.begin(), "bench");
  EXPECT_THAT(ErrorOf(flags), HasSubstr("which means nothing to bench"));
}

}  // namespace
}  // namespace millrace
