// Recurrent layers through ATen, token by token.
#include <cmath>
#include <vector>

#include "executors/torch/op_util.h"
#include "executors/torch/torch_ops.h"

namespace millrace::aten {
namespace {

// Added to the sum of squares before a query's or a key's length is its root.
constexpr double kLengthEpsilon = 1e-6;

// x: [tokens, heads, size].
at::Tensor OfUnitLength(const at::Tensor& x) {
  return x * at::rsqrt(x.square().sum(-1, /*keepdim=*/true) + kLengthEpsilon);
}

}  // namespace

// products: float32 [tokens, channels and more], of which the row's tokens pass the convolution.
at::Tensor TorchOps::Convolve(int32_t layer, const ConvolutionSpec& spec,
                              const at::Tensor& products, const Row& row) const {
  const at::Tensor& taps = weights_.Vector(spec.weights);  // [inputs, channels]
  const int64_t before = taps.size(0) - 1;
  const at::Tensor kept = kv_.inputs[layer].select(0, row.slot);
  const at::Tensor all = at::cat(
      {kept, products.narrow(0, row.first_token, row.num_tokens).narrow(1, 0, taps.size(1))});
  at::Tensor sum = at::zeros({row.num_tokens, taps.size(1)});
  if (spec.bias.has_value()) sum = sum + weights_.Vector(*spec.bias);
  for (int64_t i = 0; i <= before; ++i) {
    sum = sum + all.narrow(0, i, row.num_tokens) * taps.select(0, i);
  }
  kept.copy_(all.narrow(0, row.num_tokens, before));
  return spec.silu ? at::silu(sum) : sum;
}

// Returns the row's outputs, float32 [tokens, value heads, value size]. betas, decays: of all of
// the step's tokens, [tokens, value heads].
at::Tensor TorchOps::DeltaRow(int32_t layer, const GatedDeltaSpec& spec, const at::Tensor& mixed,
                              const at::Tensor& betas, const at::Tensor& decays,
                              const Row& row) const {
  const int64_t keys = int64_t{spec.key_heads} * spec.key_size;
  const int64_t values = int64_t{spec.value_heads} * spec.value_size;
  const auto heads = [&](int64_t begin) {
    const at::Tensor unit =
        OfUnitLength(mixed.narrow(1, begin, keys).unflatten(-1, {spec.key_heads, spec.key_size}));
    const int64_t each = spec.value_heads / spec.key_heads;
    return spec.in_turns ? unit.repeat({1, each, 1}) : unit.repeat_interleave(each, 1);
  };
  const at::Tensor q = heads(0) / std::sqrt(static_cast<double>(spec.key_size));
  const at::Tensor k = heads(keys);
  const at::Tensor v =
      mixed.narrow(1, 2 * keys, values).unflatten(-1, {spec.value_heads, spec.value_size});
  const at::Tensor state = kv_.states[layer].select(0, row.slot);  // [heads, key size, value size]
  std::vector<at::Tensor> outs;
  for (int64_t i = 0; i < row.num_tokens; ++i) {
    const int64_t token = row.first_token + i;
    const at::Tensor key = k[i].unsqueeze(-1);
    const at::Tensor decayed = state * decays[token].view({-1, 1, 1});
    const at::Tensor seen = (decayed * key).sum(1);
    const at::Tensor delta = (v[i] - seen) * betas[token].unsqueeze(-1);
    state.copy_(decayed + key * delta.unsqueeze(1));
    outs.push_back((state * q[i].unsqueeze(-1)).sum(1));
  }
  return at::stack(outs);
}

LinearInput TorchOps::GatedDelta(int32_t layer, const GatedDeltaSpec& spec,
                                 const GatedDeltaWeights& weights, const LinearInput& x,
                                 Consumers) {
  const at::Tensor products = Product(weights.qkvz, Values(x)).to(at::kFloat);
  const at::Tensor factors = Product(weights.beta_alpha, Values(x)).to(at::kFloat);
  const at::Tensor betas = factors.narrow(1, 0, spec.value_heads).sigmoid();
  const at::Tensor steps = at::softplus(factors.narrow(1, spec.value_heads, spec.value_heads) +
                                        weights_.Vector(spec.time_bias));
  const at::Tensor& a = weights_.Vector(spec.a);
  const at::Tensor decays = at::exp((spec.converted ? a : -a.exp()) * steps);
  std::vector<at::Tensor> outs;
  for (const Row& row : rows_) {
    if (row.start == 0) {
      kv_.inputs[layer].select(0, row.slot).zero_();
      kv_.states[layer].select(0, row.slot).zero_();
    }
    const at::Tensor mixed = Convolve(layer, spec.convolution, products, row);
    outs.push_back(DeltaRow(layer, spec, mixed, betas, decays, row));
  }
  const int64_t width = int64_t{spec.value_heads} * spec.value_size;
  const at::Tensor z = products.narrow(1, products.size(1) - width, width);
  const at::Tensor out = NormOf(spec.norm, at::cat(outs)).flatten(1) * at::silu(z);
  return AsLinearInput(out.to(Values(x).scalar_type()));
}

LinearInput TorchOps::ShortConvolution(int32_t layer, const ShortConvolutionSpec& spec,
                                       LinearId projection, const LinearInput& in, Consumers) {
  const at::Tensor products = Product(projection, Values(in)).to(at::kFloat);
  const std::vector<at::Tensor> parts = products.chunk(3, /*dim=*/1);  // b, c and x
  const at::Tensor inputs = parts[0] * parts[2];
  std::vector<at::Tensor> outs;
  for (const Row& row : rows_) {
    if (row.start == 0) kv_.inputs[layer].select(0, row.slot).zero_();
    outs.push_back(Convolve(layer, spec.convolution, inputs, row));
  }
  return AsLinearInput((parts[1] * at::cat(outs)).to(Values(in).scalar_type()));
}

// Returns the row's outputs, float32 [tokens, heads, head size]. mixed: of the row's tokens, x, b
// and c; steps, decays: of all of the step's tokens, [tokens, heads].
at::Tensor TorchOps::Mamba2Row(int32_t layer, const Mamba2Spec& spec, const at::Tensor& mixed,
                               const at::Tensor& steps, const at::Tensor& decays,
                               const Row& row) const {
  const int64_t inner = int64_t{spec.heads} * spec.head_size;
  const int64_t states = int64_t{spec.groups} * spec.state_size;
  const at::Tensor x = mixed.narrow(1, 0, inner).unflatten(-1, {spec.heads, spec.head_size});
  const auto of_heads = [&](int64_t begin) {
    return mixed.narrow(1, begin, states)
        .unflatten(-1, {spec.groups, spec.state_size})
        .repeat_interleave(spec.heads / spec.groups, 1);
  };
  const at::Tensor b = of_heads(inner);
  const at::Tensor c = of_heads(inner + states);
  const at::Tensor state = kv_.states[layer].select(0, row.slot);  // [heads, state, head size]
  std::vector<at::Tensor> outs;
  for (int64_t i = 0; i < row.num_tokens; ++i) {
    const int64_t token = row.first_token + i;
    const at::Tensor input = (x[i] * steps[token].unsqueeze(-1)).unsqueeze(1);
    state.copy_(state * decays[token].view({-1, 1, 1}) + b[i].unsqueeze(-1) * input);
    outs.push_back((state * c[i].unsqueeze(-1)).sum(1));
  }
  return at::stack(outs) + x * weights_.Vector(spec.d).unsqueeze(-1);
}

LinearInput TorchOps::Mamba2(int32_t layer, const Mamba2Spec& spec, LinearId projection,
                             const LinearInput& in, Consumers) {
  const at::Tensor products = Product(projection, Values(in)).to(at::kFloat);
  const int64_t inner = int64_t{spec.heads} * spec.head_size;
  const int64_t channels = inner + int64_t{2} * spec.groups * spec.state_size;
  const at::Tensor steps = at::softplus(products.narrow(1, inner + channels, spec.heads) +
                                        weights_.Vector(spec.time_bias))
                               .clamp(spec.least_step, spec.largest_step);
  const at::Tensor& a = weights_.Vector(spec.a);
  const at::Tensor decays = at::exp((spec.converted ? a : -a.exp()) * steps);
  const at::Tensor inputs = products.narrow(1, inner, channels);
  std::vector<at::Tensor> outs;
  for (const Row& row : rows_) {
    if (row.start == 0) {
      kv_.inputs[layer].select(0, row.slot).zero_();
      kv_.states[layer].select(0, row.slot).zero_();
    }
    const at::Tensor mixed = Convolve(layer, spec.convolution, inputs, row);
    outs.push_back(Mamba2Row(layer, spec, mixed, steps, decays, row));
  }
  const at::Tensor gated = at::cat(outs).flatten(1) * at::silu(products.narrow(1, 0, inner));
  const NormWeight& norm = weights_.Norm(spec.norm);
  const at::Tensor parts = gated.unflatten(-1, {spec.groups, inner / spec.groups});
  const at::Tensor mean = parts.square().mean(-1, /*keepdim=*/true);
  const at::Tensor out = (parts * at::rsqrt(mean + norm.epsilon)).flatten(1) * norm.scale;
  return AsLinearInput(out.to(Values(in).scalar_type()));
}

}  // namespace millrace::aten
