// Estimates a server's memory with given settings, part by part, before it starts.
#ifndef MILLRACE_SERVER_DOCTOR_MEMORY_PLAN_H_
#define MILLRACE_SERVER_DOCTOR_MEMORY_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "config/settings.h"
#include "formats/open_model.h"
#include "server/doctor/machine_memory.h"

namespace millrace {

struct MemoryPart {
  std::string name;
  uint64_t bytes;
  std::string note;
};

struct MemoryPlan {
  std::string place;  // "memory", or "memory of each GPU"
  std::vector<MemoryPart> parts;
  uint64_t total = 0;
  std::optional<uint64_t> available;  // nothing: unknown
  std::string available_note;

  bool fits() const { return !available.has_value() || total <= *available; }
};

// Plans what the model at `path` takes. Weights and KV cache are computed from the file's tensors
// and the model's config, as executors place them; the rest is an estimate. `path` is empty for the
// fake device. Unimplemented: a package (.pt2), or --device torch. Other errors are OpenModel's.
absl::StatusOr<MemoryPlan> PlanMemory(const Settings& settings, const std::string& path);

// Sets settings.kv_cache_memory to what the plan has, where it is 0 and the model at `path` runs on
// the CPU: half of the memory that is free beside the rest of the plan, but no more than
// max_num_seqs sequences of full length take. Where nothing can be planned: 1 GiB.
void SizeKvCache(const std::string& path, Settings& settings);

// Returns the plan as a table, and a line that says whether the machine has as much.
std::string MemoryPlanText(const MemoryPlan& plan);

// Returns "91.2 MiB".
std::string Mebibytes(uint64_t bytes);

}  // namespace millrace

#endif  // MILLRACE_SERVER_DOCTOR_MEMORY_PLAN_H_
