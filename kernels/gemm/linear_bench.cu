// Times cuBLASLt's algorithms for the linears of the models that we care for, prints what exactness
// costs, and writes linear_table.inc:
//
//   kernels_gemm_bench [--models llama8b,qwen8b,...] [--types bf16,fp8] [--table FILE] [--fast]
//                      [--explore]
//
// Every algorithm runs on weights that are not in the cache, in a replayed graph. One that does not
// split K must give the bits of the others at every number of tokens, or it is left out.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/bench_util.h"
#include "kernels/gemm/linear_algorithms.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

struct Model {
  const char* name;
  std::vector<std::pair<int64_t, int64_t>> linears;  // rows, padded columns: those of one layer
  std::pair<int64_t, int64_t> head;
  int layers;
};

const Model kModels[] = {
    {"llama8b", {{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}}, {128256, 4096}, 32},
    {"qwen8b", {{6144, 4096}, {4096, 4096}, {24576, 4096}, {4096, 12288}}, {151936, 4096}, 36},
    {"llama70b", {{10240, 8192}, {8192, 8192}, {57344, 8192}, {8192, 28672}}, {128256, 8192}, 80},
    {"smollm2", {{960, 640}, {576, 640}, {3072, 640}, {576, 1536}}, {49152, 640}, 30},
};

constexpr int64_t kMostTokens = 8192;
constexpr int64_t kMostHeadTokens = 512;

// What algorithms may do in a column of the results.
struct Mode {
  const char* name;
  bool exact;
  bool fast_accumulation;
};

__global__ void CountDifferencesKernel(const uint32_t* a, const uint32_t* b, size_t size,
                                       unsigned* count) {
  unsigned differences = 0;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < size;
       i += size_t{gridDim.x} * blockDim.x) {
    differences += a[i] != b[i];
  }
  if (differences != 0) atomicAdd(count, differences);
}

struct Timed {
  Algorithm algorithm;
  double us;
};

// One shape's memory, and the times of its algorithms.
class Tuner {
 public:
  Tuner(const CublasLt& lt, Bench* bench, const LinearShape& shape, int64_t most_tokens)
      : lt_(lt),
        bench_(*bench),
        shape_(shape),
        most_tokens_(most_tokens),
        weight_bytes_(shape.rows * shape.stride * ElementBytes()),
        inputs_(RotatedInputs(static_cast<double>(weight_bytes_))),
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

  // The bits that all exact algorithms must give: the first one's that the heuristic proposes for
  // many tokens.
  void MakeReference(bool fast_accumulation) {
    const LinearOptions options = {.fast_accumulation = fast_accumulation};
    pool_.clear();
    for (const int64_t tokens : {16, 32, 64, 128, 256, 512, 1024, 4096}) {
      if (tokens > most_tokens_) break;
      for (const auto& algorithm : ProposeAlgorithms(lt_, shape_, options, tokens, 24)) {
        AddUnlessThere(algorithm, &pool_);
      }
    }
    const auto first = ProposeAlgorithms(lt_, shape_, options, most_tokens_, 1);
    if (first.empty()) return;
    Run(first[0], most_tokens_, fast_accumulation, 0, nullptr);
    CheckCuda(cudaMemcpy(reference_.get(), y_.get(), y_.bytes(), cudaMemcpyDeviceToDevice), "copy");
  }

  // Replaces the heuristic's proposals by all that differ from them in tile and cluster alone.
  void Explore() {
    const auto proposed = pool_;
    std::vector<AlgorithmConfig> bases;
    const Matmul matmul = PlanningMatmul(lt_, shape_, false, 16);
    for (const auto& algorithm : proposed) {
      AlgorithmConfig config = algorithm.config;
      config.tile = config.cluster_shape = 0;
      if (std::find(bases.begin(), bases.end(), config) == bases.end()) bases.push_back(config);
    }
    for (AlgorithmConfig config : bases) {
      const size_t before = pool_.size();
      for (config.tile = 1; config.tile < CUBLASLT_MATMUL_TILE_END; ++config.tile) {
        for (config.cluster_shape = CUBLASLT_CLUSTER_SHAPE_1x1x1;
             config.cluster_shape <= CUBLASLT_CLUSTER_SHAPE_1x16x1; ++config.cluster_shape) {
          const auto made = MakeAlgorithm(lt_, shape_, config);
          if (made.has_value() && CanRun(lt_, matmul, *made, workspace_.size())) {
            AddUnlessThere(*made, &pool_);
          }
        }
      }
      std::printf("explore: id %d stages %d custom %d swizzle %d inner %d: %zu more\n", config.id,
                  config.stages, config.custom, config.swizzle, config.inner_shape,
                  pool_.size() - before);
    }
  }

  // Fastest first. Algorithms that the mode forbids, or that fail, are not among them.
  std::vector<Timed> Time(const Mode& mode, int64_t tokens) {
    std::vector<Timed> timed;
    std::vector<Algorithm> candidates = Candidates(mode, tokens);
    for (const auto& algorithm : candidates) {
      y_.Poison();
      if (Run(algorithm, tokens, mode.fast_accumulation, 0, nullptr) != CUBLAS_STATUS_SUCCESS) {
        continue;
      }
      if (mode.exact && Differences(tokens) != 0) {
        ++inexact_;
        continue;
      }
      timed.push_back({algorithm, Microseconds(algorithm, mode.fast_accumulation, tokens, 3)});
    }
    const auto faster = [](const Timed& a, const Timed& b) { return a.us < b.us; };
    if (!timed.empty()) first_proposal_us_ = timed[0].us;
    std::sort(timed.begin(), timed.end(), faster);
    if (timed.size() > 3) timed.resize(3);
    for (Timed& finalist : timed) {
      finalist.us = Microseconds(finalist.algorithm, mode.fast_accumulation, tokens, 9);
    }
    std::sort(timed.begin(), timed.end(), faster);
    return timed;
  }

  // Of the last Time: what the heuristic thought fastest.
  double first_proposal_us() const { return first_proposal_us_; }
  int inexact() const { return inexact_; }
  size_t weight_bytes() const { return weight_bytes_; }

 private:
  size_t ElementBytes() const { return shape_.type == Type::kFp8 ? 1 : 2; }
  size_t OutputBytes() const { return shape_.output == Type::kF32 ? 4 : 2; }

  void AddUnlessThere(const Algorithm& algorithm, std::vector<Algorithm>* to) const {
    const AlgorithmConfig config = algorithm.config;
    for (const auto& there : *to) {
      if (there.config == config) return;
    }
    to->push_back(algorithm);
  }

  // At few tokens, where a run is short, all that the heuristic proposed for any number of tokens.
  std::vector<Algorithm> Candidates(const Mode& mode, int64_t tokens) const {
    const LinearOptions options = {.exact = mode.exact,
                                   .fast_accumulation = mode.fast_accumulation};
    const bool many = tokens > 512;
    const int64_t asked = mode.exact ? std::max<int64_t>(tokens, 16) : tokens;
    std::vector<Algorithm> candidates;
    for (const auto& algorithm : ProposeAlgorithms(lt_, shape_, options, asked, many ? 6 : 24)) {
      AddUnlessThere(algorithm, &candidates);
    }
    if (!many) {
      for (const auto& algorithm : pool_) AddUnlessThere(algorithm, &candidates);
    }
    const Matmul matmul = PlanningMatmul(lt_, shape_, mode.fast_accumulation, tokens);
    std::erase_if(candidates, [&](const Algorithm& algorithm) {
      return !CanRun(lt_, matmul, algorithm, options.workspace_bytes);
    });
    return candidates;
  }

  cublasStatus_t Run(const Algorithm& algorithm, int64_t tokens, bool fast_accumulation, int input,
                     cudaStream_t stream) {
    Matmul matmul;
    MakeMatmul(lt_,
               {.shape = shape_,
                .fast_accumulation = fast_accumulation,
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

  double Microseconds(const Algorithm& algorithm, bool fast_accumulation, int64_t tokens,
                      int replays) {
    const int inputs = tokens > 512 ? std::min(inputs_, 3) : inputs_;
    return bench_.Replay(inputs, 1, replays, [&](int input, cudaStream_t stream) {
      const bool ran =
          Run(algorithm, tokens, fast_accumulation, input, stream) == CUBLAS_STATUS_SUCCESS;
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
  std::vector<Algorithm> pool_;  // exact ones, proposed for any number of tokens
  double first_proposal_us_ = 0;
  int inexact_ = 0;
};

const char* Name(Type type) {
  return type == Type::kFp8 ? "kFp8" : type == Type::kBf16 ? "kBf16" : "kF32";
}

void WriteRow(FILE* table, const LinearShape& shape, const Mode& mode, int64_t tokens,
              const Timed& timed) {
  if (table == nullptr) return;
  const AlgorithmConfig& config = timed.algorithm.config;
  std::fprintf(table,
               "{%ld, %ld, %s, %s, %s, %s, %ld, {%d, %d, %d, %d, %d, %d, %d, %d, %d}},  // %.2f\n",
               shape.rows, shape.stride, Name(shape.type), Name(shape.output),
               mode.exact ? "kExact" : "kAny", mode.fast_accumulation ? "kFast" : "kFull", tokens,
               config.id, config.tile, config.stages, config.split_k, config.reduction,
               config.swizzle, config.custom, config.inner_shape, config.cluster_shape, timed.us);
}

// Of a shape, or the sum over shapes: µs by number of tokens and mode.
struct Times {
  explicit Times(size_t modes) : modes(modes), best(std::size(kTokenBounds) * modes), first(best) {}
  size_t At(size_t bound, size_t mode) const { return bound * modes + mode; }

  size_t modes;
  std::vector<double> best;   // of all algorithms that were tried
  std::vector<double> first;  // what the heuristic proposes first
};

void PrintTimes(const Times& times, const std::vector<Mode>& modes, int64_t most_tokens,
                double unit) {
  std::printf("| M |");
  for (size_t m = 0; m < times.modes; ++m) std::printf(" %s | (first) |", modes[m].name);
  std::printf(" exact/any |\n");
  for (size_t i = 0; i < std::size(kTokenBounds) && kTokenBounds[i] <= most_tokens; ++i) {
    std::printf("| %ld |", kTokenBounds[i]);
    for (size_t m = 0; m < times.modes; ++m) {
      std::printf(" %.2f | %.2f |", times.best[times.At(i, m)] / unit,
                  times.first[times.At(i, m)] / unit);
    }
    std::printf(" %.3f |\n", times.best[times.At(i, 0)] / times.best[times.At(i, 1)]);
  }
  std::fflush(stdout);
}

struct Options {
  std::string_view models, types;
  bool explore = false;
  FILE* table = nullptr;
};

Times TuneShape(const CublasLt& lt, Bench* bench, const LinearShape& shape,
                const std::vector<Mode>& modes, int64_t most_tokens, const Options& options) {
  Tuner tuner(lt, bench, shape, most_tokens);
  Times times(modes.size());
  if (options.explore) {
    tuner.MakeReference(false);
    const auto print = [&](const char* when) {
      for (const int64_t tokens : {16, 64, 256}) {
        std::printf("%s %ldx%ld M %ld:", when, shape.rows, shape.stride, tokens);
        for (const Timed& timed : tuner.Time(modes[0], tokens)) {
          const AlgorithmConfig& c = timed.algorithm.config;
          std::printf(" %.2f {%d,%d,%d,%d,%d,%d,%d}", timed.us, c.id, c.tile, c.stages, c.swizzle,
                      c.custom, c.inner_shape, c.cluster_shape);
        }
        std::printf("\n");
        std::fflush(stdout);
      }
    };
    print("proposed");
    tuner.Explore();
    print("explored");
    return times;
  }
  for (size_t m = 0; m < modes.size(); ++m) {
    if (m == 0 || modes[m].fast_accumulation != modes[m - 1].fast_accumulation) {
      tuner.MakeReference(modes[m].fast_accumulation);
    }
    for (size_t i = 0; i < std::size(kTokenBounds) && kTokenBounds[i] <= most_tokens; ++i) {
      const std::vector<Timed> timed = tuner.Time(modes[m], kTokenBounds[i]);
      if (timed.empty()) continue;
      times.best[times.At(i, m)] = timed[0].us;
      times.first[times.At(i, m)] = tuner.first_proposal_us();
      WriteRow(options.table, shape, modes[m], kTokenBounds[i], timed[0]);
    }
  }
  std::printf(
      "\n%ldx%ld %s->%s, us; its bytes at the read rate: %.1f us; unsplit but inexact: %d\n",
      shape.rows, shape.stride, Name(shape.type), Name(shape.output),
      static_cast<double>(tuner.weight_bytes()) / bench->read_rate() * 1e6, tuner.inexact());
  PrintTimes(times, modes, most_tokens, 1);
  return times;
}

bool Lists(std::string_view list, std::string_view name) {
  return list.empty() || list.find(name) != std::string_view::npos;
}

// Every shape of the model, and the sum over a forward pass.
void TuneModel(const CublasLt& lt, Bench* bench, const Model& model, Type type,
               const std::vector<Mode>& modes, const Options& options) {
  Times layers(modes.size());
  for (const auto& [rows, stride] : model.linears) {
    const LinearShape shape = {
        .rows = rows, .stride = stride, .type = type, .blocks = false, .output = Type::kBf16};
    const Times times = TuneShape(lt, bench, shape, modes, kMostTokens, options);
    for (size_t i = 0; i < layers.best.size(); ++i) {
      layers.best[i] += model.layers * times.best[i];
      layers.first[i] += model.layers * times.first[i];
    }
  }
  std::printf("\n=== %s, all its %zu linears %s, ms a step, without the head\n", model.name,
              model.layers * model.linears.size(), Name(type));
  PrintTimes(layers, modes, kMostTokens, 1000);
  if (type != Type::kBf16) return;
  const LinearShape head = {.rows = model.head.first,
                            .stride = model.head.second,
                            .type = Type::kBf16,
                            .blocks = false,
                            .output = Type::kF32};
  TuneShape(lt, bench, head, modes, kMostHeadTokens, options);
}

int Main(int argc, char** argv) {
  Options options;
  std::vector<Mode> modes = {{"exact", true, false}, {"any", false, false}};
  bool fast = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--fast") {
      fast = true;
    } else if (flag == "--explore") {
      options.explore = true;
    } else if (i + 1 < argc && flag == "--models") {
      options.models = argv[++i];
    } else if (i + 1 < argc && flag == "--types") {
      options.types = argv[++i];
    } else if (i + 1 < argc && flag == "--table") {
      options.table = std::fopen(argv[++i], "w");
    } else {
      std::fprintf(stderr,
                   "%s is not understood; allowed: --models LIST, --types LIST, --table "
                   "FILE, --fast, --explore\n",
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
    if (Lists(options.types, "bf16")) TuneModel(*lt, &bench, model, Type::kBf16, modes, options);
    if (!Lists(options.types, "fp8")) continue;
    std::vector<Mode> with_fast = modes;  // FP8 alone has it
    if (fast)
      with_fast.insert(with_fast.end(), {{"exact fast", true, true}, {"any fast", false, true}});
    TuneModel(*lt, &bench, model, Type::kFp8, with_fast, options);
  }
  if (options.table != nullptr) std::fclose(options.table);
  return 0;
}

}  // namespace
}  // namespace millrace::kernels

int main(int argc, char** argv) { return millrace::kernels::Main(argc, argv); }
