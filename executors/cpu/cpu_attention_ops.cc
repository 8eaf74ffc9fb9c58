// The ops between the q, k and v linear and the output linear.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <utility>

#include "executors/cpu/cpu_ops.h"
#include "executors/cpu/kernels/float_attention.h"

namespace millrace::cpu {
namespace {

// Returns the values of a head of q: its query's, and its gate's behind them.
int QuerySize(const AttentionSpec& spec) {
  return spec.output_gate ? 2 * spec.head_size : spec.head_size;
}

}  // namespace

// Norms values that others may follow immediately.
void CpuOps::NormInPlace(NormId id, float* x) const {
  const NormWeight& norm = weights_.Norm(id);
  if (norm.size % kTileRows == 0) return NormRow(id, x, Form::kFloat, x);
  std::vector<float> whole(norm.scale.size());
  std::copy_n(x, norm.size, whole.begin());
  NormRow(id, whole.data(), Form::kFloat, whole.data());
  std::copy_n(whole.begin(), norm.size, x);
}

// Works in place.
void CpuOps::NormHeads(const HeadNorms& norms, const AttentionSpec& spec, float* heads) const {
  float* keys = heads + spec.num_heads * QuerySize(spec);
  if (norms.across_heads) {
    NormInPlace(norms.q, heads);
    NormInPlace(norms.k, keys);
    return;
  }
  for (int head = 0; head < spec.num_heads; ++head) {
    NormInPlace(norms.q, heads + head * QuerySize(spec));
  }
  for (int head = 0; head < spec.num_kv_heads; ++head) {
    NormInPlace(norms.k, keys + head * spec.head_size);
  }
}

// The means are over the heads of all ranks: each adds the squares of its own, but only one rank
// those of a kv head that several hold. Heads of zeros change nothing.
void CpuOps::NormAcrossRanks(const HeadNorms& norms, const AttentionSpec& spec,
                             const CpuActivation& qkv) {
  if (collective_ == nullptr) return;  // a dry run
  const NormWeight* const weights[] = {&weights_.Norm(norms.q), &weights_.Norm(norms.k)};
  const int sizes[] = {spec.num_heads * spec.head_size, spec.num_kv_heads * spec.head_size};
  squares_.assign(size_t{2} * qkv.rows(), 0.0f);
  for (int token = 0; token < qkv.rows(); ++token) {
    const float* x = qkv.Floats(token);
    for (int i = 0; i < 2; x += sizes[i], ++i) {
      if (!weights[i]->counted) continue;
      squares_[2 * token + i] = std::inner_product(x, x + sizes[i], x, 0.0f);
    }
  }
  collective_->AllReduce(absl::MakeSpan(squares_));
  for (int token = 0; token < qkv.rows(); ++token) {
    float* x = qkv.Floats(token);
    for (int i = 0; i < 2; x += sizes[i], ++i) {
      const float mean = squares_[2 * token + i] / static_cast<float>(weights[i]->size);
      const float factor = 1 / std::sqrt(mean + weights[i]->epsilon);
      for (int j = 0; j < sizes[i]; ++j) x[j] *= factor * weights[i]->scale[j];
    }
  }
}

const CpuOps::Rotations& CpuOps::RotationsOf(const RopeSpec& rope) {
  const std::vector<int32_t>& positions = step_->positions;
  auto found = std::find_if(rotations_.begin(), rotations_.end(),
                            [&](const Rotations& rotations) { return rotations.spec == rope; });
  const int pairs = rope.dimensions / 2;
  if (found == rotations_.end()) {
    found = rotations_.insert(found, {.spec = rope, .frequencies = {}, .cosines = {}, .sines = {}});
    for (int i = 0; i < pairs; ++i) {
      const double factor = rope.factors.empty() ? 1.0 : rope.factors[i];
      found->frequencies.push_back(std::pow(rope.base, -2.0 * i / rope.dimensions) / factor);
    }
  }
  Rotations& rotations = *found;
  if (rotations.computed) return rotations;
  rotations.computed = true;
  if (rotations.cosines.size() < positions.size() * pairs) {
    rotations.cosines.resize(positions.size() * pairs);
    rotations.sines.resize(rotations.cosines.size());
  }
  pool_.ParallelFor(static_cast<int>(positions.size()), [&](int token, int) {
    for (int i = 0; i < pairs; ++i) {
      const double angle = positions[token] * rotations.frequencies[i];
      rotations.cosines[token * pairs + i] = static_cast<float>(rope.magnitude * std::cos(angle));
      rotations.sines[token * pairs + i] = static_cast<float>(rope.magnitude * std::sin(angle));
    }
  });
  return rotations;
}

// Appends a token, in place `at` of a block, to the page of a head. The page's heads are `size`
// rounded up to a multiple of 16, filled up with zeros.
void CpuOps::Append(const float* k, const float* v, int size, int32_t layer, BlockId block,
                    int kv_head, int at) const {
  const int head_size = kv_.layers[layer].head_size;
  const int key_at = at / kTileRows * kTileRows * head_size + at % kTileRows;
  const int value_at = (kv_.block_size + at) * head_size;
  std::vector<float> filled;
  if (size != head_size) {
    filled.resize(size_t{2} * head_size);
    std::copy_n(k, size, filled.begin());
    std::copy_n(v, size, filled.begin() + head_size);
    k = filled.data();
    v = k + head_size;
  }
  uint8_t* page = kv_.Page(block, layer, kv_head);
  if (kv_.float32) {
    float* floats = reinterpret_cast<float*>(page);
    AppendFloats(k, v, head_size, floats + key_at, floats + value_at);
  } else {
    uint16_t* halves = reinterpret_cast<uint16_t*>(page);
    kernels_.append(k, v, head_size, halves + key_at, halves + value_at);
  }
}

Query CpuOps::RopeAppend(int32_t layer, const AttentionSpec& spec,
                         const std::optional<HeadNorms>& norms, Qkv qkv) {
  const CpuStepInput& step = *step_;
  CpuActivation& x = Values(qkv);
  const Rotations& rotations = RotationsOf(spec.rope);
  const int pairs = spec.rope.dimensions / 2;
  const bool across_ranks = divided() && norms.has_value() && norms->across_heads;
  if (across_ranks) NormAcrossRanks(*norms, spec, x);
  pool_.ParallelFor(x.rows(), [&](int token, int) {
    float* heads = x.Floats(token);
    if (norms.has_value() && !across_ranks) NormHeads(*norms, spec, heads);
    float* const keys = heads + spec.num_heads * QuerySize(spec);
    const float* const values = keys + spec.num_kv_heads * spec.head_size;
    const auto rotate = [&](float* head) {
      kernels_.rope(head, rotations.cosines.data() + token * pairs,
                    rotations.sines.data() + token * pairs, pairs, spec.rope.interleaved);
    };
    for (int head = 0; head < spec.num_heads; ++head) rotate(heads + head * QuerySize(spec));
    for (int head = 0; head < spec.num_kv_heads; ++head) rotate(keys + head * spec.head_size);
    const int position = step.positions[token];
    const CpuStepInput::Row& row = step.rows[step.row_of[token]];
    const BlockId block = row.block_tables[kv_.layers[layer].group][position / kv_.block_size];
    const int at = position % kv_.block_size;
    for (int head = 0; head < spec.num_kv_heads; ++head) {
      Append(keys + head * spec.head_size, values + head * spec.head_size, spec.head_size, layer,
             block, head, at);
    }
  });
  return std::make_unique<CpuQuery>(std::move(x));
}

// What is added to the scores of keys behind position 0 of a query there, of a rank's head; before
// it lie those of keys before it. Ranks whose heads are filled up read some head's.
const float* CpuOps::Biases(const AttentionSpec& spec, int head) const {
  const PositionBiases& biases = position_biases_[static_cast<size_t>(*spec.position_bias)];
  const int of_all = std::min(spec.first_head + head, biases.heads - 1);
  return biases.values.data() + of_all * biases.stride + score_stride_;
}

// Spreads the biases of buckets over all distances.
void CpuOps::SpreadBiases() {
  const int length = static_cast<int>(score_stride_);
  for (const PositionBiasTable& table : weights_.position_biases) {
    // Attention reads whole groups, of which those at the end may reach beyond the distances.
    PositionBiases& biases = position_biases_.emplace_back(PositionBiases{
        .heads = table.heads, .stride = 2 * score_stride_ + kTileRows, .values = {}});
    biases.values.resize(biases.stride * table.heads);
    for (int head = 0; head < table.heads; ++head) {
      float* const values = biases.values.data() + head * biases.stride + length;
      for (int distance = -length; distance < length; ++distance) {
        values[distance] =
            table.values[PositionBucket(distance, table.buckets) * table.heads + head];
      }
    }
  }
}

// Cuts the step's queries of one kv head into tiles of kMaxQueries, each within one sequence.
void CpuOps::PlanAttention(int group) {
  attention_group_ = group;
  attention_tasks_.clear();
  for (size_t row = 0; row < step_->rows.size(); ++row) {
    const int queries = step_->rows[row].num_tokens * group;
    for (int query = 0; query < queries; query += kMaxQueries) {
      attention_tasks_.push_back(
          {static_cast<int>(row), query, std::min(kMaxQueries, queries - query)});
    }
  }
}

// State that the tiles of one layer's attention share.
struct CpuOps::AttentionStep {
  int32_t layer;
  const AttentionSpec& spec;
  const CpuActivation& query;
  absl::Span<const CpuActivation> outs;
};

// The tile of chunk `index`: kv heads are outermost, so that a thread stays with one.
AttentionTile CpuOps::Tile(const AttentionStep& step, int index, Scratch& scratch) const {
  const int tasks = static_cast<int>(attention_tasks_.size());
  const KvArena::Layer& layer = kv_.layers[step.layer];
  const auto pages = [&](int chunk) -> HeadPages {
    const CpuStepInput::Row& row = step_->rows[attention_tasks_[chunk % tasks].row];
    return {kv_.Page(0, step.layer, chunk / tasks), row.block_tables[layer.group].data(),
            step_->positions[row.first_token + row.num_tokens - 1] + 1};
  };
  const int last = tasks * step.spec.num_kv_heads - 1;
  const AttentionTask& task = attention_tasks_[index % tasks];
  const int kv_head = index / tasks;
  const CpuStepInput::Row& row = step_->rows[task.row];
  const int group = step.spec.num_heads / step.spec.num_kv_heads;
  AttentionTile tile{.cache = pages(index),
                     .next = pages(std::min(index + 1, last)),
                     .block_bytes = kv_.BlockBytes(step.layer),
                     .block_size = kv_.block_size,
                     .head_size = layer.head_size,
                     .num_queries = task.count,
                     .queries = {},
                     .begins = {},
                     .lengths = {},
                     .scale = step.spec.scale,
                     .soft_cap = step.spec.soft_cap,
                     .biases = nullptr,
                     .sinks = nullptr,
                     .scores = scratch.scores.data(),
                     .score_stride = score_stride_,
                     .out = scratch.heads.data()};
  if (step.spec.sinks.has_value()) {
    const std::vector<float>& sinks = weights_.Vector(*step.spec.sinks);
    for (int i = 0; i < task.count; ++i) {
      scratch.sinks[i] = sinks[kv_head * group + (task.query + i) % group];
    }
    tile.sinks = scratch.sinks;
  }
  if (step.spec.position_bias.has_value()) tile.biases = scratch.biases;
  for (int i = 0; i < task.count; ++i) {
    const int token = row.first_token + (task.query + i) / group;
    const int head = kv_head * group + (task.query + i) % group;
    const int position = step_->positions[token];
    const int window = step.spec.window;
    tile.queries[i] = step.query.Floats(token) + head * QuerySize(step.spec);
    tile.begins[i] = window > 0 ? std::max(0, position + 1 - window) : 0;
    tile.lengths[i] = step.spec.causal ? position + 1
                      : window > 0     ? std::min(tile.cache.length, position + window)
                                       : tile.cache.length;
    if (step.spec.position_bias.has_value()) {
      scratch.biases[i] = Biases(step.spec, head) - position;
    }
    if (step.spec.head_size == layer.head_size) continue;
    float* const filled = scratch.queries.data() + i * layer.head_size;
    std::fill(std::copy_n(tile.queries[i], step.spec.head_size, filled), filled + layer.head_size,
              0.0f);
    tile.queries[i] = filled;
  }
  return tile;
}

void CpuOps::Attend(const AttentionStep& step, int index, int thread) {
  const AttentionTile tile = Tile(step, index, scratch_[thread]);
  (kv_.float32 ? AttendFloats : kernels_.attention)(tile);
  const int tasks = static_cast<int>(attention_tasks_.size());
  const AttentionTask& task = attention_tasks_[index % tasks];
  const int group = step.spec.num_heads / step.spec.num_kv_heads;
  const int size = step.spec.head_size;
  for (int i = 0; i < tile.num_queries; ++i) {
    const int token = step_->rows[task.row].first_token + (task.query + i) / group;
    const int head = index / tasks * group + (task.query + i) % group;
    const int column = head * size;
    float* const result = tile.out + i * tile.head_size;
    if (step.spec.output_gate) {
      const float* const gate = step.query.Floats(token) + head * QuerySize(step.spec) + size;
      kernels_.sigmoid_gate(gate, size, /*silu=*/false, result);
    }
    for (const CpuActivation& out : step.outs) {
      if (size == tile.head_size) {
        kernels_.store(result, size, out.form(), out.At(token, column));
      } else {
        std::copy_n(result, size, out.Floats(token) + column);
      }
    }
  }
}

LinearInput CpuOps::Attention(int32_t layer, const AttentionSpec& spec, const Query& query,
                              Consumers consumers) {
  const int group = spec.num_heads / spec.num_kv_heads;
  if (attention_group_ != group) PlanAttention(group);
  const int width = spec.num_heads * spec.head_size;
  auto input = TakeInput(consumers, width);
  // Where heads end within a block of 32 or a register, forms are made of whole rows.
  const bool whole_blocks =
      std::all_of(input->forms.begin(), input->forms.end(), [&](const CpuActivation& form) {
        return spec.head_size % (form.form() == Form::kQ8 ? kBlock : kTileRows) == 0;
      });
  std::optional<CpuActivation> floats;
  if (!whole_blocks) floats.emplace(Take(Form::kFloat, width));
  const AttentionStep step{
      layer, spec, Values(query),
      whole_blocks ? absl::MakeConstSpan(input->forms) : absl::MakeConstSpan(&*floats, 1)};
  pool_.ParallelFor(static_cast<int>(attention_tasks_.size()) * spec.num_kv_heads,
                    [&](int index, int thread) { Attend(step, index, thread); });
  if (whole_blocks) return input;
  pool_.ParallelFor(floats->rows(), [&](int token, int) {
    float* row = floats->Floats(token);
    std::fill(row + width, row + floats->row_floats(), 0.0f);
    StoreForms(*floats, token, *input, token);
  });
  return input;
}

}  // namespace millrace::cpu
