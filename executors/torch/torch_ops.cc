#include "executors/torch/torch_ops.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "executors/torch/op_util.h"

namespace millrace::aten {
namespace {

// Positions whose logits exist at the same time.
constexpr int64_t kLogitRows = 64;
// Scores of one sequence's attention that exist at the same time.
constexpr int64_t kScores = int64_t{1} << 24;

// Returns the values of a head of q: its query's, and its gate's behind them.
int64_t QuerySize(const AttentionSpec& spec) {
  return spec.output_gate ? 2 * spec.head_size : spec.head_size;
}

}  // namespace

void TorchOps::BeginStep(const StepInput& step) {
  const auto& input = static_cast<const CpuStepInput&>(step);
  step_ = &input;
  positions_ = Indexes(input.positions.data(), input.positions.size()).to(at::kDouble);
  places_.clear();
  for (int group = 0; group < kv_.num_groups; ++group) {
    std::vector<int64_t> places;
    for (size_t token = 0; token < input.positions.size(); ++token) {
      const int64_t position = input.positions[token];
      const std::vector<BlockId>& table = input.rows[input.row_of[token]].block_tables[group];
      if (table.empty()) break;  // a group of slots
      const int64_t block = table[position / kv_.block_size];
      places.push_back(block * kv_.block_size + position % kv_.block_size);
    }
    places_.push_back(Indexes(places.data(), places.size()));
  }
  rows_.clear();
  for (const CpuStepInput::Row& row : input.rows) {
    rows_.push_back({.first_token = row.first_token,
                     .num_tokens = row.num_tokens,
                     .start = input.positions[row.first_token],
                     .block_tables = row.block_tables,
                     .slot = row.slot});
  }
  rotations_.clear();
}

Residual TorchOps::Embed(EmbeddingId table, float factor) {
  const std::vector<Token>& tokens = step_->tokens;
  return std::make_unique<TorchBuffer<ResidualBuffer>>(
      weights_.Table(table).index_select(0, Indexes(tokens.data(), tokens.size())) * factor);
}

at::Tensor TorchOps::NormOf(NormId norm, const at::Tensor& x) const {
  const NormWeight& weight = weights_.Norm(norm);
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor mean = wide.square().mean(-1, /*keepdim=*/true);
  return (wide * at::rsqrt(mean + weight.epsilon) * weight.scale).to(x.scalar_type());
}

at::Tensor TorchOps::Product(LinearId weight, const at::Tensor& x) const {
  const Matrix& matrix = weights_.Linear(weight);
  return at::linear(x, matrix.weight, matrix.bias);
}

LinearInput TorchOps::Norm(std::optional<NormId> norm, const Residual& residual, Consumers) {
  return AsLinearInput(norm.has_value() ? NormOf(*norm, Values(residual)) : Values(residual));
}

Qkv TorchOps::QkvLinear(LinearId weight, const LinearInput& x) {
  return std::make_unique<TorchBuffer<QkvBuffer>>(Product(weight, Values(x)));
}

void TorchOps::AddToResidual(const Addend& addend, at::Tensor y, Residual& residual) const {
  if (addend.norm.has_value()) y = NormOf(*addend.norm, y);
  Values(residual) = Values(residual) + y * addend.factor;
}

LinearInput TorchOps::RowLinear(LinearId weight, LinearInput x, const Addend& addend,
                                Residual& residual, std::optional<NormId> norm,
                                Consumers consumers) {
  AddToResidual(addend, Product(weight, Values(x)), residual);
  return Norm(norm, residual, consumers);
}

LinearInput TorchOps::GatedLinear(LinearId weight, const LinearInput& x, GateFunction f,
                                  Consumers) {
  return AsLinearInput(Gated(weight, Values(x), f));
}

const TorchOps::Rotations& TorchOps::RotationsOf(const RopeSpec& rope) {
  for (const Rotations& rotations : rotations_) {
    if (rotations.spec == rope) return rotations;
  }
  const int64_t pairs = rope.dimensions / 2;
  at::Tensor frequencies =
      at::pow(rope.base, at::arange(pairs, at::kDouble) * (-2.0 / rope.dimensions));
  if (!rope.factors.empty()) {
    std::vector<float> factors = rope.factors;
    frequencies = frequencies / at::from_blob(factors.data(), {pairs}).to(at::kDouble);
  }
  const at::Tensor angles = at::outer(positions_, frequencies).unsqueeze(1);
  rotations_.push_back({.spec = rope,
                        .cosines = (angles.cos() * rope.magnitude).to(at::kFloat),
                        .sines = (angles.sin() * rope.magnitude).to(at::kFloat)});
  return rotations_.back();
}

// heads: [tokens, heads, head_size], float32.
at::Tensor TorchOps::Turn(const at::Tensor& heads, const RopeSpec& rope) {
  if (rope.dimensions == 0) return heads;
  const Rotations& by = RotationsOf(rope);
  const int64_t pairs = rope.dimensions / 2;
  const at::Tensor turned = heads.narrow(-1, 0, rope.dimensions);
  const at::Tensor split = rope.interleaved ? turned.unflatten(-1, {pairs, 2})
                                            : turned.unflatten(-1, {2, pairs}).transpose(-1, -2);
  const at::Tensor a = split.select(-1, 0);  // [tokens, heads, pairs]
  const at::Tensor b = split.select(-1, 1);
  const at::Tensor done = at::stack({a * by.cosines - b * by.sines, b * by.cosines + a * by.sines},
                                    rope.interleaved ? -1 : -2)
                              .flatten(-2);
  return at::cat({done, heads.narrow(-1, rope.dimensions, heads.size(-1) - rope.dimensions)}, -1);
}

Query TorchOps::RopeAppend(int32_t layer, const AttentionSpec& spec,
                           const std::optional<HeadNorms>& norms, Qkv qkv) {
  const int64_t q_heads = spec.num_heads;
  const int64_t kv_heads = spec.num_kv_heads;
  const int64_t size = spec.head_size;
  const int64_t q_width = q_heads * QuerySize(spec);
  const at::Tensor queries =
      Values(qkv).narrow(-1, 0, q_width).unflatten(-1, {q_heads, QuerySize(spec)});
  const at::Tensor heads =
      Values(qkv).narrow(-1, q_width, 2 * kv_heads * size).unflatten(-1, {2 * kv_heads, size});
  at::Tensor q = queries.narrow(-1, 0, size).to(at::kFloat);
  at::Tensor k = heads.narrow(1, 0, kv_heads).to(at::kFloat);
  if (norms.has_value() && norms->across_heads) {
    q = NormOf(norms->q, q.flatten(1)).view_as(q);
    k = NormOf(norms->k, k.flatten(1)).view_as(k);
  } else if (norms.has_value()) {
    q = NormOf(norms->q, q);
    k = NormOf(norms->k, k);
  }
  q = Turn(q, spec.rope);
  k = Turn(k, spec.rope);
  const at::ScalarType dtype = heads.scalar_type();
  const at::Tensor& places = places_[kv_.groups[layer]];
  kv_.keys[layer].index_copy_(0, places, k.to(dtype));
  kv_.values[layer].index_copy_(0, places, heads.narrow(1, kv_heads, kv_heads));
  const at::Tensor gates = queries.narrow(-1, size, QuerySize(spec) - size);
  return std::make_unique<TorchBuffer<QueryBuffer>>(at::cat({q.to(dtype), gates}, -1).flatten(1));
}

at::Tensor TorchOps::BiasesOf(const AttentionSpec& spec, int64_t start, int64_t tokens,
                              int64_t keys) const {
  const at::Tensor& table = weights_.PositionBias(*spec.position_bias);  // [buckets, heads]
  const auto buckets_in_all = static_cast<int32_t>(table.size(0));
  std::vector<int32_t> buckets(tokens * keys);
  for (int64_t i = 0; i < tokens; ++i) {
    for (int64_t key = 0; key < keys; ++key) {
      buckets[i * keys + key] =
          PositionBucket(static_cast<int32_t>(key - start - i), buckets_in_all);
    }
  }
  return table.index_select(0, Indexes(buckets.data(), buckets.size()))
      .unflatten(0, {tokens, keys})
      .permute({2, 0, 1})
      .narrow(0, spec.first_head, spec.num_heads);
}

// q: [tokens, heads, head_size] of positions from `start` on, counted from the first key's; keys,
// values: [positions, kv_heads, head_size].
at::Tensor TorchOps::AttendSome(const AttentionSpec& spec, const at::Tensor& q, int64_t start,
                                const at::Tensor& keys, const at::Tensor& values) const {
  const int64_t tokens = q.size(0);
  const int64_t group = spec.num_heads / spec.num_kv_heads;
  // [kv_heads, group * tokens, head_size]
  const at::Tensor queries =
      q.unflatten(1, {spec.num_kv_heads, group}).permute({1, 2, 0, 3}).flatten(1, 2);
  at::Tensor scores = at::bmm(queries, keys.permute({1, 2, 0})).to(at::kFloat) * spec.scale;
  if (spec.soft_cap != 0) scores = at::tanh(scores / spec.soft_cap) * spec.soft_cap;
  if (spec.position_bias.has_value()) {
    scores = scores + BiasesOf(spec, start, tokens, keys.size(0));  // each head is a group
  }
  const at::Tensor query = at::arange(start, start + tokens).unsqueeze(1);
  const at::Tensor key = at::arange(keys.size(0)).unsqueeze(0);
  at::Tensor hidden = key > query;
  if (!spec.causal) hidden = at::zeros_like(hidden);
  if (spec.window > 0) hidden = hidden.logical_or(key <= query - spec.window);
  if (spec.window > 0 && !spec.causal) hidden = hidden.logical_or(key >= query + spec.window);
  scores = scores.unflatten(1, {group, tokens})
               .masked_fill(hidden, -std::numeric_limits<float>::infinity())
               .flatten(1, 2);
  if (spec.sinks.has_value()) {
    const at::Tensor sinks = weights_.Vector(*spec.sinks)
                                 .view({spec.num_kv_heads, group, 1})
                                 .expand({spec.num_kv_heads, group, tokens})
                                 .reshape({spec.num_kv_heads, group * tokens, 1});
    scores = at::cat({scores, sinks}, -1);
  }
  const at::Tensor shares = scores.softmax(-1).narrow(-1, 0, keys.size(0)).to(q.scalar_type());
  const at::Tensor out = at::bmm(shares, values.transpose(0, 1));
  return out.unflatten(1, {group, tokens}).permute({2, 0, 1, 3}).reshape({tokens, -1});
}

at::Tensor TorchOps::AttendRow(int32_t layer, const AttentionSpec& spec, const at::Tensor& query,
                               const Row& row) const {
  const at::Tensor q = query.narrow(0, row.first_token, row.num_tokens)
                           .unflatten(-1, {spec.num_heads, QuerySize(spec)})
                           .narrow(-1, 0, spec.head_size);
  // Blocks before the window may be gone.
  const int64_t seen =
      spec.causal && spec.window > 0 ? std::max<int64_t>(row.start - spec.window + 1, 0) : 0;
  const int64_t first_block = seen / kv_.block_size;
  const int64_t first = first_block * kv_.block_size;  // the first key's position
  const int64_t length = row.start + row.num_tokens - first;
  const at::Tensor blocks = Indexes(row.block_tables[kv_.groups[layer]].data() + first_block,
                                    (length + kv_.block_size - 1) / kv_.block_size);
  const auto gather = [&](const at::Tensor& pages) {
    return pages.unflatten(0, {-1, kv_.block_size})
        .index_select(0, blocks)
        .flatten(0, 1)
        .narrow(0, 0, length);
  };
  const at::Tensor keys = gather(kv_.keys[layer]);
  const at::Tensor values = gather(kv_.values[layer]);
  const int64_t some = std::max<int64_t>(1, kScores / (spec.num_heads * length));
  std::vector<at::Tensor> outs;
  for (int64_t i = 0; i < row.num_tokens; i += some) {
    const int64_t count = std::min(some, row.num_tokens - i);
    outs.push_back(AttendSome(spec, q.narrow(0, i, count), row.start + i - first, keys, values));
  }
  return at::cat(outs);
}

LinearInput TorchOps::Attention(int32_t layer, const AttentionSpec& spec, const Query& query,
                                Consumers) {
  std::vector<at::Tensor> outs;
  for (const Row& row : rows_) outs.push_back(AttendRow(layer, spec, Values(query), row));
  at::Tensor out = at::cat(outs);
  if (spec.output_gate) {
    const at::Tensor gates = Values(query)
                                 .unflatten(-1, {spec.num_heads, QuerySize(spec)})
                                 .narrow(-1, spec.head_size, spec.head_size);
    out = (out.to(at::kFloat) * gates.to(at::kFloat).sigmoid().flatten(1)).to(out.scalar_type());
  }
  return AsLinearInput(out);
}

Logits TorchOps::Head(LinearId weight, const LogitSpec& spec, const LinearInput& x) {
  const std::vector<int>& wanted = step_->wanted;
  return std::make_unique<TorchBuffer<LogitsBuffer>>(
      Values(x).index_select(0, Indexes(wanted.data(), wanted.size())), weight, spec);
}

void TorchOps::Sample(const Logits& logits) {
  const std::vector<SampleRequest>& samples = step_->samples;
  const at::Tensor& wanted = Values(logits);
  const LogitSpec& spec = logits->spec;
  sampler_.Begin(samples.size());
  for (int64_t first = 0; first < wanted.size(0); first += kLogitRows) {
    const int64_t count = std::min(kLogitRows, wanted.size(0) - first);
    at::Tensor panel = Product(logits->head, wanted.narrow(0, first, count)).to(at::kFloat);
    panel = panel * spec.factor;
    if (const float cap = spec.soft_cap; cap != 0) panel = at::tanh(panel / cap) * cap;
    std::vector<size_t> which(count);
    std::iota(which.begin(), which.end(), first);
    sampler_.Sample(panel, samples, which);
  }
}

}  // namespace millrace::aten
