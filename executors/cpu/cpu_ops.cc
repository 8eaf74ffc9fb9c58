#include "executors/cpu/cpu_ops.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "executors/cpu/float_attention.h"
#include "executors/cpu/op_util.h"

namespace millrace::cpu {
namespace {

// Tokens that one chunk of a linear works on: their activations stay in a core's cache while the
// chunk's weights pass by, and large steps have chunks enough for every thread.
constexpr int kPanelTokens = 128;
// Of weights, in one chunk: large beside the cost of a claim, small beside a linear.
constexpr size_t kChunkBytes = 12 << 10;
// Tokens of a row at a time in a chunk of a gated linear: what their outputs take stays close.
constexpr int kGateTokens = 32;
constexpr int kGateTiles = 4;
constexpr int kGateOutputs = kBlock;  // of kGateTiles tiles
// Positions whose logits exist at the same time.
constexpr int kLogitRows = 64;

int RoundUp(int64_t value, int to) { return static_cast<int>((value + to - 1) / to * to); }
int Pieces(int64_t whole, int64_t piece) { return static_cast<int>((whole + piece - 1) / piece); }

// Where the values end within 16 of the row's end, the row is 0 there, and so is the norm's scale.
void NormRow(const Kernels& kernels, const NormWeight& norm, const float* x, Form form, void* out) {
  kernels.norm(x, norm.scale.data(), norm.size, static_cast<int>(norm.scale.size()), norm.epsilon,
               form, out);
}

}  // namespace

CpuOps::CpuOps(const Kernels& kernels, ThreadPool& pool, const CpuWeights& weights,
               const KvArena& kv, Memory activations, Memory logits, int max_length)
    : kernels_(kernels),
      pool_(pool),
      weights_(weights),
      kv_(kv),
      activation_memory_(std::move(activations)),
      activations_(activation_memory_.data(), activation_memory_.bytes()),
      logits_(std::move(logits)),
      score_stride_(RoundUp(max_length, 64)),
      scratch_(pool.num_threads()) {
  for (Scratch& scratch : scratch_) {
    scratch.gate.resize(kGateTokens * kGateTiles * kTileRows);
    scratch.scores.resize(kMaxQueries * score_stride_);
    scratch.heads.resize(static_cast<size_t>(kMaxQueries) * kv.head_size);
  }
}

size_t CpuOps::ActivationBytes(const CpuWeights& weights, int max_tokens) {
  int64_t widest_in = 0;
  for (const TiledMatrix& matrix : weights.matrices) {
    widest_in = std::max(widest_in, matrix.columns);
  }
  // The residual, what a linear reads, what it writes, and one more while an op turns one into
  // another.
  const int64_t floats = 3 * RoundUp(widest_in, kBlock) +
                         2 * RoundUp(std::max(weights.widest_linear, widest_in), kBlock);
  return max_tokens * floats * sizeof(float) + 4096;
}

size_t CpuOps::LogitBytes(int vocab_size) {
  return sizeof(float) * kLogitRows * RoundUp(vocab_size, kBlock);
}

Activation CpuOps::Embed(EmbeddingId table, float factor, const StepInput& input) {
  const CpuStepInput& step = Cast(input);
  const TiledMatrix& matrix = weights_.Matrix(table);
  auto out =
      Take(Form::kFloat, static_cast<int>(step.tokens.size()), static_cast<int>(matrix.columns));
  pool_.ParallelFor(out->rows(), [&](int token, int) {
    float* row = out->Floats(token);
    UntileRow(matrix, step.tokens[token], row);
    std::fill(row + matrix.columns, row + out->row_floats(), 0.0f);
    if (factor == 1) return;
    for (int64_t i = 0; i < matrix.columns; ++i) row[i] *= factor;
  });
  return out;
}

Activation CpuOps::Norm(std::optional<NormId> norm, const Activation& residual, LinearId consumer) {
  const CpuActivation& in = Cast(residual);
  auto out = Take(weights_.Matrix(consumer).input, in.rows(), in.width());
  pool_.ParallelFor(out->rows(), [&](int token, int) {
    if (norm.has_value()) {
      NormRow(kernels_, weights_.Norm(*norm), in.Floats(token), out->form(), out->Row(token));
    } else {
      kernels_.store(in.Floats(token), static_cast<int>(in.row_floats()), out->form(),
                     out->Row(token));
    }
  });
  return out;
}

void CpuOps::Gemm(const TiledMatrix& matrix, const CpuActivation& x, int first_row, int rows,
                  float* out, size_t out_stride, bool add) {
  const int panels = Pieces(rows, kPanelTokens);
  const int64_t tiles =
      std::max<int64_t>(1, static_cast<int64_t>(kChunkBytes * matrix.tiles / matrix.bytes));
  const int chunks = Pieces(matrix.tiles, tiles);
  pool_.ParallelFor(panels * chunks, [&](int task, int) {
    const int first = task / chunks * kPanelTokens;
    const int64_t begin = task % chunks * tiles;
    const int64_t end = std::min(begin + tiles, matrix.tiles);
    GemmTile tile{.weights = nullptr,
                  .depth = 0,
                  .x = x.Row(first_row + first),
                  .x_stride = x.row_bytes(),
                  .rows = std::min(kPanelTokens, rows - first),
                  .out = nullptr,
                  .out_stride = out_stride,
                  .add = add};
    for (int64_t i = begin; i < end; ++i) {
      tile.out = out + first * out_stride + i * kTileRows;
      matrix.Multiply(i, tile);
    }
  });
}

Activation CpuOps::Linear(LinearId weight, const Activation& x) {
  const TiledMatrix& matrix = weights_.Matrix(weight);
  const std::vector<float>& bias = weights_.Bias(weight);
  auto out = Take(Form::kFloat, Cast(x).rows(), static_cast<int>(matrix.rows));
  if (!bias.empty()) {
    pool_.ParallelFor(out->rows(), [&](int token, int) {
      std::copy(bias.begin(), bias.end(), out->Floats(token));
    });
  }
  Gemm(matrix, Cast(x), 0, out->rows(), out->Floats(0), out->row_floats(), !bias.empty());
  return out;
}

Activation CpuOps::RowLinear(LinearId weight, Activation x, const Addend& addend,
                             Activation& residual, std::optional<NormId> norm, LinearId consumer) {
  CpuActivation& sum = Cast(residual);
  const TiledMatrix& matrix = weights_.Matrix(weight);
  if (!addend.norm.has_value() && addend.factor == 1) {
    Gemm(matrix, Cast(x), 0, sum.rows(), sum.Floats(0), sum.row_floats(), true);
    return Norm(norm, residual, consumer);
  }
  {
    const auto product = Take(Form::kFloat, sum.rows(), sum.width());
    Gemm(matrix, Cast(x), 0, sum.rows(), product->Floats(0), product->row_floats(), false);
    pool_.ParallelFor(sum.rows(), [&](int token, int) {
      float* y = product->Floats(token);
      if (addend.norm.has_value()) {
        NormRow(kernels_, weights_.Norm(*addend.norm), y, Form::kFloat, y);
      }
      float* row = sum.Floats(token);
      for (int i = 0; i < sum.width(); ++i) row[i] += addend.factor * y[i];
    });
  }
  return Norm(norm, residual, consumer);
}

Activation CpuOps::GatedLinear(LinearId weight, const Activation& x, GateFunction f,
                               LinearId consumer) {
  const auto gate = f == GateFunction::kSilu ? kernels_.gate : kernels_.gelu_gate;
  const TiledMatrix& matrix = weights_.Matrix(weight);
  const CpuActivation& in = Cast(x);
  const TiledMatrix& next = weights_.Matrix(consumer);
  auto out = Take(next.input, in.rows(), static_cast<int>(next.columns));
  const int panels = Pieces(in.rows(), kPanelTokens);
  const int groups = static_cast<int>(matrix.tiles / kGateTiles);
  pool_.ParallelFor(panels * groups, [&](int task, int thread) {
    const int group = task % groups;
    const int end = std::min((task / groups + 1) * kPanelTokens, in.rows());
    float* gates = scratch_[thread].gate.data();
    for (int first = task / groups * kPanelTokens; first < end; first += kGateTokens) {
      GemmTile tile{.weights = nullptr,
                    .depth = 0,
                    .x = in.Row(first),
                    .x_stride = in.row_bytes(),
                    .rows = std::min(kGateTokens, end - first),
                    .out = nullptr,
                    .out_stride = kGateTiles * kTileRows,
                    .add = false};
      for (int i = 0; i < kGateTiles; ++i) {
        tile.out = gates + i * kTileRows;
        matrix.Multiply(group * kGateTiles + i, tile);
      }
      for (int i = 0; i < tile.rows; ++i) {
        gate(gates + i * tile.out_stride, out->form(), out->At(first + i, group * kGateOutputs));
      }
    }
  });
  return out;
}

// In place.
void CpuOps::NormHeads(const HeadNorms& norms, const AttentionSpec& spec, float* heads) const {
  float* keys = heads + spec.num_heads * spec.head_size;
  if (norms.across_heads) {
    NormRow(kernels_, weights_.Norm(norms.q), heads, Form::kFloat, heads);
    NormRow(kernels_, weights_.Norm(norms.k), keys, Form::kFloat, keys);
    return;
  }
  for (int head = 0; head < spec.num_heads + spec.num_kv_heads; ++head) {
    float* x = heads + head * spec.head_size;
    NormRow(kernels_, weights_.Norm(head < spec.num_heads ? norms.q : norms.k), x, Form::kFloat, x);
  }
}

const CpuOps::Rotations& CpuOps::RotationsOf(const RopeSpec& rope, const CpuStepInput& input) {
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
  if (rotations.tokens > 0) return rotations;
  rotations.tokens = static_cast<int>(input.positions.size());
  if (rotations.cosines.size() < input.positions.size() * pairs) {
    rotations.cosines.resize(input.positions.size() * pairs);
    rotations.sines.resize(rotations.cosines.size());
  }
  pool_.ParallelFor(rotations.tokens, [&](int token, int) {
    for (int i = 0; i < pairs; ++i) {
      const double angle = input.positions[token] * rotations.frequencies[i];
      rotations.cosines[token * pairs + i] = static_cast<float>(rope.magnitude * std::cos(angle));
      rotations.sines[token * pairs + i] = static_cast<float>(rope.magnitude * std::sin(angle));
    }
  });
  return rotations;
}

void CpuOps::RopeAppend(int32_t layer, const AttentionSpec& spec,
                        const std::optional<HeadNorms>& norms, Activation& qkv,
                        const StepInput& input) {
  const CpuStepInput& step = Cast(input);
  CpuActivation& x = Cast(qkv);
  const Rotations& rotations = RotationsOf(spec.rope, step);
  const int pairs = spec.rope.dimensions / 2;
  pool_.ParallelFor(x.rows(), [&](int token, int) {
    float* heads = x.Floats(token);
    if (norms.has_value()) NormHeads(*norms, spec, heads);
    for (int head = 0; head < spec.num_heads + spec.num_kv_heads; ++head) {
      kernels_.rope(heads + head * spec.head_size, rotations.cosines.data() + token * pairs,
                    rotations.sines.data() + token * pairs, pairs, spec.rope.interleaved);
    }
    const int position = step.positions[token];
    const BlockId block = step.rows[step.row_of[token]].block_table[position / kv_.block_size];
    const int at = position % kv_.block_size;
    const float* keys = heads + spec.num_heads * spec.head_size;
    const float* values = keys + spec.num_kv_heads * spec.head_size;
    const int key_at = at / kTileRows * kTileRows * spec.head_size + at % kTileRows;
    const int value_at = (kv_.block_size + at) * spec.head_size;
    for (int head = 0; head < spec.num_kv_heads; ++head) {
      const float* k = keys + head * spec.head_size;
      const float* v = values + head * spec.head_size;
      uint8_t* page = kv_.Page(block, layer, head);
      if (kv_.float32) {
        float* floats = reinterpret_cast<float*>(page);
        AppendFloats(k, v, spec.head_size, floats + key_at, floats + value_at);
      } else {
        uint16_t* halves = reinterpret_cast<uint16_t*>(page);
        kernels_.append(k, v, spec.head_size, halves + key_at, halves + value_at);
      }
    }
  });
}

// Cuts the step's queries of one kv head into tiles of kMaxQueries, each within one sequence.
void CpuOps::PlanAttention(int group, const CpuStepInput& input) {
  attention_tasks_.clear();
  for (size_t row = 0; row < input.rows.size(); ++row) {
    const int queries = input.rows[row].num_tokens * group;
    for (int query = 0; query < queries; query += kMaxQueries) {
      attention_tasks_.push_back(
          {static_cast<int>(row), query, std::min(kMaxQueries, queries - query)});
    }
  }
}

// What the step's attention over one layer shares.
struct CpuOps::AttentionStep {
  int32_t layer;
  const AttentionSpec& spec;
  const CpuActivation& qkv;
  const CpuStepInput& input;
  CpuActivation& out;
};

// The tile of chunk `index`: kv heads are outermost, so that a thread stays with one.
AttentionTile CpuOps::Tile(const AttentionStep& step, int index, Scratch& scratch) const {
  const int tasks = static_cast<int>(attention_tasks_.size());
  const auto pages = [&](int chunk) -> HeadPages {
    const CpuStepInput::Row& row = step.input.rows[attention_tasks_[chunk % tasks].row];
    return {kv_.Page(0, step.layer, chunk / tasks), row.block_table,
            step.input.positions[row.first_token + row.num_tokens - 1] + 1};
  };
  const int last = tasks * step.spec.num_kv_heads - 1;
  const AttentionTask& task = attention_tasks_[index % tasks];
  const int kv_head = index / tasks;
  const CpuStepInput::Row& row = step.input.rows[task.row];
  const int group = step.spec.num_heads / step.spec.num_kv_heads;
  AttentionTile tile{.cache = pages(index),
                     .next = pages(std::min(index + 1, last)),
                     .block_bytes = kv_.block_bytes,
                     .block_size = kv_.block_size,
                     .head_size = step.spec.head_size,
                     .num_queries = task.count,
                     .queries = {},
                     .lengths = {},
                     .window = step.spec.window,
                     .scale = step.spec.scale,
                     .soft_cap = step.spec.soft_cap,
                     .scores = scratch.scores.data(),
                     .score_stride = score_stride_,
                     .out = scratch.heads.data()};
  for (int i = 0; i < task.count; ++i) {
    const int token = row.first_token + (task.query + i) / group;
    const int head = kv_head * group + (task.query + i) % group;
    tile.queries[i] = step.qkv.Floats(token) + head * step.spec.head_size;
    tile.lengths[i] = step.spec.causal ? step.input.positions[token] + 1 : tile.cache.length;
  }
  return tile;
}

void CpuOps::Attend(const AttentionStep& step, int index, int thread) {
  const AttentionTile tile = Tile(step, index, scratch_[thread]);
  (kv_.float32 ? AttendFloats : kernels_.attention)(tile);
  for (int i = 0; i < tile.num_queries; ++i) {
    // Where a query lies in qkv is where its result lies in out.
    const ptrdiff_t at = tile.queries[i] - step.qkv.Floats(0);
    const int token = static_cast<int>(at / static_cast<ptrdiff_t>(step.qkv.row_floats()));
    const int column = static_cast<int>(at % static_cast<ptrdiff_t>(step.qkv.row_floats()));
    kernels_.store(tile.out + i * tile.head_size, tile.head_size, step.out.form(),
                   step.out.At(token, column));
  }
}

Activation CpuOps::Attention(int32_t layer, const AttentionSpec& spec, const Activation& qkv,
                             const StepInput& input, LinearId consumer) {
  const CpuStepInput& in = Cast(input);
  if (layer == 0) PlanAttention(spec.num_heads / spec.num_kv_heads, in);
  const Form form = weights_.Matrix(consumer).input;
  const int width = spec.num_heads * spec.head_size;
  const bool whole_blocks = form != Form::kQ8 || spec.head_size % kBlock == 0;
  auto out = Take(whole_blocks ? form : Form::kFloat, Cast(qkv).rows(), width);
  const AttentionStep step{layer, spec, Cast(qkv), in, *out};
  pool_.ParallelFor(static_cast<int>(attention_tasks_.size()) * spec.num_kv_heads,
                    [&](int index, int thread) { Attend(step, index, thread); });
  if (whole_blocks) return out;
  // Heads that end within a block of 32: the blocks are made of whole rows.
  auto blocks = Take(form, out->rows(), width);
  pool_.ParallelFor(out->rows(), [&](int token, int) {
    kernels_.store(out->Floats(token), width, form, blocks->Row(token));
  });
  return blocks;
}

Activation CpuOps::Head(LinearId weight, const LogitSpec& spec, const Activation& x,
                        const StepInput& input) {
  const CpuStepInput& step = Cast(input);
  const CpuActivation& all = Cast(x);
  head_ = weight;
  logit_spec_ = spec;
  auto wanted = Take(all.form(), static_cast<int>(step.wanted.size()), all.width());
  for (size_t i = 0; i < step.wanted.size(); ++i) {
    std::copy_n(all.Row(step.wanted[i]), all.row_bytes(), wanted->Row(static_cast<int>(i)));
  }
  return wanted;
}

void CpuOps::Sample(const Activation& logits, const StepInput& input) {
  const CpuStepInput& step = Cast(input);
  const CpuActivation& wanted = Cast(logits);
  const TiledMatrix& head = weights_.Matrix(head_);
  const size_t stride = RoundUp(head.rows, kBlock);
  float* panel = reinterpret_cast<float*>(logits_.data());
  if (sampled_.size() < step.samples.size()) sampled_.resize(step.samples.size());
  for (int first = 0; first < wanted.rows(); first += kLogitRows) {
    const int count = std::min(kLogitRows, wanted.rows() - first);
    Gemm(head, wanted, first, count, panel, stride, false);
    pool_.ParallelFor(count, [&](int i, int thread) {
      float* row = panel + i * stride;
      if (logit_spec_ != LogitSpec{}) {
        kernels_.cap(row, static_cast<int>(head.rows), logit_spec_.factor, logit_spec_.soft_cap);
      }
      scratch_[thread].sampler.Sample(kernels_, {row, static_cast<size_t>(head.rows)},
                                      step.samples[first + i], &sampled_[first + i]);
    });
  }
}

}  // namespace millrace::cpu
