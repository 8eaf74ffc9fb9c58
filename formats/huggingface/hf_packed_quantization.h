// Reads how a Hugging Face folder describes linears with weights of four bits.
#ifndef MILLRACE_FORMATS_HUGGINGFACE_HF_PACKED_QUANTIZATION_H_
#define MILLRACE_FORMATS_HUGGINGFACE_HF_PACKED_QUANTIZATION_H_

#include "absl/status/statusor.h"
#include "formats/huggingface/hf_quantization.h"
#include "formats/json/json_fields.h"

namespace millrace {

// Each reads a `quantization_config` of its dialect. UNIMPLEMENTED, naming the field, for another
// number of bits, another layout, overrides of some modules, and a quantized head.

// Reads quant_method gptq, as AutoGPTQ and GPTQModel write it: checkpoint_format gptq or gptq_v2.
absl::StatusOr<HfQuantization> ReadGptq(const JsonFields& config);

// Reads quant_method awq, as AutoAWQ writes it: version gemm, with zero points.
absl::StatusOr<HfQuantization> ReadAwq(const JsonFields& config);

// Reads the weights of the one group of compressed-tensors' format pack-quantized.
absl::StatusOr<QuantScheme> ReadPackQuantized(const JsonFields& group);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_HUGGINGFACE_HF_PACKED_QUANTIZATION_H_
