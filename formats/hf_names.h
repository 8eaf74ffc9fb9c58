// How Hugging Face's transformers spells the tensors of the families that we know.
#ifndef MILLRACE_FORMATS_HF_NAMES_H_
#define MILLRACE_FORMATS_HF_NAMES_H_

#include <string>
#include <string_view>
#include <vector>

#include "formats/model_config.h"

namespace millrace {

// Where families spell alike what is different.
struct HfDialect {
  bool post_norms = false;     // ModelConfig's
  bool fused_gate_up = false;  // ModelConfig's
  bool bert = false;           // an encoder
};
HfDialect DialectOf(const ModelConfig& config);

// "blk.3.attn_q.weight" to "model.layers.3.self_attn.q_proj.weight". The scales of FP8 models have
// several spellings, the usual one first: a .weight_scale is also a .weight_scale_inv (DeepSeek's,
// and despite its name multiplied alike), and blk.N.attn.k_scale belongs to self_attn,
// self_attn.attn or self_attn.k_proj. BERT's stand at the top or, of a model with a head, beneath
// "bert."; a layer norm's weight and bias were once called gamma and beta. A name that has no
// translation is returned as it is.
std::vector<std::string> HfNames(std::string_view gguf_name, const HfDialect& dialect = {});

}  // namespace millrace

#endif  // MILLRACE_FORMATS_HF_NAMES_H_
