#include "executors/cuda/rank_steps.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "executors/cuda/ranges.h"
#include "kernels/attention/copy_blocks.h"
#include "kernels/step/faults.h"

namespace millrace::cuda {
namespace {

constexpr Logger kLog(LogComponent::kExecutors);

// Returns whether every row decodes one token. Graphs of such steps are captured at the load.
bool IsDecode(const StepPlan& plan) {
  for (const StepRow& row : plan.rows) {
    if (row.num_tokens != 1 || row.logits.size() != 1) return false;
  }
  return !plan.rows.empty();
}

// Null: ranks write into one another's memory, or there is one.
kernels::Nccl* NcclOf(const CudaModel& model) {
  if (model.peers == nullptr || !model.peers->by_nccl.has_value()) return nullptr;
  return model.peers->by_nccl->nccl.get();
}

}  // namespace

std::optional<CudaStepInput> RankSteps::MixedSize(const StepPlan& plan) const {
  // Over NCCL a first collective of a size may connect ranks, which cannot be captured.
  if (IsDecode(plan) || NcclOf(*model_) != nullptr) return std::nullopt;
  return PaddedSize(SizeOf(plan), model_->info.limits, graph_tokens_);
}

RankSteps::Way RankSteps::WayOf(const StepPlan& plan) const {
  Way way{.size = SizeOf(plan)};
  if (const std::optional<CudaStepInput> mixed = MixedSize(plan)) {
    if (!mixed_graphs_->GivenUp(*mixed)) way = {*mixed, mixed_graphs_->Find(*mixed)};
  } else if (IsDecode(plan)) {
    if (const DecodeGraph* const decode = graphs_->Find(way.size.rows)) {
      way.size.rows = way.size.tokens = way.size.wanted = decode->size;
      way.graph = &decode->step;
    }
  }
  return way;
}

bool RankSteps::CountStep(const StepPlan& plan) {
  const std::optional<CudaStepInput> size = MixedSize(plan);
  return size.has_value() && mixed_graphs_->Count(*size);
}

bool RankSteps::CaptureGraph(const StepPlan& plan) {
  const std::optional<CudaStepInput> size = MixedSize(plan);
  if (!size.has_value() || !UseDevice(model_->device.index).ok()) return false;
  const Range range("capture");
  // Ranks do not meet in a capture, which launches nothing.
  RankGroup* const group =
      model_->peers == nullptr ? nullptr : std::exchange(model_->peers->group, nullptr);
  absl::StatusOr<StepGraph> graph = CaptureStep(*model_, *size);
  if (model_->peers != nullptr) model_->peers->group = group;
  const std::string what =
      StrCat("steps with prompts of ", size->tokens, " tokens and ", size->wanted, " logits");
  if (!graph.ok()) {
    kLog.Warning(what, " have no graph: ", std::string(graph.status().message()));
    (void)cudaGetLastError();
    return false;
  }
  mixed_graphs_->Add(*size, *std::move(graph));
  kLog.Debug("captured a CUDA graph of ", what, ", ", mixed_graphs_->count(), " of up to ",
             MixedGraphs::kMostGraphs);
  return true;
}

void RankSteps::GiveUpGraph(const StepPlan& plan) {
  if (const std::optional<CudaStepInput> size = MixedSize(plan)) mixed_graphs_->GiveUp(*size);
}

absl::Status RankSteps::Launch(const StepPlan& plan, int lane, bool fetches, StepFault fault) {
  MILLRACE_RETURN_IF_ERROR(UseDevice(model_->device.index));
  const Way way = WayOf(plan);
  MILLRACE_ASSIGN_OR_RETURN(const PackedPlan packed, Upload(plan, lane, way.size));
  exceeded_[lane] = absl::OkStatus();
  if (absl::Status status = Compute(packed, way.graph); !status.ok()) {
    // Ranks that stopped at different collectives would sum what does not belong together.
    const bool alone = model_->peers == nullptr;
    if (way.graph != nullptr || !alone || !model_->ops->exceeded()) return status;
    exceeded_[lane] = std::move(status);
  }
  MILLRACE_RETURN_IF_ERROR(LaunchFault(fault));
  const Range range("download");
  return model_->lanes[lane].Download(model_->buffers, fetches ? packed.input.wanted : 0,
                                      packed.tops, model_->stream.get());
}

absl::Status RankSteps::SendMasks(const StepPlan& plan, int lane) {
  const Range range("masks");
  MILLRACE_RETURN_IF_ERROR(UseDevice(model_->device.index));
  const StepLane& to = model_->lanes[lane];
  cudaStream_t const stream = model_->mask_stream.get();
  MILLRACE_RETURN_IF_ERROR(to.SendMasks(plan, model_->buffers, stream));
  return to.SignalMasks(late_steps_[lane], model_->buffers, stream);
}

absl::Status RankSteps::LaunchFault(StepFault fault) {
  if (fault == StepFault::kNone) return absl::OkStatus();
  return ToStatus(fault == StepFault::kTrap ? kernels::LaunchTrap(model_->stream.get())
                                            : kernels::LaunchHang(model_->stream.get()),
                  "the fault point");
}

absl::Status RankSteps::Failure(int lane) const {
  MILLRACE_RETURN_IF_ERROR(model_->lanes[lane].Failure());
  if (!GaveUp()) return absl::OkStatus();
  if (const kernels::Nccl* const nccl = NcclOf(*model_)) {
    return absl::UnavailableError(StrCat("rank ", nccl->rank(), ": ", nccl->error()));
  }
  const uint32_t peer = *model_->failure.As<volatile uint32_t>() - 1;
  return absl::UnavailableError(StrCat("rank ", model_->weights.rank.rank, " waited for rank ",
                                       peer, " longer than --step-timeout"));
}

bool RankSteps::GaveUp() const {
  if (const kernels::Nccl* const nccl = NcclOf(*model_)) return !nccl->error().empty();
  return model_->peers != nullptr && *model_->failure.As<volatile uint32_t>() != 0;
}

void RankSteps::AbortNccl() const {
  if (kernels::Nccl* const nccl = NcclOf(*model_)) nccl->Abort();
}

absl::StatusOr<PackedPlan> RankSteps::Upload(const StepPlan& plan, int lane_index,
                                             const CudaStepInput& size) {
  const Range range("upload");
  const StepLane& lane = model_->lanes[lane_index];
  PackedPlan packed = packer_.Pack(plan, size, lane.words());
  if (packed.late_masks) ++late_steps_[lane_index];
  packed.step.masks_wanted = late_steps_[lane_index];
  std::vector<std::optional<int32_t>>& tops = tops_[lane_index];
  tops.clear();
  for (const StepRow& row : plan.rows) tops.push_back(packer_.TopLogprobs(row.slot));
  MILLRACE_RETURN_IF_ERROR(lane.Upload(packed, model_->buffers, model_->stream.get()));
  if (packed.masks > 0 && !packed.late_masks) {
    MILLRACE_RETURN_IF_ERROR(lane.SendMasks(plan, model_->buffers, model_->stream.get()));
  }
  if (!plan.moves.empty()) MILLRACE_RETURN_IF_ERROR(CopyBlocks(plan, packed.step));
  return packed;
}

absl::Status RankSteps::Compute(const PackedPlan& packed, const StepGraph* graph) {
  const Range range("launch");
  if (graph != nullptr) {
    return ToStatus(cudaGraphLaunch(graph->graph.get(), model_->stream.get()), "launching a graph");
  }
  if (packed.input.tokens == 0) return absl::OkStatus();
  model_->model->Forward(*model_->ops, packed.input);
  return model_->ops->TakeStatus();
}

absl::Status RankSteps::CopyBlocks(const StepPlan& plan, const kernels::PackedStep& step) {
  const KvArena& kv = model_->kv;
  const int32_t* const words = step.words + kernels::StepLayout(step.counts).copies;
  const int2* pairs = reinterpret_cast<const int2*>(words);
  for (int group = 0; group < std::ssize(kv.pools); ++group) {
    const auto count = static_cast<int>(
        std::count_if(plan.moves.begin(), plan.moves.end(),
                      [group](const StateMove& move) { return move.group == group; }));
    const KvArena::Pool& pool = kv.pools[group];
    MILLRACE_RETURN_IF_ERROR(ToStatus(kernels::LaunchCopyBlocks({.arena = pool.data,
                                                                 .layer_stride = pool.layer_bytes,
                                                                 .block_stride = pool.place_bytes,
                                                                 .block_bytes = pool.place_bytes,
                                                                 .layers = pool.layers,
                                                                 .pairs = pairs,
                                                                 .count = count},
                                                                model_->stream.get()),
                                      "copying blocks"));
    pairs += count;
  }
  return absl::OkStatus();
}

void RankSteps::Collect(const StepPlan& plan, int lane_index, std::vector<Sampled>* all) const {
  const StepLane& lane = model_->lanes[lane_index];
  all->resize(plan.logits.size());
  int next = 0;
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const std::optional<int32_t> top = tops_[lane_index][r];
    for (int32_t i = 0; i < plan.rows[r].logits.size(); ++i, ++next) {
      const kernels::SampleResult& result = lane.Result(next);
      Sampled& sampled = (*all)[next];
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

}  // namespace millrace::cuda
