#include "executors/cuda/step_buffers.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/status.h"

namespace millrace::cuda {
namespace {

using kernels::PackedStep;
using kernels::SampleResult;
using kernels::SampleRow;
using kernels::SampleTop;
using kernels::SlotSampling;
using kernels::TokenBias;

constexpr size_t kAlignment = 256;
constexpr int kMaxLogitRows = 512;  // per pass: 512 rows of 131,072 tokens take 268 MB
constexpr size_t kSamplingWords = sizeof(SlotSampling) / sizeof(int32_t);

int MaxBlocks(const StepLimits& limits) {
  return (limits.max_model_len + limits.block_size - 1) / limits.block_size;
}

int MaskWords(const StepLimits& limits) { return (limits.vocab_size + 31) / 32; }

// Assigns consecutive addresses to arrays: once to count bytes, and again to place them.
class Layout {
 public:
  explicit Layout(uint8_t* base) : base_(base) {}

  template <typename T>
  void Place(T** array, size_t count) {
    if (base_ != nullptr) *array = reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += (count * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
  }
  size_t bytes() const { return bytes_; }

 private:
  uint8_t* base_;
  size_t bytes_ = 0;
};

size_t LayOut(const StepLimits& limits, int64_t logits_share, uint8_t* base, StepBuffers* b,
              int32_t** counts) {
  Layout layout(base);
  const size_t rows = limits.max_num_seqs;
  const size_t slots = rows + 1;
  const size_t tokens = limits.max_num_batched_tokens;
  const size_t logits = static_cast<size_t>(b->max_logit_rows) * b->logits_stride;
  uint8_t* workspace = nullptr;
  layout.Place(&b->arrays.tokens, tokens);
  layout.Place(&b->arrays.positions, tokens);
  layout.Place(&b->arrays.slots, tokens);
  layout.Place(&b->arrays.row_first, rows + 1);
  layout.Place(&b->arrays.row_start, rows);
  layout.Place(&b->arrays.row_slot, rows);
  layout.Place(&b->arrays.wanted_token, tokens);
  layout.Place(&b->arrays.samples, tokens);
  layout.Place(&b->arrays.block_tables, slots * b->arrays.table_stride);
  layout.Place(&b->arrays.sampling, slots);
  layout.Place(&b->arrays.biases, slots * b->arrays.biases_stride);
  layout.Place(&b->arrays.history, slots * b->arrays.history_stride);
  layout.Place(&b->last_tokens, slots);
  layout.Place(counts, b->max_logit_rows + 1);
  layout.Place(&b->logits, logits);
  layout.Place(&b->adjusted, logits);
  if (logits_share > 0) {
    layout.Place(&b->logit_share, static_cast<size_t>(b->max_logit_rows) * logits_share);
  }
  layout.Place(&workspace, kernels::SampleWorkspaceBytes(b->max_logit_rows, limits.vocab_size));
  layout.Place(&b->masks, kMaxStepsInFlight * rows * b->mask_words);
  layout.Place(&b->arrays.masks_wanted, kMaxStepsInFlight);
  layout.Place(&b->masks_ready, kMaxStepsInFlight);
  layout.Place(&b->results, tokens);
  layout.Place(&b->tops, tokens * kernels::kMaxSampledTop);
  b->sample_workspace = workspace;
  return layout.bytes();
}

// Returns buffers that know their sizes and have no memory.
StepBuffers WithSizes(const StepLimits& limits, int64_t logits_stride) {
  StepBuffers b;
  b.arrays.table_stride = MaxBlocks(limits);
  b.arrays.biases_stride = kMaxBiases;
  b.arrays.history_stride = limits.max_model_len;
  b.logits_stride = logits_stride;
  b.mask_rows = limits.max_num_seqs;
  b.mask_words = MaskWords(limits);
  b.max_logit_rows = StepBuffers::MaxLogitRows(limits);
  return b;
}

SlotSampling DeviceSampling(const SamplingParams& params, int32_t prompt_tokens) {
  return {.temperature = params.temperature,
          .top_k = params.top_k,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .seed = params.seed,
          .sample_index = params.sample_index,
          .top_logprobs = params.top_logprobs.value_or(-1),
          .repetition_penalty = params.repetition_penalty,
          .frequency_penalty = params.frequency_penalty,
          .presence_penalty = params.presence_penalty,
          .prompt_length = prompt_tokens,
          .num_banned = static_cast<int32_t>(params.banned_tokens.size()),
          .banned_before = params.banned_before,
          .num_biases = static_cast<int32_t>(params.logit_bias.size()),
          .typical_p = params.typical_p};
}

// Packs each start's banned tokens and then its biases. Returns the next free word.
int32_t* PackBiases(const StepPlan& plan, int32_t* out, int* count) {
  for (const SlotStart& start : plan.starts) {
    int32_t index = 0;
    const auto put = [&](Token token, float bias) {
      *out++ = start.slot;
      *out++ = index++;
      *out++ = token;
      *out++ = std::bit_cast<int32_t>(bias);
      ++*count;
    };
    for (const Token token : start.sampling->banned_tokens) put(token, 0);
    for (const LogitBias& biased : start.sampling->logit_bias) put(biased.token, biased.bias);
  }
  return out;
}

absl::Status CopyToDevice(const void* from, size_t bytes, void* to) {
  return ToStatus(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "preparing steps");
}

}  // namespace

int StepBuffers::MaxLogitRows(const StepLimits& limits) {
  // A head with block scales runs on a multiple of four rows.
  return static_cast<int>(
      kernels::PaddedTokens(std::min(kMaxLogitRows, std::max(limits.max_num_seqs, 64))));
}

size_t StepBuffers::Bytes(const StepLimits& limits, int64_t logits_stride, int64_t logits_share) {
  StepBuffers b = WithSizes(limits, logits_stride);
  int32_t* counts = nullptr;
  return LayOut(limits, logits_share, nullptr, &b, &counts);
}

absl::StatusOr<StepBuffers> StepBuffers::Make(const StepLimits& limits, int64_t logits_stride,
                                              int64_t logits_share) {
  StepBuffers b = WithSizes(limits, logits_stride);
  int32_t* counts = nullptr;
  MILLRACE_ASSIGN_OR_RETURN(
      b.memory, DeviceMemory::Allocate(LayOut(limits, logits_share, nullptr, &b, &counts),
                                       "logits and steps"));
  MILLRACE_RETURN_IF_ERROR(
      ToStatus(cudaMemset(b.memory.data(), 0, b.memory.bytes()), "preparing steps"));
  LayOut(limits, logits_share, b.memory.data(), &b, &counts);
  b.arrays.last_tokens = b.last_tokens;
  b.counts = counts;

  std::vector<int32_t> numbers(b.max_logit_rows + 1);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<int32_t>(i);
  MILLRACE_RETURN_IF_ERROR(CopyToDevice(numbers.data(), numbers.size() * sizeof(int32_t), counts));
  const SlotSampling greedy = DeviceSampling({.temperature = 0}, 0);
  MILLRACE_RETURN_IF_ERROR(
      CopyToDevice(&greedy, sizeof(greedy), b.arrays.sampling + limits.max_num_seqs));
  return b;
}

absl::Status StepBuffers::SetPaddingBlock(const StepLimits& limits, BlockId block) const {
  const std::vector<int32_t> blocks(arrays.table_stride, block);
  return CopyToDevice(blocks.data(), blocks.size() * sizeof(int32_t),
                      arrays.block_tables + limits.max_num_seqs * arrays.table_stride);
}

absl::StatusOr<StepLane> StepLane::Make(const StepLimits& limits, int index) {
  StepLane lane;
  lane.index_ = index;
  const size_t words = StepPacker::MaxWords(limits) * sizeof(int32_t);
  const size_t tokens = limits.max_num_batched_tokens;
  MILLRACE_ASSIGN_OR_RETURN(lane.host_, PinnedMemory::Allocate(words, "steps"));
  MILLRACE_ASSIGN_OR_RETURN(lane.device_, DeviceMemory::Allocate(words, "steps"));
  const size_t mask_bytes = sizeof(uint32_t) * limits.max_num_seqs * MaskWords(limits);
  MILLRACE_ASSIGN_OR_RETURN(lane.masks_, PinnedMemory::Allocate(mask_bytes, "masks"));
  MILLRACE_ASSIGN_OR_RETURN(lane.masks_ready_, PinnedMemory::Allocate(sizeof(uint32_t), "masks"));
  MILLRACE_ASSIGN_OR_RETURN(lane.results_,
                            PinnedMemory::Allocate(tokens * sizeof(SampleResult), "results"));
  MILLRACE_ASSIGN_OR_RETURN(
      lane.tops_,
      PinnedMemory::Allocate(tokens * kernels::kMaxSampledTop * sizeof(SampleTop), "results"));
  MILLRACE_ASSIGN_OR_RETURN(lane.done_, MakeEvent());
  return lane;
}

absl::Status StepLane::SendMasks(const StepPlan& plan, const StepBuffers& buffers,
                                 cudaStream_t stream) const {
  uint32_t* to = masks_.As<uint32_t>();
  for (const WantedLogits& wanted : plan.logits) {
    if (wanted.mask == nullptr && wanted.late_mask == nullptr) continue;
    const SampleMask* const mask =
        wanted.mask != nullptr ? wanted.mask.get() : wanted.late_mask->Wait();
    if (mask == nullptr) {  // what is sampled is dropped
      to = std::fill_n(to, buffers.mask_words, ~0U);
      continue;
    }
    const auto words = std::min(mask->size(), static_cast<size_t>(buffers.mask_words));
    std::copy_n(mask->begin(), words, to);
    std::fill(to + words, to + buffers.mask_words, 0);
    to += buffers.mask_words;
  }
  const uint32_t* const from = masks_.As<uint32_t>();
  return ToStatus(
      cudaMemcpyAsync(buffers.masks + int64_t{index_} * buffers.mask_rows * buffers.mask_words,
                      from, (to - from) * sizeof(uint32_t), cudaMemcpyHostToDevice, stream),
      "sending masks");
}

absl::Status StepLane::TellMasks(uint32_t count, const StepBuffers& buffers,
                                 cudaStream_t stream) const {
  *masks_ready_.As<uint32_t>() = count;
  return ToStatus(cudaMemcpyAsync(buffers.masks_ready + index_, masks_ready_.data(), sizeof(count),
                                  cudaMemcpyHostToDevice, stream),
                  "sending masks");
}

absl::Status StepLane::Upload(const PackedPlan& plan, const StepBuffers& buffers,
                              cudaStream_t stream) const {
  MILLRACE_RETURN_IF_ERROR(
      ToStatus(cudaMemcpyAsync(device_.data(), host_.data(), plan.words * sizeof(int32_t),
                               cudaMemcpyHostToDevice, stream),
               "sending a step"));
  return ToStatus(kernels::LaunchStepInput(plan.step, buffers.arrays, stream), "a step's input");
}

absl::Status StepLane::Download(const StepBuffers& buffers, int wanted, bool tops,
                                cudaStream_t stream) {
  if (wanted > 0) {
    MILLRACE_RETURN_IF_ERROR(
        ToStatus(cudaMemcpyAsync(results_.data(), buffers.results, wanted * sizeof(SampleResult),
                                 cudaMemcpyDeviceToHost, stream),
                 "fetching results"));
  }
  if (wanted > 0 && tops) {
    MILLRACE_RETURN_IF_ERROR(
        ToStatus(cudaMemcpyAsync(tops_.data(), buffers.tops,
                                 wanted * kernels::kMaxSampledTop * sizeof(SampleTop),
                                 cudaMemcpyDeviceToHost, stream),
                 "fetching results"));
  }
  return ToStatus(cudaEventRecord(done_.get(), stream), "fetching results");
}

bool StepLane::Done() const {
  if (cudaEventQuery(done_.get()) != cudaErrorNotReady) return true;
  (void)cudaGetLastError();  // clears it, so that the next launch does not report it
  return false;
}

absl::Status StepLane::Failure() const {
  return ToStatus(cudaEventQuery(done_.get()), "running a step");
}

StepPacker::StepPacker(const StepLimits& limits) : limits_(limits), slots_(limits.max_num_seqs) {}

size_t StepPacker::MaxWords(const StepLimits& limits) {
  const size_t rows = limits.max_num_seqs;
  const size_t tokens = limits.max_num_batched_tokens;
  return 2 * rows                         // copies
         + 4 * rows + 1                   // rows
         + tokens                         // host tokens
         + 4 * tokens                     // wanted
         + 3 * rows * MaxBlocks(limits)   // appends
         + 4 * rows * kMaxBiases          // biases
         + 3 * limits.max_model_len       // history
         + rows + rows * kSamplingWords;  // starts
}

PackedPlan StepPacker::Pack(const StepPlan& plan, int rows, const StepLane& lane) {
  PackedPlan packed;
  int32_t* const host = lane.host_words();
  const int32_t* const device = lane.device_words();
  int32_t* out = host;
  const auto put = [&out](int32_t word) { *out++ = word; };
  packed.copies = static_cast<int>(plan.copies.size());
  for (const BlockCopy& copy : plan.copies) {
    put(copy.src);
    put(copy.dst);
  }
  for (const SlotStart& start : plan.starts) {
    slots_[start.slot] = {.num_blocks = 0, .top_logprobs = start.sampling->top_logprobs};
  }
  const int real_rows = static_cast<int>(plan.rows.size());
  CudaStepInput& input = packed.input;
  input.rows = rows;
  packed.step = {.words = device + (out - host),
                 .rows = rows,
                 .tokens = 0,
                 .host_tokens = static_cast<int>(plan.tokens.size()),
                 .wanted = 0,
                 .appends = 0,
                 .biases = 0,
                 .history = 0,
                 .starts = static_cast<int>(plan.starts.size()),
                 .mask_set = lane.index()};
  for (const StepRow& row : plan.rows) {
    put(input.tokens);
    input.tokens += row.num_tokens;
    input.max_row_tokens = std::max(input.max_row_tokens, row.num_tokens);
    input.wanted += row.logits.size();
  }
  const int fill = rows - real_rows;
  for (int i = 0; i < fill; ++i) put(input.tokens++);
  put(input.tokens);
  for (const StepRow& row : plan.rows) put(row.start);
  out = std::fill_n(out, fill, 0);
  for (const StepRow& row : plan.rows) put(row.slot);
  out = std::fill_n(out, fill, limits_.max_num_seqs);
  for (const StepRow& row : plan.rows) {
    put(row.sampled_by.has_value() ? PackedStep::kSampled : row.tokens.begin);
  }
  out = std::fill_n(out, fill, PackedStep::kSampled);
  out = std::copy(plan.tokens.begin(), plan.tokens.end(), out);

  int32_t* wanted_token = out;
  int32_t* wanted_row = wanted_token + input.wanted + fill;
  int32_t* wanted_target = wanted_row + input.wanted + fill;
  int32_t* wanted_mask = wanted_target + input.wanted + fill;
  const int first_mask = lane.index() * limits_.max_num_seqs;
  int first = 0;
  for (int r = 0; r < real_rows; ++r) {
    const StepRow& row = plan.rows[r];
    for (int32_t at = row.logits.begin; at < row.logits.end; ++at) {
      *wanted_token++ = first + plan.logits[at].offset;
      *wanted_row++ = r;
      *wanted_target++ = plan.logits[at].target.value_or(PackedStep::kSample);
      const bool late = plan.logits[at].late_mask != nullptr;
      const bool masked = late || plan.logits[at].mask != nullptr;
      *wanted_mask++ = masked ? first_mask + packed.masks++ : PackedStep::kUnmasked;
      packed.late_masks = packed.late_masks || late;
      packed.tops = packed.tops || slots_[row.slot].top_logprobs.value_or(0) > 0;
    }
    first += row.num_tokens;
  }
  for (int i = 0; i < fill; ++i) {
    *wanted_token++ = first + i;
    *wanted_row++ = real_rows + i;
    *wanted_target++ = PackedStep::kSample;
    *wanted_mask++ = PackedStep::kUnmasked;
  }
  out = wanted_mask;
  input.wanted += fill;
  packed.step.tokens = input.tokens;
  packed.step.wanted = input.wanted;

  for (const StepRow& row : plan.rows) {
    for (int32_t at = row.blocks.begin; at < row.blocks.end; ++at) {
      put(row.slot);
      put(slots_[row.slot].num_blocks++);
      put(plan.blocks[at]);
      ++packed.step.appends;
    }
  }
  out = PackBiases(plan, out, &packed.step.biases);
  for (const SlotStart& start : plan.starts) {
    for (int32_t at = start.history.begin; at < start.history.end; ++at) {
      put(start.slot);
      put(at - start.history.begin);
      put(plan.history[at]);
      ++packed.step.history;
    }
  }
  for (const SlotStart& start : plan.starts) put(start.slot);
  for (const SlotStart& start : plan.starts) {
    const SlotSampling sampling = DeviceSampling(*start.sampling, start.prompt_tokens);
    std::memcpy(out, &sampling, sizeof(sampling));
    out += kSamplingWords;
  }
  packed.words = out - host;
  return packed;
}

}  // namespace millrace::cuda
