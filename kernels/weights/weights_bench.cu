// Benchmark of the kernels that prepare weights when a model is loaded.
#include <cstdint>

#include "kernels/bench_util.h"
#include "kernels/gemm/four_bit.h"
#include "kernels/weights/dequantize.h"
#include "kernels/weights/fill.h"
#include "kernels/weights/quantize_int4.h"
#include "kernels/weights/quantize_weights.h"
#include "kernels/weights/split_blocks.h"

namespace millrace::kernels {
namespace {

constexpr int64_t kRows = 28672, kColumns = 4096;
constexpr size_t kElements = kRows * kColumns;
constexpr char kShape[] = "28672 x 4096";

void BenchDequantize(Bench* bench, const char* name, StoredType stored, size_t bytes) {
  const DeviceBuffer<uint8_t> source(2 * bytes);
  const DeviceBuffer<Bf16> out(kElements);
  CheckCuda(cudaMemset(source.get(), 0x35, source.bytes()), "fill");  // the values do not matter
  const double us = bench->Microseconds(2, [&](int input, cudaStream_t stream) {
    return LaunchDequantize({.source = source.get() + input * bytes,
                             .stored = stored,
                             .rows = kRows,
                             .columns = kColumns,
                             .out = out.get(),
                             .type = Type::kBf16,
                             .stride = kColumns},
                            stream);
  });
  bench->Row(name, kShape, us, static_cast<double>(bytes + 2 * kElements));
}

void BenchQuantize(Bench* bench, const char* name, WeightScaling scaling, int passes) {
  const DeviceBuffer<Bf16> source(2 * kElements);
  FillUniform(source.get(), source.size(), 1);
  const DeviceBuffer<uint8_t> out(kElements);
  const DeviceBuffer<float> scales(kRows);
  const double us = bench->Microseconds(2, [&](int input, cudaStream_t stream) {
    return LaunchQuantizeWeights({.source = source.get() + input * kElements,
                                  .rows = kRows,
                                  .stride = kColumns,
                                  .out = out.get(),
                                  .scaling = scaling,
                                  .scales = scales.get()},
                                 stream);
  });
  bench->Row(name, kShape, us, static_cast<double>((2.0 * passes + 1) * kElements));
}

void BenchQuantizeInt4(Bench* bench) {
  const DeviceBuffer<Bf16> source(2 * kElements);
  FillUniform(source.get(), source.size(), 1);
  const DeviceBuffer<uint8_t> codes(kElements / 2);
  const DeviceBuffer<Bf16> scales(kElements / 32), minima(kElements / 32);
  const double us = bench->Microseconds(2, [&](int input, cudaStream_t stream) {
    return LaunchQuantizeInt4({.source = source.get() + input * kElements,
                               .rows = kRows,
                               .stride = kColumns,
                               .codes = codes.get(),
                               .scales = scales.get(),
                               .minima = minima.get()},
                              stream);
  });
  bench->Row("quantize, four bits", kShape, us, 2.625 * kElements);
}

// From a file's blocks to the tiles that linears read.
void BenchFourBit(Bench* bench, const char* name, StoredType stored, size_t bytes) {
  const FourBitFormat format = *FourBitFormatOf(stored);
  const bool affine = format.type == FourBitType::kInt4Affine;
  const DeviceBuffer<uint8_t> source(2 * bytes), codes(kElements / 2);
  const DeviceBuffer<Bf16> scales(kElements / 32), minima(kElements / 32);
  const auto tiles_bytes = static_cast<size_t>(format.Bytes(kRows, kColumns));
  const DeviceBuffer<uint8_t> tiles(tiles_bytes);
  CheckCuda(cudaMemset(source.get(), 0x35, source.bytes()), "fill");
  const double us = bench->Microseconds(2, [&](int input, cudaStream_t stream) {
    const cudaError_t error = LaunchSplitBlocks({.source = source.get() + input * bytes,
                                                 .stored = stored,
                                                 .rows = kRows,
                                                 .columns = kColumns,
                                                 .codes = codes.get(),
                                                 .scales = scales.get(),
                                                 .minima = affine ? minima.get() : nullptr},
                                                stream);
    if (error != cudaSuccess) return error;
    return LaunchTileFourBit({.format = format,
                              .rows = kRows,
                              .columns = kColumns,
                              .stride = kColumns,
                              .codes = codes.get(),
                              .scales = scales.get(),
                              .zeros = nullptr,
                              .source_rows = nullptr,
                              .out = tiles.get(),
                              .minima = affine ? minima.get() : nullptr},
                             stream);
  });
  bench->Row(name, kShape, us, static_cast<double>(bytes + tiles_bytes) + 1.25 * kElements);
}

void BenchFill(Bench* bench, const char* name, Type type, size_t element_bytes) {
  const DeviceBuffer<uint8_t> out(kElements * element_bytes);
  const double us = bench->Microseconds(2, [&](int input, cudaStream_t stream) {
    return LaunchFill({.out = out.get(),
                       .type = type,
                       .rows = kRows,
                       .columns = kColumns,
                       .stride = kColumns,
                       .seed = static_cast<uint64_t>(input)},
                      stream);
  });
  bench->Row(name, kShape, us, static_cast<double>(kElements * element_bytes));
}

void Main() {
  Bench bench("weights at load");
  BenchDequantize(&bench, "dequantize Q8_0", StoredType::kQ8_0, kElements / 32 * 34);
  BenchDequantize(&bench, "dequantize Q4_1", StoredType::kQ4_1, kElements / 32 * 20);
  BenchDequantize(&bench, "dequantize Q4_K", StoredType::kQ4K, kElements / 256 * 144);
  BenchDequantize(&bench, "dequantize Q6_K", StoredType::kQ6K, kElements / 256 * 210);
  BenchDequantize(&bench, "dequantize F16", StoredType::kF16, kElements * 2);
  BenchDequantize(&bench, "dequantize BF16", StoredType::kBf16, kElements * 2);
  BenchDequantize(&bench, "dequantize F32", StoredType::kF32, kElements * 4);
  BenchQuantize(&bench, "quantize, one scale", WeightScaling::kTensor, 2);
  BenchQuantize(&bench, "quantize, by channel", WeightScaling::kChannel, 1);
  BenchQuantize(&bench, "quantize, by block", WeightScaling::kBlock, 1);
  BenchQuantizeInt4(&bench);
  BenchFourBit(&bench, "split and tile Q4_0", StoredType::kQ4_0, kElements / 32 * 18);
  BenchFourBit(&bench, "split and tile Q4_K", StoredType::kQ4K, kElements / 256 * 144);
  BenchFill(&bench, "fill BF16", Type::kBf16, 2);
  BenchFill(&bench, "fill FP8", Type::kFp8, 1);
}

}  // namespace
}  // namespace millrace::kernels

int main() { millrace::kernels::Main(); }
