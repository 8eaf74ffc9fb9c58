// The ops that encoders have beside those of decoders.
#include <algorithm>
#include <vector>

#include "executors/torch/op_util.h"
#include "executors/torch/torch_ops.h"

namespace millrace::aten {
namespace {

at::Tensor Apply(HeadFunction function, const at::Tensor& x) {
  switch (function) {
    case HeadFunction::kTanh:
      return at::tanh(x);
    case HeadFunction::kRelu:
      return at::relu(x);
    case HeadFunction::kGelu:
      return at::gelu(x, "none");
    case HeadFunction::kSilu:
      return at::silu(x);
    case HeadFunction::kSigmoid:
      return at::sigmoid(x);
    case HeadFunction::kIdentity:
      break;
  }
  return x;
}

// As PyTorch's normalize() keeps clear of a division by 0.
at::Tensor Normalized(const at::Tensor& rows) {
  return rows / rows.norm(2, {-1}, /*keepdim=*/true).clamp_min(1e-12);
}

}  // namespace

at::Tensor TorchOps::LayerNormOf(NormId norm, const at::Tensor& x) const {
  const NormWeight& weight = weights_.Norm(norm);
  return at::layer_norm(x.to(at::kFloat), weight.scale.sizes(), weight.scale, weight.bias,
                        weight.epsilon)
      .to(x.scalar_type());
}

Residual TorchOps::EmbedAll(const EmbeddingTables& tables, NormId norm) {
  const std::vector<Token>& tokens = step_->tokens;
  at::Tensor sum =
      weights_.Table(tables.tokens).index_select(0, Indexes(tokens.data(), tokens.size()));
  if (tables.positions.has_value()) {
    sum = sum + weights_.Table(*tables.positions)
                    .index_select(0, positions_.to(at::kLong) + tables.first_position);
  }
  if (tables.types.has_value()) {
    std::vector<int32_t> types = step_->types;
    for (int32_t& type : types) type = type < tables.num_types ? type : 0;
    sum = sum + weights_.Table(*tables.types).index_select(0, Indexes(types.data(), types.size()));
  }
  return std::make_unique<TorchBuffer<ResidualBuffer>>(LayerNormOf(norm, sum));
}

LinearInput TorchOps::NormInput(std::optional<NormId> norm, const Residual& hidden, Consumers) {
  return AsLinearInput(norm.has_value() ? LayerNormOf(*norm, Values(hidden)) : Values(hidden));
}

void TorchOps::AddLinear(LinearId weight, const LinearInput& x, std::optional<NormId> norm,
                         Residual& hidden) {
  Values(hidden) = Values(hidden) + Product(weight, Values(x));
  if (norm.has_value()) NormAll(*norm, hidden);
}

void TorchOps::NormAll(NormId norm, Residual& hidden) {
  Values(hidden) = LayerNormOf(norm, Values(hidden));
}

LinearInput TorchOps::GeluLinear(LinearId weight, const LinearInput& x, Consumers) {
  return AsLinearInput(at::gelu(Product(weight, Values(x)), "none"));
}

at::Tensor TorchOps::PooledRows(const Residual& hidden, Pooling pooling) const {
  const at::Tensor states = Values(hidden).to(at::kFloat);
  std::vector<at::Tensor> pooled;
  for (const Row& row : rows_) {
    pooled.push_back(pooling == Pooling::kMean
                         ? states.narrow(0, row.first_token, row.num_tokens).mean(0)
                         : states.select(0, row.first_token));
  }
  return at::stack(pooled);
}

void TorchOps::Pool(const Residual& hidden, Pooling pooling, bool normalize) {
  const at::Tensor rows = PooledRows(hidden, pooling);
  embeddings_ = (normalize ? Normalized(rows) : rows).contiguous();
}

LinearInput TorchOps::PoolRows(const Residual& hidden, Pooling pooling, Consumers) {
  return AsLinearInput(PooledRows(hidden, pooling).to(Values(hidden).scalar_type()));
}

at::Tensor TorchOps::RowsProduct(const HeadLayer& layer, const at::Tensor& x) const {
  const at::Tensor y = Apply(layer.function, Product(layer.linear, x));
  return layer.norm.has_value() ? LayerNormOf(*layer.norm, y) : y;
}

LinearInput TorchOps::RowsLinear(const HeadLayer& layer, const LinearInput& x, Consumers) {
  return AsLinearInput(RowsProduct(layer, Values(x)));
}

void TorchOps::Output(const HeadLayer& layer, const LinearInput& x, bool normalize) {
  const at::Tensor rows = RowsProduct(layer, Values(x)).to(at::kFloat);
  embeddings_ = (normalize ? Normalized(rows) : rows).contiguous();
}

}  // namespace millrace::aten
