// Times cuBLASLt's algorithms for the linears of the models that we care for, prints what exactness
// costs, and writes linear_table.inc:
//
//   kernels_gemm_bench [--models llama8b,qwen8b] [--types bf16,fp8] [--fast] [--most TOKENS]
//                      [--table FILE]
//
// Every algorithm runs on weights that are not in the cache, in a replayed graph. One that does not
// split K must give the bits of the others at every number of tokens, or it is left out and named.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/bench_util.h"
#include "kernels/gemm/linear_algorithms.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

using Size = std::pair<int64_t, int64_t>;  // rows, padded columns

struct Model {
  const char* name;
  std::vector<Size> linears;  // of one layer
  int layers;
  Size head;
};

const Model kModels[] = {
    {"llama8b", {{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}}, 32, {128256, 4096}},
    {"qwen8b", {{6144, 4096}, {4096, 4096}, {24576, 4096}, {4096, 12288}}, 36, {151936, 4096}},
    {"llama70b", {{10240, 8192}, {8192, 8192}, {57344, 8192}, {8192, 28672}}, 80, {128256, 8192}},
    {"smollm2", {{960, 640}, {576, 640}, {3072, 640}, {576, 1536}}, 30, {49152, 640}},
};

constexpr int64_t kMostHeadTokens = 512;
constexpr int64_t kManyTokens = 512;  // from here on a run is long, and the heuristic's word good

// What makes another algorithm worth a row of the table, or padding worth its while.
constexpr double kWorthwhile = 0.97;

struct Mode {
  const char* name;
  bool exact;
  bool fast_accumulation;

  LinearOptions Options() const { return {.exact = exact, .fast_accumulation = fast_accumulation}; }
};

struct Timed {
  Algorithm algorithm;
  double us;
};

// At one number of tokens.
struct Result {
  double default_us = 0;  // of what a plan takes without the table
  Timed best = {};
  int64_t run_tokens = 0;
};
using Results = std::map<int64_t, Result>;  // by number of tokens

__global__ void CountDifferencesKernel(const uint32_t* a, const uint32_t* b, size_t size,
                                       unsigned* count) {
  unsigned differences = 0;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < size;
       i += size_t{gridDim.x} * blockDim.x) {
    differences += a[i] != b[i];
  }
  if (differences != 0) atomicAdd(count, differences);
}

std::string ToString(const AlgorithmConfig& c) {
  char text[96];
  std::snprintf(text, sizeof(text), "{%d, %d, %d, %d, %d, %d, %d, %d, %d}", c.id, c.tile, c.stages,
                c.split_k, c.reduction, c.swizzle, c.custom, c.inner_shape, c.cluster_shape);
  return text;
}

// One shape's memory, and the times of its algorithms.
class Tuner {
 public:
  Tuner(const CublasLt& lt, Bench* bench, const LinearShape& shape, int64_t most_tokens)
      : lt_(lt),
        bench_(*bench),
        shape_(shape),
        most_tokens_(most_tokens),
        weight_bytes_(shape.rows * shape.stride * ElementBytes()),
        inputs_(std::min(RotatedInputs(static_cast<double>(weight_bytes_)), 64)),
        weights_(weight_bytes_ * inputs_),
        x_(most_tokens * shape.stride * ElementBytes()),
        y_(most_tokens * shape.rows * OutputBytes() / 4),
        reference_(y_.size()),
        scale_(std::vector<float>{1.0f}),
        count_(1),
        workspace_(LinearOptions().workspace_bytes) {
    if (shape.type == Type::kFp8) {
      FillUniform(weights_.get(), weights_.size(), 1, 8);
      FillUniform(x_.get(), x_.size(), 2, 8);
    } else {
      FillUniform(reinterpret_cast<Bf16*>(weights_.get()), weights_.size() / 2, 1);
      FillUniform(reinterpret_cast<Bf16*>(x_.get()), x_.size() / 2, 2);
    }
  }

  Results Tune(const Mode& mode) {
    mode_ = mode;
    if (mode.exact) MakeReference();
    Results results;
    for (const int64_t tokens : kTokenBounds) {
      if (tokens <= most_tokens_) results[tokens] = TuneFor(tokens);
    }
    if (shape_.output == Type::kBf16) Pad(&results);
    return results;
  }

  size_t weight_bytes() const { return weight_bytes_; }

 private:
  size_t ElementBytes() const { return shape_.type == Type::kFp8 ? 1 : 2; }
  size_t OutputBytes() const { return shape_.output == Type::kF32 ? 4 : 2; }

  // The bits that all exact algorithms must give: those of what a plan takes for many tokens.
  void MakeReference() {
    const auto choice = DefaultChoice(lt_, shape_, mode_.Options(), most_tokens_, most_tokens_);
    if (!choice.has_value()) return;
    Run(choice->algorithm, most_tokens_, 0, nullptr);
    CheckCuda(cudaMemcpy(reference_.get(), y_.get(), y_.bytes(), cudaMemcpyDeviceToDevice), "copy");
  }

  static void AddUnlessThere(const Algorithm& algorithm, std::vector<Algorithm>* to) {
    for (const Algorithm& there : *to) {
      if (there.config == algorithm.config) return;
    }
    to->push_back(algorithm);
  }

  // At few tokens, where a run is short, all that the heuristic proposes for any
  // number of tokens.
  std::vector<Algorithm> Candidates(int64_t tokens) const {
    std::vector<Algorithm> candidates;
    if (const auto usual = DefaultChoice(lt_, shape_, mode_.Options(), tokens, tokens)) {
      candidates.push_back(usual->algorithm);
    }
    const auto add = [&](int64_t asked, int limit) {
      for (const Algorithm& algorithm :
           ProposeAlgorithms(lt_, shape_, mode_.Options(), asked, limit)) {
        if (CanRunBetween(lt_, shape_, mode_.Options(), algorithm, tokens, tokens)) {
          AddUnlessThere(algorithm, &candidates);
        }
      }
    };
    add(mode_.exact ? std::max<int64_t>(tokens, 16) : tokens, tokens > kManyTokens ? 6 : 24);
    for (const int64_t asked : {16, 32, 48, 64, 128, 256}) {
      if (tokens <= kManyTokens) add(asked, 24);
    }
    return candidates;
  }

  Result TuneFor(int64_t tokens) {
    std::vector<Timed> timed;
    for (const Algorithm& algorithm : Candidates(tokens)) {
      y_.Poison();
      if (Run(algorithm, tokens, 0, nullptr) != CUBLAS_STATUS_SUCCESS) continue;
      if (mode_.exact && Differences(tokens) != 0) {
        std::printf("unsplit but inexact at M %ld: %s\n", tokens,
                    ToString(algorithm.config).c_str());
        continue;
      }
      timed.push_back({algorithm, Microseconds(algorithm, tokens)});
    }
    if (timed.empty()) return {};
    // The fastest again, in turn, so that clocks and heat favour none.
    std::sort(timed.begin(), timed.end(), Faster);
    timed.resize(std::min<size_t>(timed.size(), 4));
    for (int round = 0; round < 4; ++round) {
      for (Timed& finalist : timed) {
        finalist.us = std::min(finalist.us, Microseconds(finalist.algorithm, tokens));
      }
    }
    return {.default_us = DefaultMicroseconds(tokens),
            .best = *std::min_element(timed.begin(), timed.end(), Faster),
            .run_tokens = tokens};
  }

  double DefaultMicroseconds(int64_t tokens) {
    const auto usual = DefaultChoice(lt_, shape_, mode_.Options(), tokens, tokens);
    double us = Microseconds(usual->algorithm, usual->run_tokens);
    for (int round = 0; round < 4; ++round) {
      us = std::min(us, Microseconds(usual->algorithm, usual->run_tokens));
    }
    return us;
  }

  static bool Faster(const Timed& a, const Timed& b) { return a.us < b.us; }

  // Runs few tokens as more where that is faster.
  static void Pad(Results* results) {
    for (auto& [tokens, result] : *results) {
      for (const auto& [more, other] : *results) {
        if (more <= tokens || more > LinearRoom(tokens) || other.best.us == 0) continue;
        if (other.best.us >= result.best.us * kWorthwhile) continue;
        result.best = other.best;
        result.run_tokens = more;
      }
    }
  }

  cublasStatus_t Run(const Algorithm& algorithm, int64_t tokens, int input, cudaStream_t stream) {
    Matmul matmul;
    MakeMatmul(lt_,
               {.shape = shape_,
                .fast_accumulation = mode_.fast_accumulation,
                .tokens = tokens,
                .output_stride = shape_.rows,
                .weight_scales = scale_.get(),
                .input_scales = scale_.get()},
               &matmul);
    LinearArgs args = {};
    args.weight.data = weights_.get() + input * weight_bytes_;
    args.input.data = x_.get();
    args.output = y_.get();
    args.workspace = workspace_.get();
    return RunMatmul(lt_, matmul, args, algorithm, workspace_.size(), stream);
  }

  unsigned Differences(int64_t tokens) {
    CheckCuda(cudaMemset(count_.get(), 0, sizeof(unsigned)), "count");
    CountDifferencesKernel<<<1024, 256>>>(y_.get(), reference_.get(),
                                          tokens * shape_.rows * OutputBytes() / 4, count_.get());
    return count_.Download()[0];
  }

  double Microseconds(const Algorithm& algorithm, int64_t tokens) {
    const int inputs = tokens > kManyTokens ? std::min(inputs_, 3) : inputs_;
    return bench_.Replay(inputs, 1, 3, [&](int input, cudaStream_t stream) {
      const bool ran = Run(algorithm, tokens, input, stream) == CUBLAS_STATUS_SUCCESS;
      return ran ? cudaSuccess : cudaErrorUnknown;
    });
  }

  const CublasLt& lt_;
  Bench& bench_;
  const LinearShape shape_;
  const int64_t most_tokens_;
  const size_t weight_bytes_;
  const int inputs_;
  DeviceBuffer<uint8_t> weights_, x_;
  DeviceBuffer<uint32_t> y_, reference_;
  DeviceBuffer<float> scale_;
  DeviceBuffer<unsigned> count_;
  DeviceBuffer<uint8_t> workspace_;
  Mode mode_ = {};
};

const char* Name(Type type) {
  return type == Type::kFp8 ? "kFp8" : type == Type::kBf16 ? "kBf16" : "kF32";
}

void WriteRows(FILE* table, const LinearShape& shape, const Mode& mode, const Results& results) {
  for (const auto& [tokens, result] : results) {
    if (result.best.us == 0 || result.best.us > result.default_us * kWorthwhile) continue;
    std::fprintf(table, "{Shape(%ld, %ld, %s, %s), %s, %s, %ld, {%ld, %s}},\n", shape.rows,
                 shape.stride, Name(shape.type), Name(shape.output), mode.exact ? "kExact" : "kAny",
                 mode.fast_accumulation ? "kFast" : "kFull", tokens, result.run_tokens,
                 ToString(result.best.algorithm.config).c_str());
  }
}

struct Options {
  std::string_view models, types;
  bool fast = false;
  int64_t most = 8192;  // tokens
  FILE* table = nullptr;
};

// µs / unit: of each mode the best and, in brackets, the default's.
void PrintResults(const std::vector<Mode>& modes, const std::vector<Results>& all, double unit) {
  std::printf("| M |");
  for (const Mode& mode : modes) std::printf(" %s |", mode.name);
  std::printf(" exact/any |\n");
  for (const auto& [tokens, first] : all[0]) {
    std::printf("| %ld |", tokens);
    for (const Results& results : all) {
      const Result& result = results.at(tokens);
      std::printf(" %.2f (%.2f) |", result.best.us / unit, result.default_us / unit);
    }
    std::printf(" %.3f |\n", first.best.us / all[1].at(tokens).best.us);
  }
  std::fflush(stdout);
}

std::vector<Results> TuneShape(const CublasLt& lt, Bench* bench, const LinearShape& shape,
                               const std::vector<Mode>& modes, const Options& options) {
  Tuner tuner(lt, bench, shape,
              shape.output == Type::kF32 ? std::min(options.most, kMostHeadTokens) : options.most);
  std::vector<Results> all;
  for (const Mode& mode : modes) {
    all.push_back(tuner.Tune(mode));
    if (options.table != nullptr) WriteRows(options.table, shape, mode, all.back());
  }
  std::printf("\n%ldx%ld %s -> %s, us; its bytes at the read rate: %.1f us\n", shape.rows,
              shape.stride, Name(shape.type), Name(shape.output),
              static_cast<double>(tuner.weight_bytes()) / bench->read_rate() * 1e6);
  PrintResults(modes, all, 1);
  return all;
}

// Every shape of the model, and the sum over a forward pass.
void TuneModel(const CublasLt& lt, Bench* bench, const Model& model, Type type,
               const Options& options) {
  std::vector<Mode> modes = {{"exact", true, false}, {"any", false, false}};
  if (type == Type::kFp8 && options.fast) {  // BF16 has no other sum
    modes.push_back({"exact, fast sum", true, true});
    modes.push_back({"any, fast sum", false, true});
  }
  std::vector<Results> sum(modes.size());
  for (const auto& [rows, stride] : model.linears) {
    const LinearShape shape = {
        .rows = rows, .stride = stride, .type = type, .blocks = false, .output = Type::kBf16};
    const std::vector<Results> all = TuneShape(lt, bench, shape, modes, options);
    for (size_t m = 0; m < all.size(); ++m) {
      for (const auto& [tokens, result] : all[m]) {
        sum[m][tokens].best.us += model.layers * result.best.us;
        sum[m][tokens].default_us += model.layers * result.default_us;
      }
    }
  }
  std::printf("\n=== %s, all its %zu linears %s, ms a step, without the head\n", model.name,
              model.layers * model.linears.size(), Name(type));
  PrintResults(modes, sum, 1000);
  if (type != Type::kBf16) return;
  const LinearShape head = {.rows = model.head.first,
                            .stride = model.head.second,
                            .type = Type::kBf16,
                            .blocks = false,
                            .output = Type::kF32};
  TuneShape(lt, bench, head, modes, options);
}

bool Lists(std::string_view list, std::string_view name) {
  return list.empty() || list.find(name) != std::string_view::npos;
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--fast") {
      options.fast = true;
    } else if (i + 1 < argc && flag == "--models") {
      options.models = argv[++i];
    } else if (i + 1 < argc && flag == "--types") {
      options.types = argv[++i];
    } else if (i + 1 < argc && flag == "--most") {
      options.most = std::atoll(argv[++i]);
    } else if (i + 1 < argc && flag == "--table") {
      options.table = std::fopen(argv[++i], "w");
    } else {
      std::fprintf(
          stderr, "%s; allowed: --models LIST, --types LIST, --fast, --most TOKENS, --table FILE\n",
          argv[i]);
      return 2;
    }
  }
  std::string error;
  const auto lt = CublasLt::Open(&error);
  if (lt == nullptr) {
    std::fprintf(stderr, "%s\n", error.c_str());
    return 1;
  }
  Bench bench("linears, cuBLASLt " + std::to_string(lt->version()));
  for (const Model& model : kModels) {
    if (!Lists(options.models, model.name)) continue;
    for (const Type type : {Type::kBf16, Type::kFp8}) {
      if (Lists(options.types, type == Type::kBf16 ? "bf16" : "fp8")) {
        TuneModel(*lt, &bench, model, type, options);
      }
    }
  }
  if (options.table != nullptr) std::fclose(options.table);
  return 0;
}

}  // namespace
}  // namespace millrace::kernels

int main(int argc, char** argv) { return millrace::kernels::Main(argc, argv); }
