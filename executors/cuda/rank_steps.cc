#include "executors/cuda/rank_steps.h"

#include <algorithm>

#include "base/status.h"
#include "base/strings.h"
#include "executors/cuda/ranges.h"
#include "kernels/attention/copy_blocks.h"
#include "kernels/step/faults.h"

namespace millrace::cuda {
namespace {

// Returns whether every row decodes one token. Only such steps are captured as graphs.
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

absl::Status RankSteps::Launch(const StepPlan& plan, int lane, bool fetches, StepFault fault) {
  MILLRACE_RETURN_IF_ERROR(UseDevice(model_->device.index));
  const int rows = static_cast<int>(plan.rows.size());
  const DecodeGraph* graph = IsDecode(plan) ? graphs_->Find(rows) : nullptr;
  MILLRACE_ASSIGN_OR_RETURN(const PackedPlan packed,
                            Upload(plan, lane, graph != nullptr ? graph->size : rows));
  MILLRACE_RETURN_IF_ERROR(Compute(packed, graph));
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
  return to.TellMasks(late_steps_[lane], model_->buffers, stream);
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

absl::StatusOr<PackedPlan> RankSteps::Upload(const StepPlan& plan, int lane_index, int rows) {
  const Range range("upload");
  const StepLane& lane = model_->lanes[lane_index];
  PackedPlan packed = packer_.Pack(plan, rows, lane);
  if (packed.late_masks) ++late_steps_[lane_index];
  packed.step.masks_wanted = late_steps_[lane_index];
  std::vector<std::optional<int32_t>>& tops = tops_[lane_index];
  tops.clear();
  for (const StepRow& row : plan.rows) tops.push_back(packer_.TopLogprobs(row.slot));
  MILLRACE_RETURN_IF_ERROR(lane.Upload(packed, model_->buffers, model_->stream.get()));
  if (packed.masks > 0 && !packed.late_masks) {
    MILLRACE_RETURN_IF_ERROR(lane.SendMasks(plan, model_->buffers, model_->stream.get()));
  }
  if (packed.copies > 0) MILLRACE_RETURN_IF_ERROR(CopyBlocks(lane, packed.copies));
  return packed;
}

absl::Status RankSteps::Compute(const PackedPlan& packed, const DecodeGraph* graph) {
  const Range range("launch");
  if (graph != nullptr) {
    return ToStatus(cudaGraphLaunch(graph->graph.get(), model_->stream.get()), "launching a graph");
  }
  if (packed.input.tokens == 0) return absl::OkStatus();
  model_->model->Forward(*model_->ops, packed.input);
  return model_->ops->TakeStatus();
}

absl::Status RankSteps::CopyBlocks(const StepLane& lane, int count) {
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
