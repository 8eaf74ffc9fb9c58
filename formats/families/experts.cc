#include "formats/families/experts.h"

#include <algorithm>
#include <string>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr char kChosen[] = "num_experts_per_tok";
constexpr char kAnyFamilys[] = "num_local_experts";

// Values of expert_gating_func.
constexpr int kGatingSoftmax = 1;
constexpr int kGatingSigmoid = 2;
constexpr int kGatingSoftmaxOfChosen = 3;

// Refuses a key that is there and is another number than `expected`, or than `same`, which means no
// more than that.
absl::Status Expect(const GgufReader& file, std::string_view name, int expected, int same) {
  MILLRACE_ASSIGN_OR_RETURN(const int value, file.IntOr(name, 1 << 30, expected, 0));
  if (value == expected || value == same) return absl::OkStatus();
  return file.Unsupported(file.Key(name), StrCat(value, " is not supported, only ", expected));
}

// Returns what is wrong with so many experts in a layer, or an empty text. All layers count, also
// those that turn out to have none.
std::string CheckExperts(int experts, int layers) {
  if (experts <= kMaxAllExperts / layers) return {};
  return StrCat("is ", experts, ", times ", layers, " layers; allowed: ", kMaxAllExperts,
                " in all");
}

}  // namespace

std::string CheckRouter(const RouterConfig& router) {
  if (router.experts % router.groups != 0) {
    return StrCat(router.groups, " groups do not divide the ", router.experts, " experts");
  }
  const int group = router.experts / router.groups;
  if (router.groups > 1 && group < 2) return "groups of one expert have no two best ones";
  if (router.chosen_groups > router.groups) {
    return StrCat(router.chosen_groups, " groups of ", router.groups, " are chosen");
  }
  if (router.chosen > router.chosen_groups * group) {
    return StrCat(router.chosen, " experts of ", router.chosen_groups * group, " are chosen");
  }
  return {};
}

absl::StatusOr<RouterConfig> ReadHfRouter(const HfReader& config, std::string_view experts,
                                          RouterConfig router) {
  const bool by_own_name = config.fields().Find(experts) != nullptr;
  const bool by_other = experts != kAnyFamilys && config.fields().Find(kAnyFamilys) != nullptr;
  const std::string_view name = by_own_name || !by_other ? experts : kAnyFamilys;
  MILLRACE_ASSIGN_OR_RETURN(router.experts, config.Int(name, kMaxExperts));
  MILLRACE_ASSIGN_OR_RETURN(const int layers, config.Int("num_hidden_layers", kMaxLayers));
  if (const std::string wrong = CheckExperts(router.experts, layers); !wrong.empty()) {
    return config.fields().Bad(name, wrong);
  }
  if (by_own_name && by_other) {
    MILLRACE_ASSIGN_OR_RETURN(const int other, config.Int(kAnyFamilys, kMaxExperts));
    if (other != router.experts) {
      return config.fields().Bad(kAnyFamilys,
                                 StrCat("is ", other, ", but ", experts, " is ", router.experts));
    }
  }
  MILLRACE_ASSIGN_OR_RETURN(router.chosen, config.Int(kChosen, kMaxExperts));
  if (const std::string wrong = CheckRouter(router); !wrong.empty()) {
    return config.fields().Bad(kChosen, wrong);
  }
  return router;
}

absl::StatusOr<RouterConfig> ReadGgufRouter(const GgufReader& file, RouterConfig router) {
  MILLRACE_ASSIGN_OR_RETURN(router.experts, file.Int("expert_count", kMaxExperts));
  MILLRACE_ASSIGN_OR_RETURN(const int layers, file.Int("block_count", kMaxLayers));
  if (const std::string wrong = CheckExperts(router.experts, layers); !wrong.empty()) {
    return file.Lies(StrCat("key ", file.Key("expert_count")), wrong);
  }
  MILLRACE_ASSIGN_OR_RETURN(router.chosen, file.Int("expert_used_count", kMaxExperts));
  MILLRACE_ASSIGN_OR_RETURN(router.factor, file.FactorOr("expert_weights_scale", router.factor));
  const bool softmax = router.scores == RouterConfig::Scores::kSoftmax;
  MILLRACE_RETURN_IF_ERROR(Expect(file, "expert_gating_func",
                                  softmax ? kGatingSoftmax : kGatingSigmoid,
                                  softmax && router.renormalize ? kGatingSoftmaxOfChosen : 0));
  MILLRACE_RETURN_IF_ERROR(
      Expect(file, "expert_group_count", router.groups, router.groups == 1 ? 0 : router.groups));
  MILLRACE_RETURN_IF_ERROR(Expect(file, "expert_group_used_count", router.chosen_groups,
                                  router.groups == 1 ? 0 : router.chosen_groups));
  if (const std::string key = file.Key("expert_weights_norm"); file.file().Find(key) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(const bool norm, file.file().Bool(key));
    if (norm != router.renormalize) {
      return file.Unsupported(key, StrCat(norm ? "true" : "false", " is not supported"));
    }
  }
  for (const char* name : {"expert_group_scale", "experts_per_group", "router_logit_softcapping",
                           "swiglu_clamp_exp", "swiglu_clamp_shexp", "moe_every_n_layers"}) {
    if (const std::string key = file.Key(name); file.file().Find(key) != nullptr) {
      return file.Unsupported(key, "is not supported");
    }
  }
  if (const std::string wrong = CheckRouter(router); !wrong.empty()) {
    return file.Lies(StrCat("key ", file.Key("expert_used_count")), wrong);
  }
  return router;
}

absl::StatusOr<RouterConfig> ReadHfGroupRouter(const HfReader& config) {
  RouterConfig router{.scores = RouterConfig::Scores::kSigmoid, .correction = true};
  MILLRACE_ASSIGN_OR_RETURN(router.renormalize, config.fields().BoolOr("norm_topk_prob", true));
  MILLRACE_ASSIGN_OR_RETURN(router.factor, config.FactorOr("routed_scaling_factor", 1));
  MILLRACE_ASSIGN_OR_RETURN(router.groups, config.IntOr("n_group", kMaxExperts, 1));
  MILLRACE_ASSIGN_OR_RETURN(router.chosen_groups, config.IntOr("topk_group", kMaxExperts, 1));
  return ReadHfRouter(config, "n_routed_experts", router);
}

absl::StatusOr<RouterConfig> ReadGgufGroupRouter(const GgufReader& file) {
  RouterConfig router{.scores = RouterConfig::Scores::kSigmoid, .correction = true};
  const std::string norm = file.Key("expert_weights_norm");
  if (file.file().Find(norm) != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(router.renormalize, file.file().Bool(norm));
  }
  MILLRACE_ASSIGN_OR_RETURN(router.groups, file.IntOr("expert_group_count", kMaxExperts, 1));
  MILLRACE_ASSIGN_OR_RETURN(router.chosen_groups,
                            file.IntOr("expert_group_used_count", kMaxExperts, 1));
  return ReadGgufRouter(file, router);
}

absl::StatusOr<int> ReadGgufExpertSize(const GgufReader& file, const RouterConfig& router,
                                       const ModelConfig& model) {
  return file.IntOr("expert_feed_forward_length", kMaxWidth,
                    std::max(1, model.layers[0].ffn_size() / router.chosen));
}

void SetExperts(const ExpertsFeedForward& experts, ModelConfig* model) {
  SetExperts(
      experts, [](int) { return true; }, model);
}

void SetExperts(const ExpertsFeedForward& experts,
                const std::function<bool(int layer)>& has_experts, ModelConfig* model) {
  for (int i = 0; i < model->num_layers(); ++i) {
    if (has_experts(i)) model->layers[i].feed_forward = experts;
  }
}

}  // namespace millrace
