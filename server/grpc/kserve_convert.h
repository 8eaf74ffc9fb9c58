// Converts between the messages of the Open Inference Protocol and queries of tensors.
#ifndef MILLRACE_SERVER_GRPC_KSERVE_CONVERT_H_
#define MILLRACE_SERVER_GRPC_KSERVE_CONVERT_H_

#include <vector>

#include "absl/status/statusor.h"
#include "kserve/v2/inference.pb.h"
#include "server/kserve/tensor_query.h"

namespace millrace {

// Converts a request, without its deadline and tenant. InvalidArgument, naming the field: elements
// in a field of another datatype, raw contents that are not one for each input, parameters of a
// tensor. RunQuery checks whether the tensors fit the model.
absl::StatusOr<TensorQuery> FromProto(const inference::ModelInferRequest& request);

// Adds the outputs. `raw`: to the raw contents, as of a request with raw contents.
void SetOutputs(std::vector<WireTensor> outputs, bool raw, inference::ModelInferResponse& response);

inference::ModelMetadataResponse ToProto(const QueryModel& model);

}  // namespace millrace

#endif  // MILLRACE_SERVER_GRPC_KSERVE_CONVERT_H_
