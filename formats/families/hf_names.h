// Translates between tensor names of Hugging Face's transformers and of GGUF, by a family's
// spellings.
#ifndef MILLRACE_FORMATS_FAMILIES_HF_NAMES_H_
#define MILLRACE_FORMATS_FAMILIES_HF_NAMES_H_

#include <string>
#include <string_view>
#include <vector>

#include "formats/families/family.h"

namespace millrace {

// Translates "blk.3.attn_q.weight" to "model.layers.3.self_attn.q_proj.weight" and its other
// spellings, the usual one first. For all families a .weight_scale is also a .weight_scale_inv
// (DeepSeek's, and despite its name multiplied alike), and the weight and bias of a module that is
// called LayerNorm were once gamma and beta. A name that has no translation is returned as it is.
std::vector<std::string> HfNames(std::string_view gguf_name, const Family& family);

// Translates the name in a folder of a tensor that TensorList::CutExperts cuts to GGUF's; empty for
// others.
std::string StackedGgufName(std::string_view hf_name, const Family& family);

// Translates a name in a GGUF file of the family to the one that tensors are looked up by, mostly
// the same. nullptr: no family's.
std::string GgufName(std::string_view name_in_file, const Family* family);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_FAMILIES_HF_NAMES_H_
