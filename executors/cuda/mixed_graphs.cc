#include "executors/cuda/mixed_graphs.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <utility>

#include "kernels/gemm/gemm_desc.h"

namespace millrace::cuda {
namespace {

constexpr bool GapsFitPadding() {
  for (size_t i = 1; i < std::size(kernels::kTokenBounds); ++i) {
    if (kernels::kTokenBounds[i] > kMaxGraphTokens) return true;
    if (kernels::kTokenBounds[i] - kernels::kTokenBounds[i - 1] > kMaxPaddingRows) return false;
  }
  return false;
}
static_assert(GapsFitPadding(), "a step may need more padding rows than there are");

}  // namespace

std::optional<CudaStepInput> PaddedSize(const CudaStepInput& size, const StepLimits& limits,
                                        int max_tokens) {
  if (size.tokens < 1 || size.tokens > std::min(max_tokens, kMaxGraphTokens) ||
      size.wanted > limits.max_num_seqs) {
    return std::nullopt;
  }
  CudaStepInput padded;
  padded.rows = limits.max_num_seqs + kMaxPaddingRows;
  padded.tokens =
      std::min(static_cast<int>(*std::lower_bound(std::begin(kernels::kTokenBounds),
                                                  std::end(kernels::kTokenBounds), size.tokens)),
               limits.max_num_batched_tokens);
  padded.max_row_tokens = padded.tokens;
  padded.wanted =
      size.wanted == 0
          ? 0
          : std::min(static_cast<int>(std::bit_ceil(static_cast<unsigned>(size.wanted))),
                     limits.max_num_seqs);
  return padded;
}

const MixedGraphs::Entry* MixedGraphs::FindEntry(const CudaStepInput& size) const {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    return entry.tokens == size.tokens && entry.wanted == size.wanted;
  });
  return found == entries_.end() ? nullptr : &*found;
}

MixedGraphs::Entry& MixedGraphs::EntryOf(const CudaStepInput& size) {
  if (const Entry* const known = FindEntry(size)) return entries_[known - entries_.data()];
  entries_.push_back({.tokens = size.tokens, .wanted = size.wanted});
  return entries_.back();
}

bool MixedGraphs::Count(const CudaStepInput& size) {
  Entry& entry = EntryOf(size);
  entry.last_step = ++steps_;
  if (++entry.steps == 1 || entry.given_up || entry.graph.has_value()) return false;
  if (count_ == kMostGraphs) DestroyOldest();
  return true;
}

void MixedGraphs::DestroyOldest() {
  const auto unused_for = [this](const Entry& entry) {
    return entry.graph.has_value() ? steps_ - entry.last_step : 0;
  };
  Entry& oldest = *std::max_element(
      entries_.begin(), entries_.end(),
      [&](const Entry& a, const Entry& b) { return unused_for(a) < unused_for(b); });
  oldest.graph.reset();
  oldest.steps = 0;
  --count_;
}

void MixedGraphs::Add(const CudaStepInput& size, StepGraph graph) {
  EntryOf(size).graph = std::move(graph);
  ++count_;
}

void MixedGraphs::GiveUp(const CudaStepInput& size) {
  Entry& entry = EntryOf(size);
  count_ -= entry.graph.has_value() ? 1 : 0;
  entry.graph.reset();
  entry.given_up = true;
}

bool MixedGraphs::GivenUp(const CudaStepInput& size) const {
  const Entry* const entry = FindEntry(size);
  return entry != nullptr && entry->given_up;
}

const StepGraph* MixedGraphs::Find(const CudaStepInput& size) const {
  const Entry* const entry = FindEntry(size);
  return entry != nullptr && entry->graph.has_value() ? &*entry->graph : nullptr;
}

}  // namespace millrace::cuda
