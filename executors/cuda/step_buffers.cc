#include "executors/cuda/step_buffers.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/status.h"

namespace millrace::cuda {
namespace {

using kernels::SampleResult;
using kernels::SampleRow;
using kernels::SampleTop;
using kernels::SlotSampling;
using kernels::StepCounts;
using kernels::StepLayout;
using kernels::TokenBias;

constexpr size_t kAlignment = 256;
constexpr int kMaxLogitRows = 512;  // per pass: 512 rows of 131,072 tokens take 268 MB

int MaxBlocks(const StepLimits& limits) { return limits.state.BlocksFor(limits.max_model_len); }

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
  const size_t seqs = limits.max_num_seqs;
  const size_t rows = seqs + kMaxPaddingRows;
  const auto slots = static_cast<size_t>(b->slots);
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
  // Groups of slots, which have no tables, are the last ones.
  layout.Place(&b->arrays.block_tables,
               limits.state.num_paged_groups() * slots * b->arrays.table_stride);
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
  layout.Place(&b->masks, kMaxStepsInFlight * seqs * b->mask_words);
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
  b.slots = int64_t{limits.max_num_seqs} + 1;
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

// Returns the elements of the plan's arrays, padded to `size`.
StepCounts CountsOf(const StepPlan& plan, const CudaStepInput& size) {
  StepCounts n = {.copies = static_cast<int>(plan.moves.size()),
                  .rows = size.rows,
                  .host_tokens = static_cast<int>(plan.tokens.size()),
                  .wanted = size.wanted,
                  .starts = static_cast<int>(plan.starts.size())};
  for (const StepRow& row : plan.rows) n.appends += row.blocks.size();
  for (const SlotStart& start : plan.starts) {
    n.biases +=
        static_cast<int>(start.sampling->banned_tokens.size() + start.sampling->logit_bias.size());
    n.history += start.history.size();
  }
  return n;
}

// Packs each start's banned tokens and then its biases.
void PackBiases(const StepPlan& plan, int32_t* out) {
  for (const SlotStart& start : plan.starts) {
    int32_t index = 0;
    const auto put = [&](Token token, float bias) {
      *out++ = start.slot;
      *out++ = index++;
      *out++ = token;
      *out++ = std::bit_cast<int32_t>(bias);
    };
    for (const Token token : start.sampling->banned_tokens) put(token, 0);
    for (const LogitBias& biased : start.sampling->logit_bias) put(biased.token, biased.bias);
  }
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

absl::Status StepBuffers::SetPaddingBlocks(const StepLimits& limits) const {
  for (int group = 0; group < limits.state.num_groups(); ++group) {
    if (limits.state.Paged(group) == nullptr) continue;
    const std::vector<int32_t> blocks(arrays.table_stride, limits.num_blocks[group]);
    int32_t* const table =
        arrays.block_tables + (group * slots + limits.max_num_seqs) * arrays.table_stride;
    MILLRACE_RETURN_IF_ERROR(CopyToDevice(blocks.data(), blocks.size() * sizeof(int32_t), table));
  }
  return absl::OkStatus();
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
    if (wanted.mask != nullptr) to = std::copy(wanted.mask->begin(), wanted.mask->end(), to);
  }
  const uint32_t* const from = masks_.As<uint32_t>();
  return ToStatus(
      cudaMemcpyAsync(buffers.masks + int64_t{index_} * buffers.mask_rows * buffers.mask_words,
                      from, (to - from) * sizeof(uint32_t), cudaMemcpyHostToDevice, stream),
      "sending masks");
}

absl::Status StepLane::SignalMasks(uint32_t count, const StepBuffers& buffers,
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
  const int slots = limits.max_num_seqs;
  const int groups = limits.state.num_groups();
  return StepLayout({.copies = groups * slots,
                     .rows = slots + kMaxPaddingRows,
                     .host_tokens = limits.max_num_batched_tokens,
                     .wanted = limits.max_num_batched_tokens,
                     .appends = limits.state.num_paged_groups() * slots * MaxBlocks(limits),
                     .biases = slots * kMaxBiases,
                     .history = limits.max_model_len,
                     .starts = slots})
      .end;
}

CudaStepInput SizeOf(const StepPlan& plan) {
  CudaStepInput size;
  size.rows = static_cast<int>(plan.rows.size());
  for (const StepRow& row : plan.rows) {
    size.tokens += row.num_tokens;
    size.max_row_tokens = std::max(size.max_row_tokens, row.num_tokens);
    size.wanted += row.logits.size();
  }
  return size;
}

PackedPlan StepPacker::Pack(const StepPlan& plan, const CudaStepInput& size,
                            const LaneWords& words) {
  for (const SlotStart& start : plan.starts) {
    slots_[start.slot] = {.num_blocks = 0, .top_logprobs = start.sampling->top_logprobs};
  }
  const StepCounts counts = CountsOf(plan, size);
  const StepLayout at(counts);
  PackedPlan packed = {.step = {.words = words.device,
                                .counts = counts,
                                .tokens = size.tokens,
                                .mask_set = words.lane},
                       .input = size,
                       .words = static_cast<size_t>(at.end)};
  int32_t* const host = words.host;
  PackMoves(plan, host + at.copies);
  PackRows(plan, size, at, host);
  PackWanted(plan, size, at, words, &packed);
  PackAppends(plan, host + at.appends);
  PackBiases(plan, host + at.biases);
  int32_t* out = host + at.history;
  const auto put = [&out](int32_t word) { *out++ = word; };
  for (const SlotStart& start : plan.starts) {
    for (int32_t i = start.history.begin; i < start.history.end; ++i) {
      put(start.slot);
      put(i - start.history.begin);
      put(plan.history[i]);
    }
  }
  out = host + at.start_slots;
  for (const SlotStart& start : plan.starts) put(start.slot);
  out = host + at.starts;
  for (const SlotStart& start : plan.starts) {
    const SlotSampling sampling = DeviceSampling(*start.sampling, start.prompt_tokens);
    std::memcpy(out, &sampling, sizeof(sampling));
    out += kernels::kSamplingWords;
  }
  return packed;
}

// Packs the moves of one group after those of another, since a launch copies in one group.
void StepPacker::PackMoves(const StepPlan& plan, int32_t* out) const {
  for (int group = 0; group < limits_.state.num_groups(); ++group) {
    for (const StateMove& move : plan.moves) {
      if (move.group != group) continue;
      *out++ = Place(group, move.from.block);
      *out++ = Place(group, move.to.block);
    }
  }
}

void StepPacker::PackAppends(const StepPlan& plan, int32_t* out) {
  for (const StepRow& row : plan.rows) {
    int& num_blocks = slots_[row.slot].num_blocks;
    for (int group = 0; group < limits_.state.num_groups(); ++group) {
      if (limits_.state.Paged(group) == nullptr) continue;
      int place = num_blocks;
      for (const BlockId block : NewBlocks(plan, row, limits_.state, group)) {
        *out++ = TableRow(group, row.slot);
        *out++ = place++;
        // Nothing is read of a block that is missing, but its place holds the number of one.
        *out++ = block == kNoBlock ? 0 : block;
      }
    }
    num_blocks += NumNewBlocks(row, limits_.state);
  }
}

void StepPacker::PackRows(const StepPlan& plan, const CudaStepInput& size, const StepLayout& at,
                          int32_t* host) const {
  const int fill = size.rows - static_cast<int>(plan.rows.size());
  int32_t* first = host + at.row_first;
  int32_t* start = host + at.row_start;
  int32_t* slot = host + at.row_slot;
  int32_t* source = host + at.row_source;
  int tokens = 0;
  for (const StepRow& row : plan.rows) {
    *first++ = tokens;
    *start++ = row.start;
    *slot++ = row.slot;
    *source++ = row.sampled_by.has_value() ? StepLayout::kSampled : row.tokens.begin;
    tokens += row.num_tokens;
  }
  const int padding_rows = size.tokens - tokens;
  for (int i = 0; i <= fill; ++i) *first++ = tokens + std::min(i, padding_rows);
  std::fill_n(start, fill, 0);
  std::fill_n(slot, fill, limits_.max_num_seqs);
  std::fill_n(source, fill, StepLayout::kSampled);
  std::copy(plan.tokens.begin(), plan.tokens.end(), host + at.host_tokens);
}

void StepPacker::PackWanted(const StepPlan& plan, const CudaStepInput& size, const StepLayout& at,
                            const LaneWords& words, PackedPlan* packed) const {
  int32_t* wanted_token = words.host + at.wanted_token;
  int32_t* wanted_row = words.host + at.wanted_row;
  int32_t* wanted_target = words.host + at.wanted_target;
  int32_t* wanted_mask = words.host + at.wanted_mask;
  const int32_t* const end = wanted_token + size.wanted;
  const int first_mask = words.lane * limits_.max_num_seqs;
  const int real_rows = static_cast<int>(plan.rows.size());
  int first = 0;
  for (int r = 0; r < real_rows; ++r) {
    const StepRow& row = plan.rows[r];
    for (int32_t i = row.logits.begin; i < row.logits.end; ++i) {
      *wanted_token++ = first + plan.logits[i].offset;
      *wanted_row++ = r;
      *wanted_target++ = plan.logits[i].target.value_or(StepLayout::kSample);
      const bool late = plan.logits[i].late_mask;
      const bool masked = late || plan.logits[i].mask != nullptr;
      *wanted_mask++ = masked ? first_mask + packed->masks++ : StepLayout::kUnmasked;
      packed->late_masks = packed->late_masks || late;
      packed->tops = packed->tops || slots_[row.slot].top_logprobs.value_or(0) > 0;
    }
    first += row.num_tokens;
  }
  const int padding_rows = size.tokens - first;
  // Without padding tokens an empty row samples, of the step's last token, into the padding slot.
  for (int i = 0; wanted_token < end; i = std::min(i + 1, std::max(padding_rows - 1, 0))) {
    *wanted_token++ = std::min(first + i, size.tokens - 1);
    *wanted_row++ = real_rows + i;
    *wanted_target++ = StepLayout::kSample;
    *wanted_mask++ = StepLayout::kUnmasked;
  }
}

}  // namespace millrace::cuda
