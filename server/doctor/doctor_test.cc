#include "server/doctor/doctor.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/strings.h"
#include "executors/factory.h"
#include "executors/models/memory_plan.h"
#include "formats/open_model.h"
#include "formats/twins/family_twins.h"
#include "formats/twins/gguf_test_util.h"
#include "formats/twins/hf_test_util.h"
#include "server/device_spec.h"
#include "server/doctor/machine_memory.h"
#include "server/doctor/memory_report.h"

namespace millrace {
namespace {

using testing::HasSubstr;
using testing::Not;

Settings Fake() {
  Settings settings;
  settings.device = Device::kFake;
  settings.http_port = settings.grpc_port = settings.admin_port = 0;
  return settings;
}

const Finding* Find(const std::vector<Finding>& findings, const std::string& subject) {
  for (const Finding& finding : findings) {
    if (finding.subject == subject) return &finding;
  }
  return nullptr;
}

TEST(DoctorTest, NothingIsWrongWithTheFakeDevice) {
  const std::vector<Finding> findings = Examine(Fake());
  EXPECT_FALSE(HasErrors(findings)) << FindingsText(findings);
  ASSERT_NE(Find(findings, "processor"), nullptr);
  EXPECT_THAT(FindingsText(findings), HasSubstr("This machine can serve with these settings"));
}

TEST(DoctorTest, LocalhostTakesItsPortOnIpv6Too) {
  const int fd = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 address = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
  if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    GTEST_SKIP() << "no IPv6 here";
  }
  ASSERT_EQ(listen(fd, 1), 0);
  socklen_t size = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  Settings settings = Fake();
  settings.host = "localhost";
  settings.http_port = ntohs(address.sin6_port);
  const std::vector<Finding> findings = Examine(settings);
  const Finding* port = Find(findings, StrCat("port ", settings.http_port));
  ASSERT_NE(port, nullptr);
  EXPECT_EQ(port->verdict, Verdict::kError);
  EXPECT_THAT(port->fact, HasSubstr("taken"));
  close(fd);
}

TEST(DoctorTest, ATakenPortIsAnError) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  ASSERT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  socklen_t size = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  Settings settings = Fake();
  settings.grpc_port = ntohs(address.sin_port);
  const std::vector<Finding> findings = Examine(settings);
  const Finding* port = Find(findings, StrCat("port ", settings.grpc_port));
  ASSERT_NE(port, nullptr);
  EXPECT_EQ(port->verdict, Verdict::kError);
  EXPECT_THAT(port->fact, HasSubstr("taken"));
  EXPECT_THAT(port->advice, HasSubstr("--grpc-port"));
  EXPECT_TRUE(HasErrors(findings));
  EXPECT_THAT(FindingsText(findings), HasSubstr("It cannot serve: 1 errors"));
  close(fd);
  EXPECT_EQ(Find(Examine(settings), port->subject)->verdict, Verdict::kOk);
}

TEST(DoctorTest, AnAddressOfAnotherMachineIsAnError) {
  Settings settings = Fake();
  settings.host = "192.0.2.1";  // TEST-NET-1
  settings.http_port = 18080;
  const std::vector<Finding> findings = Examine(settings);
  const Finding* port = Find(findings, "port 18080");
  ASSERT_NE(port, nullptr);
  EXPECT_EQ(port->verdict, Verdict::kError);
  EXPECT_THAT(port->advice, HasSubstr("--host"));
}

TEST(DoctorTest, TheListenerOfMetricsIsLookedAtIfThereIsOne) {
  Settings settings = Fake();
  settings.metrics_port = 18083;
  EXPECT_EQ(Find(Examine(settings), "port 18083"), nullptr);
  settings.metrics_host = "192.0.2.1";  // TEST-NET-1
  const std::vector<Finding> findings = Examine(settings);
  const Finding* port = Find(findings, "port 18083");
  ASSERT_NE(port, nullptr);
  EXPECT_EQ(port->verdict, Verdict::kError);
  EXPECT_THAT(port->advice, HasSubstr("--metrics-host"));
}

TEST(DoctorTest, AModelThatIsNotThere) {
  Settings settings = Fake();
  settings.device = Device::kCpu;
  settings.model = "/nowhere/model.gguf";
  const std::vector<Finding> findings = Examine(settings);
  const Finding* model = Find(findings, "model");
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(model->verdict, Verdict::kError);
  EXPECT_THAT(model->fact, HasSubstr("/nowhere/model.gguf: there is no such file or folder"));
}

TEST(DoctorTest, FilesThatSettingsNameAreRead) {
  Settings settings = Fake();
  settings.keys = settings.ssl_certfile = settings.generation_config = "/nowhere/file";
  settings.ready_file = "/dev/null";
  settings.tool_call_parser = "none of them";
  const std::vector<Finding> findings = Examine(settings);
  for (const char* subject : {"keys", "TLS", "ready-file", "sampling", "parsers"}) {
    const Finding* const finding = Find(findings, subject);
    ASSERT_NE(finding, nullptr) << subject;
    EXPECT_EQ(finding->verdict, Verdict::kError) << subject;
  }
  EXPECT_THAT(FindingsText(findings), HasSubstr("ERROR    keys: cannot read /nowhere/file"));
  settings = Fake();
  settings.ready_file = "/nowhere/ready";
  EXPECT_EQ(Find(Examine(settings), "ready-file")->verdict, Verdict::kError);
  settings.ready_file = testing::TempDir() + "doctor_test_ready";
  EXPECT_FALSE(HasErrors(Examine(settings)));
  EXPECT_FALSE(std::filesystem::exists(settings.ready_file));
}

TEST(DoctorTest, WhereEventsOfTheCacheWouldBe) {
  Settings settings = Fake();
  settings.kv_events_config = R"({"enable_kv_cache_events": true})";
  EXPECT_THAT(FindingsText(Examine(settings)), HasSubstr("KV events: tcp://127.0.0.1:5557"));
  settings.kv_events_config = R"({"topics": ""})";
  EXPECT_EQ(Find(Examine(settings), "KV events")->verdict, Verdict::kError);
}

TEST(DoctorTest, WhatOnlyTheStartCanTellIsNamed) {
  Settings settings = Fake();
  settings.nnodes = 2;
  settings.otlp_traces_endpoint = "http://127.0.0.1:1";
  const std::string text = FindingsText(Examine(settings));
  EXPECT_THAT(text, HasSubstr("unknown  nodes: the other nodes"));
  EXPECT_THAT(text, HasSubstr("Nothing that was checked is wrong; not checked: nodes, traces"));
  EXPECT_THAT(text, Not(HasSubstr("can serve")));
}

class MachineMemoryTest : public testing::Test {
 protected:
  MachineMemoryTest() : root_(testing::TempDir() + StrCat("machine_memory_", getpid())) {
    Write("proc/meminfo", "MemTotal:       16000 kB\nMemFree:  100 kB\nMemAvailable:   8000 kB\n");
  }
  ~MachineMemoryTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  const std::filesystem::path root_;
};

TEST_F(MachineMemoryTest, OfTheMachine) {
  const MachineMemory memory = ReadMachineMemory(root_);
  EXPECT_EQ(memory.total, 16000u << 10);
  EXPECT_EQ(memory.available, 8000u << 10);
  EXPECT_FALSE(memory.group_left.has_value());
  EXPECT_EQ(memory.limited_by(), "of the machine");
}

TEST_F(MachineMemoryTest, OfAControlGroup) {
  Write("proc/self/cgroup", "0::/a/b\n");
  Write("sys/fs/cgroup/a/memory.max", "5000000\n");
  Write("sys/fs/cgroup/a/memory.current", "1000000\n");
  Write("sys/fs/cgroup/a/b/memory.max", "max\n");
  const MachineMemory memory = ReadMachineMemory(root_);
  EXPECT_EQ(memory.usable(), 4000000u);
  EXPECT_EQ(memory.limited_by(), "of the control group's limit");
}

TEST_F(MachineMemoryTest, OfAnOldControlGroupInAContainer) {
  Write("proc/self/cgroup", "4:memory:/docker/xyz\n3:cpu:/docker/xyz\n");
  Write("sys/fs/cgroup/memory/memory.limit_in_bytes", "3000000\n");
  Write("sys/fs/cgroup/memory/memory.usage_in_bytes", "4000000\n");
  EXPECT_EQ(ReadMachineMemory(root_).usable(), 0u);
}

TEST(MemoryReportTest, SaysWhatIsMissing) {
  MemoryReport report{
      .place = "memory", .parts = {{"weights", 3 << 20, "llama"}}, .total = 3 << 20};
  report.available = 1 << 20;
  EXPECT_FALSE(report.fits());
  EXPECT_THAT(MemoryReportText(report),
              HasSubstr("weights                         3.0 MiB  llama\n"));
  EXPECT_THAT(MemoryReportText(report), HasSubstr("It does not fit: 2.0 MiB are missing."));
  report.available = 4 << 20;
  EXPECT_THAT(MemoryReportText(report), HasSubstr("It fits.\n"));
}

uint64_t PlannedWeights(const std::string& path, Quantization quantization) {
  Settings settings = Fake();
  settings.device = Device::kCpu;
  settings.block_size = 16;
  settings.kv_cache_memory = 1 << 20;
  settings.quantization = quantization;
  const auto report = ReportMemory(settings, path);
  EXPECT_TRUE(report.ok()) << report.status();
  return report.ok() ? report->parts[0].bytes : 0;
}

// Types of fewer bits than the CPU's codes have take the codes' bytes, FP8 those of BF16.
TEST(MemoryReportTest, CountsWeightsAsTheCpuKeepsThem) {
  const std::string path = StrCat(::testing::TempDir(), "memory_report_weights_test_", getpid());
  std::vector<uint64_t> planned;
  TinyLlama model{.hidden = 256, .ffn = 256};
  for (const TensorType type : {TensorType::kIq2Xxs, TensorType::kQ2K, TensorType::kIq4Xs}) {
    model.linear_type = type;
    TinyLlamaWriter(model).Write(path + ".gguf");
    planned.push_back(PlannedWeights(path + ".gguf", Quantization::kNone));
  }
  EXPECT_EQ(planned[0], planned[1]);
  EXPECT_EQ(planned[1], planned[2]);
  EXPECT_GT(planned[0], std::filesystem::file_size(path + ".gguf") / 2);

  model.linear_type = TensorType::kF32;
  const auto of_folder = [&](const HfForm& form, Quantization quantization) {
    WriteHfFolder(model, path, form);
    return static_cast<double>(PlannedWeights(path, quantization));
  };
  for (const Quantization quantization : {Quantization::kNone, Quantization::kInt8}) {
    const double bf16 = of_folder({.type = TensorType::kBf16}, quantization);
    const double fp8 =
        of_folder({.type = TensorType::kBf16, .quantization = QuantScheme{}}, quantization);
    EXPECT_NEAR(fp8, bf16, 1024) << "the scales alone may be more";
  }
  std::filesystem::remove_all(path);
  std::filesystem::remove(path + ".gguf");
}

// Where every layer has a window, a cache holds sequences that are longer than all its blocks.
TEST(MemoryReportTest, WindowsHoldSequencesOfAnyLength) {
  const std::string path = StrCat(::testing::TempDir(), "memory_report_windows_test_", getpid());
  const FamilyTwin twin = FamilyTwinOf("mistral");
  WriteTwinFolder(twin, path);
  Settings settings = Fake();
  settings.block_size = 16;
  const auto note = [&](int64_t bytes) {
    settings.kv_cache_memory = bytes;
    const auto report = ReportMemory(settings, path);
    EXPECT_TRUE(report.ok()) << report.status();
    return report->parts.back().note;
  };
  constexpr int64_t kBlock = 3 * 2 * 2 * 32 * 16 * 2;  // 3 layers of 2 heads of 32, in 16 bits
  // The window of 9 tokens is in two blocks at the most.
  settings.device = Device::kCpu;
  EXPECT_THAT(note(kBlock * 5), HasSubstr("80 tokens in blocks of 16, or 2 sequences of 256"));
  EXPECT_THAT(note(kBlock), HasSubstr("16 tokens in blocks of 16; too few for one sequence"));
  std::filesystem::remove_all(path);
}

// The parts are the executor's own plan, on however many ranks, and its groups of state a row each.
TEST(MemoryReportTest, IsTheExecutorsPlan) {
  const std::string path = StrCat(::testing::TempDir(), "memory_report_test_", getpid());
  for (const std::string_view name : {"llama", "gemma3", "qwen3_5"}) {
    const FamilyTwin twin = FamilyTwinOf(name);
    WriteTwinFolder(twin, path);
    for (const int ranks : {1, 2}) {
      SCOPED_TRACE(StrCat(name, " on ", ranks, " ranks"));
      Settings settings = Fake();
      settings.device = Device::kCpu;
      settings.block_size = 16;
      settings.max_model_len = twin.max_model_len;
      settings.tensor_parallel_size = ranks;
      settings.max_num_seqs = 8;
      settings.kv_cache_memory = 4 << 20;
      settings.state_cache_memory = 1 << 20;
      const auto report = ReportMemory(settings, path);
      ASSERT_TRUE(report.ok()) << report.status();
      const absl::StatusOr<OpenedModel> model = OpenModel(path);
      const auto plan = PlanMemory(*model, MakeDeviceSpec(settings));
      ASSERT_TRUE(plan.ok()) << plan.status();
      std::map<std::string, uint64_t> rows;
      for (const MemoryPart& part : report->parts) rows[part.name] += part.bytes;
      EXPECT_EQ(rows["weights"], static_cast<uint64_t>(plan->weights));
      EXPECT_EQ(rows["activations"], static_cast<uint64_t>(plan->activations));
      EXPECT_EQ(rows["workspaces"], static_cast<uint64_t>(plan->workspaces));
      EXPECT_EQ(rows["KV cache"] + rows["KV cache of windows"] + rows["state of sequences"] +
                    rows["checkpoints of states"],
                static_cast<uint64_t>(plan->StateBytes()));
      EXPECT_EQ(rows["KV cache of windows"] > 0, plan->state.num_paged_groups() > 1);
      EXPECT_EQ(rows["state of sequences"] > 0, name == "qwen3_5");
      EXPECT_EQ(rows["checkpoints of states"] > 0, name == "qwen3_5");
      EXPECT_LE(rows["checkpoints of states"], uint64_t{1} << 20);
      EXPECT_EQ(report->total, static_cast<uint64_t>(plan->BesideState() + plan->StateBytes()) +
                                   rows["program and vocabulary"]);
    }
    std::filesystem::remove_all(path);
  }
}

TEST(MemoryReportTest, StatesThatLeaveTooLittleMakeFewerSequences) {
  const StateLayout state{.block_size = 16,
                          .groups = {PagedState{.block_bytes = 64}, SlotState{.bytes = 100}}};
  EXPECT_EQ(SequencesWithStates(state, 1000, 256), 10);
  EXPECT_EQ(SequencesWithStates(state, 1000, 8), 8);
  EXPECT_EQ(SequencesWithStates(state, 99, 256), 1);
  EXPECT_EQ(SequencesWithStates({.block_size = 16, .groups = {PagedState()}}, 0, 256), 256);
}

// Where no setting sizes the caches, the start takes those that are reported: four checkpoints for
// each sequence, where there is as much memory, and none for a cache that is off.
TEST(MemoryReportTest, SizesCheckpoints) {
  const std::string path = StrCat(::testing::TempDir(), "memory_report_states_test_", getpid());
  const FamilyTwin twin = FamilyTwinOf("qwen3_5");
  WriteTwinFolder(twin, path);
  Settings settings = Fake();
  settings.device = Device::kCpu;
  settings.block_size = 16;
  settings.max_model_len = twin.max_model_len;
  settings.max_num_seqs = 8;
  settings.kv_cache_memory = 0;
  const absl::StatusOr<OpenedModel> model = OpenModel(path);
  Settings sized = settings;
  SizeCaches(path, sized);
  const auto plan = PlanMemory(*model, MakeDeviceSpec(sized));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->num_blocks[1], 4 * 8);
  EXPECT_GE(plan->num_blocks[0], 8 * plan->state.BlocksFor(twin.max_model_len));

  sized = settings;
  sized.kv_cache_memory = 4 << 20;
  SizeCaches(path, sized);
  EXPECT_EQ(sized.kv_cache_memory, 4 << 20);
  EXPECT_EQ(PlanMemory(*model, MakeDeviceSpec(sized))->num_blocks[1], 4 * 8);

  sized = settings;
  sized.prefix_caching = false;
  SizeCaches(path, sized);
  EXPECT_EQ(PlanMemory(*model, MakeDeviceSpec(sized))->num_blocks[1], 0);
  std::filesystem::remove_all(path);
}

// Where no setting sizes the cache, the start takes the one that is reported.
TEST(MemoryReportTest, SizesTheCache) {
  const std::string path = StrCat(::testing::TempDir(), "memory_report_sizes_test_", getpid());
  const FamilyTwin twin = FamilyTwinOf("gemma3");
  WriteTwinFolder(twin, path);
  Settings settings = Fake();
  settings.device = Device::kCpu;
  settings.block_size = 16;
  settings.max_model_len = twin.max_model_len;
  settings.max_num_seqs = 4;
  settings.max_num_batched_tokens = 64;
  settings.kv_cache_memory = 0;
  const auto report = ReportMemory(settings, path);
  ASSERT_TRUE(report.ok()) << report.status();
  SizeCaches(path, settings);
  EXPECT_GT(settings.kv_cache_memory, 0);
  const absl::StatusOr<OpenedModel> model = OpenModel(path);
  const auto plan = PlanMemory(*model, MakeDeviceSpec(settings));
  ASSERT_TRUE(plan.ok()) << plan.status();
  uint64_t state = 0;
  for (const MemoryPart& part : report->parts) {
    if (part.name.starts_with("KV cache")) state += part.bytes;
  }
  EXPECT_EQ(static_cast<uint64_t>(plan->StateBytes()), state);
  std::filesystem::remove_all(path);
}

TEST(MemoryReportTest, RefusesWhatItCannotPlan) {
  Settings settings = Fake();
  settings.device = Device::kTorch;
  EXPECT_EQ(ReportMemory(settings, "x").status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace millrace
