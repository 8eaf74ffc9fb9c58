#include "formats/distributed/name_rules.h"

#include <algorithm>
#include <optional>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

struct Match {
  std::vector<std::string_view> numbers;
  std::string_view rest;
};

std::optional<Match> MatchName(std::string_view pattern, std::string_view name) {
  Match match;
  while (!pattern.empty()) {
    if (pattern == "*") {
      match.rest = name;
      return match;
    }
    if (pattern.front() == '#') {
      const size_t digits = std::find_if_not(name.begin(), name.end(), IsDigit) - name.begin();
      if (digits == 0) return std::nullopt;
      match.numbers.push_back(name.substr(0, digits));
      name.remove_prefix(digits);
    } else {
      if (name.empty() || name.front() != pattern.front()) return std::nullopt;
      name.remove_prefix(1);
    }
    pattern.remove_prefix(1);
  }
  if (!name.empty()) return std::nullopt;
  return match;
}

std::string Filled(std::string_view to, const Match& match) {
  std::string filled;
  size_t next = 0;
  for (const char c : to) {
    if (c == '#' && next < match.numbers.size()) {
      filled += match.numbers[next++];
    } else if (c == '*') {
      filled += match.rest;
    } else {
      filled += c;
    }
  }
  return filled;
}

std::optional<NameAction> ActionOf(std::string_view word) {
  if (word == "untied") return NameAction::kUntied;
  if (word == "rotary-q") return NameAction::kRotaryQ;
  if (word == "rotary-k") return NameAction::kRotaryK;
  if (word == "experts") return NameAction::kExperts;
  return std::nullopt;
}

// Returns what is wrong with a rule; empty if nothing is.
std::string_view Fault(const NameRule& rule) {
  for (const std::string* name : {&rule.from, &rule.to}) {
    const size_t star = name->find('*');
    if (star != name->npos && star + 1 != name->size()) return "* may only stand at the end";
  }
  if (rule.action == NameAction::kLeaveOut) return {};
  const auto count = [](const std::string& name, char c) {
    return std::count(name.begin(), name.end(), c);
  };
  const bool experts = rule.action == NameAction::kExperts;
  if (count(rule.to, '#') != count(rule.from, '#') + (experts ? 1 : 0)) {
    return experts ? "the second name must have one # more than the first, for the expert"
                   : "both names must have as many #";
  }
  if (count(rule.to, '*') != count(rule.from, '*')) return "both names must end with *, or neither";
  return {};
}

}  // namespace

const std::string_view kTorchtitanLlama3Rules = R"(
tok_embeddings.weight                    model.embed_tokens.weight
layers.#.attention.qkv_linear.wq.weight  model.layers.#.self_attn.q_proj.weight  rotary-q
layers.#.attention.qkv_linear.wk.weight  model.layers.#.self_attn.k_proj.weight  rotary-k
layers.#.attention.qkv_linear.wv.weight  model.layers.#.self_attn.v_proj.weight
layers.#.attention.wq.weight             model.layers.#.self_attn.q_proj.weight  rotary-q
layers.#.attention.wk.weight             model.layers.#.self_attn.k_proj.weight  rotary-k
layers.#.attention.wv.weight             model.layers.#.self_attn.v_proj.weight
layers.#.attention.wo.weight             model.layers.#.self_attn.o_proj.weight
layers.#.feed_forward.w1.weight          model.layers.#.mlp.gate_proj.weight
layers.#.feed_forward.w2.weight          model.layers.#.mlp.down_proj.weight
layers.#.feed_forward.w3.weight          model.layers.#.mlp.up_proj.weight
layers.#.attention_norm.weight           model.layers.#.input_layernorm.weight
layers.#.ffn_norm.weight                 model.layers.#.post_attention_layernorm.weight
norm.weight                              model.norm.weight
lm_head.weight                           lm_head.weight  untied
output.weight                            lm_head.weight  untied
freqs_cis                                -
)";

const std::string_view kTorchtitanQwen3Rules = R"(
tok_embeddings.weight                    model.embed_tokens.weight
layers.#.attention.qkv_linear.wq.weight  model.layers.#.self_attn.q_proj.weight
layers.#.attention.qkv_linear.wk.weight  model.layers.#.self_attn.k_proj.weight
layers.#.attention.qkv_linear.wv.weight  model.layers.#.self_attn.v_proj.weight
layers.#.attention.wq.weight             model.layers.#.self_attn.q_proj.weight
layers.#.attention.wk.weight             model.layers.#.self_attn.k_proj.weight
layers.#.attention.wv.weight             model.layers.#.self_attn.v_proj.weight
layers.#.attention.wo.weight             model.layers.#.self_attn.o_proj.weight
layers.#.attention.q_norm.weight         model.layers.#.self_attn.q_norm.weight
layers.#.attention.k_norm.weight         model.layers.#.self_attn.k_norm.weight
layers.#.feed_forward.w1.weight          model.layers.#.mlp.gate_proj.weight
layers.#.feed_forward.w2.weight          model.layers.#.mlp.down_proj.weight
layers.#.feed_forward.w3.weight          model.layers.#.mlp.up_proj.weight
layers.#.moe.router.gate.weight          model.layers.#.mlp.gate.weight
layers.#.moe.experts.w1                  model.layers.#.mlp.experts.#.gate_proj.weight  experts
layers.#.moe.experts.w2                  model.layers.#.mlp.experts.#.down_proj.weight  experts
layers.#.moe.experts.w3                  model.layers.#.mlp.experts.#.up_proj.weight    experts
layers.#.moe.routed_experts.inner_experts.w1_EFD  model.layers.#.mlp.experts.#.gate_proj.weight  experts
layers.#.moe.routed_experts.inner_experts.w2_EDF  model.layers.#.mlp.experts.#.down_proj.weight  experts
layers.#.moe.routed_experts.inner_experts.w3_EFD  model.layers.#.mlp.experts.#.up_proj.weight    experts
layers.#.attention_norm.weight           model.layers.#.input_layernorm.weight
layers.#.ffn_norm.weight                 model.layers.#.post_attention_layernorm.weight
norm.weight                              model.norm.weight
lm_head.weight                           lm_head.weight  untied
output.weight                            lm_head.weight  untied
rope_cache                               -
)";

absl::StatusOr<std::vector<NameRule>> ParseNameRules(std::string_view text, std::string_view file) {
  std::vector<NameRule> rules;
  int number = 0;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string line(Trim(text.substr(0, end)));
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.empty() || line == "#" || line.starts_with("# ")) continue;
    const auto bad = [&](std::string_view what) {
      return absl::InvalidArgumentError(StrCat(file, ":", number, ": ", what));
    };
    std::replace(line.begin(), line.end(), '\t', ' ');
    const std::vector<std::string_view> words = SplitList(line, ' ');
    if (words.size() < 2 || words.size() > 3) {
      return bad(
          StrCat("got ", words.size(), " words, expected FROM TO, FROM TO ACTION or FROM -"));
    }
    NameRule rule{std::string(words[0]), std::string(words[1])};
    if (rule.to == "-") rule.action = NameAction::kLeaveOut;
    if (words.size() == 3) {
      const std::optional<NameAction> action = ActionOf(words[2]);
      if (!action.has_value() || rule.to == "-") {
        return bad(StrCat("got action \"", Printable(words[2]),
                          "\", expected untied, rotary-q, rotary-k or experts, and none behind -"));
      }
      rule.action = *action;
    }
    if (const std::string_view fault = Fault(rule); !fault.empty()) return bad(fault);
    rules.push_back(std::move(rule));
  }
  if (rules.empty()) return absl::InvalidArgumentError(StrCat(file, ": has no rules"));
  return rules;
}

const NameRule* FindNameRule(const std::vector<NameRule>& rules, std::string_view name,
                             std::string* to) {
  for (const NameRule& rule : rules) {
    const std::optional<Match> match = MatchName(rule.from, name);
    if (!match.has_value()) continue;
    *to = Filled(rule.to, *match);
    return &rule;
  }
  return nullptr;
}

}  // namespace millrace
