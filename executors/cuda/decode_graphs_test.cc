// What was captured, beside what it computes (cuda_executor_test.cc).
#include "executors/cuda/decode_graphs.h"

#include <memory>
#include <string>

#include "base/status.h"
#include "executors/cuda/cuda_model.h"
#include "executors/executor_driver.h"
#include "formats/gguf_test_util.h"
#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

// Kernels of ours that follow one another: a copy or a synchronization that came in between would
// cost the early start of the second one, and nothing else would tell.
TEST(DecodeGraphsTest, TheNextKernelIsSetUpWhileOneEnds) {
  TinyLlama tiny;
  tiny.hidden = 192;
  tiny.heads = 3;
  tiny.kv_heads = 1;
  tiny.ffn = 352;
  const std::string path = ::testing::TempDir() + "/decode_graphs_test.gguf";
  TinyLlamaWriter(tiny).Write(path);
  DeviceSpec device{.kind = DeviceKind::kCuda,
                    .kv_cache_memory = 64 << 20,
                    .block_size = 16,
                    .max_num_seqs = 4,
                    .max_num_batched_tokens = 256,
                    .quantize_fp8 = true};
  auto model = LoadCudaModel({path}, device);
  CheckOk(model.status());
  DecodeGraphs graphs;
  CheckOk(graphs.Capture(**model));
  ASSERT_EQ(graphs.count(), 3);
  for (const int size : {1, 2, 4}) {
    const DecodeGraph* graph = graphs.Find(size);
    ASSERT_NE(graph, nullptr);
    // At least: embedding and norm, norm and gathering, the sampler's two.
    EXPECT_GE(graph->num_programmatic_edges, 3) << "of " << graph->num_edges;
  }
}

}  // namespace
}  // namespace millrace::cuda
