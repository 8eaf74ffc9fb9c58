#include "kernels/gemm/linear_algorithms.h"

#include <algorithm>
#include <utility>

namespace millrace::kernels {
namespace {

// The heuristic looks at the pointers' presence and alignment only.
const float* const kSomeScales = reinterpret_cast<const float*>(256);

// Data may start at any 16 bytes: rows of a larger tensor.
constexpr uint32_t kAlignment = 16;

cudaDataType_t CudaType(Type type) {
  switch (type) {
    case Type::kF32:
      return CUDA_R_32F;
    case Type::kBf16:
      return CUDA_R_16BF;
    case Type::kFp8:
      return CUDA_R_8F_E4M3;
  }
  return CUDA_R_32F;
}

constexpr int kProposals = 32;

// cuBLASLt may have algorithms of their own for one or few vectors, which sum in another order: an
// exact plan asks for this many tokens at least.
constexpr int64_t kLeastExactTokens = 16;

// From about here on unsplit algorithms are what the heuristic has in mind.
constexpr int64_t kUnsplitTokens = 128;

// Keeps the first failure of several calls.
class Attempt {
 public:
  void operator()(cublasStatus_t status) {
    if (status_ == CUBLAS_STATUS_SUCCESS) status_ = status;
  }
  cublasStatus_t status() const { return status_; }

 private:
  cublasStatus_t status_ = CUBLAS_STATUS_SUCCESS;
};

cublasStatus_t SetScales(const CublasLt& lt, const MatmulArgs& args,
                         cublasLtMatmulDescOpaque_t* operation) {
  Attempt attempt;
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    attempt(lt.matmul_desc_set_attribute(operation, attribute, &value, sizeof(value)));
  };
  set(CUBLASLT_MATMUL_DESC_FAST_ACCUM,
      static_cast<int8_t>(args.fast_accumulation && !args.shape.blocks));
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, args.weight_scales);
  set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, args.input_scales);
  if (args.shape.blocks) {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
        static_cast<int32_t>(CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F));
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE,
        static_cast<int32_t>(CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F));
  }
  return attempt.status();
}

// Calls visit(attribute, member, a value of the attribute's own type) for all but the id.
template <typename Config, typename Visit>
void VisitConfig(Config& config, const Visit& visit) {
  visit(CUBLASLT_ALGO_CONFIG_TILE_ID, config.tile, uint32_t{});
  visit(CUBLASLT_ALGO_CONFIG_STAGES_ID, config.stages, uint32_t{});
  visit(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, config.split_k, int32_t{});
  visit(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, config.reduction, uint32_t{});
  visit(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, config.swizzle, uint32_t{});
  visit(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, config.custom, uint32_t{});
  visit(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, config.inner_shape, uint16_t{});
  visit(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, config.cluster_shape, uint16_t{});
}

AlgorithmConfig ConfigOf(const CublasLt& lt, const cublasLtMatmulAlgo_t& algorithm) {
  AlgorithmConfig config = {};
  const auto read = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, uint16_t& member,
                        auto value) {
    size_t written;
    lt.matmul_algo_config_get_attribute(&algorithm, attribute, &value, sizeof(value), &written);
    member = static_cast<uint16_t>(value);
  };
  read(CUBLASLT_ALGO_CONFIG_ID, config.id, int32_t{});
  VisitConfig(config, read);
  return config;
}

}  // namespace

cublasStatus_t MakeMatmul(const CublasLt& lt, const MatmulArgs& args, Matmul* matmul) {
  const LinearShape& shape = args.shape;
  const int64_t tokens = shape.blocks ? PaddedTokens(args.tokens) : args.tokens;
  Attempt attempt;
  attempt(lt.matmul_desc_init(&matmul->operation, sizeof(matmul->operation), CUBLAS_COMPUTE_32F,
                              CUDA_R_32F));
  const int32_t transposed = CUBLAS_OP_T;
  attempt(lt.matmul_desc_set_attribute(&matmul->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                       sizeof(transposed)));
  if (shape.type == Type::kFp8) attempt(SetScales(lt, args, &matmul->operation));
  const auto layout = [&](cublasLtMatrixLayoutOpaque_t* to, Type type, int64_t rows,
                          int64_t columns, int64_t stride) {
    attempt(lt.matrix_layout_init(to, sizeof(*to), CudaType(type), rows, columns, stride));
  };
  layout(&matmul->weight, shape.type, shape.stride, shape.rows, shape.stride);
  layout(&matmul->input, shape.type, shape.stride, tokens, shape.stride);
  layout(&matmul->output, shape.output, shape.rows, tokens, args.output_stride);
  return attempt.status();
}

Matmul PlanningMatmul(const CublasLt& lt, const LinearShape& shape, bool fast_accumulation,
                      int64_t tokens) {
  Matmul matmul = {};  // what cuBLASLt does not accept here, it cannot run either
  MakeMatmul(lt,
             {.shape = shape,
              .fast_accumulation = fast_accumulation,
              .tokens = tokens,
              .output_stride = shape.rows,
              .weight_scales = kSomeScales,
              .input_scales = kSomeScales},
             &matmul);
  return matmul;
}

std::optional<Algorithm> MakeAlgorithm(const CublasLt& lt, const LinearShape& shape,
                                       const AlgorithmConfig& config) {
  Algorithm algorithm = {.cublas = {}, .config = config};
  const cudaDataType_t type = CudaType(shape.type), output = CudaType(shape.output);
  Attempt attempt;
  attempt(lt.matmul_algo_init(lt.handle(), CUBLAS_COMPUTE_32F, CUDA_R_32F, type, type, output,
                              output, config.id, &algorithm.cublas));
  if (attempt.status() != CUBLAS_STATUS_SUCCESS) return std::nullopt;
  VisitConfig(config,
              [&](cublasLtMatmulAlgoConfigAttributes_t attribute, uint16_t member, auto value) {
                value = member;
                attempt(lt.matmul_algo_config_set_attribute(&algorithm.cublas, attribute, &value,
                                                            sizeof(value)));
              });
  if (attempt.status() != CUBLAS_STATUS_SUCCESS) return std::nullopt;
  return algorithm;
}

std::vector<Algorithm> ProposeAlgorithms(const CublasLt& lt, const LinearShape& shape,
                                         const LinearOptions& options, int64_t tokens, int limit) {
  Matmul matmul = PlanningMatmul(lt, shape, options.fast_accumulation, tokens);
  cublasLtMatmulPreferenceOpaque_t preference;
  lt.matmul_preference_init(&preference, sizeof(preference));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    lt.matmul_preference_set_attribute(&preference, attribute, &value, sizeof(value));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{options.workspace_bytes});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, kAlignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, kAlignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, kAlignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, kAlignment);
  if (options.exact) {
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
  }
  std::vector<cublasLtMatmulHeuristicResult_t> results(limit);
  int found = 0;
  lt.matmul_algo_get_heuristic(lt.handle(), &matmul.operation, &matmul.weight, &matmul.input,
                               &matmul.output, &matmul.output, &preference, limit, results.data(),
                               &found);
  std::vector<Algorithm> algorithms;
  for (int i = 0; i < found; ++i) {
    if (results[i].state != CUBLAS_STATUS_SUCCESS) continue;
    const AlgorithmConfig config = ConfigOf(lt, results[i].algo);
    if (options.exact && !IsExact(config)) continue;
    algorithms.push_back({.cublas = results[i].algo, .config = config});
  }
  return algorithms;
}

bool CanRun(const CublasLt& lt, Matmul matmul, const Algorithm& algorithm, size_t workspace_bytes) {
  cublasLtMatmulHeuristicResult_t result;
  return lt.matmul_algo_check(lt.handle(), &matmul.operation, &matmul.weight, &matmul.input,
                              &matmul.output, &matmul.output, &algorithm.cublas,
                              &result) == CUBLAS_STATUS_SUCCESS &&
         result.workspaceSize <= workspace_bytes;
}

bool CanRunBetween(const CublasLt& lt, const LinearShape& shape, const LinearOptions& options,
                   const Algorithm& algorithm, int64_t least, int64_t most) {
  for (const int64_t tokens : {least, most}) {
    const Matmul matmul = PlanningMatmul(lt, shape, options.fast_accumulation, tokens);
    if (!CanRun(lt, matmul, algorithm, options.workspace_bytes)) return false;
  }
  return true;
}

// At few tokens the heuristic may want to split K. The unsplit algorithms that it then ranks behind
// can be ten times slower than those that it proposes for more tokens, of which the first is good,
// and better still when it has that many rows to run on.
std::optional<Choice> DefaultChoice(const CublasLt& lt, const LinearShape& shape,
                                    const LinearOptions& options, int64_t least, int64_t most) {
  const auto first_of = [&](const LinearOptions& asked, int64_t tokens, int limit,
                            int64_t run_tokens) -> std::optional<Choice> {
    for (const Algorithm& algorithm : ProposeAlgorithms(lt, shape, asked, tokens, limit)) {
      if ((!options.exact || IsExact(algorithm.config)) &&
          CanRunBetween(lt, shape, options, algorithm, least, most) &&
          CanRunBetween(lt, shape, options, algorithm, run_tokens, run_tokens)) {
        return Choice{.run_tokens = run_tokens, .algorithm = algorithm};
      }
    }
    return std::nullopt;
  };
  LinearOptions any = options;
  any.exact = false;
  const int64_t start = options.exact ? std::max(most, kLeastExactTokens) : most;
  if (const auto favourite = first_of(any, start, 1, most)) return favourite;
  // Not where a row of the output is long, nor where scales lie by the number of tokens.
  const bool may_pad = shape.output == Type::kBf16 && !shape.blocks;
  const int64_t run_tokens = may_pad ? LinearRoom(most) : most;
  for (const int64_t tokens : kTokenBounds) {
    if (tokens < std::max(start, kUnsplitTokens)) continue;
    if (const auto choice = first_of(options, tokens, kProposals, run_tokens)) return choice;
  }
  return first_of(options, start, kProposals, run_tokens);  // beyond the bounds
}

cublasStatus_t RunMatmul(const CublasLt& lt, Matmul matmul, const LinearArgs& args,
                         const Algorithm& algorithm, size_t workspace_bytes, cudaStream_t stream) {
  const float one = 1, zero = 0;
  return lt.matmul(lt.handle(), &matmul.operation, &one, args.weight.data, &matmul.weight,
                   args.input.data, &matmul.input, &zero, args.output, &matmul.output, args.output,
                   &matmul.output, &algorithm.cublas, args.workspace, workspace_bytes, stream);
}

}  // namespace millrace::kernels
