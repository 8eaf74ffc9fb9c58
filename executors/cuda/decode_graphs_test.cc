// What was captured, beside what it computes (cuda_executor_test.cc).
#include "executors/cuda/decode_graphs.h"

#include "executors/cuda/cuda_model.h"
#include "executors/cuda/cuda_test_util.h"
#include "executors/executor_driver.h"
#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

// Kernels of ours that follow one another: a copy or a synchronization that came in between would
// cost the early start of the second one, and nothing else would tell.
TEST(DecodeGraphsTest, TheNextKernelIsSetUpWhileOneEnds) {
  DeviceSpec device = Device();
  device.max_num_seqs = 4;
  device.quantize_fp8 = true;
  auto model = LoadCudaModel({ModelPath(Model(TensorType::kF32, TensorType::kF32))}, device);
  CheckOk(model.status());
  DecodeGraphs graphs;
  CheckOk(graphs.Capture(**model));
  ASSERT_EQ(graphs.count(), 3);
  for (const int size : {1, 2, 4}) {
    const DecodeGraph* graph = graphs.Find(size);
    ASSERT_NE(graph, nullptr);
    // So few tokens take no library's kernel.
    EXPECT_EQ(graph->num_programmatic_edges, graph->num_edges);
  }
}

}  // namespace
}  // namespace millrace::cuda
