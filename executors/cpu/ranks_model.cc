#include "executors/cpu/ranks_model.h"

#include <chrono>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/status.h"
#include "executors/cpu/collective.h"
#include "executors/cpu/cpu_model.h"
#include "executors/rank_threads.h"

namespace millrace::cpu {
namespace {

// How long ranks that do not hang may take to see that a step has failed.
constexpr auto kGrace = std::chrono::seconds(1);

class RanksModel : public HostModel {
 public:
  explicit RanksModel(const CpuSpec& device)
      : threads_(device.tensor_parallel_size, device.step_timeout),
        collectives_(threads_.group()) {}

  absl::Status Load(const ModelSpec& model, const CpuSpec& device, const Kernels& kernels) {
    PhaseTimer phases;
    std::vector<Collective*> collectives;
    for (int rank = 0; rank < threads_.size(); ++rank) {
      collectives.push_back(&collectives_.ForRank(rank));
    }
    MILLRACE_ASSIGN_OR_RETURN(ranks_, LoadCpuRanks(model, device, kernels, collectives, phases));
    MILLRACE_RETURN_IF_ERROR(RunRanks(warm_up_.emplace(info().limits).input));
    phases.End("warm up");
    ranks_[0]->info.load_phases = phases.Take();
    return absl::OkStatus();
  }

  const ModelInfo& info() const override { return ranks_[0]->info; }

  void Copy(const BlockCopy& copy) override {
    for (const auto& rank : ranks_) rank->Copy(copy);
  }

  absl::StatusOr<absl::Span<const Sampled>> Run(const CpuStepInput& input) override {
    MILLRACE_RETURN_IF_ERROR(RunRanks(input));
    if (sampled_.size() < input.samples.size()) sampled_.resize(input.samples.size());
    for (size_t i = 0; i < input.samples.size(); ++i) {
      for (const auto& rank : ranks_) {
        if (rank->ops->Samples(static_cast<int>(i))) sampled_[i] = rank->ops->sampled()[i];
      }
    }
    return sampled_;
  }

  absl::Span<const float> embeddings() const override { return ranks_[0]->ops->embeddings(); }

  // Ranks have experts of their own, or each has a share of every expert, which it uses as the
  // others do theirs.
  std::vector<MixtureUse> mixture_uses() const override {
    const absl::Span<const MixtureUse> first = ranks_[0]->ops->mixture_uses();
    std::vector<MixtureUse> uses(first.begin(), first.end());
    for (size_t rank = 1; rank < ranks_.size(); ++rank) {
      const absl::Span<const MixtureUse> of_rank = ranks_[rank]->ops->mixture_uses();
      for (size_t i = 0; i < uses.size(); ++i) {
        if (info().expert_parallel) {
          uses[i].experts += of_rank[i].experts;
          uses[i].touched += of_rank[i].touched;
        } else {
          uses[i].expert_bytes += of_rank[i].expert_bytes;
        }
      }
    }
    return uses;
  }

  bool Hangs() override { return !threads_.WaitIdle(kGrace); }

 private:
  absl::Status RunRanks(const CpuStepInput& input) {
    return threads_.Run([this, &input](int rank) {
      ranks_[rank]->Run(input);
      return ranks_[rank]->ops->TakeStatus();
    });
  }

  std::optional<WarmUpStep> warm_up_;
  std::vector<std::unique_ptr<CpuModel>> ranks_;
  std::vector<Sampled> sampled_;
  RankThreads threads_;
  SharedMemoryCollectives collectives_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HostModel>> LoadRanksModel(const ModelSpec& model,
                                                          const CpuSpec& device,
                                                          const Kernels& kernels) {
  auto loaded = std::make_unique<RanksModel>(device);
  absl::Status status = loaded->Load(model, device, kernels);
  if (status.ok()) return loaded;
  if (loaded->Hangs()) (void)loaded.release();
  return status;
}

}  // namespace millrace::cpu
