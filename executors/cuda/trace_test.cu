// Tests traces of streams and graphs, on a GPU with CUPTI.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "executors/cuda/trace.h"

namespace millrace::cuda {
namespace {

__global__ void TraceTestFill(float* data, int count, float value) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] = value;
}

__global__ void TraceTestScale(float* data, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) data[i] *= 2;
}

class TraceTest : public testing::Test {
 protected:
  static constexpr int kCount = 1 << 20;
  static constexpr int kThreads = 256;

  void SetUp() override {
    ASSERT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&data_, kCount * sizeof(float)), cudaSuccess);
    ASSERT_EQ(cudaMallocHost(&host_, kCount * sizeof(float)), cudaSuccess);
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    Enqueue();
    cudaGraph_t graph;
    ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&graph_, graph, 0), cudaSuccess);
    ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  void TearDown() override {
    EXPECT_EQ(cudaGraphExecDestroy(graph_), cudaSuccess);
    EXPECT_EQ(cudaFree(data_), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(host_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }

  // Submits two scalings, a fill and a copy to the host.
  void Enqueue() {
    TraceTestFill<<<kCount / kThreads, kThreads, 0, stream_>>>(data_, kCount, 1);
    for (int i = 0; i < 2; ++i) {
      TraceTestScale<<<kCount / kThreads, kThreads, 0, stream_>>>(data_, kCount);
    }
    cudaMemcpyAsync(host_, data_, kCount * sizeof(float), cudaMemcpyDeviceToHost, stream_);
  }
  void Finish() { ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess); }

  // Checks that each of the four operations of `Enqueue` was recorded `times` times.
  static void ExpectSeen(const std::vector<DeviceOperation>& operations, int times) {
    const auto count = [&](const std::string& part) {
      return std::count_if(operations.begin(), operations.end(), [&](const DeviceOperation& o) {
        return o.name.find(part) != std::string::npos;
      });
    };
    EXPECT_EQ(count("TraceTestFill(float*, int, float)"), times);
    EXPECT_EQ(count("TraceTestScale(float*, int)"), 2 * times);
    EXPECT_EQ(count("memcpy device to host"), times);
    EXPECT_EQ(static_cast<int>(operations.size()), 4 * times);
    int64_t last = 0;
    for (const DeviceOperation& operation : operations) {
      EXPECT_LE(last, operation.begin_ns);
      EXPECT_LT(operation.begin_ns, operation.end_ns);
      EXPECT_LT(operation.end_ns - operation.begin_ns, 1'000'000'000) << operation.name;
      last = operation.begin_ns;
    }
  }

  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
  float* data_ = nullptr;
  float* host_ = nullptr;
};

// Runs first: the graph is created before CUPTI is loaded.
TEST_F(TraceTest, AGraphsNodesOneByOne) {
  EXPECT_TRUE(CanTrace().ok());
  for (int round = 0; round < 2; ++round) {
    auto trace = StartCudaTrace();
    ASSERT_TRUE(trace.ok()) << trace.status();
    for (int i = 0; i < 50; ++i) ASSERT_EQ(cudaGraphLaunch(graph_, stream_), cudaSuccess);
    Finish();
    const auto operations = (*trace)->Stop();
    ASSERT_TRUE(operations.ok()) << operations.status();
    ExpectSeen(*operations, 50);
    EXPECT_EQ(host_[0], 4);
  }
}

TEST_F(TraceTest, AStreamsWork) {
  Enqueue();
  Finish();
  auto trace = StartCudaTrace();
  ASSERT_TRUE(trace.ok()) << trace.status();
  for (int i = 0; i < 7; ++i) Enqueue();
  Finish();
  const auto operations = (*trace)->Stop();
  ASSERT_TRUE(operations.ok()) << operations.status();
  ExpectSeen(*operations, 7);
}

TEST_F(TraceTest, NothingAfterItHasEnded) {
  { auto trace = StartCudaTrace(); }
  Enqueue();
  Finish();
  auto trace = StartCudaTrace();
  ASSERT_TRUE(trace.ok()) << trace.status();
  const auto operations = (*trace)->Stop();
  ASSERT_TRUE(operations.ok());
  EXPECT_TRUE(operations->empty());
}

TEST_F(TraceTest, OneAtATime) {
  auto trace = StartCudaTrace();
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_FALSE(StartCudaTrace().ok());
}

}  // namespace
}  // namespace millrace::cuda
