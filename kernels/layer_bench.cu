// Benchmark of a whole layer of Llama-3-8B's shape, residual to residual: norms, quantization,
// rotation, gate and the four linears, with a copy in place of attention. It compares our linears
// with cuBLASLt's exact algorithms, as a chain of 16 layers in a replayed graph, each with weights
// of its own (3.5 GB in FP8). After the timed replays both graphs run once more on poisoned memory,
// and the benchmark reports outputs that differ or are missing.
//
//   kernels_layer_bench
#include <array>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention/rope_append.h"
#include "kernels/bench_util.h"
#include "kernels/device_util.cuh"
#include "kernels/elementwise/gated_activation.h"
#include "kernels/elementwise/quantize.h"
#include "kernels/gemm/gemm_tuner.h"
#include "kernels/gemm/linear.h"
#include "kernels/launch.cuh"
#include "kernels/norm/rms_norm.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

constexpr int kLayers = 16;
constexpr int kTokens[] = {1, 8, 16, 32, 64, 128, 256};
constexpr int kMostTokens = 256;
constexpr int kWidth = 4096, kGate = 14336, kHeads = 32, kKvHeads = 8, kHeadSize = 128;
constexpr int kQkv = (kHeads + 2 * kKvHeads) * kHeadSize;
constexpr int kBlock = 128;  // the only block of a sequence
constexpr float kEpsilon = 1e-5f;
constexpr int64_t kBlockStride = int64_t{2} * kKvHeads * kBlock * kHeadSize;

struct Size {
  int64_t rows, stride;
  int64_t elements() const { return rows * stride; }
};
constexpr Size kQkvSize = {kQkv, kWidth}, kOutSize = {kWidth, kWidth},
               kGateUpSize = {2 * kGate, kWidth}, kDownSize = {kWidth, kGate};
constexpr Size kSizes[] = {kQkvSize, kOutSize, kGateUpSize, kDownSize};

// Takes the place of attention.
__global__ void CopyKernel(const uint4* from, uint4* to, int size) {
  AwaitPredecessor();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < size) to[i] = from[i];
}

std::vector<int32_t> Iota(int size) {
  std::vector<int32_t> values(size);
  for (int i = 0; i < size; ++i) values[i] = i;
  return values;
}

int64_t LayerElements() {
  int64_t elements = 0;
  for (const Size& size : kSizes) elements += size.elements();
  return elements;
}

enum class Form {
  kBf16,
  kFp8,        // scales per channel and per token
  kFp8Static,  // one scale per weight, and one per input, known in advance
};

class Layers {
 public:
  Layers(const CublasLt& lt, Form form)
      : fp8_(form != Form::kBf16),
        static_(form == Form::kFp8Static),
        weights_(kLayers * LayerBytes()),
        channel_scales_(std::vector<float>(2 * kGate, 1 / 300.0f)),
        norm_(std::vector<float>(kWidth, 1.0f)),
        rotations_(kBlock * kHeadSize / 2),
        pages_(kMostTokens * kBlockStride),
        tokens_(Iota(kMostTokens)),
        positions_(std::vector<int32_t>(kMostTokens, kBlock - 1)),
        residuals_{DeviceBuffer<float>(kMostTokens * kWidth),
                   DeviceBuffer<float>(kMostTokens * kWidth)},
        wide_(kMostTokens * 2 * kGate),
        narrow_(kMostTokens * kWidth),
        q_(kMostTokens * kWidth),
        attended_(kMostTokens * kWidth),
        normed_(kMostTokens * kWidth * 2),
        gated_(kMostTokens * kGate * 2),
        normed_scales_(kMostTokens),
        gated_scales_(kMostTokens),
        input_scale_(std::vector<float>{1 / 64.0f}),
        workspace_(LinearOptions().workspace_bytes),
        tile_counter_(std::vector<unsigned>{0}),
        own_(lt, {}),
        library_(lt, {.gemm = Gemm::kCublasLt}) {
    if (fp8_) {  // gives products of about 1, as with BF16
      FillUniform(weights_.get(), weights_.size(), 1, 8);
    } else {
      FillUniform(reinterpret_cast<Bf16*>(weights_.get()), weights_.size() / 2, 1, 1 / 37.0f);
    }
    const FillRotationsArgs rotations = {rotations_.get(), kBlock, kHeadSize, 5e5, nullptr};
    CheckCuda(LaunchFillRotations(rotations, nullptr), "rotations");
    for (const Size& size : kSizes) {  // before anything is captured
      for (const bool own : {false, true}) Plan(own, size);
    }
  }

  size_t LayerBytes() const { return LayerElements() * (fp8_ ? 1 : 2); }

  // As in a step, a layer first adds the previous layer's product to the residual.
  void Launch(bool own, int tokens, cudaStream_t stream) {
    const bool scaled = fp8_ && !static_;
    Product delta = {narrow_.get(), kWidth, scaled ? gated_scales_.get() : nullptr,
                     scaled ? channel_scales_.get() : nullptr};
    residual_ = 0;
    for (int layer = 0; layer < kLayers; ++layer) {
      const uint8_t* weight = weights_.get() + layer * LayerBytes();
      // Runs the layer's next linear. If `gated` is set, the linear's epilogue applies the gate and
      // writes it there.
      const auto linear = [&](const Size& size, const Activation& in, const InputRow* row,
                              Bf16* out, const Activation& gated = {}) {
        LinearArgs args = Linear(own, size, weight, in, tokens, out);
        args.input_row = row;
        args.gated = gated;
        CheckCuda(LaunchLinear(args, stream), "linear");
        weight += size.elements() * (fp8_ ? 1 : 2);
        return LinearProduct(args);
      };
      // Runs a linear on the norm of the sum. With one token our linear fuses the norm as its
      // prologue.
      const auto norm_and_linear = [&](const Size& size, const Activation& gated = {}) {
        Bf16* const out = gated.data == nullptr ? wide_.get() : nullptr;
        if (!FusesPrologue(Plan(own, size), tokens)) {
          CheckCuda(
              LaunchRmsNorm({Residual(), delta, norm_.get(), kEpsilon, tokens, kWidth, Normed()},
                            stream),
              "norm");
          return linear(size, Normed(), nullptr, out, gated);
        }
        const InputRow row = {.norm = norm_.get(),
                              .epsilon = kEpsilon,
                              .residual = Residual(),
                              .delta = delta,
                              .new_residual = residuals_[residual_ ^ 1].get(),
                              .width = kWidth};
        residual_ ^= 1;
        return linear(size, Normed(), &row, out, gated);
      };
      RopeAppend(norm_and_linear(kQkvSize), tokens, stream);
      const bool direct = Attend(own, tokens, stream);
      const InputRow attended = {.plain = attended_.get(), .width = kWidth};
      delta = linear(kOutSize, Gated(kWidth), direct ? &attended : nullptr, narrow_.get());
      if ((static_ || !fp8_) && FusesGate(Plan(own, kGateUpSize), tokens)) {
        norm_and_linear(kGateUpSize, Gated(kGate));
      } else {
        const Product gate_up = norm_and_linear(kGateUpSize);
        CheckCuda(LaunchGatedActivation({.gate_up = gate_up,
                                         .tokens = tokens,
                                         .size = kGate,
                                         .out = Gated(kGate),
                                         .layout = GateLayout::kInterleaved},
                                        stream),
                  "gate");
      }
      delta = linear(kDownSize, Gated(kGate), nullptr, narrow_.get());
    }
  }

  // Initializes a replay's inputs and poisons everything that it writes.
  void Prepare() {
    for (DeviceBuffer<Bf16>* buffer : {&wide_, &q_, &attended_, &pages_}) buffer->Poison();
    normed_.Poison();
    gated_.Poison();
    normed_scales_.Poison();
    residuals_[1].Poison();
    FillUniform(residuals_[0].get(), residuals_[0].size(), 3);
    FillUniform(narrow_.get(), narrow_.size(), 4);
    FillUniform(gated_scales_.get(), gated_scales_.size(), 5);
    CheckCuda(cudaDeviceSynchronize(), "preparing");
  }

  // The residual, and the product to be added to it.
  std::vector<float> Result(int tokens) const {
    std::vector<float> result = residuals_[residual_].Download();
    const std::vector<Bf16> narrow = narrow_.Download();
    result.resize(int64_t{tokens} * kWidth);
    for (int64_t i = 0; i < int64_t{tokens} * kWidth; ++i) result.push_back(narrow[i]);
    return result;
  }

 private:
  Activation Input(DeviceBuffer<uint8_t>& data, int64_t stride, DeviceBuffer<float>& scales) const {
    if (!fp8_) return {data.get(), Type::kBf16, Scaling::kNone, stride, nullptr};
    if (static_) return {data.get(), Type::kFp8, Scaling::kTensor, stride, input_scale_.get()};
    return {data.get(), Type::kFp8, Scaling::kToken, stride, scales.get()};
  }
  Activation Normed() { return Input(normed_, kWidth, normed_scales_); }
  Activation Gated(int64_t stride) { return Input(gated_, stride, gated_scales_); }

  float* Residual() { return residuals_[residual_].get(); }

  // Both planners know the fastest config of their kernels, from the table or by measuring.
  const LinearPlan* Plan(bool own, const Size& size) {
    const Type type = fp8_ ? Type::kFp8 : Type::kBf16;
    const GemmDesc desc = {.rows = size.rows,
                           .stride = size.stride,
                           .weight = type,
                           .weight_scaling = static_ ? WeightScaling::kTensor
                                             : fp8_  ? WeightScaling::kChannel
                                                     : WeightScaling::kNone,
                           .input = type,
                           .input_scaling = static_ ? Scaling::kTensor
                                            : fp8_  ? Scaling::kToken
                                                    : Scaling::kNone,
                           .output = Type::kBf16,
                           .epilogue = size.rows == kGateUpSize.rows && (static_ || !fp8_)
                                           ? Epilogue::kGate
                                           : Epilogue::kStore};
    LinearPlanner& planner = own ? own_ : library_;
    std::string error;
    if (!planner.Knows(desc)) {
      const size_t bytes = size.rows * size.stride * (fp8_ ? 1 : 2);
      std::vector<const void*> weights;
      for (size_t at = 0; at + bytes <= weights_.bytes() && weights.size() < 16; at += bytes) {
        weights.push_back(weights_.get() + at);
      }
      if (!TuneAndLearn(planner, desc, weights, &error).has_value()) {
        std::printf("NOT TUNED: %s\n", error.c_str());
      }
    }
    return planner.Plan(desc, &error);
  }

  LinearArgs Linear(bool own, const Size& size, const uint8_t* weight, const Activation& in,
                    int tokens, Bf16* out) {
    const Type type = fp8_ ? Type::kFp8 : Type::kBf16;
    return {.plan = Plan(own, size),
            .weight = {.data = weight,
                       .type = type,
                       .scaling = static_ ? WeightScaling::kTensor
                                  : fp8_  ? WeightScaling::kChannel
                                          : WeightScaling::kNone,
                       .rows = size.rows,
                       .stride = size.stride,
                       .scales = fp8_ ? channel_scales_.get() : nullptr},
            .input = in,
            .tokens = tokens,
            .output = out,
            .output_stride = size.rows,
            .workspace = workspace_.get(),
            .tile_counter = tile_counter_.get(),
            .capacity = LinearCapacity(tokens)};
  }

  void RopeAppend(const Product& qkv, int tokens, cudaStream_t stream) {
    CheckCuda(LaunchRopeAppend({.qkv = qkv,
                                .tokens = tokens,
                                .heads = kHeads,
                                .positions = positions_.get(),
                                .slots = tokens_.get(),
                                .tables = {tokens_.get(), 1},
                                .rope = {.rotations = rotations_.get(),
                                         .dimensions = kHeadSize,
                                         .interleaved = false,
                                         .q_norm = nullptr,
                                         .k_norm = nullptr,
                                         .norm_epsilon = 0},
                                .q = q_.get(),
                                .pages = {pages_.get(), Type::kBf16, kBlockStride, kBlock, kKvHeads,
                                          kHeadSize, 1, 1}},
                               stream),
              "rope");
  }

  // Runs the copy and, in FP8, its quantization, which attention does itself if the scale is known.
  // Returns whether the next linear quantizes instead.
  bool Attend(bool own, int tokens, cudaStream_t stream) {
    if (static_) {
      CheckCuda(LaunchQuantize({q_.get(), kWidth, tokens, kWidth, Gated(kWidth)}, stream), "copy");
      return false;
    }
    const int words = tokens * kWidth / 8;
    void* const out = fp8_ ? static_cast<void*>(attended_.get()) : gated_.get();
    CheckCuda(
        LaunchDependent(CopyKernel, CeilDiv(words, 256), 256, 0, stream,
                        reinterpret_cast<const uint4*>(q_.get()), static_cast<uint4*>(out), words),
        "copy");
    if (fp8_ && FusesPrologue(Plan(own, kOutSize), tokens)) return true;
    if (fp8_) {
      CheckCuda(LaunchQuantize({attended_.get(), kWidth, tokens, kWidth, Gated(kWidth)}, stream),
                "quantize");
    }
    return false;
  }

  const bool fp8_, static_;
  DeviceBuffer<uint8_t> weights_;
  DeviceBuffer<float> channel_scales_, norm_;
  DeviceBuffer<float2> rotations_;
  DeviceBuffer<Bf16> pages_;
  DeviceBuffer<int32_t> tokens_, positions_;  // a token's slot and block are its index
  std::array<DeviceBuffer<float>, 2> residuals_;
  int residual_ = 0;  // index of the current residual
  DeviceBuffer<Bf16> wide_, narrow_, q_, attended_;
  DeviceBuffer<uint8_t> normed_, gated_;
  DeviceBuffer<float> normed_scales_, gated_scales_, input_scale_;
  DeviceBuffer<uint8_t> workspace_;
  DeviceBuffer<unsigned> tile_counter_;
  LinearPlanner own_, library_;
};

bool AllFinite(const std::vector<float>& values) {
  for (const float value : values) {
    if (!std::isfinite(value)) return false;
  }
  return true;
}

// Returns whether both give the same bits.
bool BenchLayers(Bench& bench, Layers& layers, const char* form, int tokens) {
  double us[2];
  std::vector<float> results[2];
  for (const bool own : {false, true}) {
    layers.Prepare();
    layers.Launch(own, tokens, nullptr);  // loads the kernels
    CheckCuda(cudaDeviceSynchronize(), "warm-up");
    CapturedGraph graph =
        bench.Capture([&](cudaStream_t stream) { layers.Launch(own, tokens, stream); });
    graph.MakeEdgesBehindOthersPlain();
    us[own] = bench.ReplayMicroseconds(graph, 15) / kLayers;
    layers.Prepare();
    graph.Replay(nullptr);
    results[own] = layers.Result(tokens);
  }
  const bool right = AllFinite(results[1]) && results[0] == results[1];
  bench.Row(std::string(form) + (right ? "" : ", OTHER BITS"),
            "a layer of " + std::to_string(tokens), us[1], static_cast<double>(layers.LayerBytes()),
            us[0]);
  return right;
}

int Main() {
  std::string error;
  const auto lt = CublasLt::Open(&error);
  if (lt == nullptr) {
    std::fprintf(stderr, "%s\n", error.c_str());
    return 1;
  }
  Bench bench("a whole layer (bytes: its weights), cuBLASLt " + std::to_string(lt->version()));
  bool right = true;
  const std::pair<Form, const char*> forms[] = {
      {Form::kFp8, "FP8"}, {Form::kFp8Static, "FP8 static"}, {Form::kBf16, "BF16"}};
  for (const auto& [form, name] : forms) {
    Layers layers(*lt, form);
    for (const int tokens : kTokens) right &= BenchLayers(bench, layers, name, tokens);
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace millrace::kernels

int main() { return millrace::kernels::Main(); }
