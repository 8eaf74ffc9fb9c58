// Our linears of few tokens beside cuBLASLt's exact ones: alone, and the four of a Llama-3-8B layer
// in a chain. Launches wait for one another in a replayed graph, on weights that are not in the
// cache; a result whose bits are not cuBLASLt's is counted and named.
//
//   kernels_skinny_bench
#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "kernels/bench_util.h"
#include "kernels/gemm/linear.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

struct Size {
  int64_t rows, stride;
};
constexpr Size kLayer[] = {{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}};
constexpr Size kAlone[] = {{6144, 4096},  {4096, 4096}, {28672, 4096},
                           {4096, 14336}, {8192, 8192}, {128256, 4096}};
constexpr int64_t kTokens[] = {1, 8, 16, 32, 64, 128};
constexpr int64_t kRoom = LinearCapacity(128);  // rows that cuBLASLt may run on
constexpr int64_t kMostRows = 128256, kMostStride = 14336;
constexpr size_t kWeightBytes = size_t{3} << 30;

// Weights, inputs and outputs of one type, and plans of both kinds.
class Linears {
 public:
  Linears(const CublasLt& lt, Type type)
      : type_(type),
        weights_(kWeightBytes),
        input_(kRoom * kMostStride * ElementBytes()),
        outputs_{DeviceBuffer<uint8_t>(kRoom * kMostRows * sizeof(float)),
                 DeviceBuffer<uint8_t>(kRoom * kMostRows * sizeof(float))},
        scale_(std::vector<float>{1}),
        workspace_(LinearOptions().workspace_bytes),
        tile_counter_(std::vector<unsigned>{0}),
        own_(lt, {}),
        library_(lt, {.gemm = Gemm::kCublasLt}) {
    if (type == Type::kFp8) {
      FillUniform(weights_.get(), weights_.size(), 1, 8);
      FillUniform(input_.get(), input_.size(), 2, 8);
    } else {
      FillUniform(reinterpret_cast<Bf16*>(weights_.get()), weights_.size() / 2, 1);
      FillUniform(reinterpret_cast<Bf16*>(input_.get()), input_.size() / 2, 2);
    }
  }

  size_t Bytes(const Size& size) const { return size.rows * size.stride * ElementBytes(); }

  // Multiplies by the weights that begin at `offset`, into one of two outputs.
  cudaError_t Launch(bool own, const Size& size, size_t offset, int64_t tokens, int output,
                     cudaStream_t stream) {
    const bool fp8 = type_ == Type::kFp8;
    float* const scale = fp8 ? scale_.get() : nullptr;
    std::string error;
    const LinearPlan* const plan = (own ? own_ : library_).Plan(DescOf(size), &error);
    return LaunchLinear({.plan = plan,
                         .weight = {.data = weights_.get() + offset,
                                    .type = type_,
                                    .scaling = fp8 ? WeightScaling::kTensor : WeightScaling::kNone,
                                    .rows = size.rows,
                                    .stride = size.stride,
                                    .scales = scale},
                         .input = {.data = input_.get(),
                                   .type = type_,
                                   .scaling = fp8 ? Scaling::kTensor : Scaling::kNone,
                                   .stride = size.stride,
                                   .scales = scale},
                         .tokens = tokens,
                         .output = outputs_[output].get(),
                         .output_stride = size.rows,
                         .workspace = workspace_.get(),
                         .tile_counter = tile_counter_.get(),
                         .capacity = LinearCapacity(tokens)},
                        stream);
  }

  // Both kinds', poisoned before.
  bool SameBits(const Size& size, int64_t tokens) {
    std::vector<uint8_t> results[2];
    for (const bool own : {false, true}) {
      outputs_[own].Poison();
      CheckCuda(cudaDeviceSynchronize(), "poison");
      CheckCuda(Launch(own, size, 0, tokens, own, nullptr), "launch");
      results[own] = outputs_[own].Download();
      const bool fp32 = DescOf(size).output == Type::kF32;
      results[own].resize(tokens * size.rows * (fp32 ? 4 : 2));  // cuBLASLt may write further
    }
    return results[0] == results[1];
  }

 private:
  size_t ElementBytes() const { return type_ == Type::kFp8 ? 1 : 2; }
  GemmDesc DescOf(const Size& size) const {
    const bool fp8 = type_ == Type::kFp8;
    return {.rows = size.rows,
            .stride = size.stride,
            .weight = type_,
            .weight_scaling = fp8 ? WeightScaling::kTensor : WeightScaling::kNone,
            .input = type_,
            .input_scaling = fp8 ? Scaling::kTensor : Scaling::kNone,
            .output = size.rows == kMostRows ? Type::kF32 : Type::kBf16};
  }

  const Type type_;
  DeviceBuffer<uint8_t> weights_, input_;
  std::array<DeviceBuffer<uint8_t>, 2> outputs_;
  DeviceBuffer<float> scale_;
  DeviceBuffer<uint8_t> workspace_;
  DeviceBuffer<unsigned> tile_counter_;
  LinearPlanner own_, library_;
};

void BenchAlone(Bench& bench, Linears& linears, const char* type, const Size& size,
                int64_t tokens) {
  const size_t bytes = linears.Bytes(size);
  const int inputs = std::max(RotatedInputs(static_cast<double>(bytes)), 2);
  const auto time = [&](bool own) {
    return bench.Microseconds(inputs, [&](int input, cudaStream_t stream) {
      return linears.Launch(own, size, input * bytes, tokens, input % 2, stream);
    });
  };
  const std::string shape = std::to_string(size.rows) + " x " + std::to_string(size.stride);
  const bool same = linears.SameBits(size, tokens);
  bench.Row(std::string(type) + (same ? "" : ", OTHER BITS"),
            shape + ", M " + std::to_string(tokens), time(true), static_cast<double>(bytes),
            time(false));
}

void BenchLayers(Bench& bench, Linears& linears, const char* type, int64_t tokens) {
  size_t bytes = 0;
  for (const Size& size : kLayer) bytes += linears.Bytes(size);
  const int layers = static_cast<int>(kWeightBytes / bytes);
  const auto time = [&](bool own) {
    return bench.Microseconds(layers, [&](int layer, cudaStream_t stream) {
      size_t offset = layer * bytes;
      int output = 0;
      for (const Size& size : kLayer) {
        const cudaError_t error = linears.Launch(own, size, offset, tokens, output, stream);
        if (error != cudaSuccess) return error;
        offset += linears.Bytes(size);
        output ^= 1;
      }
      return cudaSuccess;
    });
  };
  bench.Row(type, "Llama-3-8B layer, M " + std::to_string(tokens), time(true),
            static_cast<double>(bytes), time(false));
}

int Main() {
  std::string error;
  const auto lt = CublasLt::Open(&error);
  if (lt == nullptr) {
    std::fprintf(stderr, "%s\n", error.c_str());
    return 1;
  }
  Bench bench("linears of few tokens, cuBLASLt " + std::to_string(lt->version()));
  for (const Type type : {Type::kFp8, Type::kBf16}) {
    const char* const name = type == Type::kFp8 ? "FP8" : "BF16";
    Linears linears(*lt, type);
    for (const Size& size : kAlone) {
      for (const int64_t tokens : kTokens) BenchAlone(bench, linears, name, size, tokens);
    }
    for (const int64_t tokens : kTokens) BenchLayers(bench, linears, name, tokens);
  }
  return 0;
}

}  // namespace
}  // namespace millrace::kernels

int main() { return millrace::kernels::Main(); }
