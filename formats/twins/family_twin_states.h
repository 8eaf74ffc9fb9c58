// For tests: what GGUF files say of layers with and without attention, as llama.cpp's converter
// writes it.
#ifndef MILLRACE_FORMATS_TWINS_FAMILY_TWIN_STATES_H_
#define MILLRACE_FORMATS_TWINS_FAMILY_TWIN_STATES_H_

#include <cstdint>
#include <vector>

#include "formats/model/model_config.h"
#include "formats/tensors/tensor.h"
#include "formats/twins/family_twins.h"
#include "formats/twins/gguf_test_util.h"

namespace millrace {

// Returns the attention whose numbers, but for windows and rotations, all layers of a twin that
// have one share. Ends the test program if none has.
const SoftmaxAttention& AttentionOf(const ModelConfig& model);

// Returns the gated delta rule that a twin's layers share, or null.
const GatedDelta* DeltaOf(const ModelConfig& model);

// Writes the heads of keys and values, and the sizes of recurrent layers.
void AddStates(const FamilyTwin& twin, const ModelConfig& model, GgufWriter* writer);

// Changes a tensor of a recurrent layer as the converter does.
void ConvertState(const ModelConfig& model, const TensorInfo& tensor, std::vector<int64_t>* shape,
                  std::vector<float>* values);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TWINS_FAMILY_TWIN_STATES_H_
