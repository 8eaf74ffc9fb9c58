#include "executors/cpu/ranks_model.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "executors/cpu/collective.h"
#include "executors/cpu/cpu_model.h"
#include "executors/cpu/node_collective.h"
#include "executors/cpu/node_samples.h"
#include "executors/rank_threads.h"

namespace millrace::cpu {
namespace {

// How long ranks that do not hang may take to see that a step has failed.
constexpr auto kGrace = std::chrono::seconds(1);

class RanksModel : public HostModel {
 public:
  RanksModel(const CpuSpec& device, Nodes* nodes)
      : nodes_(nodes),
        num_ranks_(device.tensor_parallel_size),
        step_timeout_(device.step_timeout),
        threads_(num_ranks_ / (nodes == nullptr ? 1 : nodes->size()), device.step_timeout) {
    if (nodes == nullptr) {
      collectives_.emplace(threads_.group());
      return;
    }
    node_collectives_.emplace(threads_.group(), *nodes);
    nodes->OnFailure([this](const absl::Status& why) { threads_.group().Abort(why); });
  }

  ~RanksModel() override {
    if (nodes_ != nullptr) nodes_->OnFailure(nullptr);
  }

  absl::Status Load(const ModelSpec& model, const CpuSpec& device, const Kernels& kernels) {
    PhaseTimer phases;
    LocalRanks local{.first = FirstRank(nodes_ == nullptr ? 0 : nodes_->node()),
                     .count = threads_.size(),
                     .collectives = {}};
    for (int i = 0; i < local.count; ++i) {
      local.collectives.push_back(collectives_.has_value() ? &collectives_->ForRank(i)
                                                           : &node_collectives_->ForRank(i));
    }
    MILLRACE_ASSIGN_OR_RETURN(ranks_, LoadCpuRanks(model, device, kernels, local, phases));
    if (nodes_ != nullptr) {
      MILLRACE_RETURN_IF_ERROR(
          JoinInfos(*nodes_, {{"instruction set", std::string(kernels.name)}}, ranks_[0]->info));
      phases.End("wait for the other nodes");
    }
    MILLRACE_RETURN_IF_ERROR(RunRanks(warm_up_.emplace(info().limits).input));
    phases.End("warm up");
    ranks_[0]->info.load_phases = phases.Take();
    return absl::OkStatus();
  }

  const ModelInfo& info() const override { return ranks_[0]->info; }

  absl::Status Move(absl::Span<const StateMove> moves) override {
    return threads_.Run([this, moves](int rank) {
      ranks_[rank]->kv.Move(moves, *ranks_[rank]->pool);
      return absl::OkStatus();
    });
  }

  absl::StatusOr<absl::Span<const Sampled>> Run(const CpuStepInput& input) override {
    MILLRACE_RETURN_IF_ERROR(RunRanks(input));
    if (sampled_.size() < input.samples.size()) sampled_.resize(input.samples.size());
    for (size_t i = 0; i < input.samples.size(); ++i) {
      for (const auto& rank : ranks_) {
        if (rank->ops->Samples(static_cast<int>(i))) sampled_[i] = rank->ops->sampled()[i];
      }
    }
    if (nodes_ != nullptr) {
      if (absl::Status status = ExchangeSamples(input.samples.size()); !status.ok()) {
        nodes_->Fail(status);
        return absl::UnavailableError(StrCat(status.message()));
      }
    }
    // No rank stops before the others, which wait for its values.
    for (const auto& rank : ranks_) MILLRACE_RETURN_IF_ERROR(rank->CheckMemory());
    return sampled_;
  }

  absl::Status AcceptDrafts(absl::Span<const int32_t> accepted) override {
    return threads_.Run([this, accepted](int rank) {
      ranks_[rank]->ops->AcceptDrafts(accepted);
      return absl::OkStatus();
    });
  }

  absl::Span<const float> embeddings() const override { return ranks_[0]->ops->embeddings(); }

  std::vector<MixtureUse> mixture_uses() const override {
    if (uses_.empty()) return LocalUses();
    std::vector<MixtureUse> uses = uses_[0];
    for (size_t node = 1; node < uses_.size(); ++node) {
      AddUses(uses_[node], info().expert_parallel, absl::MakeSpan(uses));
    }
    return uses;
  }

  bool Hangs() override { return !threads_.WaitIdle(kGrace); }

 private:
  int FirstRank(int node) const { return node * threads_.size(); }

  absl::Status RunRanks(const CpuStepInput& input) {
    absl::Status status =
        threads_.Run([this, &input](int rank) { return ranks_[rank]->Run(input); });
    if (status.ok() || nodes_ == nullptr) return status;
    // A rank that waits for others stands still as they do.
    if (node_collectives_->waits()) {
      status = absl::UnavailableError(StrCat("the ranks of the other nodes got no further for ",
                                             ToSeconds(step_timeout_), " s (--step-timeout)"));
    }
    nodes_->Fail(status);
    return status;
  }

  std::vector<MixtureUse> LocalUses() const {
    const absl::Span<const MixtureUse> first = ranks_[0]->ops->mixture_uses();
    std::vector<MixtureUse> uses(first.begin(), first.end());
    for (size_t rank = 1; rank < ranks_.size(); ++rank) {
      AddUses(ranks_[rank]->ops->mixture_uses(), info().expert_parallel, absl::MakeSpan(uses));
    }
    return uses;
  }

  // Every node needs all tokens: steps that come go on from them.
  absl::Status ExchangeSamples(size_t num_samples) {
    const std::vector<MixtureUse> own_uses = LocalUses();
    to_send_.clear();
    for (size_t i = 0; i < num_samples; ++i) {
      const int rank = static_cast<int>(i % num_ranks_);
      if (rank / threads_.size() == nodes_->node()) AppendSample(sampled_[i], to_send_);
    }
    AppendUses(own_uses, to_send_);
    MILLRACE_RETURN_IF_ERROR(nodes_->AllGather(to_send_, &received_));
    uses_.resize(nodes_->size());
    for (int node = 0; node < nodes_->size(); ++node) {
      uses_[node].resize(own_uses.size());
      MILLRACE_RETURN_IF_ERROR(ReadSamples(received_[node], FirstRank(node), threads_.size(),
                                           num_ranks_, {sampled_.data(), num_samples},
                                           absl::MakeSpan(uses_[node])));
    }
    return absl::OkStatus();
  }

  Nodes* const nodes_;  // null: this process is the only one
  const int num_ranks_;
  const Duration step_timeout_;
  std::optional<WarmUpStep> warm_up_;
  std::vector<std::unique_ptr<CpuModel>> ranks_;  // of this node
  std::vector<Sampled> sampled_;
  std::vector<char> to_send_;
  std::vector<std::vector<char>> received_;    // by node
  std::vector<std::vector<MixtureUse>> uses_;  // by node
  RankThreads threads_;
  std::optional<SharedMemoryCollectives> collectives_;  // one of the two
  std::optional<NodeCollectives> node_collectives_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HostModel>> LoadRanksModel(const ModelSpec& model,
                                                          const CpuSpec& device,
                                                          const Kernels& kernels, Nodes* nodes) {
  auto loaded = std::make_unique<RanksModel>(device, nodes);
  absl::Status status = loaded->Load(model, device, kernels);
  if (status.ok()) return loaded;
  if (loaded->Hangs()) (void)loaded.release();
  return status;
}

}  // namespace millrace::cpu
