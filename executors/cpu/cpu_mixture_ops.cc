// A mixture of experts: rows that go through the same expert are brought together, so that each
// expert's weights are read once for all of them, and experts without a token not at all.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "executors/cpu/cpu_ops.h"

namespace millrace::cpu {

// Chooses each token's experts and sorts the (token, slot) pairs by expert; in an expert, by token.
// Returns the router's product.
CpuActivation CpuOps::RouteTokens(const MixtureWeights& weights, const MixtureSpec& spec,
                                  const LinearInput& x) {
  const RouterConfig& router = spec.router;
  CpuActivation logits = Product(weights.router, x);
  const std::vector<float>& correction = weights_.Correction(weights.router);
  most_chosen_ = std::max(most_chosen_, static_cast<size_t>(router.chosen));
  const int tokens = logits.rows();
  const size_t slots = static_cast<size_t>(tokens) * router.chosen;
  routes_.chosen.resize(slots);
  pool_.ParallelFor(tokens, [&](int token, int thread) {
    scratch_[thread].chooser.Choose(
        router, {logits.Floats(token), static_cast<size_t>(router.experts)}, correction,
        absl::MakeSpan(routes_.chosen)
            .subspan(static_cast<size_t>(token) * router.chosen, router.chosen));
  });
  // A counting sort of those slots whose experts this rank has.
  const Share& owned = weights_.Owned(weights.gate_up);
  routes_.begins.assign(owned.count + 1, 0);
  const auto local = [&](const RoutedExpert& chosen) { return chosen.expert - owned.begin; };
  const auto is_local = [&](const RoutedExpert& chosen) {
    return local(chosen) >= 0 && local(chosen) < owned.count;
  };
  for (const RoutedExpert& chosen : routes_.chosen) {
    if (is_local(chosen)) ++routes_.begins[local(chosen) + 1];
  }
  for (int64_t i = 0; i < owned.count; ++i) routes_.begins[i + 1] += routes_.begins[i];
  routes_.rows.assign(slots, kNoRow);
  routes_.tokens.resize(routes_.begins.back());
  routes_.next = routes_.begins;
  for (size_t slot = 0; slot < slots; ++slot) {
    if (!is_local(routes_.chosen[slot])) continue;
    const int row = routes_.next[local(routes_.chosen[slot])]++;
    routes_.rows[slot] = row;
    routes_.tokens[row] = static_cast<int>(slot) / router.chosen;
  }
  routes_.panels.clear();
  for (int expert = 0; expert < owned.count; ++expert) {
    const int end = routes_.begins[expert + 1];
    for (int row = routes_.begins[expert]; row < end; row += kPanelTokens) {
      routes_.panels.push_back({expert, row, std::min(kPanelTokens, end - row)});
    }
  }
  return logits;
}

std::vector<std::pair<int, int>> CpuOps::routed_rows() const {
  std::vector<std::pair<int, int>> experts;
  for (int i = 0; i + 1 < static_cast<int>(routes_.begins.size()); ++i) {
    const int rows = routes_.begins[i + 1] - routes_.begins[i];
    if (rows > 0) experts.emplace_back(i, rows);
  }
  return experts;
}

void CpuOps::CountExperts(const MixtureWeights& weights) {
  if (num_mixtures_ == mixture_uses_.size()) {
    const auto bytes = [&](LinearId experts) {
      return static_cast<int64_t>(weights_.Matrix(experts).bytes);
    };
    mixture_uses_.push_back({.experts = static_cast<int32_t>(weights_.Owned(weights.gate_up).count),
                             .expert_bytes = bytes(weights.gate_up) + bytes(weights.down),
                             .touched = 0});
  }
  mixture_uses_[num_mixtures_++].touched += static_cast<int64_t>(routed_rows().size());
}

// Brings the rows of x into the order of the routes, in the forms that the experts read.
std::unique_ptr<CpuLinearInput> CpuOps::GatherRoutes(LinearId experts, const LinearInput& x,
                                                     int chosen) {
  const Inputs in = FormsFor(experts, x);
  auto gathered = std::make_unique<CpuLinearInput>();
  for (const Form form : weights_.Matrix(experts).inputs) {
    gathered->forms.emplace_back(step_memory_, form, step_memory_.rows, in[form].width(), chosen);
  }
  pool_.ParallelFor(static_cast<int>(routes_.tokens.size()), [&](int row, int) {
    for (const CpuActivation& out : gathered->forms) {
      std::memcpy(out.Row(row), in[out.form()].Row(routes_.tokens[row]), out.row_bytes());
    }
  });
  return gathered;
}

CpuOps::Inputs CpuOps::RoutedInputsFor(LinearId experts, const LinearInput& x, int chosen) {
  Inputs inputs = FormsFor(experts, x);
  size_t orders = 0;
  for (int i = 0; i < weights_.Owned(experts).count; ++i) {
    orders = std::max(orders, weights_.Matrix(weights_.Expert(experts, i)).orders.size());
  }
  for (size_t i = 0; i < orders; ++i) {
    inputs.ordered.emplace_back(step_memory_, Form::kQ8, step_memory_.rows,
                                static_cast<int>(weights_.Matrix(experts).columns), chosen);
  }
  if (orders > 0) {
    pool_.ParallelFor(static_cast<int>(routes_.panels.size()), [&](int task, int thread) {
      const Panel& panel = routes_.panels[task];
      const TiledMatrix& matrix = weights_.Matrix(weights_.Expert(experts, panel.expert));
      for (int row = panel.first; row < panel.first + panel.rows; ++row) {
        OrderRow(matrix, row, thread, inputs);
      }
    });
  }
  return inputs;
}

// The experts' gated linears: a task is some outputs for the rows of one panel.
std::unique_ptr<CpuLinearInput> CpuOps::GateExperts(const MixtureWeights& weights,
                                                    GateFunction function, const LinearInput& x,
                                                    int chosen) {
  const Inputs in = RoutedInputsFor(weights.gate_up, x, chosen);
  const TiledMatrix& down = weights_.Matrix(weights.down);
  auto gated = std::make_unique<CpuLinearInput>();
  for (const Form form : down.inputs) {
    gated->forms.emplace_back(step_memory_, form, step_memory_.rows, static_cast<int>(down.columns),
                              chosen);
  }
  const int groups = GateGroups(weights_.Matrix(weights.gate_up), function);
  pool_.ParallelFor(static_cast<int>(routes_.panels.size()) * groups, [&](int task, int thread) {
    const Panel& panel = routes_.panels[task / groups];
    GateGroup(weights_.Expert(weights.gate_up, panel.expert), task % groups, in,
              {panel.first, panel.first + panel.rows}, function, gated->forms, thread);
  });
  return gated;
}

// The experts' down linears, [routed rows, hidden] in floats.
CpuActivation CpuOps::LowerExperts(LinearId experts, const LinearInput& x, int chosen) {
  const TiledMatrix& first = weights_.Matrix(experts);
  const Inputs in = RoutedInputsFor(experts, x, chosen);
  // A pass writes one cache line of each of its rows. The padding gives rows whose size is a power
  // of two different sets of the cache.
  const int width = static_cast<int>(first.rows) + kBlock;
  CpuActivation out(step_memory_, Form::kFloat, step_memory_.rows, width, chosen);
  const int64_t tiles = ChunkTiles(first);
  const int chunks = static_cast<int>((first.tiles + tiles - 1) / tiles);
  pool_.ParallelFor(static_cast<int>(routes_.panels.size()) * chunks, [&](int task, int) {
    const Panel& panel = routes_.panels[task / chunks];
    const LinearId expert = weights_.Expert(experts, panel.expert);
    const TiledMatrix& matrix = weights_.Matrix(expert);
    const std::vector<float>& bias = weights_.Bias(expert);
    const int64_t begin = task % chunks * tiles;
    const int64_t end = std::min(begin + tiles, matrix.tiles);
    for (int row = panel.first; !bias.empty() && row < panel.first + panel.rows; ++row) {
      const int64_t last = std::min(end * kTileRows, matrix.rows);
      std::copy(bias.begin() + begin * kTileRows, bias.begin() + last,
                out.Floats(row) + begin * kTileRows);
    }
    MultiplyTiles(matrix, {begin, end}, in, {panel.first, panel.first + panel.rows},
                  out.Floats(panel.first), out.row_floats(), !bias.empty());
  });
  return out;
}

// y of a token: its experts' outputs times their scores, in the order of the choice.
void CpuOps::CombineExperts(const CpuActivation& lowered, int chosen, const CpuActivation& y) {
  pool_.ParallelFor(y.rows(), [&](int token, int) {
    float* const sum = y.Floats(token);
    std::fill_n(sum, y.row_floats(), 0.0f);
    for (int i = 0; i < chosen; ++i) {
      const size_t slot = static_cast<size_t>(token) * chosen + i;
      if (routes_.rows[slot] == kNoRow) continue;
      const float score = routes_.chosen[slot].score;
      const float* const row = lowered.Floats(routes_.rows[slot]);
      for (int j = 0; j < y.width(); ++j) sum[j] += score * row[j];
    }
  });
}

// y += the shared network's output, times the sigmoid of its gate where it has one: the logit
// behind the experts' in the router's product.
void CpuOps::AddShared(const MixtureWeights::Shared& shared, const MixtureSpec& spec,
                       const LinearInput& x, const CpuActivation& logits, const CpuActivation& y) {
  const LinearInput gated = GatedLinear(shared.gate_up, x, spec.function, {shared.down});
  const CpuActivation lowered = Product(shared.down, gated);
  pool_.ParallelFor(y.rows(), [&](int token, int) {
    float factor = 1;
    if (shared.gated) factor /= 1 + std::exp(-logits.Floats(token)[spec.router.experts]);
    const float* const row = lowered.Floats(token);
    float* const sum = y.Floats(token);
    for (int j = 0; j < y.width(); ++j) sum[j] += factor * row[j];
  });
}

LinearInput CpuOps::Mixture(const MixtureWeights& weights, const MixtureSpec& spec,
                            const LinearInput& x, const Addend& addend, Residual& residual,
                            std::optional<NormId> norm, Consumers consumers) {
  {
    const int chosen = spec.router.chosen;
    const CpuActivation y = Take(Form::kFloat, Values(residual).width());
    const CpuActivation logits = RouteTokens(weights, spec, x);
    CountExperts(weights);
    {
      LinearInput routed = GatherRoutes(weights.gate_up, x, chosen);
      const LinearInput gated = GateExperts(weights, spec.function, routed, chosen);
      routed.reset();
      CombineExperts(LowerExperts(weights.down, gated, chosen), chosen, y);
    }
    if (weights.shared.has_value()) AddShared(*weights.shared, spec, x, logits, y);
    SumRanks(y);
    AddToResidual(addend, y, residual);
  }
  return Norm(norm, residual, consumers);
}

}  // namespace millrace::cpu
