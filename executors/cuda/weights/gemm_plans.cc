#include "executors/cuda/weights/gemm_plans.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "base/clock.h"
#include "base/log.h"
#include "executors/cuda/weights/gemm_cache.h"
#include "kernels/gemm/gemm_tuner.h"
#include "kernels/gemm/linear_algorithms.h"

namespace millrace::cuda {
namespace {

constexpr Logger kLog(LogComponent::kExecutors);

// Smaller products are bound by the launch, whatever the config.
constexpr int64_t kLeastElements = int64_t{4} << 20;

std::string GpuName() {
  int device = 0;
  cudaDeviceProp properties = {};
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
    return "unknown GPU";
  }
  // GPUs with the same name may differ in their number of SMs.
  return std::string(properties.name) + " " + std::to_string(properties.multiProcessorCount);
}

// Makes the planner learn ranges from the file if they give the reference bits. Returns whether it
// did.
bool LearnKept(const GemmUse& use, const kernels::GemmRanges& ranges,
               kernels::LinearPlanner& planner) {
  const kernels::LinearOptions& options = planner.options();
  std::string error;
  if (ranges.back().tokens < kernels::GemmTuner::MeasuredTokens(use.desc, options) ||
      !kernels::AreProposed(planner.library(), use.desc, options, ranges)) {
    return false;
  }
  if (options.exact) {
    const auto tuner =
        kernels::GemmTuner::Make(planner.library(), options, use.desc, use.weights, &error);
    if (tuner == nullptr || !tuner->HasReferenceBits(ranges)) {
      return false;
    }
  }
  return planner.Learn(use.desc, ranges);
}

}  // namespace

void AddUse(const kernels::GemmDesc& desc, const void* weight, std::vector<GemmUse>* uses) {
  const auto found = std::find_if(uses->begin(), uses->end(),
                                  [&](const GemmUse& use) { return use.desc == desc; });
  if (found == uses->end()) {
    uses->push_back({.desc = desc, .weights = {weight}});
  } else {
    found->weights.push_back(weight);
  }
}

void LearnPlans(const std::vector<GemmUse>& uses, kernels::LinearPlanner& planner) {
  const SteadyTime begin = Clock::Real().Now();
  std::optional<GemmCache> cache;
  int kept = 0, measured = 0;
  for (const GemmUse& use : uses) {
    if (planner.Knows(use.desc) || use.desc.blocks() ||
        use.desc.rows * use.desc.stride < kLeastElements) {
      continue;
    }
    if (!cache.has_value()) {
      cache.emplace(GemmCache::DefaultFolder(), GemmCacheKey{.gpu = GpuName(),
                                                             .library = planner.library().version(),
                                                             .exact = planner.options().exact,
                                                             .gemm = planner.options().gemm});
    }
    if (const auto ranges = cache->Find(use.desc); ranges.has_value()) {
      if (LearnKept(use, *ranges, planner)) {
        ++kept;
        continue;
      }
      kLog.Warning(cache->path().string(), " has a plan for ", ToString(use.desc),
                   " that does not hold: it is measured again");
    }
    std::string error;
    const auto ranges = TuneAndLearn(planner, use.desc, use.weights, &error);
    if (!ranges.has_value()) {
      kLog.Warning("linears go by rules: ", error);
      continue;
    }
    ++measured;
    cache->Add(use.desc, *ranges);
    kLog.Debug("measured ", ToString(use.desc), ": ", ToString(*ranges));
  }
  if (measured > 0) {
    const absl::Status saved = cache->Save();
    if (!saved.ok()) {
      kLog.Warning("measured plans are not kept, so the next start measures them again: ",
                   std::string(saved.message()));
    }
  }
  if (kept + measured > 0) {
    const auto ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::Real().Now() - begin);
    kLog.Info("plans of linears: ", measured, " measured, ", kept, " from ", cache->path().string(),
              ", in ", ms.count(), " ms");
  }
}

}  // namespace millrace::cuda
