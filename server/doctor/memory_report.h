// Reports a server's memory with given settings, part by part, before it starts.
#ifndef MILLRACE_SERVER_DOCTOR_MEMORY_REPORT_H_
#define MILLRACE_SERVER_DOCTOR_MEMORY_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "config/settings.h"
#include "plan/state_layout.h"
#include "server/doctor/gpu_driver.h"
#include "server/doctor/machine_memory.h"

namespace millrace {

struct MemoryPart {
  std::string name;
  uint64_t bytes;
  std::string note;
};

struct MemoryReport {
  std::string place;  // "memory", or "memory of each GPU"
  std::vector<MemoryPart> parts;
  uint64_t total = 0;
  std::optional<uint64_t> available;  // nothing: unknown
  std::string available_note;
  // The sequences that run at once, where the states of as many as the setting says leave too
  // little of the memory.
  std::optional<int32_t> max_num_seqs = std::nullopt;

  bool fits() const { return !available.has_value() || total <= *available; }
};

// Reports what the model at `path` takes: the executor's own MemoryPlan, and an estimate of the
// process or the CUDA context around it. `path` is empty for the fake device. Unimplemented: a
// package (.pt2), --device torch, and a device that is not built into this server. Other errors are
// PlanMemory's.
absl::StatusOr<MemoryReport> ReportMemory(const Settings& settings, const std::string& path);

// Returns how many sequences can run at once if their states at slots take at most `bytes`: at
// least one, and at most `most`.
int32_t SequencesWithStates(const StateLayout& state, int64_t bytes, int32_t most);

// Returns that of the GPUs, at least one, which leaves a rank of this host the least memory. Ranks
// are on settings.devices, or on the first GPUs; one that is not there counts as the last.
const GpuFacts& LeastGpu(const Settings& settings, absl::Span<const GpuFacts> gpus);

// Sets settings.kv_cache_memory and state_cache_memory to what the report has, where they are 0 and
// the model at `path` runs on the CPU. The first: half of the memory that is free beside the rest,
// but no more than max_num_seqs sequences of full length take; where nothing can be planned, 1 GiB.
// States at slots get at most a half of it: where those of max_num_seqs sequences would take more,
// settings.max_num_seqs is lowered.
// The second: half of what is left then, but no more than four checkpoints for each sequence take;
// 0 without recurrent layers. Of a model on one host's GPUs, whose executor takes what is left for
// the KV cache, the states get at most a half of that, likewise, and checkpoints a quarter,
// divided among ranks that share a GPU; where the GPU's memory is not known, 1 GiB a rank.
void SizeCaches(const std::string& path, Settings& settings);

// Returns the report as a table, and a line that says whether the machine has as much.
std::string MemoryReportText(const MemoryReport& report);

// Returns "91.2 MiB".
std::string Mebibytes(uint64_t bytes);

}  // namespace millrace

#endif  // MILLRACE_SERVER_DOCTOR_MEMORY_REPORT_H_
