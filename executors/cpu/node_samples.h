// The nodes' messages at the end of a step: the tokens that their ranks sampled, and how their
// mixtures of experts were used.
#ifndef MILLRACE_EXECUTORS_CPU_NODE_SAMPLES_H_
#define MILLRACE_EXECUTORS_CPU_NODE_SAMPLES_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "executors/executor.h"
#include "executors/slot_results.h"

namespace millrace::cpu {

void AppendSample(const Sampled& sample, std::vector<char>& bytes);
void AppendUses(absl::Span<const MixtureUse> uses, std::vector<char>& bytes);

// Reads the samples whose rank has `num_local` ranks beginning with `first_rank`, of `num_ranks` in
// all, into their places in `samples`: sample i is of rank i modulo `num_ranks`. Behind them it
// reads as many uses as `uses` has.
absl::Status ReadSamples(absl::Span<const char> bytes, int first_rank, int num_local, int num_ranks,
                         absl::Span<Sampled> samples, absl::Span<MixtureUse> uses);

// Adds the use of mixtures by another rank, or by the ranks of another node, to `uses`. Ranks have
// experts of their own, or each has a share of every expert, which it uses as the others do theirs.
void AddUses(absl::Span<const MixtureUse> others, bool expert_parallel,
             absl::Span<MixtureUse> uses);

}  // namespace millrace::cpu

#endif  // MILLRACE_EXECUTORS_CPU_NODE_SAMPLES_H_
