// The ops that encoders have beside those of decoders.
#include <algorithm>
#include <vector>

#include "executors/torch/op_util.h"
#include "executors/torch/torch_ops.h"

namespace millrace::aten {

at::Tensor TorchOps::LayerNormOf(NormId norm, const at::Tensor& x) const {
  const NormWeight& weight = weights_.Norm(norm);
  return at::layer_norm(x.to(at::kFloat), weight.scale.sizes(), weight.scale, weight.bias,
                        weight.epsilon)
      .to(x.scalar_type());
}

Residual TorchOps::EmbedAll(const EmbeddingTables& tables, NormId norm) {
  const std::vector<Token>& tokens = step_->tokens;
  std::vector<int32_t> types = step_->types;
  for (int32_t& type : types) type = type < tables.num_types ? type : 0;
  const at::Tensor sum =
      weights_.Table(tables.tokens).index_select(0, Indexes(tokens.data(), tokens.size())) +
      weights_.Table(tables.positions)
          .index_select(0, positions_.to(at::kLong) + tables.first_position) +
      weights_.Table(tables.types).index_select(0, Indexes(types.data(), types.size()));
  return std::make_unique<TorchBuffer<ResidualBuffer>>(LayerNormOf(norm, sum));
}

LinearInput TorchOps::AsInput(const Residual& hidden, Consumers) {
  return AsLinearInput(Values(hidden));
}

void TorchOps::AddLinear(LinearId weight, const LinearInput& x, NormId norm, Residual& hidden) {
  Values(hidden) = LayerNormOf(norm, Values(hidden) + Product(weight, Values(x)));
}

LinearInput TorchOps::GeluLinear(LinearId weight, const LinearInput& x, Consumers) {
  return AsLinearInput(at::gelu(Product(weight, Values(x)), "none"));
}

void TorchOps::Pool(const Residual& hidden, Pooling pooling, bool normalize) {
  const at::Tensor states = Values(hidden).to(at::kFloat);
  std::vector<at::Tensor> pooled;
  for (const Row& row : rows_) {
    pooled.push_back(pooling == Pooling::kMean
                         ? states.narrow(0, row.first_token, row.num_tokens).mean(0)
                         : states.select(0, row.first_token));
  }
  at::Tensor rows = at::stack(pooled);
  // As PyTorch's normalize() keeps clear of a division by 0.
  if (normalize) rows = rows / rows.norm(2, {-1}, /*keepdim=*/true).clamp_min(1e-12);
  embeddings_ = rows.contiguous();
}

LinearInput TorchOps::FirstTokens(const Residual& hidden, Consumers) {
  std::vector<int32_t> first;
  for (const Row& row : rows_) first.push_back(static_cast<int32_t>(row.first_token));
  return AsLinearInput(Values(hidden).index_select(0, Indexes(first.data(), first.size())));
}

LinearInput TorchOps::TanhLinear(LinearId weight, const LinearInput& x, Consumers) {
  return AsLinearInput(at::tanh(Product(weight, Values(x))));
}

void TorchOps::Classify(LinearId weight, const LinearInput& x) {
  embeddings_ = Product(weight, Values(x)).to(at::kFloat).contiguous();
}

}  // namespace millrace::aten
