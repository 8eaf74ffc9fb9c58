// The JSON of the Open Inference Protocol, with its extension for tensors in binary.
#ifndef MILLRACE_SERVER_HTTP_KSERVE_KSERVE_JSON_H_
#define MILLRACE_SERVER_HTTP_KSERVE_KSERVE_JSON_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "config/settings.h"
#include "server/http/api/http_message.h"
#include "server/kserve/tensor_query.h"

namespace millrace {

struct KserveRequest {
  TensorQuery query;  // without model, version, id, deadline and tenant
  std::string id;     // comes back; empty: none
  bool binary_output = false;
  std::vector<std::optional<bool>> binary;  // of query.outputs; unset: as binary_output says
};

// Parses a body whose first `json_length` bytes are JSON, or all. Inputs with "binary_data_size"
// have their elements behind it, in the order of the inputs. InvalidArgument names the field.
absl::StatusOr<KserveRequest> ParseKserveRequest(std::string_view body,
                                                 std::optional<uint64_t> json_length,
                                                 UnknownFields unknown = UnknownFields::kRefuse);

// Returns the response. InvalidArgument if an output's type cannot be written as JSON, which it is
// to be.
absl::StatusOr<HttpResponse> KserveReply(const KserveRequest& request, std::string_view model,
                                         std::vector<WireTensor> outputs);

// Returns a model's metadata.
std::string QueryModelJson(const QueryModel& model);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_KSERVE_KSERVE_JSON_H_
