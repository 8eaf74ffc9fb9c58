// Between the messages of Infer and ModelMetadata and the server's tensors.
#ifndef MILLRACE_SERVER_GRPC_INFER_CONVERT_H_
#define MILLRACE_SERVER_GRPC_INFER_CONVERT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/infer_engine.h"
#include "executors/tensor_model.h"
#include "millrace/v1/inference.pb.h"

namespace millrace {

// InvalidArgument, naming the field: a datatype that is none, elements in a field of another
// datatype, raw contents that are not one for each input. Whether they fit the model, the engine
// checks.
absl::StatusOr<std::vector<NamedTensor>> InputsFromProto(const v1::InferRequest& request);

// The names of the outputs that the request wants.
std::vector<std::string> OutputNames(const v1::InferRequest& request);

// Adds one output. `raw`: to the raw contents.
void AddOutput(const std::string& name, Tensor tensor, bool raw, v1::InferResponse& response);

// FP16 and BF16 have no contents but raw ones.
bool HasContents(DataType type);

v1::Model ToProto(const InferEngine& engine);
v1::ModelMetadataResponse MetadataToProto(const InferEngine& engine);

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_INFER_CONVERT_H_
