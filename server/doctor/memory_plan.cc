#include "server/doctor/memory_plan.h"

#include <algorithm>
#include <cstdio>

#include "base/status.h"
#include "base/strings.h"
#include "executors/device_spec.h"
#include "formats/tensor.h"
#include "scheduler/step_plan.h"
#include "server/doctor/gpu_driver.h"
#include "server/model_location.h"

namespace millrace {
namespace {

// Estimates: the program with its threads' stacks and libraries, and a token of the vocabulary as
// the tokenizer and the detokenizer keep it. Measured on models with 30,000 to 262,000 tokens.
constexpr uint64_t kProgram = uint64_t{28} << 20;
constexpr uint64_t kVocabularyEntry = 240;
// Estimates a CUDA context, cuBLASLt's workspace and captured graphs on a GPU.
constexpr uint64_t kCudaContext = uint64_t{1} << 30;
constexpr uint64_t kLogitTokens = 128;  // of which the CPU has logits at a time
constexpr uint64_t kHeadMultiple = 16;  // the CPU pads heads to

constexpr std::string_view kCache = "KV cache";

uint64_t Elements(const TensorInfo& tensor) {
  uint64_t elements = 1;
  for (const int64_t size : tensor.shape) elements *= static_cast<uint64_t>(size);
  return elements;
}

// Returns whether a tensor is one of bytes that others are made of, which executors do not keep.
bool IsRaw(TensorType type) {
  return type == TensorType::kU8 || type == TensorType::kI32 || type == TensorType::kI64;
}

bool IsInLayer(std::string_view name) {
  return name.find("layers.") != name.npos || name.find("layer.") != name.npos ||
         name.starts_with("blk.");
}

// The bytes of a tensor on the CPU, which keeps the file's blocks, FP8 as BF16, and the types whose
// 256 weights take fewer than 148 bytes in that form. What it quantizes takes 34 bytes for 32
// weights in 8 bits, 20 in 4.
uint64_t CpuBytes(const TensorInfo& tensor, Quantization quantization) {
  const bool fp8 = tensor.type == TensorType::kFp8E4m3;
  const bool rounds = quantization != Quantization::kNone && (IsFloat(tensor.type) || fp8) &&
                      tensor.shape.size() > 1;
  if (!rounds) {
    if (fp8) return Elements(tensor) * 2;
    return Traits(tensor.type).block_elements == 256
               ? std::max(tensor.bytes, Elements(tensor) / 256 * 148)
               : tensor.bytes;
  }
  const bool four_bits = quantization == Quantization::kInt4 && IsInLayer(tensor.name);
  return Elements(tensor) / 32 * (four_bits ? 20 : 34);
}

// The bytes of a tensor on a GPU: BF16, but for types that have kernels of their own.
uint64_t CudaBytes(const TensorInfo& tensor, Quantization quantization) {
  switch (tensor.type) {
    case TensorType::kQ4_0:
    case TensorType::kQ4K:
    case TensorType::kMxfp4:
    case TensorType::kFp8E4m3:
    case TensorType::kInt4x32:
    case TensorType::kInt4x128:
      return tensor.bytes;
    default:
      break;
  }
  const uint64_t elements = Elements(tensor);
  if (tensor.shape.size() < 2 || !IsInLayer(tensor.name)) return elements * 2;
  if (quantization == Quantization::kFp8) return elements;
  if (quantization == Quantization::kInt4) return elements / 32 * 20;
  return elements * 2;
}

uint64_t WeightBytes(const OpenedModel& model, const Settings& settings) {
  uint64_t bytes = 0;
  for (const TensorInfo& tensor : model.tensors->tensors()) {
    if (IsRaw(tensor.type)) continue;
    bytes += settings.device == Device::kCuda ? CudaBytes(tensor, settings.quantization)
                                              : CpuBytes(tensor, settings.quantization);
  }
  return bytes;
}

// The bytes that a token's keys and values take in all layers.
absl::StatusOr<uint64_t> KvTokenBytes(const ModelConfig& config, const Settings& settings) {
  MILLRACE_ASSIGN_OR_RETURN(const HeadShape shape, SharedHeadShape(config));
  uint64_t head = shape.head_size;
  uint64_t element = 2;
  if (settings.device == Device::kCuda) {
    if (settings.kv_cache_dtype == KvCacheType::kFp8) element = 1;
  } else {
    head = (head + kHeadMultiple - 1) / kHeadMultiple * kHeadMultiple;
    if (settings.kv_cache_dtype == KvCacheType::kFloat32) element = 4;
  }
  return uint64_t{2} * config.layers.size() * shape.kv_heads * head * element;
}

uint64_t LongestSequence(const ModelConfig& config, const Settings& settings) {
  const auto most = static_cast<uint64_t>(config.context_length);
  return settings.max_model_len > 0
             ? std::min<uint64_t>(static_cast<uint64_t>(settings.max_model_len), most)
             : most;
}

std::string CacheNote(uint64_t bytes, uint64_t token_bytes, const ModelConfig& config,
                      const Settings& settings) {
  const uint64_t block = token_bytes * settings.block_size;
  const uint64_t tokens = bytes / block * settings.block_size;
  const uint64_t length = LongestSequence(config, settings);
  std::string note = StrCat(tokens, " tokens in blocks of ", settings.block_size);
  if (!config.encoder.has_value()) {
    note += tokens < length ? StrCat("; too few for one sequence of ", length, " (--max-model-len)")
                            : StrCat(", or ", tokens / length, " sequences of ", length);
  }
  return note;
}

// Activations of a step and its logits, in 32 bits: an estimate.
uint64_t StepBytes(const ModelConfig& config, const Settings& settings) {
  uint64_t widest = 0;
  for (const LayerConfig& layer : config.layers) {
    const SoftmaxAttention& a = layer.softmax();
    widest = std::max<uint64_t>(widest, uint64_t{1} * (a.heads + 2 * a.kv_heads) * a.head_size +
                                            uint64_t{2} * layer.ffn_size());
  }
  const uint64_t token = 4 * (3 * static_cast<uint64_t>(config.hidden_size) + widest);
  const uint64_t logit_rows =
      settings.device == Device::kCuda ? settings.max_num_seqs : kLogitTokens;
  return token * settings.max_num_batched_tokens +
         (config.encoder.has_value() ? 0 : logit_rows * config.vocab_size * sizeof(float));
}

void Add(MemoryPlan& plan, std::string name, uint64_t bytes, std::string note) {
  plan.parts.push_back({std::move(name), bytes, std::move(note)});
  plan.total += bytes;
}

std::string WeightsNote(const OpenedModel& model) {
  return StrCat(model.config.architecture, ", ", model.config.num_layers(), " layers, ",
                model.tensors->tensors().size(), " tensors");
}

// Returns the bytes of a KV cache that no setting sizes, `rest` bytes being taken beside it: a
// block at the least, without which the model cannot run.
uint64_t CpuCacheBytes(uint64_t rest, uint64_t available, uint64_t token, const ModelConfig& config,
                       const Settings& settings) {
  const auto block_size = static_cast<uint64_t>(settings.block_size);
  const uint64_t block = token * block_size;
  const uint64_t blocks_each =
      (LongestSequence(config, settings) + block_size - 1) / block_size + 1;
  const uint64_t most = blocks_each * block * static_cast<uint64_t>(settings.max_num_seqs);
  const uint64_t half = (available - std::min(available, rest)) / 2;
  return std::max(std::min(half, most) / block, uint64_t{1}) * block;
}

absl::StatusOr<MemoryPlan> PlanCpu(const Settings& settings, const OpenedModel& model) {
  MemoryPlan plan{.place = "memory"};
  Add(plan, "weights", WeightBytes(model, settings), WeightsNote(model));
  Add(plan, "step buffers", StepBytes(model.config, settings), "estimate");
  Add(plan, "program and vocabulary",
      kProgram + kVocabularyEntry * static_cast<uint64_t>(model.config.vocab_size), "estimate");
  const MachineMemory memory = ReadMachineMemory();
  plan.available = memory.usable();
  plan.available_note = std::string(memory.limited_by());
  MILLRACE_ASSIGN_OR_RETURN(const uint64_t token, KvTokenBytes(model.config, settings));
  const uint64_t block = token * settings.block_size;
  auto cache = static_cast<uint64_t>(settings.kv_cache_memory);
  if (model.config.encoder.has_value()) {
    const uint64_t blocks = settings.max_num_batched_tokens / settings.block_size +
                            static_cast<uint64_t>(settings.max_num_seqs);
    const uint64_t most = kMaxStepsInFlight * blocks * block;
    cache = cache == 0 ? most : std::min(cache, most);
  } else if (cache == 0) {
    cache = CpuCacheBytes(plan.total, *plan.available, token, model.config, settings);
  }
  Add(plan, std::string(kCache), cache / block * block,
      CacheNote(cache, token, model.config, settings) + "; taken as it is first used");
  return plan;
}

absl::StatusOr<MemoryPlan> PlanCuda(const Settings& settings, const OpenedModel& model) {
  MemoryPlan plan{.place = settings.tensor_parallel_size > 1 ? "memory of each GPU" : "GPU memory"};
  const auto ranks =
      static_cast<uint64_t>(settings.virtual_ranks ? 1 : settings.tensor_parallel_size);
  Add(plan, "weights", WeightBytes(model, settings) / ranks, WeightsNote(model));
  Add(plan, "step buffers", StepBytes(model.config, settings), "estimate");
  Add(plan, "CUDA", kCudaContext, "estimate: context, workspaces, graphs");
  MILLRACE_ASSIGN_OR_RETURN(const uint64_t all_ranks_token, KvTokenBytes(model.config, settings));
  const uint64_t token = std::max<uint64_t>(all_ranks_token / ranks, 1);
  const absl::StatusOr<DriverFacts> driver = ReadDriver();
  if (settings.gpu_memory > 0) {
    plan.available = static_cast<uint64_t>(settings.gpu_memory_utilization *
                                           static_cast<double>(settings.gpu_memory));
    plan.available_note = "of --gpu-memory (--gpu-memory-utilization)";
  } else if (driver.ok() && !driver->gpus.empty()) {
    const size_t index = settings.devices.empty() ? 0 : settings.devices[0];
    const GpuFacts& gpu = driver->gpus[std::min(index, driver->gpus.size() - 1)];
    const auto share =
        static_cast<uint64_t>(settings.gpu_memory_utilization * static_cast<double>(gpu.total));
    const uint64_t others = gpu.total - gpu.free;
    plan.available = share - std::min(share, others);
    plan.available_note = StrCat("of ", gpu.name, " (--gpu-memory-utilization)");
  }
  auto cache = static_cast<uint64_t>(settings.kv_cache_memory);
  if (cache == 0) {
    // At least one block: without one the model cannot run, and the plan must not fit.
    cache = token * settings.block_size;
    if (plan.available.has_value() && *plan.available > plan.total + cache) {
      cache = *plan.available - plan.total;
    }
  }
  Add(plan, std::string(kCache), cache, CacheNote(cache, token, model.config, settings));
  return plan;
}

}  // namespace

absl::StatusOr<MemoryPlan> PlanMemory(const Settings& settings, const std::string& path) {
  if (settings.device == Device::kFake) {
    MemoryPlan plan{.place = "memory"};
    Add(plan, "program and vocabulary", kProgram, "estimate; --device fake has no model");
    const MachineMemory memory = ReadMachineMemory();
    plan.available = memory.usable();
    plan.available_note = std::string(memory.limited_by());
    return plan;
  }
  if (settings.device == Device::kTorch || IsPackage(path)) {
    return absl::UnimplementedError(
        "dry-run: is \"true\", allowed only with --device cpu, cuda or fake, and not for packages "
        "(.pt2)");
  }
  MILLRACE_ASSIGN_OR_RETURN(const OpenedModel model,
                            OpenModel(path, MakeModelSpec(settings, path).runner));
  return settings.device == Device::kCuda ? PlanCuda(settings, model) : PlanCpu(settings, model);
}

void SizeKvCache(const std::string& path, Settings& settings) {
  if (settings.device != Device::kCpu || settings.kv_cache_memory != 0) return;
  settings.kv_cache_memory = int64_t{1} << 30;
  Settings unsized = settings;
  unsized.kv_cache_memory = 0;
  const absl::StatusOr<MemoryPlan> plan = PlanMemory(unsized, path);
  if (!plan.ok()) return;  // who loads the model says why
  for (const MemoryPart& part : plan->parts) {
    if (part.name == kCache) settings.kv_cache_memory = static_cast<int64_t>(part.bytes);
  }
}

std::string Mebibytes(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1f MiB", static_cast<double>(bytes) / (1 << 20));
  return text;
}

std::string MemoryPlanText(const MemoryPlan& plan) {
  std::string text;
  const auto row = [&text](const std::string& name, uint64_t bytes, const std::string& note) {
    char line[512];
    std::snprintf(line, sizeof(line), "%-24s %14s  %s", name.c_str(), Mebibytes(bytes).c_str(),
                  note.c_str());
    const std::string_view shown = line;
    text += StrCat(shown.substr(0, shown.find_last_not_of(' ') + 1), "\n");
  };
  for (const MemoryPart& part : plan.parts) row(part.name, part.bytes, part.note);
  row("total", plan.total, plan.place);
  if (plan.available.has_value()) row("available", *plan.available, plan.available_note);
  text += plan.available.has_value()
              ? plan.fits() ? "It fits.\n"
                            : StrCat("It does not fit: ", Mebibytes(plan.total - *plan.available),
                                     " are missing. Lower --kv-cache-memory, "
                                     "round the weights (--quantization), "
                                     "or take a smaller model.\n")
              : "How much there is, is unknown: no driver answers. --gpu-memory SIZE plans for a "
                "GPU that is not here.\n";
  return text;
}

}  // namespace millrace
