// For tests: the forms in which files hold the experts of a layer, and gated delta rules.
#ifndef MILLRACE_FORMATS_TWINS_FAMILY_TWIN_TENSORS_H_
#define MILLRACE_FORMATS_TWINS_FAMILY_TWIN_TENSORS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "formats/model/layer_config.h"
#include "formats/tensors/tensor.h"
#include "formats/tensors/tensor_list.h"

namespace millrace {

struct TwinTensor {
  std::string name;  // GGUF's
  TensorType type;   // that it is stored in
  std::vector<int64_t> shape;
  std::vector<float> values;
};

// Puts one tensor of all experts of a layer, blk.N.ffn_up_exps.weight [experts, out, in], in the
// place of their own.
std::vector<TwinTensor> StackExperts(const std::vector<TwinTensor>& tensors);

// Joins the gate and up of stacked experts, and of shared ones, in the way that TensorList::
// CutExperts undoes. Tensors in MXFP4 become codes and scales.
std::vector<TwinTensor> JoinGateAndUp(const std::vector<TwinTensor>& stacked, GateOrder order);

// Changes a tensor of a gated delta rule as llama.cpp's converter does, which puts the value heads
// of Qwen3.5 in turns and leaves Qwen3-Next's in their order.
void ConvertDelta(const GatedDelta& delta, const TensorInfo& tensor, std::vector<int64_t>* shape,
                  std::vector<float>* values);

// Cuts blk.N.ssm_in.weight, which has the rows of each key head together, into
// blk.N.attn_qkv.weight and blk.N.attn_gate.weight.
std::vector<TwinTensor> CutDeltaInput(const GatedDelta& delta, const TwinTensor& input);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TWINS_FAMILY_TWIN_TENSORS_H_
