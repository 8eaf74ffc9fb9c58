#include "executors/cuda/cuda_executor.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fault_points.h"
#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "executors/cuda/cuda_model.h"
#include "executors/cuda/decode_graphs.h"
#include "executors/cuda/ranges.h"
#include "executors/cuda/read_rate.h"
#include "executors/phase_timer.h"
#include "executors/plan_checker.h"
#include "executors/slot_results.h"
#include "executors/step_worker.h"
#include "kernels/attention/copy_blocks.h"
#include "kernels/step/faults.h"

namespace millrace::cuda {
namespace {

constexpr Logger kLog(LogComponent::kExecutors);

FaultPoint device_error("cuda.device_error");  // a kernel of the step traps
FaultPoint hang("cuda.hang");                  // a kernel of the step never ends
FaultPoint nan_row("cuda.nan_row");            // a row's logits become NaN

// Rejects a plan that exceeds the sizes the step buffers were allocated for.
absl::Status CheckSizes(const StepPlan& plan, const StepLimits& limits) {
  if (plan.copies.size() > static_cast<size_t>(limits.max_num_seqs)) {
    return absl::InvalidArgumentError(StrCat("a step copies ", plan.copies.size(),
                                             " blocks, allowed: up to max_num_seqs, ",
                                             limits.max_num_seqs));
  }
  for (const SlotStart& start : plan.starts) {
    if (start.sampling != nullptr &&
        start.sampling->banned_tokens.size() > static_cast<size_t>(kMaxBannedTokens)) {
      return absl::InvalidArgumentError(StrCat("slot ", start.slot, " bans ",
                                               start.sampling->banned_tokens.size(),
                                               " tokens, allowed: up to ", kMaxBannedTokens));
    }
  }
  return absl::OkStatus();
}

// Returns whether every row decodes one token. Only such steps are captured as graphs.
bool IsDecode(const StepPlan& plan) {
  for (const StepRow& row : plan.rows) {
    if (row.num_tokens != 1 || row.logits.size() != 1) return false;
  }
  return !plan.rows.empty();
}

// Runs steps on the GPU. All methods but the constructor run on the worker's thread.
class CudaStepRunner : public StepRunner {
 public:
  CudaStepRunner(std::unique_ptr<CudaModel> model, DecodeGraphs graphs, Duration timeout)
      : model_(std::move(model)),
        graphs_(std::make_unique<DecodeGraphs>(std::move(graphs))),
        timeout_(timeout),
        packer_(model_->info.limits),
        results_(model_->info.limits) {}

  // Memory that a hung kernel may still use is leaked, since freeing it would wait for the kernel.
  ~CudaStepRunner() override {
    if (!hung_) return;
    (void)model_.release();
    (void)graphs_.release();
  }

  const CudaModel& model() const { return *model_; }

  void Start(StepPlan plan) override {
    StepLane& lane = model_->lanes[next_lane_++ % kMaxStepsInFlight];
    const StepId id = plan.id;
    Running running{.plan = std::move(plan),
                    .lane = &lane,
                    .started = Clock::Real().Now(),
                    .tops = {},
                    .status = {},
                    .whole = LongRange("step", nvtx3::payload(id)),
                    .wait = std::nullopt};
    running.status = Launch(running);
    running.wait.emplace("wait");
    running_.push_back(std::move(running));
  }

  bool Done() override {
    const Running& oldest = running_.front();
    return !oldest.status.ok() || oldest.lane->Done() || Hangs(oldest);
  }

  StepResult Finish() override {
    Running running = std::move(running_.front());
    running_.pop_front();
    running.wait.reset();
    if (!running_.empty()) running_.front().started = Clock::Real().Now();
    if (running.status.ok() && !running.lane->Done()) {
      hung_ = true;
      running.status = absl::UnavailableError(
          StrCat("a step did not end in ", ToSeconds(timeout_), " s (--step-timeout)"));
    }
    if (running.status.ok()) running.status = running.lane->Failure();
    if (!running.status.ok()) {
      StepResult result;
      result.status = absl::UnavailableError(std::string(running.status.message()));
      return result;
    }
    const Range range("commit");
    Collect(running);
    return results_.Make(running.plan, sampled_);
  }

 private:
  struct Running {
    StepPlan plan;
    StepLane* lane;
    SteadyTime started;
    std::vector<std::optional<int32_t>> tops;  // by row: SamplingParams::top_logprobs
    absl::Status status;
    LongRange whole;
    std::optional<LongRange> wait;  // begins when the launch has ended
  };

  // Returns whether the step exceeds its time limit, counted from when it could begin.
  bool Hangs(const Running& running) const {
    return Clock::Real().Now() - running.started > timeout_;
  }

  absl::Status Launch(Running& running) {
    MILLRACE_RETURN_IF_ERROR(ToStatus(cudaSetDevice(0), "choosing GPU 0"));
    for (StepRow& row : running.plan.rows) {
      // The embedding kernel turns an invalid id into a row of NaN.
      if (!row.sampled_by.has_value() && nan_row.Fires()) {
        running.plan.tokens[row.tokens.begin] = -1;
      }
    }
    const int rows = static_cast<int>(running.plan.rows.size());
    const DecodeGraph* graph = IsDecode(running.plan) ? graphs_->Find(rows) : nullptr;
    MILLRACE_ASSIGN_OR_RETURN(const PackedPlan packed,
                              Upload(running, graph != nullptr ? graph->size : rows));
    MILLRACE_RETURN_IF_ERROR(Compute(packed, graph));
    if (device_error.Fires()) {
      MILLRACE_RETURN_IF_ERROR(
          ToStatus(kernels::LaunchTrap(model_->stream.get()), "the fault point"));
    }
    if (hang.Fires()) {
      MILLRACE_RETURN_IF_ERROR(
          ToStatus(kernels::LaunchHang(model_->stream.get()), "the fault point"));
    }
    const Range range("download");
    return running.lane->Download(model_->buffers, packed.input.wanted, packed.tops,
                                  model_->stream.get());
  }

  // Uploads the plan as a step of `rows` rows: the plan's own, followed by padding rows.
  absl::StatusOr<PackedPlan> Upload(Running& running, int rows) {
    const Range range("upload");
    StepLane& lane = *running.lane;
    const PackedPlan packed =
        packer_.Pack(running.plan, rows, lane.host_words(), lane.device_words());
    for (const StepRow& row : running.plan.rows) {
      running.tops.push_back(packer_.TopLogprobs(row.slot));
    }
    MILLRACE_RETURN_IF_ERROR(lane.Upload(packed, model_->buffers.arrays, model_->stream.get()));
    if (packed.copies > 0) MILLRACE_RETURN_IF_ERROR(CopyBlocks(lane, packed.copies));
    return packed;
  }

  absl::Status Compute(const PackedPlan& packed, const DecodeGraph* graph) {
    const Range range("launch");
    if (graph != nullptr) {
      return ToStatus(cudaGraphLaunch(graph->graph.get(), model_->stream.get()),
                      "launching a graph");
    }
    if (packed.input.tokens == 0) return absl::OkStatus();
    model_->model->Forward(*model_->ops, packed.input);
    return model_->ops->TakeStatus();
  }

  absl::Status CopyBlocks(const StepLane& lane, int count) {
    const KvArena& kv = model_->kv;
    return ToStatus(
        kernels::LaunchCopyBlocks({.arena = kv.data,
                                   .layer_stride = kv.layer_bytes,
                                   .block_stride = kv.block_bytes(),
                                   .block_bytes = kv.block_bytes(),
                                   .layers = kv.layers,
                                   .pairs = reinterpret_cast<const int2*>(lane.device_words()),
                                   .count = count},
                                  model_->stream.get()),
        "copying blocks");
  }

  void Collect(const Running& running) {
    const StepLane& lane = *running.lane;
    sampled_.resize(running.plan.logits.size());
    int next = 0;
    for (size_t r = 0; r < running.plan.rows.size(); ++r) {
      const std::optional<int32_t> top = running.tops[r];
      for (int32_t i = 0; i < running.plan.rows[r].logits.size(); ++i, ++next) {
        const kernels::SampleResult& result = lane.Result(next);
        Sampled& sampled = sampled_[next];
        sampled.ok = result.ok != 0;
        sampled.token = result.token;
        sampled.top.clear();
        sampled.logprob.reset();
        sampled.rank = 0;
        if (!top.has_value()) continue;
        sampled.logprob = result.logprob;
        sampled.rank = result.rank;
        const int wanted = std::min(*top, model_->info.limits.vocab_size);
        for (int t = 0; t < wanted; ++t) {
          sampled.top.push_back({lane.Tops(next)[t].token, lane.Tops(next)[t].logprob});
        }
      }
    }
  }

  std::unique_ptr<CudaModel> model_;
  int next_lane_ = 0;
  std::unique_ptr<DecodeGraphs> graphs_;
  const Duration timeout_;
  bool hung_ = false;
  StepPacker packer_;
  SlotResults results_;
  std::deque<Running> running_;
  std::vector<Sampled> sampled_;
};

class CudaExecutor : public Executor {
 public:
  explicit CudaExecutor(std::unique_ptr<CudaStepRunner> runner)
      : runner_(std::move(runner)),
        info_(runner_->model().info),
        checker_(info_.limits),
        worker_(*runner_) {}

  const ModelInfo& info() const override { return info_; }
  void OnResult(std::function<void()> wake) override { worker_.OnResult(std::move(wake)); }

  absl::Status Submit(StepPlan plan) override {
    MILLRACE_RETURN_IF_ERROR(worker_.Ready());
    MILLRACE_RETURN_IF_ERROR(CheckSizes(plan, info_.limits));
    MILLRACE_RETURN_IF_ERROR(checker_.Check(plan));
    return worker_.Submit(std::move(plan));
  }

  std::vector<int64_t> DecodeBytes(int32_t rows, int64_t positions,
                                   absl::Span<const double> touched) const override {
    const CudaModel& model = runner_->model();
    std::vector<int64_t> bytes =
        cuda::DecodeBytes(*model.model, model.ops->context(), rows, positions, touched);
    bytes.insert(bytes.begin(), 0);  // the kernel that expands the step's input
    return bytes;
  }

  absl::StatusOr<std::vector<MixtureUse>> MixtureUses() const override {
    const CudaModel& model = runner_->model();
    std::vector<MixtureUse> uses = model.mixtures;
    if (uses.empty()) return uses;
    std::vector<unsigned long long> touched(uses.size());
    MILLRACE_RETURN_IF_ERROR(
        ToStatus(cudaMemcpy(touched.data(), model.ops->context().touched_experts,
                            touched.size() * sizeof(touched[0]), cudaMemcpyDeviceToHost),
                 "reading the use of experts"));
    for (size_t i = 0; i < uses.size(); ++i) uses[i].touched = static_cast<int64_t>(touched[i]);
    return uses;
  }

  std::optional<double> MeasureReadRate() const override {
    const CudaModel& model = runner_->model();
    const DeviceMemory& weights = model.weights.memory;
    return cuda::MeasureReadRate(weights.bytes() > model.kv_memory.bytes() ? weights
                                                                           : model.kv_memory);
  }

  std::optional<StepResult> Poll() override { return worker_.Poll(); }
  std::optional<StepResult> Wait() override { return worker_.Wait(); }

 private:
  std::unique_ptr<CudaStepRunner> runner_;
  const ModelInfo info_;
  PlanChecker checker_;
  StepWorker worker_;  // last, since its thread uses the members above
};

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> LoadCudaExecutor(const ModelSpec& model,
                                                           const CudaSpec& device) {
  MILLRACE_ASSIGN_OR_RETURN(std::unique_ptr<CudaModel> loaded, LoadCudaModel(model, device));
  PhaseTimer phases;
  const StepLimits& limits = loaded->info.limits;
  MILLRACE_ASSIGN_OR_RETURN(const MemoryUse before, ReadMemory());
  MILLRACE_RETURN_IF_ERROR(RunPaddingStep(*loaded, 1, limits.max_num_batched_tokens));
  phases.End("warm up");
  DecodeGraphs graphs;
  if (!device.enforce_eager) {
    MILLRACE_RETURN_IF_ERROR(graphs.Capture(*loaded));
    kLog.Info("captured ", graphs.count(), " CUDA graphs of decode steps");
    loaded->info.graphs = graphs.count();
    loaded->info.graphs_failed = graphs.num_failed();
  }
  phases.End("capture graphs");
  MILLRACE_ASSIGN_OR_RETURN(const MemoryUse after, ReadMemory());
  LogMemory(*loaded, before.free - std::min(before.free, after.free), after);
  for (LoadPhase& phase : phases.Take()) loaded->info.load_phases.push_back(std::move(phase));
  return std::make_unique<CudaExecutor>(
      std::make_unique<CudaStepRunner>(std::move(loaded), std::move(graphs), device.step_timeout));
}

}  // namespace millrace::cuda
