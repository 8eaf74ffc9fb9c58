// Tests the host's calls of CUDA while an executor runs steps: none waits for the device, allocates
// memory or creates an object. Also tests the ranges that a profiler sees. CUPTI reports each call.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cupti.h>
#include <dlfcn.h>
#include <generated_nvtx_meta.h>
#include <nvtx3/nvToolsExt.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "executors/cuda/cuda_test_util.h"
#include "executors/cuda/family_twins_test_util.h"
#include "executors/executor_driver_test_util.h"
#include "executors/windows_test_util.h"
#include "formats/twins/family_twins.h"
#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

void CheckCupti(CUptiResult result, const char* what) {
  if (result == CUPTI_SUCCESS) return;
  std::fprintf(stderr, "%s: CUPTI error %d\n", what, static_cast<int>(result));
  std::abort();
}

// Counts calls of CUDA's functions by all threads, and NVTX ranges, by name.
class CallCounter {
 public:
  // Called once per process, before anything else: NVTX looks for its receiver at the first range.
  static CallCounter& Get() {
    static CallCounter* const counter = new CallCounter;
    return *counter;
  }

  void Reset() {
    std::lock_guard lock(mutex_);
    calls_.clear();
    ranges_.clear();
  }
  std::map<std::string, int> calls() const {
    std::lock_guard lock(mutex_);
    return calls_;
  }
  std::map<std::string, int> ranges() const {
    std::lock_guard lock(mutex_);
    return ranges_;
  }

 private:
  CallCounter() {
    void* const library = dlopen("libcupti.so.13", RTLD_NOW | RTLD_GLOBAL);
    if (library == nullptr) {
      std::fprintf(stderr, "%s\n", dlerror());
      std::abort();
    }
    const auto subscribe =
        reinterpret_cast<decltype(&cuptiSubscribe)>(dlsym(library, "cuptiSubscribe"));
    const auto enable =
        reinterpret_cast<decltype(&cuptiEnableDomain)>(dlsym(library, "cuptiEnableDomain"));
    Dl_info where;
    dladdr(reinterpret_cast<void*>(subscribe), &where);
    setenv("NVTX_INJECTION64_PATH", where.dli_fname, 1);
    CUpti_SubscriberHandle subscriber;
    CheckCupti(subscribe(&subscriber, OnCall, this), "subscribing");
    for (const CUpti_CallbackDomain domain :
         {CUPTI_CB_DOMAIN_RUNTIME_API, CUPTI_CB_DOMAIN_DRIVER_API, CUPTI_CB_DOMAIN_NVTX}) {
      CheckCupti(enable(1, subscriber, domain), "enabling");
    }
  }

  static void CUPTIAPI OnCall(void* self, CUpti_CallbackDomain domain, CUpti_CallbackId id,
                              const void* data) {
    CallCounter& counter = *static_cast<CallCounter*>(self);
    if (domain == CUPTI_CB_DOMAIN_NVTX) {
      counter.AddRange(id, static_cast<const CUpti_NvtxData*>(data)->functionParams);
      return;
    }
    const auto& call = *static_cast<const CUpti_CallbackData*>(data);
    if (call.callbackSite == CUPTI_API_ENTER) counter.Add(call.functionName);
  }

  void Add(const char* function) {
    std::lock_guard lock(mutex_);
    ++calls_[function];
  }

  void AddRange(CUpti_CallbackId id, const void* params) {
    const nvtxEventAttributes_t* attributes = nullptr;
    if (id == CUPTI_CBID_NVTX_nvtxDomainRangePushEx) {
      attributes = static_cast<const nvtxDomainRangePushEx_params*>(params)->core.eventAttrib;
    } else if (id == CUPTI_CBID_NVTX_nvtxDomainRangeStartEx) {
      attributes = static_cast<const nvtxDomainRangeStartEx_params*>(params)->core.eventAttrib;
    }
    if (attributes == nullptr || attributes->messageType != NVTX_MESSAGE_TYPE_ASCII) return;
    std::lock_guard lock(mutex_);
    ++ranges_[attributes->message.ascii];
  }

  mutable std::mutex mutex_;
  std::map<std::string, int> calls_;
  std::map<std::string, int> ranges_;
};

// Returns whether a function waits for the device, allocates or frees memory, or creates an object.
bool IsForbidden(std::string_view function) {
  const auto holds = [&](std::string_view part) { return function.find(part) != function.npos; };
  for (const std::string_view part :
       {"Synchronize", "Alloc", "Malloc", "Free", "Create", "Destroy", "Instantiate", "Capture",
        "Register", "ModuleLoad", "LibraryLoad"}) {
    if (holds(part) && !holds("IsCapturing") && !holds("GetCaptureInfo")) return true;
  }
  return (holds("Memcpy") || holds("Memset")) && !holds("Async");
}

std::map<std::string, int> Forbidden(const std::map<std::string, int>& calls) {
  std::map<std::string, int> forbidden;
  for (const auto& [function, count] : calls) {
    if (IsForbidden(function)) forbidden.emplace(function, count);
  }
  return forbidden;
}

// Runs prompts in chunks and whole, beside rows that decode, and decoding in graphs. Frees its
// slots, so that it can run again.
int RunSteps(ExecutorDriver& driver, int vocabulary = 261) {
  int steps = 0;
  std::vector<SlotId> slots;
  for (int i = 0; i < 20; ++i) {
    const int length = 20 + 7 * i;
    slots.push_back(driver.Add(Prompt(length, i, vocabulary), kSampling));
    driver.Step({{slots.back(), 16}});
    std::vector<ExecutorDriver::Share> shares;
    for (const SlotId slot : slots)
      shares.push_back({slot, slot == slots.back() ? length - 16 : 1});
    driver.Step(shares);
    driver.Decode(slots, 5);
    steps += 7;
  }
  for (const SlotId slot : slots) driver.Remove(slot);
  return steps;
}

TEST(CudaSteadyTest, NoCallWaitsOrTakesMemory) {
  CallCounter& counter = CallCounter::Get();
  for (const bool fp8 : {false, true}) {
    CudaSpec device = Device();
    device.quantize_fp8 = fp8;
    const std::unique_ptr<Executor> executor =
        Load(ModelPath(SmallModel(TensorType::kF32, TensorType::kF32)), device);
    ExecutorDriver driver(*executor);
    // Each size of steps with prompts is captured at its second step.
    RunSteps(driver);
    RunSteps(driver);
    counter.Reset();
    const int steps = RunSteps(driver);
    const std::map<std::string, int> calls = counter.calls();
    EXPECT_EQ(Forbidden(calls), (std::map<std::string, int>{}));
    EXPECT_EQ(calls.at("cuGraphLaunch"), steps);
    std::printf("calls in %d steps:\n", steps);
    for (const auto& [function, count] : calls) std::printf("  %7d %s\n", count, function.c_str());

    const std::map<std::string, int> ranges = counter.ranges();
    for (const char* name : {"step", "upload", "launch", "download", "wait", "commit"}) {
      ASSERT_TRUE(ranges.contains(name)) << name;
      EXPECT_EQ(ranges.at(name), steps) << name;
    }
  }
  // Shows that such a call would be detected.
  counter.Reset();
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 256), cudaSuccess);
  ASSERT_EQ(cudaFree(memory), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_GE(Forbidden(counter.calls()).size(), 3);
}

// Nor does one where layers have windows, whose blocks are released and taken again.
TEST(CudaSteadyTest, NoCallOfGroupsWaitsOrTakesMemory) {
  CallCounter& counter = CallCounter::Get();
  FamilyTwin twin = FamilyTwinOf("ministral");
  twin.config = Widened(twin.config);
  const std::string path = ::testing::TempDir() + "/cuda_steady_twin_" + std::to_string(getpid());
  WriteWindowTwin(std::move(twin), 20, path);
  const std::unique_ptr<Executor> executor = Load(path, Device());
  ASSERT_EQ(executor->info().limits.state.num_groups(), 2);
  ExecutorDriver driver(*executor);
  driver.ReleaseBehindWindows();
  RunSteps(driver, kTwinVocabulary);
  RunSteps(driver, kTwinVocabulary);
  counter.Reset();
  const int steps = RunSteps(driver, kTwinVocabulary);
  const std::map<std::string, int> calls = counter.calls();
  EXPECT_EQ(Forbidden(calls), (std::map<std::string, int>{}));
  EXPECT_EQ(calls.at("cuGraphLaunch"), steps);
}

// Nor does one where layers have states at slots.
TEST(CudaSteadyTest, NoCallOfStatesWaitsOrTakesMemory) {
  CallCounter& counter = CallCounter::Get();
  FamilyTwin twin = FamilyTwinOf("qwen3_5");
  twin.config = Widened(twin.config);
  const std::string path = ::testing::TempDir() + "/cuda_steady_states_" + std::to_string(getpid());
  WriteTwinFolder(twin, path);
  const std::unique_ptr<Executor> executor = Load(path, Device());
  ASSERT_TRUE(executor->info().limits.has_slots());
  ExecutorDriver driver(*executor);
  RunSteps(driver, kTwinVocabulary);
  RunSteps(driver, kTwinVocabulary);
  counter.Reset();
  const int steps = RunSteps(driver, kTwinVocabulary);
  const std::map<std::string, int> calls = counter.calls();
  EXPECT_EQ(Forbidden(calls), (std::map<std::string, int>{}));
  EXPECT_EQ(calls.at("cuGraphLaunch"), steps);
}

}  // namespace
}  // namespace millrace::cuda
