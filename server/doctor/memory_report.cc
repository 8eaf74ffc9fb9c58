#include "server/doctor/memory_report.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "executors/device_spec.h"
#include "executors/factory.h"
#include "executors/models/memory_plan.h"
#include "formats/open_model.h"
#include "plan/state_layout.h"
#include "server/device_spec.h"
#include "server/doctor/gpu_driver.h"
#include "server/model_location.h"

namespace millrace {
namespace {

// Estimates: the program with its threads' stacks and libraries, and a token of the vocabulary as
// the tokenizer and the detokenizer keep it. Measured on models with 30,000 to 262,000 tokens.
constexpr uint64_t kProgram = uint64_t{28} << 20;
constexpr uint64_t kVocabularyEntry = 240;
// Estimates a CUDA context, which is on the GPU before a model is.
constexpr uint64_t kCudaContext = uint64_t{512} << 20;

constexpr std::string_view kCache = "KV cache";
constexpr std::string_view kSlots = "state of sequences";
constexpr std::string_view kCheckpoints = "checkpoints of states";
// Checkpoints for each sequence that runs, where no setting sizes them: of a turn before it, of its
// prompt, of its answer, and of what it shares with others.
constexpr int64_t kCheckpointsEach = 4;
// A cache that neither a setting nor a known memory sizes.
constexpr int64_t kUnplannedCache = int64_t{1} << 30;

void Add(MemoryReport& report, std::string name, uint64_t bytes, std::string note) {
  report.parts.push_back({std::move(name), bytes, std::move(note)});
  report.total += bytes;
}

void SetAvailable(const MachineMemory& memory, MemoryReport& report) {
  report.available = memory.usable();
  report.available_note = std::string(memory.limited_by());
}

// Returns how many sequences of so many tokens, the last of which is in no cache, fit the blocks at
// once, as admission counts them.
int32_t SequencesOf(int32_t length, const MemoryPlan& plan) {
  int32_t most = std::numeric_limits<int32_t>::max();
  for (int group = 0; group < plan.state.num_groups(); ++group) {
    if (plan.state.Paged(group) == nullptr) continue;
    const int32_t each = plan.state.BlocksAtOnce(group, std::max(length - 1, 1));
    most = std::min(most, plan.num_blocks[group] / each);
  }
  return most;
}

std::string ContextNote(const MemoryPlan& plan, int context, bool encoder) {
  const uint64_t tokens = uint64_t{1} * plan.num_blocks[context] * plan.state.block_size;
  std::string note = StrCat(tokens, " tokens in blocks of ", plan.state.block_size);
  if (encoder) return note;
  const int32_t length = plan.use.max_model_len;
  const int32_t sequences = SequencesOf(length, plan);
  return note + (sequences == 0
                     ? StrCat("; too few for one sequence of ", length, " (--max-model-len)")
                     : StrCat(", or ", sequences, " sequences of ", length));
}

// Adds a row for each group of the state.
void AddState(const MemoryPlan& plan, bool encoder, std::string_view note, MemoryReport& report) {
  const int context = plan.state.ContextGroup(plan.num_blocks);
  for (int group = 0; group < plan.state.num_groups(); ++group) {
    const auto bytes = static_cast<uint64_t>(plan.GroupBytes(group));
    const PagedState* const pages = plan.state.Paged(group);
    if (group == context) {
      Add(report, std::string(kCache), bytes,
          ContextNote(plan, context, encoder) + std::string(note));
    } else if (pages != nullptr) {
      Add(report, StrCat(kCache, " of windows"), bytes,
          StrCat(plan.num_blocks[group], " blocks for windows of ", *pages->window));
    } else {
      const auto checkpoints = static_cast<uint64_t>(plan.CheckpointBytes(group));
      Add(report, std::string(kSlots), bytes - checkpoints,
          StrCat(plan.use.max_num_seqs, report.max_num_seqs.has_value()
                                            ? " sequences: more would leave too little for tokens"
                                            : " sequences"));
      Add(report, std::string(kCheckpoints), checkpoints,
          StrCat(plan.num_blocks[group], " (--state-cache-memory)", note));
    }
  }
}

// Returns half of what is free beside `rest` bytes.
int64_t HalfOfFree(uint64_t rest, uint64_t available) {
  return static_cast<int64_t>((available - std::min(available, rest)) / 2);
}

// Returns the bytes of a KV cache that no setting sizes, where `half` of the memory may be its.
int64_t CpuCacheBytes(int64_t half, const MemoryPlan& plan) {
  const int64_t most = plan.MostStateBytes();
  // Models whose sequences stay for a few steps take what these need.
  const int64_t wanted = plan.most_blocks.has_value() ? most : std::min(half, most);
  return std::max(wanted, plan.LeastStateBytes());
}

// Returns the most bytes for checkpoints that no setting sizes.
int64_t MostCheckpoints(const MemoryPlan& plan) {
  return plan.state.SlotBytes() * kCheckpointsEach * plan.use.max_num_seqs;
}

void AddParts(const OpenedModel& model, const MemoryPlan& plan, MemoryReport& report) {
  Add(report, "weights", static_cast<uint64_t>(plan.weights),
      StrCat(model.config.architecture, ", ", model.config.num_layers(), " layers, ",
             model.tensors->tensors().size(), " tensors"));
  Add(report, "activations", static_cast<uint64_t>(plan.activations),
      StrCat("steps of up to ", plan.use.max_num_batched_tokens, " tokens"));
  Add(report, "workspaces", static_cast<uint64_t>(plan.workspaces), "logits and scratch memory");
  if (plan.graphs > 0) Add(report, "graphs", static_cast<uint64_t>(plan.graphs), "estimate");
}

absl::StatusOr<MemoryReport> ReportCpu(const Settings& settings, const OpenedModel& model) {
  MILLRACE_ASSIGN_OR_RETURN(MemoryPlan plan,
                            PlanMemory(model, MakeDeviceSpec(settings), settings.nnodes));
  MemoryReport report{.place = "memory"};
  AddParts(model, plan, report);
  Add(report, "program and vocabulary",
      kProgram + kVocabularyEntry * static_cast<uint64_t>(model.config.vocab_size), "estimate");
  SetAvailable(ReadMachineMemory(), report);
  int64_t cache = settings.kv_cache_memory;
  if (cache == 0) {
    const int64_t checkpoints = plan.state.has_slots() ? plan.use.checkpoint_bytes : 0;
    const int64_t half =
        HalfOfFree(report.total + static_cast<uint64_t>(checkpoints), *report.available);
    const int32_t sequences = SequencesWithStates(plan.state, half / 2, plan.use.max_num_seqs);
    if (sequences < plan.use.max_num_seqs) report.max_num_seqs = sequences;
    plan.use.max_num_seqs = sequences;
    cache = CpuCacheBytes(half, plan);
  }
  if (settings.prefix_caching && settings.state_cache_memory == 0) {
    plan.use.checkpoint_bytes =
        std::min(HalfOfFree(report.total + static_cast<uint64_t>(cache), *report.available),
                 MostCheckpoints(plan));
  }
  plan.num_blocks = plan.Divide(cache);
  AddState(plan, model.config.encoder.has_value(), "; taken as it is first used", report);
  return report;
}

// Returns the bytes of the GPU that --gpu-memory-utilization leaves to this process.
uint64_t ShareOfGpu(const Settings& settings, const GpuFacts& gpu) {
  const auto share =
      static_cast<uint64_t>(settings.gpu_memory_utilization * static_cast<double>(gpu.total));
  return share - std::min(share, gpu.total - gpu.free);
}

// Sets the share of a GPU that this process may have, where that is known.
void SetAvailableOnGpu(const Settings& settings, MemoryReport& report) {
  if (settings.gpu_memory > 0) {
    report.available = static_cast<uint64_t>(settings.gpu_memory_utilization *
                                             static_cast<double>(settings.gpu_memory));
    report.available_note = "of --gpu-memory (--gpu-memory-utilization)";
  } else if (const absl::StatusOr<DriverFacts> driver = ReadDriver();
             driver.ok() && !driver->gpus.empty()) {
    const GpuFacts& gpu = LeastGpu(settings, driver->gpus);
    report.available = ShareOfGpu(settings, gpu);
    report.available_note = StrCat("of ", gpu.name, " (--gpu-memory-utilization)");
  }
}

// Returns how many ranks share a GPU.
int Sharers(const Settings& settings) {
  return settings.virtual_ranks ? settings.tensor_parallel_size / settings.nnodes : 1;
}

absl::StatusOr<MemoryReport> ReportCuda(const Settings& settings, const OpenedModel& model) {
  MILLRACE_ASSIGN_OR_RETURN(MemoryPlan plan,
                            PlanMemory(model, MakeDeviceSpec(settings), settings.nnodes));
  MemoryReport report{.place =
                          settings.tensor_parallel_size > 1 ? "memory of each GPU" : "GPU memory"};
  AddParts(model, plan, report);
  Add(report, "CUDA", kCudaContext, "estimate: the context");
  SetAvailableOnGpu(settings, report);
  const uint64_t available = report.available.value_or(0);
  const auto left = static_cast<int64_t>(available - std::min(available, report.total));
  // Settings size the caches of a rank, the plan those of all that share the GPU.
  int64_t cache = settings.kv_cache_memory * Sharers(settings);
  if (cache == 0 && left > 0 && settings.nnodes == 1) {
    const int64_t beside = left - std::min(left, plan.use.checkpoint_bytes);
    const int32_t sequences = SequencesWithStates(plan.state, beside / 2, plan.use.max_num_seqs);
    if (sequences < plan.use.max_num_seqs) report.max_num_seqs = sequences;
    plan.use.max_num_seqs = sequences;
  }
  if (settings.prefix_caching && settings.state_cache_memory == 0 && plan.state.has_slots()) {
    plan.use.checkpoint_bytes =
        report.available.has_value()
            ? std::min((left - std::min(left, cache)) / 4, MostCheckpoints(plan))
            : kUnplannedCache * Sharers(settings);
  }
  // Without a block the model cannot run, and the report must not fit.
  if (cache == 0) cache = std::max(plan.LeastStateBytes(), left - plan.use.checkpoint_bytes);
  plan.num_blocks = plan.Divide(cache);
  AddState(plan, /*encoder=*/false, "", report);
  return report;
}

// Returns whether layers of the model keep states at slots; false if it cannot be opened.
bool HasRecurrentLayers(const Settings& settings, const std::string& path) {
  const absl::StatusOr<OpenedModel> model = OpenModel(path, MakeModelSpec(settings, path).runner);
  return model.ok() && std::any_of(model->config.layers.begin(), model->config.layers.end(),
                                   [](const auto& layer) {
                                     return layer.has_mixer() && layer.FindSoftmax() == nullptr;
                                   });
}

}  // namespace

int32_t SequencesWithStates(const StateLayout& state, int64_t bytes, int32_t most) {
  const int64_t each = state.SlotBytes();
  if (each == 0) return most;
  return static_cast<int32_t>(std::clamp<int64_t>(bytes / each, 1, most));
}

const GpuFacts& LeastGpu(const Settings& settings, absl::Span<const GpuFacts> gpus) {
  const size_t ranks = settings.bench_lone_rank
                           ? 1
                           : settings.tensor_parallel_size / settings.nnodes / Sharers(settings);
  const GpuFacts* least = nullptr;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const size_t index = rank < settings.devices.size() ? settings.devices[rank] : rank;
    const GpuFacts& gpu = gpus[std::min(index, gpus.size() - 1)];
    if (least == nullptr || ShareOfGpu(settings, gpu) < ShareOfGpu(settings, *least)) least = &gpu;
  }
  return *least;
}

absl::StatusOr<MemoryReport> ReportMemory(const Settings& settings, const std::string& path) {
  if (settings.device == Device::kFake) {
    MemoryReport report{.place = "memory"};
    Add(report, "program and vocabulary", kProgram, "estimate; --device fake has no model");
    SetAvailable(ReadMachineMemory(), report);
    return report;
  }
  if (settings.device == Device::kTorch || IsPackage(path)) {
    return absl::UnimplementedError(
        "dry-run: is \"true\", allowed only with --device cpu, cuda or fake, and not for packages "
        "(.pt2)");
  }
  MILLRACE_ASSIGN_OR_RETURN(const OpenedModel model,
                            OpenModel(path, MakeModelSpec(settings, path).runner));
  return settings.device == Device::kCuda ? ReportCuda(settings, model)
                                          : ReportCpu(settings, model);
}

void SizeCaches(const std::string& path, Settings& settings) {
  const bool on_gpu = settings.device == Device::kCuda && settings.nnodes == 1;
  if (settings.device != Device::kCpu && !on_gpu) return;
  const bool sizes_sequences = settings.kv_cache_memory == 0;
  const bool sizes_kv = sizes_sequences && !on_gpu;  // on a GPU its executor does
  const bool sizes_checkpoints = settings.state_cache_memory == 0 && settings.prefix_caching;
  if (!sizes_sequences && !sizes_checkpoints) return;
  // Most models have no states to copy, which their files say without a dry run.
  if (!sizes_kv && !HasRecurrentLayers(settings, path)) return;
  const absl::StatusOr<MemoryReport> report = ReportMemory(settings, path);
  if (!report.ok()) {  // who loads the model says why
    if (sizes_kv) settings.kv_cache_memory = kUnplannedCache;
    if (sizes_checkpoints) settings.state_cache_memory = kUnplannedCache;
    return;
  }
  int64_t kv = 0;
  int64_t checkpoints = 0;
  for (const MemoryPart& part : report->parts) {
    if (part.name == kCheckpoints) {
      checkpoints += static_cast<int64_t>(part.bytes);
    } else if (part.name.starts_with(kCache) || part.name == kSlots) {
      kv += static_cast<int64_t>(part.bytes);
    }
  }
  if (sizes_kv) settings.kv_cache_memory = kv;
  if (report->max_num_seqs.has_value()) settings.max_num_seqs = *report->max_num_seqs;
  if (sizes_checkpoints) settings.state_cache_memory = checkpoints / Sharers(settings);
}

std::string Mebibytes(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

std::string MemoryReportText(const MemoryReport& report) {
  std::string text;
  const auto row = [&text](const std::string& name, uint64_t bytes, const std::string& note) {
    char line[512];
    std::snprintf(line, sizeof(line), "%-24s %14s  %s", name.c_str(), Mebibytes(bytes).c_str(),
                  note.c_str());
    const std::string_view shown = line;
    text += StrCat(shown.substr(0, shown.find_last_not_of(' ') + 1), "\n");
  };
  for (const MemoryPart& part : report.parts) row(part.name, part.bytes, part.note);
  row("total", report.total, report.place);
  if (report.available.has_value()) row("available", *report.available, report.available_note);
  text += report.available.has_value()
              ? report.fits()
                    ? "It fits.\n"
                    : StrCat("It does not fit: ", Mebibytes(report.total - *report.available),
                             " are missing. Lower --kv-cache-memory, "
                             "round the weights (--quantization), "
                             "or take a smaller model.\n")
              : "How much there is, is unknown: no driver answers. --gpu-memory SIZE plans for a "
                "GPU that is not here.\n";
  return text;
}

}  // namespace millrace
