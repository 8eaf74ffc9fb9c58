// Tests the structure of captured graphs. cuda_executor_test.cc tests their results.
#include "executors/cuda/decode_graphs.h"

#include "executors/cuda/cuda_model.h"
#include "executors/cuda/cuda_test_util.h"
#include "executors/executor_driver_test_util.h"
#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

// Returns the number of launches of a step with one token per row. With a single token our linears
// compute their inputs in their prologue; only the head, a library kernel, needs a separate launch.
int Launches(int layers, bool fp8, bool fused_prologue) {
  constexpr int kOnce =
      1 + 1 + 1 + 1 + 1 + 2;  // embed, norm, attention's plan, gather, head, sample
  constexpr int kLinears = 4, kAttention = 1, kGate = 1;  // attention appends, too
  constexpr int kOthers = kLinears + kAttention + kGate;
  if (fused_prologue) return kOnce + layers * kOthers + 1;
  const int norms = 2, quantized = fp8 ? 1 : 0;  // of attention's output
  return kOnce + layers * (kOthers + norms + quantized);
}

// Our kernels are adjacent: a copy or synchronization between them would cost the early start of
// the second one, without any other symptom.
TEST(DecodeGraphsTest, EveryKernelIsSetUpWhileTheOneBeforeItEnds) {
  const TinyLlama tiny = SmallModel(TensorType::kF32, TensorType::kF32);
  for (const bool fp8 : {false, true}) {
    CudaSpec device = Device();
    device.max_num_seqs = 4;
    device.quantize_fp8 = fp8;
    auto model = LoadCudaModel({ModelPath(tiny)}, device);
    CheckOk(model.status());
    DecodeGraphs graphs;
    CheckOk(graphs.Capture(**model));
    ASSERT_EQ(graphs.count(), 3);
    for (const int size : {1, 2, 4}) {  // so few tokens use no library kernel
      const DecodeGraph* graph = graphs.Find(size);
      ASSERT_NE(graph, nullptr);
      EXPECT_EQ(graph->step.num_edges, Launches(tiny.layers, fp8, size == 1) - 1) << size;
      EXPECT_EQ(graph->step.num_programmatic_edges, graph->step.num_edges) << size;
    }
  }
}

// Edges behind library kernels, which never release early, are plain: two of each linear.
TEST(DecodeGraphsTest, EdgesAtALibrarysKernelsArePlain) {
  const TinyLlama tiny = SmallModel(TensorType::kF32, TensorType::kF32);
  CudaSpec device = Device();
  device.max_num_seqs = 1;
  device.cublaslt_linears = true;
  auto model = LoadCudaModel({ModelPath(tiny)}, device);
  CheckOk(model.status());
  DecodeGraphs graphs;
  CheckOk(graphs.Capture(**model));
  ASSERT_EQ(graphs.count(), 1);
  const StepGraph& graph = graphs.Find(1)->step;
  EXPECT_EQ(graph.num_edges, Launches(tiny.layers, false, false) - 1);
  EXPECT_EQ(graph.num_programmatic_edges, graph.num_edges - 2 * (4 * tiny.layers + 1));
}

}  // namespace
}  // namespace millrace::cuda
