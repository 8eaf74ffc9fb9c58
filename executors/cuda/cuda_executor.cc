#include "executors/cuda/cuda_executor.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fault_points.h"
#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "executors/byte_stream.h"
#include "executors/cuda/cuda_model.h"
#include "executors/cuda/decode_graphs.h"
#include "executors/cuda/device/read_rate.h"
#include "executors/cuda/ranges.h"
#include "executors/cuda/rank_steps.h"
#include "executors/mask_mailbox.h"
#include "executors/phase_timer.h"
#include "executors/plan_checker.h"
#include "executors/rank_threads.h"
#include "executors/slot_results.h"
#include "executors/step_worker.h"

namespace millrace::cuda {
namespace {

constexpr Logger kLog(LogComponent::kExecutors);

// The last of several ranks meets the first four of these.
FaultPoint device_error("cuda.device_error");  // a kernel of the step traps
FaultPoint hang("cuda.hang");                  // a kernel of the step never ends
FaultPoint rank_stall("cuda.rank_stall");      // the rank launches nothing, and says nothing
FaultPoint rank_late("cuda.rank_late");        // the rank launches its step a millisecond late
FaultPoint nan_row("cuda.nan_row");            // a row's logits become NaN

// Ranks meet around each collective of a step that is no graph, some microseconds apart.
constexpr int kManyLooks = 5000;
// How long ranks may get no further while a model is loaded.
constexpr std::chrono::minutes kLoadTimeout{10};
// How long ranks that do not hang may take to see that a step has failed.
constexpr std::chrono::seconds kGrace{1};

// Rejects a plan that exceeds the sizes the step buffers were allocated for.
absl::Status CheckSizes(const StepPlan& plan, const StepLimits& limits) {
  const int32_t most = limits.max_num_seqs * limits.state.num_groups();
  if (plan.moves.size() > static_cast<size_t>(most)) {
    return absl::InvalidArgumentError(StrCat("a step copies ", plan.moves.size(),
                                             " blocks, allowed: up to ", most, ", max_num_seqs (",
                                             limits.max_num_seqs, ") for each group of layers"));
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

bool HasLateMasks(const StepPlan& plan) {
  return std::any_of(plan.logits.begin(), plan.logits.end(),
                     [](const WantedLogits& wanted) { return wanted.late_mask; });
}

// Runs steps on the GPU, or on all ranks' GPUs. All methods but the constructor and PutMasks run on
// the worker's thread, which launches a single rank's steps itself; several ranks each have a
// thread for that.
class CudaStepRunner : public StepRunner {
 public:
  CudaStepRunner(std::deque<RankSteps> ranks, Duration timeout, Nodes* nodes)
      : ranks_(std::move(ranks)), timeout_(timeout), nodes_(nodes), results_(model().info.limits) {
    if (nodes_ != nullptr) {
      nodes_->OnFailure([this](const absl::Status& why) {
        const std::lock_guard lock(mutex_);
        lost_ = why;
      });
    }
    if (ranks_.size() > 1) {
      threads_ =
          std::make_unique<RankThreads>(static_cast<int>(ranks_.size()), timeout, kManyLooks);
      for (RankSteps& rank : ranks_) rank.SetGroup(threads_->group());
    }
  }

  ~CudaStepRunner() override {
    if (nodes_ != nullptr) nodes_->OnFailure(nullptr);
    const bool stuck = threads_ != nullptr && !threads_->WaitIdle(kGrace);
    if (stuck) (void)threads_.release();
    if (!hung_ && !stuck) return;
    for (RankSteps& rank : ranks_) rank.Leak();
  }

  const CudaModel& model(size_t rank = 0) const { return ranks_[rank].model(); }
  size_t size() const { return ranks_.size(); }
  bool HasOtherNodes() const { return nodes_ != nullptr; }
  void PutMasks(std::vector<LateMask> masks) { masks_.Put(std::move(masks)); }

  void Start(StepPlan plan) override {
    const int lane = next_lane_++ % kMaxStepsInFlight;
    const StepId id = plan.id;
    const bool late_masks = HasLateMasks(plan);
    running_.push_back({.plan = std::move(plan),
                        .lane = lane,
                        .awaits_masks = late_masks,
                        .started = Clock::Real().Now(),
                        .status = {},
                        .whole = LongRange("step", nvtx3::payload(id)),
                        .wait = std::nullopt});
    Advance();
  }

  bool Done() override {
    Advance();
    const Running& oldest = running_.front();
    return !oldest.status.ok() || AllDone(oldest.lane) || AnyFailed(oldest.lane) || Hangs(oldest) ||
           !Lost().ok();
  }

  StepResult Finish() override {
    Running running = std::move(running_.front());
    running_.pop_front();
    running.wait.reset();
    if (!running_.empty()) running_.front().started = Clock::Real().Now();
    if (running.status.ok()) running.status = Failure(running.lane);
    if (!running.status.ok()) {
      // A rank that did not fail may wait for one that did.
      hung_ = hung_ || !AllDone(running.lane) || ranks_.size() > 1;
      if (nodes_ != nullptr) nodes_->Fail(running.status);
      for (const RankSteps& rank : ranks_) rank.AbortNccl();
      StepResult result;
      result.status = absl::UnavailableError(std::string(running.status.message()));
      return result;
    }
    const Range range("commit");
    if (const absl::Status& exceeded = ranks_[0].Exceeded(running.lane); !exceeded.ok()) {
      kLog.Error("a step's requests fail: ", std::string(exceeded.message()));
      // The plan of memory was wrong, not the request: clients are not to try again.
      return results_.Fail(running.plan, absl::InternalError(exceeded.message()));
    }
    ranks_[0].Collect(running.plan, running.lane, &sampled_);
    StepResult result = results_.Make(running.plan, sampled_);
    result.as_graph = running.as_graph;
    return result;
  }

 private:
  struct Running {
    StepPlan plan;
    int lane;
    bool awaits_masks;  // they are to be sent once all are known
    SteadyTime started;
    absl::Status status;
    bool as_graph = false;
    LongRange whole;
    std::optional<LongRange> wait;  // begins when the launch has ended
  };

  // Launches steps, and sends their late masks once all are known. A step is launched after the
  // masks of the one before it were sent, since a launch may wait for the device's queue, and the
  // device for the masks.
  void Advance() {
    for (Running& running : running_) {
      if (!running.wait.has_value()) {
        running.status = Launch(running);
        running.wait.emplace("wait");
      }
      if (!running.awaits_masks || !running.status.ok()) continue;
      if (!masks_.Fill(running.plan)) return;
      running.awaits_masks = false;
      running.status = SendMasks(running);
    }
  }

  absl::Status SendMasks(const Running& running) {
    for (RankSteps& rank : ranks_) {
      MILLRACE_RETURN_IF_ERROR(rank.SendMasks(running.plan, running.lane));
    }
    return UseDevice(model().device.index);  // as after Launch
  }

  // Returns whether the step exceeds its time limit, counted from when it could begin.
  bool Hangs(const Running& running) const {
    return Clock::Real().Now() - running.started > timeout_;
  }

  bool AllDone(int lane) const {
    return std::all_of(ranks_.begin(), ranks_.end(),
                       [lane](const RankSteps& rank) { return rank.Done(lane); });
  }

  // One of several ranks may fail while the others still run.
  bool AnyFailed(int lane) const {
    return ranks_.size() > 1 &&
           std::any_of(ranks_.begin(), ranks_.end(), [lane](const RankSteps& rank) {
             return rank.Done(lane) && !rank.Failure(lane).ok();
           });
  }

  // Returns how another node, or NCCL, has failed: what waits for it on the device never ends.
  absl::Status Lost() const {
    if (nodes_ == nullptr) return absl::OkStatus();
    for (const RankSteps& rank : ranks_) {
      if (rank.GaveUp()) return absl::UnavailableError("NCCL has lost a rank of another node");
    }
    const std::lock_guard lock(mutex_);
    return lost_;
  }

  // Returns how the step failed, OK for one that has ended on all ranks.
  absl::Status Failure(int lane) const {
    for (const RankSteps& rank : ranks_) {
      if (rank.Done(lane)) MILLRACE_RETURN_IF_ERROR(rank.Failure(lane));
    }
    if (AllDone(lane)) return absl::OkStatus();
    MILLRACE_RETURN_IF_ERROR(Lost());
    return absl::UnavailableError(
        StrCat("a step did not end in ", ToSeconds(timeout_), " s (--step-timeout)"));
  }

  absl::Status Launch(Running& running) {
    for (StepRow& row : running.plan.rows) {
      // The embedding kernel turns an invalid id into a row of NaN.
      if (!row.sampled_by.has_value() && nan_row.Fires()) {
        running.plan.tokens[row.tokens.begin] = -1;
      }
    }
    MILLRACE_RETURN_IF_ERROR(CaptureIfDue(running.plan));
    running.as_graph = ranks_[0].HasGraph(running.plan);
    if (threads_ == nullptr) return LaunchRank(running, 0);
    // The worker only asks for the ranks' events, which is not to open a GPU that has no rank.
    MILLRACE_RETURN_IF_ERROR(UseDevice(model().device.index));
    return threads_->Run(
        [this, &running](int rank) { return LaunchRank(running, static_cast<size_t>(rank)); });
  }

  // Has all ranks capture the step's graph, where it is due. A step runs as a graph on all ranks or
  // on none, since ranks that launch kernel by kernel meet while they do.
  absl::Status CaptureIfDue(const StepPlan& plan) {
    bool due = false;
    for (RankSteps& rank : ranks_) due = rank.CountStep(plan);
    if (!due) return absl::OkStatus();
    // A rank that is stuck outlives this call (RankThreads).
    const auto captured = std::make_shared<std::vector<char>>(ranks_.size());
    const auto capture = [this, &plan, captured](int rank) {
      (*captured)[rank] = ranks_[rank].CaptureGraph(plan) ? 1 : 0;
      return absl::OkStatus();
    };
    MILLRACE_RETURN_IF_ERROR(threads_ == nullptr ? capture(0) : threads_->Run(capture));
    if (std::all_of(captured->begin(), captured->end(), [](char ok) { return ok != 0; })) {
      return absl::OkStatus();
    }
    for (RankSteps& rank : ranks_) rank.GiveUpGraph(plan);
    return absl::OkStatus();
  }

  absl::Status LaunchRank(const Running& running, size_t rank) {
    RankSteps& steps = ranks_[rank];
    const bool last = rank + 1 == ranks_.size();
    if (last && rank > 0 && rank_stall.Fires()) return absl::OkStatus();
    if (last && rank_late.Fires()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const StepFault fault = last && device_error.Fires() ? StepFault::kTrap
                            : last && hang.Fires()       ? StepFault::kHang
                                                         : StepFault::kNone;
    return steps.Launch(running.plan, running.lane, /*fetches=*/rank == 0, fault);
  }

  std::deque<RankSteps> ranks_;
  int next_lane_ = 0;
  const Duration timeout_;
  Nodes* const nodes_;  // null: this process has all ranks
  mutable std::mutex mutex_;
  absl::Status lost_;  // guarded by mutex_: how another node has failed
  bool hung_ = false;
  MaskMailbox masks_;
  SlotResults results_;
  std::deque<Running> running_;
  std::vector<Sampled> sampled_;
  std::unique_ptr<RankThreads> threads_;
};

class CudaExecutor : public Executor {
 public:
  explicit CudaExecutor(std::unique_ptr<CudaStepRunner> runner)
      : runner_(std::move(runner)),
        info_(runner_->model().info),
        checker_(info_),
        worker_(*runner_) {}

  const ModelInfo& info() const override { return info_; }
  void OnResult(std::function<void()> wake) override { worker_.OnResult(std::move(wake)); }

  absl::Status Submit(StepPlan plan) override {
    MILLRACE_RETURN_IF_ERROR(worker_.Ready());
    MILLRACE_RETURN_IF_ERROR(CheckSizes(plan, info_.limits));
    MILLRACE_RETURN_IF_ERROR(checker_.Check(plan));
    return worker_.Submit(std::move(plan));
  }

  absl::Status SetMasks(std::vector<LateMask> masks) override {
    MILLRACE_RETURN_IF_ERROR(checker_.CheckMasks(masks));
    runner_->PutMasks(std::move(masks));
    return absl::OkStatus();
  }

  // Counts what the first of several ranks moves. Where each has experts of its own, it gets a part
  // of those that are touched, since which of them are its own is not said.
  std::vector<int64_t> DecodeBytes(int32_t rows, int64_t positions,
                                   absl::Span<const double> touched) const override {
    const CudaModel& model = runner_->model();
    std::vector<double> of_rank(touched.begin(), touched.end());
    if (info_.expert_parallel) {
      for (double& experts : of_rank) experts /= info_.tensor_parallel_size;
    }
    std::vector<int64_t> bytes =
        cuda::DecodeBytes(*model.model, model.ops->context(), rows, positions, of_rank);
    bytes.insert(bytes.begin(), 0);  // the kernel that expands the step's input
    return bytes;
  }

  // Ranks have experts of their own, or each has a share of every expert, which it uses as the
  // others do theirs.
  absl::StatusOr<std::vector<MixtureUse>> MixtureUses() const override {
    if (runner_->HasOtherNodes() && !runner_->model().mixtures.empty()) {
      return absl::UnimplementedError("the use of experts is not counted over several nodes");
    }
    std::vector<MixtureUse> uses;
    for (size_t rank = 0; rank < runner_->size(); ++rank) {
      MILLRACE_ASSIGN_OR_RETURN(const std::vector<MixtureUse> of_rank, MixtureUsesOf(rank));
      if (rank == 0) {
        uses = of_rank;
        continue;
      }
      for (size_t i = 0; i < uses.size(); ++i) {
        if (info_.expert_parallel) {
          uses[i].experts += of_rank[i].experts;
          uses[i].touched += of_rank[i].touched;
        } else {
          uses[i].expert_bytes += of_rank[i].expert_bytes;
        }
      }
    }
    return uses;
  }

  std::optional<double> MeasureReadRate() const override {
    const CudaModel& model = runner_->model();
    if (!UseDevice(model.device.index).ok()) return std::nullopt;
    const DeviceMemory& weights = model.weights.memory;
    return cuda::MeasureReadRate(weights.bytes() > model.kv_memory.bytes() ? weights
                                                                           : model.kv_memory);
  }

  std::optional<StepResult> Poll() override { return worker_.Poll(); }
  std::optional<StepResult> Wait() override { return worker_.Wait(); }

 private:
  absl::StatusOr<std::vector<MixtureUse>> MixtureUsesOf(size_t rank) const {
    const CudaModel& model = runner_->model(rank);
    std::vector<MixtureUse> uses = model.mixtures;
    if (uses.empty()) return uses;
    std::vector<unsigned long long> touched(uses.size());
    MILLRACE_RETURN_IF_ERROR(UseDevice(model.device.index));
    MILLRACE_RETURN_IF_ERROR(
        ToStatus(cudaMemcpy(touched.data(), model.ops->context().touched_experts,
                            touched.size() * sizeof(touched[0]), cudaMemcpyDeviceToHost),
                 "reading the use of experts"));
    for (size_t i = 0; i < uses.size(); ++i) uses[i].touched = static_cast<int64_t>(touched[i]);
    return uses;
  }

  std::unique_ptr<CudaStepRunner> runner_;
  const ModelInfo info_;
  PlanChecker checker_;
  StepWorker worker_;  // last, since its thread uses the members above
};

// A rank's graphs, and the memory that they and the kernels' code take.
struct Prepared {
  DecodeGraphs graphs;
  size_t graph_bytes = 0;
  MemoryUse memory{};
};

// Loads every kernel that decode steps use and captures their graphs, on the calling thread. Waits
// for no other rank.
absl::Status Prepare(CudaModel& model, const CudaSpec& device, Prepared& prepared) {
  MILLRACE_RETURN_IF_ERROR(UseDevice(model.device.index));
  MILLRACE_ASSIGN_OR_RETURN(const MemoryUse before, ReadMemory());
  MILLRACE_RETURN_IF_ERROR(RunPaddingStep(model, 1, model.info.limits.max_num_batched_tokens));
  if (!device.enforce_eager) MILLRACE_RETURN_IF_ERROR(prepared.graphs.Capture(model));
  MILLRACE_ASSIGN_OR_RETURN(prepared.memory, ReadMemory());
  prepared.graph_bytes = before.free - std::min(before.free, prepared.memory.free);
  return absl::OkStatus();
}

// A size has a graph on all nodes or on none.
absl::Status KeepSizesOfAllNodes(Nodes& nodes, absl::Span<DecodeGraphs* const> ranks) {
  std::vector<char> mine;
  for (const int32_t size : ranks[0]->Sizes()) AppendValue(size, mine);
  std::vector<std::vector<char>> all;
  MILLRACE_RETURN_IF_ERROR(nodes.AllGather(mine, &all));
  for (const std::vector<char>& bytes : all) {
    std::vector<int32_t> sizes;
    ByteReader reader(bytes);
    for (int32_t size = 0; reader.Read(size);) sizes.push_back(size);
    for (DecodeGraphs* const rank : ranks) rank->KeepSizes(sizes);
  }
  return absl::OkStatus();
}

// Prepares all ranks, each on its thread, and runs a first step that all of them take part in. No
// rank waits for another's kernel before all are prepared, since loading a kernel,
// instantiating a graph and allocating memory may wait for the device.
absl::Status PrepareRanks(const std::vector<std::unique_ptr<CudaModel>>& models,
                          const CudaSpec& device, Nodes* nodes, RankThreads& threads,
                          std::vector<Prepared>& prepared) {
  const bool by_nccl = models[0]->peers->by_nccl.has_value();
  const auto run_joint_step = [&](int rank) -> absl::Status {
    MILLRACE_RETURN_IF_ERROR(UseDevice(models[rank]->device.index));
    return RunJointStep(*models[rank], 1, threads.group());
  };
  // NCCL connects the ranks in its first calls, which cannot be captured.
  if (by_nccl) MILLRACE_RETURN_IF_ERROR(threads.Run(run_joint_step));
  MILLRACE_RETURN_IF_ERROR(threads.Run([&](int rank) -> absl::Status {
    CudaModel& model = *models[rank];
    MILLRACE_RETURN_IF_ERROR(Prepare(model, device, prepared[rank]));
    if (by_nccl) return absl::OkStatus();
    return ToStatus(kernels::InitializeCommunicator(model.peers->communicator, model.stream.get()),
                    "joining the ranks");
  }));
  MILLRACE_RETURN_IF_ERROR(threads.Run([&](int rank) -> absl::Status {
    MILLRACE_RETURN_IF_ERROR(UseDevice(models[rank]->device.index));
    return ToStatus(cudaDeviceSynchronize(), "joining the ranks");
  }));
  MILLRACE_RETURN_IF_ERROR(threads.Run(run_joint_step));
  // A size has a graph on all ranks or on none.
  std::vector<DecodeGraphs*> graphs;
  for (Prepared& of_rank : prepared) graphs.push_back(&of_rank.graphs);
  DecodeGraphs::KeepCommonSizes(graphs);
  return nodes == nullptr ? absl::OkStatus() : KeepSizesOfAllNodes(*nodes, graphs);
}

absl::Status PrepareRanks(const std::vector<std::unique_ptr<CudaModel>>& models,
                          const CudaSpec& device, Nodes* nodes, std::vector<Prepared>& prepared) {
  RankThreads threads(static_cast<int>(models.size()), kLoadTimeout);
  absl::Status status = PrepareRanks(models, device, nodes, threads, prepared);
  if (status.ok()) return status;
  // A thread may wait for a rank that has failed, and for the threads waits who deletes them.
  for (const std::unique_ptr<CudaModel>& model : models) {
    if (model->peers->by_nccl.has_value()) model->peers->by_nccl->nccl->Abort();
  }
  return status;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Executor>> LoadCudaExecutor(const ModelSpec& model,
                                                           const CudaSpec& device, Nodes* nodes) {
  MILLRACE_ASSIGN_OR_RETURN(auto models, LoadCudaRanks(model, device, nodes));
  if (model.progress != nullptr) model.progress->Begin("warming up");
  PhaseTimer phases;
  std::vector<Prepared> prepared(models.size());
  MILLRACE_RETURN_IF_ERROR(models[0]->peers == nullptr
                               ? Prepare(*models[0], device, prepared[0])
                               : PrepareRanks(models, device, nodes, prepared));
  phases.End("warm up and capture graphs");
  ModelInfo& info = models[0]->info;
  const DecodeGraphs& graphs = prepared[0].graphs;
  info.graphs = graphs.count();
  info.graphs_failed = graphs.num_failed();
  if (!device.enforce_eager) {
    kLog.Info("captured ", graphs.count(), " CUDA graphs of decode steps");
  }
  for (LoadPhase& phase : phases.Take()) info.load_phases.push_back(std::move(phase));
  std::deque<RankSteps> ranks;
  for (size_t rank = 0; rank < models.size(); ++rank) {
    LogMemory(*models[rank], prepared[rank].graph_bytes, prepared[rank].memory);
    ranks.emplace_back(std::move(models[rank]), std::move(prepared[rank].graphs),
                       device.enforce_eager ? 0 : device.graph_tokens);
  }
  return std::make_unique<CudaExecutor>(
      std::make_unique<CudaStepRunner>(std::move(ranks), device.step_timeout, nodes));
}

}  // namespace millrace::cuda
