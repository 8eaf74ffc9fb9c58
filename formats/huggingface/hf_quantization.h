// Reads how a Hugging Face folder describes quantized linears.
#ifndef MILLRACE_FORMATS_HUGGINGFACE_HF_QUANTIZATION_H_
#define MILLRACE_FORMATS_HUGGINGFACE_HF_QUANTIZATION_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "formats/json/json_fields.h"
#include "formats/model/model_config.h"

namespace millrace {

struct HfQuantization {
  QuantScheme scheme;
  std::vector<std::string> unquantized;  // modules left alone, as the file spells them
};

// Reads a `quantization_config`, in one of the dialects
//   compressed-tensors: FP8 weights per tensor, channel or 128x128 block, inputs static per tensor,
//     or dynamic per token (with blocks: per token and 128 columns);
//   fp8: weights per tensor, inputs static or dynamic; or, with weight_block_size, DeepSeek's
//     128x128 blocks (arXiv:2412.19437);
//   fbgemm_fp8: weights per channel, inputs dynamic per token;
//   modelopt: quant_algo FP8, weights and inputs per tensor, inputs static;
//   compressed-tensors' pack-quantized, gptq, awq: weights of 4 bits (hf_packed_quantization.h).
// Everything else that changes the maths is refused by the field's name. So are dynamic scales of a
// whole batch: a token's numbers would depend on its neighbours.
absl::StatusOr<HfQuantization> ReadHfQuantization(const JsonFields& config);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_HUGGINGFACE_HF_QUANTIZATION_H_
