#include "kernels/gemm/gemm_tuner.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "kernels/elementwise/gated_activation.h"
#include "kernels/gemm/gemm_rule.h"
#include "kernels/gemm/linear_algorithms.h"
#include "kernels/gemm/linear_plan.h"
#include "kernels/gemm/sm90/dense/skinny_linear.h"
#include "kernels/gemm/sm90/dense/wide_linear.h"
#include "kernels/weights/fill.h"

namespace millrace::kernels {
namespace {

// Prompts longer than this take the last range's config: larger products favour no other.
constexpr int64_t kMostTokens = 4096;
constexpr int64_t kMostHeadTokens = 512;  // fp32 logits of a large vocabulary fill the memory

// Our kernels overlap with those before and behind them in a step (launch.cuh), but a library's
// kernel lets none start early, which a chain of equal launches does not show.
constexpr double kLibraryMicroseconds = 0.5;

// Those that are within this share of the fastest after a short measurement are measured again.
constexpr double kFinalist = 1.15;
constexpr size_t kMostFinalists = 5;
constexpr int kRounds = 3;

// The rules were made from whole steps, where kernels overlap otherwise than in a chain of one
// product: another config must be faster by more than this.
constexpr double kRuleMargin = 1.05;

// Keeps the stream busy for so long, so that what is launched meanwhile runs without gaps.
__global__ void SpinKernel(int64_t nanoseconds) {
  int64_t begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (now - begin < nanoseconds);
}

__global__ void CountDifferencesKernel(const uint32_t* a, const uint32_t* b, size_t size,
                                       unsigned* count) {
  unsigned differences = 0;
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < size;
       i += size_t{gridDim.x} * blockDim.x) {
    differences += a[i] != b[i];
  }
  if (differences != 0) atomicAdd(count, differences);
}

__global__ void FillOnesKernel(float* to, int64_t size) {
  const int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x;
  if (i < size) to[i] = 1;
}

// Device memory that is freed with its owner.
class Memory {
 public:
  ~Memory() { cudaFree(data_); }
  bool Allocate(size_t bytes) { return cudaMalloc(&data_, bytes) == cudaSuccess; }
  template <typename T = uint8_t>
  T* As() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

// Launches of one config, captured.
class LaunchGraph {
 public:
  LaunchGraph(const GemmConfig& config, cudaGraphExec_t graph, int launches)
      : library_(std::holds_alternative<AlgorithmConfig>(config.kernel)),
        graph_(graph),
        launches_(launches) {}
  LaunchGraph(LaunchGraph&& other) noexcept
      : library_(other.library_),
        graph_(std::exchange(other.graph_, nullptr)),
        launches_(other.launches_),
        times_(std::move(other.times_)),
        us_(other.us_) {}
  ~LaunchGraph() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  }

  // The median time of a launch, in µs; 0 before the first measurement.
  double us() const { return us_; }

  // Replays the graph and notes its time. False where the device fails.
  bool Measure(cudaStream_t stream, cudaEvent_t begin, cudaEvent_t end) {
    SpinKernel<<<1, 1, 0, stream>>>(25000);  // while the host launches the graph
    cudaEventRecord(begin, stream);
    float milliseconds;
    if (cudaGraphLaunch(graph_, stream) != cudaSuccess ||
        cudaEventRecord(end, stream) != cudaSuccess || cudaEventSynchronize(end) != cudaSuccess ||
        cudaEventElapsedTime(&milliseconds, begin, end) != cudaSuccess) {
      return false;
    }
    const double us = milliseconds * 1e3 / launches_ + (library_ ? kLibraryMicroseconds : 0);
    times_.insert(std::upper_bound(times_.begin(), times_.end(), us), us);
    us_ = times_[times_.size() / 2];
    return true;
  }

 private:
  bool library_;
  cudaGraphExec_t graph_;
  int launches_;
  std::vector<double> times_;  // ascending
  double us_ = 0;
};

int64_t Bytes(Type type) { return type == Type::kFp8 ? 1 : type == Type::kBf16 ? 2 : 4; }

void AddNew(const GemmConfig& config, std::vector<GemmConfig>* to) {
  if (std::find(to->begin(), to->end(), config) == to->end()) to->push_back(config);
}

}  // namespace

struct GemmTuner::State {
  const CublasLt& lt;
  LinearOptions options;
  GemmDesc desc;
  std::vector<const void*> weights;
  cudaStream_t stream = nullptr;
  int64_t most_tokens = 0;
  bool own = false;
  int sms = 0;
  std::vector<std::string> rejected;
  std::vector<TimedRange> times;
  // Inputs and outputs of most_tokens, the outputs' reference, ones for all scales.
  Memory input, output, reference, ones, gated, workspace, counters;
  cudaEvent_t begin = nullptr, end = nullptr;
  size_t next_weight = 0;
  bool has_reference = false;

  State(const CublasLt& lt, const LinearOptions& options, const GemmDesc& desc,
        std::vector<const void*> weights)
      : lt(lt), options(options), desc(desc), weights(std::move(weights)) {}
  ~State() {
    if (stream != nullptr) {
      cudaStreamSynchronize(stream);
      cudaStreamDestroy(stream);
    }
    if (begin != nullptr) cudaEventDestroy(begin);
    if (end != nullptr) cudaEventDestroy(end);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  int64_t OutputBytes(int64_t tokens) const { return tokens * desc.rows * Bytes(desc.output); }

  bool Allocate() {
    most_tokens = MeasuredTokens(desc, options);
    own = MayRunOwn(desc, options);
    sms = NumSms();
    const int64_t num_ones = std::max(desc.rows, most_tokens);
    if (!input.Allocate(most_tokens * desc.stride * Bytes(desc.input)) ||
        !output.Allocate(OutputBytes(most_tokens)) ||
        !reference.Allocate(OutputBytes(most_tokens)) || !ones.Allocate(num_ones * sizeof(float)) ||
        !gated.Allocate(sm90::kMaxWideTokens * desc.rows) ||
        !workspace.Allocate(options.workspace_bytes) || !counters.Allocate(2 * sizeof(unsigned)) ||
        cudaStreamCreate(&stream) != cudaSuccess || cudaEventCreate(&begin) != cudaSuccess ||
        cudaEventCreate(&end) != cudaSuccess) {
      return false;
    }
    FillOnesKernel<<<static_cast<unsigned>((num_ones + 255) / 256), 256, 0, stream>>>(
        ones.As<float>(), num_ones);
    const float bound = desc.input == Type::kFp8 ? 8 : 1;
    return cudaMemsetAsync(counters.As(), 0, 2 * sizeof(unsigned), stream) == cudaSuccess &&
           LaunchFill({.out = input.As(),
                       .type = desc.input,
                       .rows = most_tokens,
                       .columns = desc.stride,
                       .stride = desc.stride,
                       .seed = 1,
                       .low = -bound,
                       .high = bound},
                      stream) == cudaSuccess;
  }

  // One launch for the tokens from `first` on, with the next weights where none are named.
  cudaError_t Launch(const LinearPlan& plan, int64_t first, int64_t tokens, const void* weight,
                     const Memory& to, bool with_gate) {
    if (weight == nullptr) weight = weights[next_weight++ % weights.size()];
    const bool fp8 = desc.weight == Type::kFp8;
    LinearArgs args = {.plan = &plan,
                       .weight = {.data = weight,
                                  .type = desc.weight,
                                  .scaling = desc.weight_scaling,
                                  .rows = desc.rows,
                                  .stride = desc.stride,
                                  .scales = fp8 ? ones.As<float>() : nullptr},
                       .input = {.data = input.As() + first * desc.stride * Bytes(desc.input),
                                 .type = desc.input,
                                 .scaling = desc.input_scaling,
                                 .stride = desc.stride,
                                 .scales = fp8 ? ones.As<float>() : nullptr},
                       .tokens = tokens,
                       .output = to.As() + OutputBytes(first),
                       .output_stride = desc.rows,
                       .workspace = workspace.As(),
                       .tile_counter = counters.As<unsigned>(),
                       .capacity = std::min(LinearCapacity(tokens), most_tokens - first)};
    if (!with_gate) return LaunchLinear(args, stream);
    const Activation out = {.data = gated.As(),
                            .type = desc.input,
                            .scaling = desc.input_scaling,
                            .stride = desc.rows / 2,
                            .scales = fp8 ? ones.As<float>() : nullptr};
    if (FusesGate(&plan, tokens)) {
      args.gated = out;
      args.output = nullptr;
      return LaunchLinear(args, stream);
    }
    const cudaError_t error = LaunchLinear(args, stream);
    if (error != cudaSuccess) return error;
    return LaunchGatedActivation({.gate_up = LinearProduct(args),
                                  .tokens = static_cast<int>(tokens),
                                  .size = static_cast<int>(desc.rows / 2),
                                  .out = out,
                                  .layout = GateLayout::kInterleaved},
                                 stream);
  }

  // A plan for `tokens` tokens alone, if the config can run them.
  std::optional<LinearPlan> PlanOf(const GemmConfig& config, int64_t tokens) const {
    LinearOptions one_range = options;
    one_range.max_tokens = tokens;
    LinearPlan plan(lt, desc, one_range);
    if (!plan.Add({.tokens = tokens, .config = config})) return std::nullopt;
    return plan;
  }

  // The bits that all configs of an exact plan must give for the first weights.
  bool MakeReference() {
    if (has_reference) return true;
    GemmConfig config;
    int64_t piece = most_tokens;
    if (own) {
      piece = std::min<int64_t>(piece, sm90::kMaxWideTokens);
      config.kernel = sm90::WideConfig{
          .tile = {.rows = 64, .tokens = 128, .cluster = 1}, .stages = 16, .ctas = sms};
    } else {
      const auto found = DefaultConfig(lt, desc, options, most_tokens, most_tokens);
      if (!found.has_value()) return false;
      config = *found;
    }
    const std::optional<LinearPlan> plan = PlanOf(config, piece);
    if (!plan.has_value()) return false;
    for (int64_t first = 0; first < most_tokens; first += piece) {
      const int64_t tokens = std::min(piece, most_tokens - first);
      if (Launch(*plan, first, tokens, weights[0], reference, false) != cudaSuccess) return false;
    }
    has_reference = true;
    return true;
  }

  bool IsExactAt(const GemmConfig& config, int64_t tokens) {
    const std::optional<LinearPlan> plan = PlanOf(config, tokens);
    if (!plan.has_value() || !MakeReference()) return false;
    unsigned* const count = counters.As<unsigned>() + 1;
    unsigned differences = 1;
    if (cudaMemsetAsync(output.As(), 0xff, OutputBytes(tokens), stream) != cudaSuccess ||
        cudaMemsetAsync(count, 0, sizeof(unsigned), stream) != cudaSuccess ||
        Launch(*plan, 0, tokens, weights[0], output, false) != cudaSuccess) {
      return false;
    }
    CountDifferencesKernel<<<1024, 256, 0, stream>>>(
        output.As<uint32_t>(), reference.As<uint32_t>(), OutputBytes(tokens) / 4, count);
    if (cudaMemcpyAsync(&differences, count, sizeof(unsigned), cudaMemcpyDeviceToHost, stream) !=
            cudaSuccess ||
        cudaStreamSynchronize(stream) != cudaSuccess) {
      return false;
    }
    return differences == 0;
  }

  // Launches of a graph for a first impression: enough weights that none is in the L2 cache when
  // its turn comes again.
  int FewLaunches(int64_t tokens) const {
    constexpr double kBytesOfLaunches = 150e6;
    const double bytes = static_cast<double>(desc.rows * desc.stride * Bytes(desc.weight));
    if (tokens >= 512) return 1;
    return std::clamp(static_cast<int>(kBytesOfLaunches / bytes + 1), 1, 12);
  }
  // Launches of a graph for a decision: in a long chain kernels overlap as they do in a step.
  static int ManyLaunches(double us) {
    return us > 400 ? 2 : us > 100 ? 3 : std::clamp(static_cast<int>(400 / us), 4, 16);
  }

  struct Timed {
    GemmConfig config;
    double us;
  };

  // Nothing where the config cannot run.
  std::optional<LaunchGraph> Capture(const GemmConfig& config, int64_t tokens, int launches) {
    const std::optional<LinearPlan> plan = PlanOf(config, tokens);
    if (!plan.has_value()) return std::nullopt;
    const bool gate = desc.epilogue == Epilogue::kGate && tokens <= sm90::kMaxWideTokens;
    // Loads the kernel, which a capture must not.
    if (Launch(*plan, 0, tokens, nullptr, output, gate) != cudaSuccess) return std::nullopt;
    if (cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) != cudaSuccess) {
      return std::nullopt;
    }
    bool launched = true;
    for (int i = 0; i < launches && launched; ++i) {
      launched = Launch(*plan, 0, tokens, nullptr, output, gate) == cudaSuccess;
    }
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    if (cudaStreamEndCapture(stream, &graph) != cudaSuccess) launched = false;
    launched = launched && cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess &&
               cudaGraphUpload(executable, stream) == cudaSuccess;
    if (graph != nullptr) cudaGraphDestroy(graph);
    if (!launched) {
      if (executable != nullptr) cudaGraphExecDestroy(executable);
      (void)cudaGetLastError();
      return std::nullopt;
    }
    return LaunchGraph(config, executable, launches);
  }

  std::vector<GemmConfig> Candidates(int64_t tokens, const std::vector<GemmConfig>& larger) const {
    std::vector<GemmConfig> configs;
    if (own) {
      if (const auto rule = HeuristicConfig(desc, tokens, sms)) configs.push_back(*rule);
      const bool wide = tokens > sm90::kMaxSkinnyTokens && tokens <= sm90::kMaxWideTokens;
      for (const sm90::WideTile& tile : sm90::WideTiles()) {
        const int64_t capacity = tile.tokens * tile.cluster;
        if (!wide || capacity < tokens || capacity >= 2 * std::max<int64_t>(tokens, 32)) continue;
        AddNew({.kernel = sm90::WideConfig{.tile = tile, .stages = 16, .ctas = sms}}, &configs);
      }
    }
    for (const AlgorithmConfig& config : ProposedConfigs(lt, desc, options, tokens)) {
      AddNew({.kernel = config}, &configs);
    }
    for (GemmConfig config : larger) {
      config.run_tokens = 0;
      AddNew(config, &configs);
    }
    return configs;
  }

  bool MayFusePrologue() const {
    return own && desc.stride <= kMaxPrologueWidth && desc.output == Type::kBf16;
  }

  // All configs that can run, the fastest first. The first ones are measured several times, in
  // turn, so that clocks and heat favour none.
  std::vector<Timed> Measure(int64_t tokens, const std::vector<GemmConfig>& configs) {
    std::vector<Timed> timed;
    for (const GemmConfig& config : configs) {
      auto graph = Capture(config, tokens, FewLaunches(tokens));
      if (graph.has_value() && graph->Measure(stream, begin, end)) {
        timed.push_back({config, graph->us()});
      }
    }
    const auto is_faster = [](const Timed& a, const Timed& b) { return a.us < b.us; };
    std::sort(timed.begin(), timed.end(), is_faster);
    std::vector<LaunchGraph> finalists;
    for (const Timed& one : timed) {
      if (timed.size() < 2 || finalists.size() == kMostFinalists ||
          one.us > timed[0].us * kFinalist) {
        break;
      }
      auto graph = Capture(one.config, tokens, ManyLaunches(timed[0].us));
      if (!graph.has_value()) return timed;
      finalists.push_back(*std::move(graph));
    }
    if (finalists.size() < 2) return timed;
    const int rounds = timed[0].us <= 150 ? kRounds : 2;
    for (int round = 0; round < rounds; ++round) {
      for (LaunchGraph& graph : finalists) graph.Measure(stream, begin, end);
    }
    for (size_t i = 0; i < finalists.size(); ++i) timed[i].us = finalists[i].us();
    const auto last = timed.begin() + static_cast<int>(finalists.size());
    std::sort(timed.begin(), last, is_faster);
    const std::optional<GemmConfig> rule = own ? HeuristicConfig(desc, tokens, sms) : std::nullopt;
    const auto ruled = std::find_if(timed.begin(), last, [&](const Timed& one) {
      return rule.has_value() && one.config == *rule && one.us <= timed[0].us * kRuleMargin;
    });
    if (ruled != last) std::rotate(timed.begin(), ruled, ruled + 1);
    return timed;
  }

  // The range that ends at `tokens`, `least` being its first number of tokens. `larger`: the best
  // configs of the next range; those of this one afterwards.
  std::optional<TimedRange> TuneRange(int64_t least, int64_t tokens,
                                      std::vector<GemmConfig>* larger) {
    // A linear of one token has a fused prologue where it can, which saves a kernel.
    const bool fuses_prologue = tokens == 1 && MayFusePrologue();
    const std::vector<Timed> timed = Measure(
        tokens, fuses_prologue ? std::vector<GemmConfig>{*HeuristicConfig(desc, tokens, sms)}
                               : Candidates(tokens, *larger));
    larger->clear();
    std::optional<TimedRange> best;
    for (const Timed& one : timed) {
      if (best.has_value() && larger->size() >= kMostFinalists) break;
      larger->push_back(one.config);
      if (best.has_value()) continue;
      if (options.exact && !IsExactAt(one.config, tokens)) {
        rejected.push_back(ToString(desc) + " " + std::to_string(tokens) + "=" +
                           ToString(one.config));
        larger->pop_back();
        continue;
      }
      best = TimedRange{.range = {.tokens = tokens, .config = one.config}, .time = one.us};
    }
    // All tokens of a range compute its largest number of rows, where there is capacity: fewer rows
    // can take longer, and the measured time then holds for all of them.
    const bool library =
        best.has_value() && std::holds_alternative<AlgorithmConfig>(best->range.config.kernel);
    if (library && least < tokens && tokens <= LinearCapacity(least)) {
      best->range.config.run_tokens = tokens;
    }
    return best;
  }
};

int64_t GemmTuner::MeasuredTokens(const GemmDesc& desc, const LinearOptions& options) {
  const int64_t most =
      std::min(options.max_tokens, desc.output == Type::kF32 ? kMostHeadTokens : kMostTokens);
  return *std::find_if(std::begin(kTokenBounds), std::end(kTokenBounds),
                       [&](int64_t bound) { return bound >= most; });
}

GemmTuner::GemmTuner(std::unique_ptr<State> state) : state_(std::move(state)) {}
GemmTuner::~GemmTuner() = default;

std::unique_ptr<GemmTuner> GemmTuner::Make(const CublasLt& lt, const LinearOptions& options,
                                           const GemmDesc& desc, std::vector<const void*> weights,
                                           std::string* error) {
  if (desc.blocks() || weights.empty()) {
    *error = ToString(desc) + " has nothing to measure";
    return nullptr;
  }
  auto state = std::make_unique<State>(lt, options, desc, std::move(weights));
  if (!state->Allocate()) {
    (void)cudaGetLastError();
    *error = "not enough device memory to measure " + ToString(desc);
    return nullptr;
  }
  return std::unique_ptr<GemmTuner>(new GemmTuner(std::move(state)));
}

std::optional<GemmRanges> GemmTuner::Tune(std::string* error) {
  std::vector<int64_t> bounds;
  // The vocabulary's product takes long whatever the config: fewer bounds are enough.
  const bool head = state_->desc.output == Type::kF32;
  for (const int64_t bound : kTokenBounds) {
    if (bound > state_->most_tokens) break;
    const bool last = bound == state_->most_tokens;
    const bool coarse =
        bound == 16 || bound == 32 || (bound >= 64 && bound <= 256 && bound % 64 == 0);
    if (last || !head || coarse) bounds.push_back(bound);
  }
  std::vector<TimedRange> timed(bounds.size());
  std::vector<GemmConfig> larger;
  for (size_t i = bounds.size(); i-- > 0;) {
    const auto range = state_->TuneRange(i == 0 ? 1 : bounds[i - 1] + 1, bounds[i], &larger);
    if (!range.has_value()) {
      *error = ToString(state_->desc) + ": no config runs " + std::to_string(bounds[i]) +
               " tokens: " + cudaGetErrorString(cudaGetLastError());
      return std::nullopt;
    }
    timed[i] = *range;
  }
  state_->times = timed;
  GemmRanges ranges;
  if (state_->MayFusePrologue()) {  // stays with the kernel that has it
    ranges.push_back(timed.front().range);
    timed.erase(timed.begin());
  }
  MakeMonotone(&timed, LinearCapacity);
  for (const TimedRange& one : timed) ranges.push_back(one.range);
  return ranges;
}

bool GemmTuner::HasReferenceBits(const GemmRanges& ranges) {
  return std::all_of(ranges.begin(), ranges.end(), [&](const GemmRange& range) {
    return range.tokens > state_->most_tokens || state_->IsExactAt(range.config, range.tokens);
  });
}

const std::vector<std::string>& GemmTuner::rejected() const { return state_->rejected; }
const std::vector<TimedRange>& GemmTuner::times() const { return state_->times; }

std::optional<GemmRanges> TuneAndLearn(LinearPlanner& planner, const GemmDesc& desc,
                                       std::vector<const void*> weights, std::string* error) {
  const auto tuner =
      GemmTuner::Make(planner.library(), planner.options(), desc, std::move(weights), error);
  if (tuner == nullptr) return std::nullopt;
  std::optional<GemmRanges> ranges = tuner->Tune(error);
  if (ranges.has_value() && !planner.Learn(desc, *ranges)) {
    *error = ToString(desc) + ": what was measured cannot run: " + ToString(*ranges);
    return std::nullopt;
  }
  return ranges;
}

}  // namespace millrace::kernels
