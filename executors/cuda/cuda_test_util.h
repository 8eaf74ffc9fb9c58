// Shared by the tests of the GPU executor: a small model, a small device, and prompts.
#ifndef MILLRACE_EXECUTORS_CUDA_CUDA_TEST_UTIL_H_
#define MILLRACE_EXECUTORS_CUDA_CUDA_TEST_UTIL_H_

#include <unistd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "executors/executor_driver_test_util.h"
#include "executors/factory.h"
#include "executors/tiny_model_test_util.h"
#include "formats/tensors/quant_scheme.h"
#include "gtest/gtest.h"

namespace millrace::cuda {

// Returns the path of a new file.
inline std::string ModelPath(const TinyLlama& model) {
  static int count = 0;
  std::string path = ::testing::TempDir() + "/cuda_test_" + std::to_string(getpid()) + "_" +
                     std::to_string(count++) + ".gguf";
  TinyLlamaWriter(model).Write(path);
  return path;
}

// A model with heads of 64, which the GPU's attention requires, and widths that are not multiples
// of 128.
inline TinyLlama SmallModel(TensorType linear, TensorType embedding) {
  TinyLlama model;
  model.hidden = 192;
  model.heads = 3;
  model.kv_heads = 1;
  model.ffn = 352;
  model.context = 1024;
  model.linear_type = linear;
  model.embedding_type = embedding;
  return model;
}

// A model whose widths are whole groups of every packed form.
inline TinyLlama GroupedModel() {
  TinyLlama model;
  model.hidden = 256;
  model.ffn = 512;
  model.heads = 4;
  model.kv_heads = 2;
  return model;
}

// Every form of packed four-bit weights, one of them with reordered inputs (act-order).
inline std::vector<QuantScheme> PackedSchemes() {
  return {{.group = {1, 32}, .packing = Packing::kGptq, .symmetric = false},
          {.group = {1, 64}, .packing = Packing::kGptq, .reordered = true},
          {.group = {1, 128}, .packing = Packing::kAwq, .symmetric = false},
          {.group = {1, 128}, .packing = Packing::kPackQuantized}};
}

inline CudaSpec Device() {
  return {{.kv_cache_memory = 64 << 20,
           .block_size = 16,
           .max_num_seqs = 40,
           .max_num_batched_tokens = 2048}};
}

inline std::unique_ptr<Executor> Load(const std::string& path, const CudaSpec& device) {
  auto loaded = LoadExecutor({path}, device);
  CheckOk(loaded.status());
  return *std::move(loaded);
}

inline const SamplingParams kSampling{
    .temperature = 0.9f, .top_p = 0.95f, .seed = 5, .top_logprobs = 2};

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_CUDA_TEST_UTIL_H_
