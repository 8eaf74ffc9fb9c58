#include "kernels/gemm/linear_algorithms.h"

#include <algorithm>
#include <iterator>
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
      static_cast<int8_t>(args.fast_accumulation && !args.desc.blocks()));
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, args.weight_scales);
  set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, args.input_scales);
  if (args.desc.blocks()) {
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
  const GemmDesc& desc = args.desc;
  const int64_t tokens = desc.blocks() ? PaddedTokens(args.tokens) : args.tokens;
  Attempt attempt;
  attempt(lt.matmul_desc_init(&matmul->operation, sizeof(matmul->operation), CUBLAS_COMPUTE_32F,
                              CUDA_R_32F));
  const int32_t transposed = CUBLAS_OP_T;
  attempt(lt.matmul_desc_set_attribute(&matmul->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                       sizeof(transposed)));
  if (desc.weight == Type::kFp8) attempt(SetScales(lt, args, &matmul->operation));
  const auto layout = [&](cublasLtMatrixLayoutOpaque_t* to, Type type, int64_t rows,
                          int64_t columns, int64_t stride) {
    attempt(lt.matrix_layout_init(to, sizeof(*to), CudaType(type), rows, columns, stride));
  };
  layout(&matmul->weight, desc.weight, desc.stride, desc.rows, desc.stride);
  layout(&matmul->input, desc.weight, desc.stride, tokens, desc.stride);
  layout(&matmul->output, desc.output, desc.rows, tokens, args.output_stride);
  return attempt.status();
}

Matmul PlanningMatmul(const CublasLt& lt, const GemmDesc& desc, bool fast_accumulation,
                      int64_t tokens) {
  Matmul matmul = {};  // what cuBLASLt does not accept here, it cannot run either
  MakeMatmul(lt,
             {.desc = desc,
              .fast_accumulation = fast_accumulation,
              .tokens = tokens,
              .output_stride = desc.rows,
              .weight_scales = kSomeScales,
              .input_scales = kSomeScales},
             &matmul);
  return matmul;
}

std::optional<Algorithm> MakeAlgorithm(const CublasLt& lt, const GemmDesc& desc,
                                       const AlgorithmConfig& config) {
  Algorithm algorithm = {.cublas = {}, .config = config};
  const cudaDataType_t type = CudaType(desc.weight), output = CudaType(desc.output);
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

std::vector<Algorithm> ProposeAlgorithms(const CublasLt& lt, const GemmDesc& desc,
                                         const LinearOptions& options, int64_t tokens, int limit) {
  Matmul matmul = PlanningMatmul(lt, desc, options.fast_accumulation, tokens);
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

bool CanRunBetween(const CublasLt& lt, const GemmDesc& desc, const LinearOptions& options,
                   const Algorithm& algorithm, int64_t least, int64_t most) {
  for (const int64_t tokens : {least, most}) {
    const Matmul matmul = PlanningMatmul(lt, desc, options.fast_accumulation, tokens);
    if (!CanRun(lt, matmul, algorithm, options.workspace_bytes)) return false;
  }
  return true;
}

// At few tokens the heuristic may want to split K. The unsplit algorithms that it then ranks behind
// can be ten times slower than those that it proposes for more tokens, of which the first is good,
// and better still when it has that many rows to run on.
std::optional<GemmConfig> DefaultConfig(const CublasLt& lt, const GemmDesc& desc,
                                        const LinearOptions& options, int64_t least, int64_t most) {
  const auto first_of = [&](const LinearOptions& asked, int64_t tokens, int limit,
                            int64_t run_tokens) -> std::optional<GemmConfig> {
    for (const Algorithm& algorithm : ProposeAlgorithms(lt, desc, asked, tokens, limit)) {
      if ((!options.exact || IsExact(algorithm.config)) &&
          CanRunBetween(lt, desc, options, algorithm, least, most) &&
          CanRunBetween(lt, desc, options, algorithm, run_tokens, run_tokens)) {
        return GemmConfig{.kernel = algorithm.config,
                          .run_tokens = run_tokens > most ? run_tokens : 0};
      }
    }
    return std::nullopt;
  };
  LinearOptions any = options;
  any.exact = false;
  const int64_t start = options.exact ? std::max(most, kLeastExactTokens) : most;
  if (const auto favourite = first_of(any, start, 1, most)) return favourite;
  // Not where a row of the output is long, nor where scales lie by the number of tokens.
  const bool may_pad = desc.output == Type::kBf16 && !desc.blocks();
  const int64_t run_tokens = may_pad ? LinearCapacity(most) : most;
  for (const int64_t tokens : kTokenBounds) {
    if (tokens < std::max(start, kUnsplitTokens)) continue;
    if (const auto choice = first_of(options, tokens, kProposals, run_tokens)) return choice;
  }
  return first_of(options, start, kProposals, run_tokens);  // beyond the bounds
}

std::vector<AlgorithmConfig> ProposedConfigs(const CublasLt& lt, const GemmDesc& desc,
                                             const LinearOptions& options, int64_t tokens) {
  std::vector<AlgorithmConfig> configs;
  const auto propose = [&](int64_t for_tokens, int limit) {
    for (const Algorithm& algorithm : ProposeAlgorithms(lt, desc, options, for_tokens, limit)) {
      if (std::find(configs.begin(), configs.end(), algorithm.config) == configs.end()) {
        configs.push_back(algorithm.config);
      }
    }
  };
  // The unsplit algorithms that the heuristic proposes for few tokens can be ten times slower than
  // those that it proposes for more.
  const bool head = desc.output == Type::kF32;  // long runs that hardly differ
  propose(options.exact ? std::max(tokens, kLeastExactTokens) : tokens,
          tokens <= 16 || head ? 4 : 8);
  if (tokens < kUnsplitTokens) propose(kUnsplitTokens, head ? 2 : 4);
  if (tokens <= 1024 && !head) propose(2 * std::max<int64_t>(tokens, 64), 4);
  return configs;
}

bool AreProposed(const CublasLt& lt, const GemmDesc& desc, const LinearOptions& options,
                 const GemmRanges& ranges) {
  std::vector<AlgorithmConfig> missing;
  for (const GemmRange& range : ranges) {
    const auto* const config = std::get_if<AlgorithmConfig>(&range.config.kernel);
    if (config != nullptr) missing.push_back(*config);
  }
  for (auto bound = std::rbegin(kTokenBounds); bound != std::rend(kTokenBounds); ++bound) {
    if (missing.empty()) return true;
    for (const AlgorithmConfig& config : ProposedConfigs(lt, desc, options, *bound)) {
      std::erase(missing, config);
    }
  }
  return missing.empty();
}

cublasStatus_t RunMatmul(const CublasLt& lt, Matmul matmul, const LinearArgs& args,
                         const Algorithm& algorithm, size_t workspace_bytes, cudaStream_t stream) {
  const float one = 1, zero = 0;
  return lt.matmul(lt.handle(), &matmul.operation, &one, args.weight.data, &matmul.weight,
                   args.input.data, &matmul.input, &zero, args.output, &matmul.output, args.output,
                   &matmul.output, &algorithm.cublas, args.workspace, workspace_bytes, stream);
}

}  // namespace millrace::kernels
