// The operands of a linear layer (GemmDesc) and how it is computed (GemmConfig). Both are plain
// values that print as text and parse back, for logs, for the table of known plans (gemm_table.h)
// and for the file that measured plans are kept in.
#ifndef MILLRACE_KERNELS_GEMM_GEMM_DESC_H_
#define MILLRACE_KERNELS_GEMM_GEMM_DESC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "kernels/types.h"

namespace millrace::kernels {

// The last operation on the sums of a product.
enum class Epilogue : uint8_t {
  kStore,  // they are scaled, rounded and stored
  kGate,   // silu(gate) * up of a weight whose rows are interleaved (GateLayout): by the GEMM where
           // its config can, by LaunchGatedActivation where not
};

// output[tokens][rows] = input[tokens][stride] . weight[rows][stride]^T for any number of tokens.
struct GemmDesc {
  int64_t rows;    // outputs (N); a multiple of 16
  int64_t stride;  // inputs with their padding (K); a multiple of kColumnPadding
  Type weight;     // kBf16 or kFp8
  WeightScaling weight_scaling = WeightScaling::kNone;
  Type input;  // the weight's
  Scaling input_scaling = Scaling::kNone;
  Type output;  // kBf16, or kF32 (the vocabulary head)
  Epilogue epilogue = Epilogue::kStore;

  // Returns whether weights have a scale per 128x128 block, and inputs one per 128 columns.
  constexpr bool blocks() const { return weight_scaling == WeightScaling::kBlock; }
  friend bool operator==(const GemmDesc&, const GemmDesc&) = default;
};

// Everything that tells one of cuBLASLt's algorithms from another. cublasLt.h says what the numbers
// mean (cublasLtMatmulAlgoConfigAttributes_t); they differ from version to version.
struct AlgorithmConfig {
  uint16_t id;
  uint16_t tile;
  uint16_t stages;
  uint16_t split_k;
  uint16_t reduction;
  uint16_t swizzle;
  uint16_t custom;
  uint16_t inner_shape;
  uint16_t cluster_shape;

  friend bool operator==(const AlgorithmConfig&, const AlgorithmConfig&) = default;
};

namespace sm90 {

// How our own kernels divide a product. None of it changes a bit of the result.
struct SkinnyConfig {  // skinny_linear.h
  int stages;          // of the pipeline in shared memory, at least 2; fewer where they do not fit
  int ctas;            // at most

  friend bool operator==(const SkinnyConfig&, const SkinnyConfig&) = default;
};

// The tile of a CTA. The CTAs of a cluster compute the same outputs for different
// tokens, and share what they read of the weights.
struct WideTile {
  int rows, tokens, cluster;

  friend bool operator==(const WideTile&, const WideTile&) = default;
};
struct WideConfig {  // wide_linear.h
  WideTile tile;     // one of those in wide_launch.cuh, whose cluster has capacity for all tokens
  int stages;        // as above
  int ctas;          // at most, in whole clusters

  friend bool operator==(const WideConfig&, const WideConfig&) = default;
};

// The tile of a CTA. More tokens are divided into equal parts.
struct BlockTile {
  int rows, tokens;

  friend bool operator==(const BlockTile&, const BlockTile&) = default;
};
struct BlockConfig {  // block_linear.h
  BlockTile tile;     // one of those in block_launch.cuh
  int stages;         // as above
  int ctas;           // at most

  friend bool operator==(const BlockConfig&, const BlockConfig&) = default;
};

}  // namespace sm90

// Which kernel computes a product, and how.
struct GemmConfig {
  std::variant<AlgorithmConfig, sm90::SkinnyConfig, sm90::WideConfig, sm90::BlockConfig> kernel;
  // cuBLASLt alone: the number of rows to compute where there are fewer tokens and memory for so
  // many (LinearCapacity); 0 computes the tokens alone. Extra rows change no bit of the others.
  int64_t run_tokens = 0;

  friend bool operator==(const GemmConfig&, const GemmConfig&) = default;
};

// The config for the numbers of tokens above the previous range's and up to this one's.
struct GemmRange {
  int64_t tokens;
  GemmConfig config;

  friend bool operator==(const GemmRange&, const GemmRange&) = default;
};
using GemmRanges = std::vector<GemmRange>;  // ascending

// The bounds of the ranges that plans are made of. Up to 256 tokens they follow the steps that
// decode; capacities (LinearCapacity) end at bounds.
inline constexpr int64_t kTokenBounds[] = {1,   8,   16,   32,   48,   64,   96,  128, 160,
                                           192, 224, 256,  320,  384,  448,  512, 576, 640,
                                           768, 896, 1024, 1536, 2048, 4096, 8192};

// Returns a product as text, "37888x3584 fp8/channel fp8/token bf16 gate": outputs x inputs,
// weight, input, output, epilogue.
std::string ToString(const GemmDesc& desc);
// Returns a config as text: "cublaslt:66,134,35,1,0,0,0,0,4@64" (the numbers in the order of
// AlgorithmConfig, then run_tokens where it is not 0), "skinny:7,132", "wide:64,32,2,16,132",
// "block:32,64,16,132".
std::string ToString(const GemmConfig& config);
// Returns ranges as text: "16=skinny:7,132 64=cublaslt:…".
std::string ToString(const GemmRanges& ranges);

// Parse what ToString writes. Nothing for anything that ToString does not write; values may still
// be such that no kernel can run them (CanLaunch in linear_plan.h tells).
std::optional<GemmDesc> ParseGemmDesc(std::string_view text);
std::optional<GemmConfig> ParseGemmConfig(std::string_view text);
// Parses ranges, whose tokens must ascend.
std::optional<GemmRanges> ParseGemmRanges(std::string_view text);

// The ranges' times at their last number of tokens, in any unit, beside them.
struct TimedRange {
  GemmRange range;
  double time;
};

// Lets a range compute as many rows as a larger one, with that one's config, where the larger one
// is at least as fast, but for noise, and `capacity(tokens)` rows of memory allow it for all of the
// range's tokens. Afterwards no range is slower than a larger one that its tokens have capacity
// for.
void MakeMonotone(std::vector<TimedRange>* ranges, int64_t (*capacity)(int64_t tokens));

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_GEMM_GEMM_DESC_H_
