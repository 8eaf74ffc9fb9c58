#include "executors/cpu/ranks_test_util.h"

#include <algorithm>
#include <barrier>
#include <cstring>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "executors/cpu/collective.h"
#include "executors/cpu/cpu_model.h"
#include "executors/executor_driver_test_util.h"
#include "executors/host/host_executor.h"

namespace millrace::cpu {
namespace {

// State that the ranks of one process share.
struct Meeting {
  explicit Meeting(int ranks) : barrier(ranks), values(ranks) {}

  std::barrier<> barrier;
  std::vector<const float*> values;  // of each rank
};

class LocalCollective : public Collective {
 public:
  LocalCollective(Meeting& meeting, int rank) : meeting_(meeting), rank_(rank) {}

  void Sum(absl::Span<float> values) override {
    sums_.assign(values.size(), 0.0f);
    Meet(values.data(), [&] {
      for (const float* of_rank : meeting_.values) {
        for (size_t i = 0; i < values.size(); ++i) sums_[i] += of_rank[i];
      }
    });
    std::copy(sums_.begin(), sums_.end(), values.begin());
  }

  void Gather(const float* part, size_t part_stride, int rows, const Share& share, float* all,
              size_t stride) override {
    Meet(part, [&] {
      for (size_t rank = 0; rank < meeting_.values.size(); ++rank) {
        const int64_t begin = std::min<int64_t>(rank * share.size, share.total);
        const int64_t count = std::min(share.size, share.total - begin);
        for (int row = 0; row < rows; ++row) {
          std::copy_n(meeting_.values[rank] + row * part_stride, count, all + row * stride + begin);
        }
      }
    });
  }

 private:
  // Has `read` read all ranks' values, which none changes meanwhile.
  void Meet(const float* values, const std::function<void()>& read) {
    meeting_.values[rank_] = values;
    meeting_.barrier.arrive_and_wait();
    read();
    meeting_.barrier.arrive_and_wait();
  }

  Meeting& meeting_;
  int rank_;
  std::vector<float> sums_;
};

class RanksModel : public HostModel {
 public:
  RanksModel(const ModelSpec& model, const CpuSpec& device, int ranks, bool expert_parallel,
             const Kernels& kernels)
      : meeting_(ranks), models_(ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      ends_.push_back(std::make_unique<LocalCollective>(meeting_, rank));
    }
    OnEachRank([&](int rank) {
      auto loaded =
          LoadCpuModel(model, device, kernels, {rank, ranks, expert_parallel}, ends_[rank].get());
      CheckOk(loaded.status());
      models_[rank] = *std::move(loaded);
    });
  }

  const ModelInfo& info() const override { return models_[0]->info; }

  void Copy(const BlockCopy& copy) override {
    for (const auto& model : models_) model->Copy(copy);
  }

  absl::StatusOr<absl::Span<const Sampled>> Run(const CpuStepInput& input) override {
    OnEachRank([&](int rank) { models_[rank]->Run(input); });
    return models_[0]->ops->sampled();
  }

  absl::Span<const float> embeddings() const override { return models_[0]->ops->embeddings(); }

 private:
  void OnEachRank(const std::function<void(int)>& run) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < static_cast<int>(models_.size()); ++rank) {
      threads.emplace_back(run, rank);
    }
    for (std::thread& thread : threads) thread.join();
  }

  Meeting meeting_;
  std::vector<std::unique_ptr<LocalCollective>> ends_;
  std::vector<std::unique_ptr<CpuModel>> models_;
};

}  // namespace

std::unique_ptr<Executor> LoadCpuRanks(const ModelSpec& model, const CpuSpec& device, int ranks,
                                       bool expert_parallel, const Kernels& kernels) {
  return MakeHostExecutor(
      std::make_unique<RanksModel>(model, device, ranks, expert_parallel, kernels));
}

}  // namespace millrace::cpu
