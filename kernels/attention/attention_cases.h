// Test fixtures of paged attention: sequences with random queries, keys and values in pages, steps
// over them, and a float64 reference on the same quantized inputs.
#ifndef MILLRACE_KERNELS_ATTENTION_ATTENTION_CASES_H_
#define MILLRACE_KERNELS_ATTENTION_ATTENTION_CASES_H_

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "kernels/attention/paged_attention.h"
#include "kernels/test_util.h"

namespace millrace::kernels {

struct AttentionCase {
  int heads = 8;
  int kv_heads = 2;
  int head_size = 128;
  int block_size = 16;
  Type type = Type::kBf16;
  int window = 0;
  float soft_cap = 0;
  std::vector<int> lengths;       // of the sequences; sequence i has slot i
  float sharpness = 1;            // standard deviation of the scores
  int padding = 64;               // columns of `out` behind the heads
  std::vector<float> sinks = {};  // of the heads, or none

  int Width() const { return heads * head_size; }
  int Stride() const { return Width() + padding; }
  std::string Name() const {
    return std::to_string(heads) + "/" + std::to_string(kv_heads) + "x" +
           std::to_string(head_size) + (type == Type::kFp8 ? " fp8" : " bf16") + " block " +
           std::to_string(block_size) + " window " + std::to_string(window) + " cap " +
           std::to_string(soft_cap) + (sinks.empty() ? "" : " sinks");
  }
};

// A row of a step: `tokens` tokens of a sequence from position `start` on.
struct StepRow {
  int sequence;
  int start;
  int tokens;
};

inline void ParallelFor(int count, const std::function<void(int)>& run) {
  std::atomic<int> next = 0;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back([&] {
      for (int item = next++; item < count; item = next++) run(item);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Returns an approximately normal value that is a function of the index alone.
inline float RandomValue(uint64_t index) {
  uint64_t bits = (index + 1) * 0x9e3779b97f4a7c15u;
  bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
  bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
  bits ^= bits >> 31;
  float sum = 0;  // of four uniform values, each of variance 1/12
  for (int i = 0; i < 4; ++i) sum += static_cast<float>(bits >> (16 * i) & 0xffff) * 0x1p-16f;
  return (sum - 2) * 1.7320508f;
}

// The sequences' pages in device memory. Blocks are assigned from the last to the first; unwritten
// memory holds NaN.
class AttentionWorld {
 public:
  static constexpr float kKScale = 0.0078125f;  // 2^-7, so that many codes are used
  static constexpr float kVScale = 0.011f;

  explicit AttentionWorld(const AttentionCase& c)
      : case_(c),
        table_stride_(*std::max_element(c.lengths.begin(), c.lengths.end()) / c.block_size + 2),
        tables_(c.lengths.size() * table_stride_, -1),
        sinks_(c.sinks) {
    int blocks = 1;
    for (const int length : c.lengths) blocks += (length + c.block_size - 1) / c.block_size;
    block_stride_ = int64_t{2} * c.kv_heads * c.block_size * c.head_size;
    int next = blocks - 1;
    std::vector<uint8_t> pages(blocks * block_stride_ * ElementSize(), 0xff);
    for (size_t s = 0; s < c.lengths.size(); ++s) {
      for (int b = 0; b * c.block_size < c.lengths[s]; ++b) {
        tables_[s * table_stride_ + b] = next--;
      }
    }
    keys_.resize(c.lengths.size());
    values_.resize(c.lengths.size());
    ParallelFor(c.lengths.size(), [&](int s) { Write(s, pages); });
    pages_ = std::make_unique<DeviceBuffer<uint8_t>>(pages);
    device_tables_ = std::make_unique<DeviceBuffer<int32_t>>(tables_);
  }

  const AttentionCase& Case() const { return case_; }

  // Gives sequence `to` the blocks of `from`, from its beginning on.
  void Share(int from, int to) {
    std::copy_n(tables_.begin() + from * table_stride_, table_stride_,
                tables_.begin() + to * table_stride_);
    keys_[to] = keys_[from];
    values_[to] = values_[from];
    device_tables_->Upload(tables_);
  }

  // Makes the first `blocks` places of a sequence's table name a block that does not exist, which
  // none may look up.
  void Release(int sequence, int blocks) {
    constexpr int32_t kNowhere = 1 << 30;
    std::fill_n(tables_.begin() + sequence * table_stride_, blocks, kNowhere);
    device_tables_->Upload(tables_);
  }

  // Returns arguments without the parts that belong to a step.
  AttentionArgs Args() const {
    AttentionArgs args = {};
    args.pages = {.data = pages_->get(),
                  .type = case_.type,
                  .block_stride = block_stride_,
                  .block_size = case_.block_size,
                  .kv_heads = case_.kv_heads,
                  .head_size = case_.head_size,
                  .k_scale = case_.type == Type::kFp8 ? kKScale : 1,
                  .v_scale = case_.type == Type::kFp8 ? kVScale : 1};
    args.tables = {.blocks = device_tables_->get(), .stride = table_stride_};
    args.scale = Scale();
    args.soft_cap = case_.soft_cap;
    args.sinks = case_.sinks.empty() ? nullptr : sinks_.get();
    return args;
  }

  float Scale() const { return case_.sharpness / std::sqrt(static_cast<float>(case_.head_size)); }

  // Returns the query at a position. It is the same in all sequences, so that they can share
  // blocks.
  std::vector<Bf16> Query(int position) const {
    std::vector<Bf16> query(case_.Width());
    for (int i = 0; i < case_.Width(); ++i) {
      query[i] = __float2bfloat16(RandomValue((uint64_t{1} << 40) + position * 65536ull + i));
    }
    return query;
  }

  // Returns the attention output of one token, [heads, head_size], in float64.
  std::vector<double> Reference(int sequence, int position) const {
    const std::vector<Bf16> query = Query(position);
    const int first = case_.window > 0 ? std::max(0, position - case_.window + 1) : 0;
    const int size = case_.head_size;
    std::vector<double> out(case_.Width(), 0.0);
    std::vector<double> scores(position + 1);
    for (int head = 0; head < case_.heads; ++head) {
      const int kv_head = head / (case_.heads / case_.kv_heads);
      const double sink = case_.sinks.empty() ? -INFINITY : case_.sinks[head];
      double max = sink;
      for (int p = first; p <= position; ++p) {
        const float* key = &keys_[sequence][(int64_t{p} * case_.kv_heads + kv_head) * size];
        double score = 0;
        for (int i = 0; i < size; ++i) {
          score += static_cast<double>(__bfloat162float(query[head * size + i])) * key[i];
        }
        score *= Scale();
        if (case_.soft_cap > 0) score = case_.soft_cap * std::tanh(score / case_.soft_cap);
        scores[p] = score;
        max = std::max(max, score);
      }
      double sum = std::exp(sink - max);
      for (int p = first; p <= position; ++p) {
        const float* value = &values_[sequence][(int64_t{p} * case_.kv_heads + kv_head) * size];
        const double probability = std::exp(scores[p] - max);
        sum += probability;
        for (int i = 0; i < size; ++i) out[head * size + i] += probability * value[i];
      }
      for (int i = 0; i < size; ++i) out[head * size + i] /= sum;
    }
    return out;
  }

 private:
  size_t ElementSize() const { return case_.type == Type::kFp8 ? 1 : 2; }

  // Store an element in the pages' format and return its value there: StoreValue for values, Store
  // for keys.
  float StoreValue(float value, uint8_t* to) const {
    if (case_.type == Type::kFp8) return Store(value, kVScale, to);
    const __half rounded = __float2half_rn(value);
    std::memcpy(to, &rounded, sizeof(rounded));
    return __half2float(rounded);
  }
  float Store(float value, float scale, uint8_t* to) const {
    if (case_.type == Type::kFp8) {
      *to = ToFp8(value / scale);
      return FromFp8(*to) * scale;
    }
    const Bf16 rounded = __float2bfloat16(value);
    std::memcpy(to, &rounded, sizeof(rounded));
    return __bfloat162float(rounded);
  }

  void Write(int s, std::vector<uint8_t>& pages) {
    const AttentionCase& c = case_;
    keys_[s].resize(int64_t{c.lengths[s]} * c.kv_heads * c.head_size);
    values_[s].resize(keys_[s].size());
    for (int64_t i = 0; i < static_cast<int64_t>(keys_[s].size()); ++i) {
      const int64_t d = i % c.head_size;
      const int64_t head = i / c.head_size % c.kv_heads;
      const int64_t position = i / c.head_size / c.kv_heads;
      const int64_t block = tables_[s * table_stride_ + position / c.block_size];
      const int64_t row = head * c.block_size + position % c.block_size;
      const int64_t key = block * block_stride_ + row * c.head_size + d;
      const int64_t value = key + block_stride_ / 2;
      const uint64_t seed = (static_cast<uint64_t>(s) << 33) + 2 * i;
      keys_[s][i] = Store(RandomValue(seed), kKScale, &pages[key * ElementSize()]);
      values_[s][i] = StoreValue(RandomValue(seed + 1), &pages[value * ElementSize()]);
    }
  }

  AttentionCase case_;
  int64_t table_stride_;
  int64_t block_stride_;
  std::vector<int32_t> tables_;
  DeviceBuffer<float> sinks_;
  std::vector<std::vector<float>> keys_, values_;  // [positions, kv_heads, head_size] of each
  std::unique_ptr<DeviceBuffer<uint8_t>> pages_;
  std::unique_ptr<DeviceBuffer<int32_t>> device_tables_;
};

// Device arrays for steps of at most `rows` rows and `tokens` tokens.
class AttentionRunner {
 public:
  AttentionRunner(const AttentionWorld& world, int rows, int tokens, int row_tokens)
      : world_(world),
        rows_(rows),
        tokens_(tokens),
        first_(rows + 1),
        start_(rows),
        slot_(rows),
        q_(size_t(tokens) * world.Case().Width()),
        out_(size_t(tokens) * world.Case().Stride()),
        step_{.rows = rows,
              .max_tokens = tokens,
              .max_row_tokens = row_tokens,
              .row_first = first_.get(),
              .row_start = start_.get(),
              .row_slot = slot_.get(),
              .heads = world.Case().heads,
              .kv_heads = world.Case().kv_heads,
              .window = world.Case().window,
              .plan = nullptr},
        plan_(AttentionPlanBytes(step_)),
        scratch_(AttentionScratchBytes(step_, world.Case().head_size)) {
    step_.plan = plan_.get();
  }

  AttentionArgs Args() const {
    AttentionArgs args = world_.Args();
    args.step = step_;
    args.q = q_.get();
    args.q_stride = world_.Case().Width();
    args.out = Bf16Rows(out_.get(), world_.Case().Stride());
    args.scratch = scratch_.get();
    return args;
  }

  // Uploads a step. Rows beyond `rows` have no tokens.
  void Upload(const std::vector<StepRow>& rows) {
    std::vector<int32_t> first(rows_ + 1), start(rows_, 1 << 30), slot(rows_, 1 << 30);
    std::vector<Bf16> q(size_t(tokens_) * world_.Case().Width(), __float2bfloat16(NAN));
    int token = 0;
    for (int r = 0; r < rows_; ++r) {
      first[r] = token;
      if (r >= static_cast<int>(rows.size())) continue;
      start[r] = rows[r].start;
      slot[r] = rows[r].sequence;
      for (int i = 0; i < rows[r].tokens; ++i, ++token) {
        const std::vector<Bf16> query = world_.Query(rows[r].start + i);
        std::copy(query.begin(), query.end(), q.begin() + size_t(token) * query.size());
      }
    }
    first[rows_] = token;
    first_.Upload(first);
    start_.Upload(start);
    slot_.Upload(slot);
    q_.Upload(q);
    out_.Poison();
    used_tokens_ = token;
  }

  cudaError_t Launch(cudaStream_t stream, bool portable = false) const {
    const cudaError_t error = LaunchPlanAttention(step_, stream);
    AttentionArgs args = Args();
    args.portable = portable;
    return error != cudaSuccess ? error : LaunchPagedAttention(args, stream);
  }

  // Returns the outputs, [tokens, stride], of the rows last uploaded.
  std::vector<Bf16> Result() const {
    std::vector<Bf16> out = out_.Download();
    out.resize(size_t(used_tokens_) * world_.Case().Stride());
    return out;
  }

  // Returns whether nothing but the outputs of the rows last uploaded was written.
  bool Intact() const {
    const std::vector<Bf16> out = out_.Download();
    for (size_t i = size_t(used_tokens_) * world_.Case().Stride(); i < out.size(); ++i) {
      uint16_t bits;
      std::memcpy(&bits, &out[i], sizeof(bits));
      if (bits != 0xffff) return false;
    }
    return out_.GuardsIntact() && plan_.GuardsIntact() && scratch_.GuardsIntact();
  }

 private:
  const AttentionWorld& world_;
  const int rows_;
  const int tokens_;
  int used_tokens_ = 0;
  DeviceBuffer<int32_t> first_, start_, slot_;
  DeviceBuffer<Bf16> q_, out_;
  AttentionStep step_;
  DeviceBuffer<uint8_t> plan_, scratch_;
};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_ATTENTION_ATTENTION_CASES_H_
