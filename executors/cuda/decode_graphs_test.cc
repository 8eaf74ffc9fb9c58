// What was captured, beside what it computes (cuda_executor_test.cc).
#include "executors/cuda/decode_graphs.h"

#include "executors/cuda/cuda_model.h"
#include "executors/cuda/cuda_test_util.h"
#include "executors/executor_driver.h"
#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

// The launches of a step of one token a row, by the ops that make them. Linears of ours make the
// inputs of a single token themselves: only the head's is left, which is not of ours to make.
int Launches(int layers, bool fp8, bool make_inputs) {
  constexpr int kOnce =
      1 + 1 + 1 + 1 + 1 + 2;  // embed, norm, attention's plan, gather, head, sample
  constexpr int kLinears = 4, kAttention = 1, kGate = 1;  // which appends, too
  constexpr int kOthers = kLinears + kAttention + kGate;
  if (make_inputs) return kOnce + layers * kOthers + 1;
  const int norms = 2, quantized = fp8 ? 1 : 0;  // what attention leaves
  return kOnce + layers * (kOthers + norms + quantized);
}

// Kernels of ours that follow one another: a copy or a synchronization that came in between would
// cost the early start of the second one, and nothing else would tell.
TEST(DecodeGraphsTest, EveryKernelIsSetUpWhileTheOneBeforeItEnds) {
  const TinyLlama tiny = Model(TensorType::kF32, TensorType::kF32);
  for (const bool fp8 : {false, true}) {
    DeviceSpec device = Device();
    device.max_num_seqs = 4;
    device.quantize_fp8 = fp8;
    auto model = LoadCudaModel({ModelPath(tiny)}, device);
    CheckOk(model.status());
    DecodeGraphs graphs;
    CheckOk(graphs.Capture(**model));
    ASSERT_EQ(graphs.count(), 3);
    for (const int size : {1, 2, 4}) {  // so few tokens take no library's kernel
      const DecodeGraph* graph = graphs.Find(size);
      ASSERT_NE(graph, nullptr);
      EXPECT_EQ(graph->num_edges, Launches(tiny.layers, fp8, size == 1) - 1) << size;
      EXPECT_EQ(graph->num_programmatic_edges, graph->num_edges) << size;
    }
  }
}

// Behind a library's kernel, which lets nobody start early, edges are plain: two of each linear.
TEST(DecodeGraphsTest, EdgesAtALibrarysKernelsArePlain) {
  const TinyLlama tiny = Model(TensorType::kF32, TensorType::kF32);
  DeviceSpec device = Device();
  device.max_num_seqs = 1;
  device.cublaslt_linears = true;
  auto model = LoadCudaModel({ModelPath(tiny)}, device);
  CheckOk(model.status());
  DecodeGraphs graphs;
  CheckOk(graphs.Capture(**model));
  ASSERT_EQ(graphs.count(), 1);
  const DecodeGraph* graph = graphs.Find(1);
  EXPECT_EQ(graph->num_edges, Launches(tiny.layers, false, false) - 1);
  EXPECT_EQ(graph->num_programmatic_edges, graph->num_edges - 2 * (4 * tiny.layers + 1));
}

}  // namespace
}  // namespace millrace::cuda
