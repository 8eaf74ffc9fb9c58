// A mixture of experts through ATen, expert by expert.
#include <limits>
#include <tuple>

#include "executors/torch/op_util.h"
#include "executors/torch/torch_ops.h"

namespace millrace::aten {
namespace {

struct Routes {
  at::Tensor experts;  // [tokens, chosen]
  at::Tensor scores;   // the same, float32
};

// The first of equal numbers comes first.
at::Tensor Best(const at::Tensor& numbers, int64_t count) {
  return std::get<1>(at::sort(numbers, /*stable=*/true, -1, /*descending=*/true))
      .narrow(-1, 0, count);
}

// Hides the experts of all but the best groups, each of which counts as the sum of its two best.
at::Tensor OfBestGroups(const RouterConfig& router, const at::Tensor& ranks) {
  const at::Tensor groups = ranks.unflatten(-1, {router.groups, -1});
  const int64_t best = std::min<int64_t>(2, groups.size(-1));
  const at::Tensor sums = std::get<0>(groups.topk(best, -1)).sum(-1);
  const at::Tensor kept =
      at::zeros_like(sums).scatter(-1, Best(sums, router.chosen_groups), 1.0).unsqueeze(-1);
  return groups.masked_fill(kept == 0, -std::numeric_limits<float>::infinity()).flatten(-2);
}

Routes RoutesOf(const RouterConfig& router, const at::Tensor& logits,
                const at::Tensor& correction) {
  const at::Tensor scores =
      router.scores == RouterConfig::Scores::kSoftmax ? logits.softmax(-1) : logits.sigmoid();
  at::Tensor ranks = correction.defined() ? scores + correction : scores;
  if (router.groups > 1) ranks = OfBestGroups(router, ranks);
  const at::Tensor experts = Best(ranks, router.chosen);
  at::Tensor chosen = scores.gather(-1, experts);
  if (router.renormalize) {
    chosen = chosen / (chosen.sum(-1, /*keepdim=*/true) + 1e-20);  // sigmoids may all be 0
  }
  return {experts, chosen * router.factor};
}

}  // namespace

at::Tensor TorchOps::Gated(LinearId weight, const at::Tensor& x, GateFunction function) const {
  if (function == GateFunction::kSquaredRelu) {
    return Product(weight, x).to(at::kFloat).relu().square().to(x.scalar_type());
  }
  const std::vector<at::Tensor> both = Product(weight, x).chunk(2, -1);
  const at::Tensor gate = both[0].to(at::kFloat);
  const at::Tensor up = both[1].to(at::kFloat);
  const auto gated = [&]() -> at::Tensor {
    switch (function) {
      case GateFunction::kSilu:
        return at::silu(gate) * up;
      case GateFunction::kGeluTanh:
        return at::gelu(gate, "tanh") * up;
      case GateFunction::kGelu:
        return at::gelu(gate, "none") * up;
      case GateFunction::kClampedSwish:
      case GateFunction::kSquaredRelu:  // has no gate
        break;
    }
    const at::Tensor bounded = gate.clamp_max(7.0);
    return bounded * at::sigmoid(1.702 * bounded) * (up.clamp(-7.0, 7.0) + 1);
  };
  return gated().to(x.scalar_type());
}

LinearInput TorchOps::Mixture(const MixtureWeights& weights, const MixtureSpec& spec,
                              const LinearInput& input, const Addend& addend, Residual& residual,
                              std::optional<NormId> norm, Consumers consumers) {
  const at::Tensor& x = Values(input);
  const Matrix& router = weights_.Linear(weights.router);
  // The logits of the experts come first, then that of the shared expert's gate.
  const at::Tensor logits = at::linear(x.to(at::kFloat), router.weight, router.bias);
  const Routes routes =
      RoutesOf(spec.router, logits.narrow(-1, 0, spec.router.experts), router.correction);
  const Share& owned = weights_.Linear(weights.gate_up).experts;
  const int64_t hidden = weights_.Linear(weights.down).weight.size(0);
  const at::Tensor outputs =
      at::zeros({x.size(0), spec.router.chosen, hidden}, x.options().dtype(at::kFloat));
  for (int64_t i = 0; i < owned.count; ++i) {
    const at::Tensor slots = (routes.experts == owned.begin + i).nonzero();  // (token, slot)
    if (slots.size(0) == 0) continue;
    const at::Tensor tokens = slots.select(1, 0);
    const at::Tensor gated =
        Gated(TorchWeights::Expert(weights.gate_up, i), x.index_select(0, tokens), spec.function);
    outputs.index_put_({tokens, slots.select(1, 1)},
                       Product(TorchWeights::Expert(weights.down, i), gated).to(at::kFloat));
  }
  at::Tensor y = (outputs * routes.scores.unsqueeze(-1)).sum(1);
  if (const auto& shared = weights.shared; shared.has_value()) {
    at::Tensor of_shared =
        Product(shared->down, Gated(shared->gate_up, x, spec.function)).to(at::kFloat);
    if (shared->gated) of_shared = of_shared * logits.narrow(-1, spec.router.experts, 1).sigmoid();
    y = y + of_shared;
  }
  AddToResidual(addend, y.to(x.scalar_type()), residual);
  return Norm(norm, residual, consumers);
}

}  // namespace millrace::aten
