#include "formats/hf_names.h"

#include "base/strings.h"

namespace millrace {
namespace {

struct Spelling {
  std::string_view gguf;
  std::string_view hf;
};

constexpr Spelling kOutside[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};

constexpr Spelling kInLayer[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_q_norm", "self_attn.q_norm"}, {"attn_k_norm", "self_attn.k_norm"},
    {"attn_qkv", "self_attn.qkv_proj"},  {"attn_output", "self_attn.o_proj"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};

// "post_attention_layernorm" follows attention in the one, and comes before the feed-forward
// network in the other.
constexpr Spelling kBothNorms[] = {{"post_attention_norm", "post_attention_layernorm"},
                                   {"ffn_norm", "pre_feedforward_layernorm"},
                                   {"post_ffw_norm", "post_feedforward_layernorm"}};
constexpr Spelling kPreNorms[] = {{"ffn_norm", "post_attention_layernorm"}};

constexpr Spelling kFused[] = {{"ffn_up", "mlp.gate_up_proj"}};

constexpr Spelling kBertOutside[] = {{"token_embd", "embeddings.word_embeddings"},
                                     {"position_embd", "embeddings.position_embeddings"},
                                     {"token_types", "embeddings.token_type_embeddings"},
                                     {"token_embd_norm", "embeddings.LayerNorm"}};

constexpr Spelling kBertInLayer[] = {{"attn_q", "attention.self.query"},
                                     {"attn_k", "attention.self.key"},
                                     {"attn_v", "attention.self.value"},
                                     {"attn_output", "attention.output.dense"},
                                     {"attn_output_norm", "attention.output.LayerNorm"},
                                     {"ffn_up", "intermediate.dense"},
                                     {"ffn_down", "output.dense"},
                                     {"layer_output_norm", "output.LayerNorm"}};

template <size_t kCount>
std::string_view Translate(const Spelling (&spellings)[kCount], std::string_view gguf) {
  for (const Spelling& spelling : spellings) {
    if (spelling.gguf == gguf) return spelling.hf;
  }
  return {};
}

// `module`, its tensor `part` in every spelling.
std::vector<std::string> Spell(const std::string& module, std::string_view part) {
  if (part == "weight_scale") return {module + ".weight_scale", module + ".weight_scale_inv"};
  return {StrCat(module, ".", part)};
}

// A BERT's `module`, without "blk." and in `layer` if it is of one.
std::vector<std::string> BertNames(const std::string& layer, std::string_view module,
                                   std::string_view part) {
  const std::string_view hf =
      layer.empty() ? Translate(kBertOutside, module) : Translate(kBertInLayer, module);
  if (hf.empty()) return {};
  const std::string name = StrCat(layer, hf, ".");
  std::vector<std::string_view> parts = {part};
  if (hf.ends_with("LayerNorm")) parts.push_back(part == "weight" ? "gamma" : "beta");
  std::vector<std::string> names;
  for (const std::string_view prefix : {"", "bert."}) {
    for (const std::string_view spelling : parts) names.push_back(StrCat(prefix, name, spelling));
  }
  return names;
}

}  // namespace

HfDialect DialectOf(const ModelConfig& config) {
  return {.post_norms = config.post_norms,
          .fused_gate_up = config.fused_gate_up,
          .bert = config.encoder.has_value()};
}

std::vector<std::string> HfNames(std::string_view gguf_name, const HfDialect& dialect) {
  std::vector<std::string> as_it_is = {std::string(gguf_name)};
  const size_t dot = gguf_name.rfind('.');
  if (dot == gguf_name.npos) return as_it_is;
  std::string_view module = gguf_name.substr(0, dot);
  const std::string_view part = gguf_name.substr(dot + 1);
  if (!module.starts_with("blk.")) {
    if (dialect.bert) {
      std::vector<std::string> names = BertNames("", module, part);
      return names.empty() ? as_it_is : names;
    }
    const std::string_view hf = Translate(kOutside, module);
    return hf.empty() ? as_it_is : Spell(std::string(hf), part);
  }
  module.remove_prefix(4);
  const size_t end = module.find('.');
  if (end == module.npos) return as_it_is;
  const std::string_view number = module.substr(0, end);
  module.remove_prefix(end + 1);
  if (dialect.bert) {
    std::vector<std::string> names = BertNames(StrCat("encoder.layer.", number, "."), module, part);
    return names.empty() ? as_it_is : names;
  }
  const std::string layer = StrCat("model.layers.", number, ".");
  if (module == "attn" && (part == "k_scale" || part == "v_scale")) {
    const std::string attention = layer + "self_attn.";
    const std::string projection = StrCat(attention, part.substr(0, 1), "_proj.");
    return {StrCat(attention, part), StrCat(attention, "attn.", part), StrCat(projection, part),
            projection + "output_scale"};
  }
  std::string_view hf;
  if (dialect.fused_gate_up) hf = Translate(kFused, module);
  if (hf.empty()) hf = Translate(kInLayer, module);
  if (hf.empty())
    hf = dialect.post_norms ? Translate(kBothNorms, module) : Translate(kPreNorms, module);
  return hf.empty() ? as_it_is : Spell(StrCat(layer, hf), part);
}

}  // namespace millrace
