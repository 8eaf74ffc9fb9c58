// Converts between the messages of Infer and ModelMetadata and the server's tensors.
#ifndef MILLRACE_SERVER_GRPC_INFER_CONVERT_H_
#define MILLRACE_SERVER_GRPC_INFER_CONVERT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/infer_engine.h"
#include "executors/tensor_model.h"
#include "millrace/v1/inference.pb.h"

namespace millrace {

// Converts the inputs. InvalidArgument, naming the field: an unknown datatype, elements in a field
// of another datatype, raw contents that are not one for each input. The engine checks whether they
// fit the model.
absl::StatusOr<std::vector<NamedTensor>> InputsFromProto(const v1::InferRequest& request);

// Returns the names of the outputs that the request wants.
std::vector<std::string> OutputNames(const v1::InferRequest& request);

// Adds one output. `raw`: to the raw contents.
void AddOutput(const std::string& name, Tensor tensor, bool raw, v1::InferResponse& response);

// Returns whether the datatype has typed contents; FP16 and BF16 have raw ones only.
bool HasContents(DataType type);

v1::Model ToProto(const InferEngine& engine);
v1::ModelMetadataResponse MetadataToProto(const InferEngine& engine);

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_INFER_CONVERT_H_
