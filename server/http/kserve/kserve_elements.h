// The elements of tensors in the JSON of the Open Inference Protocol.
#ifndef MILLRACE_SERVER_HTTP_KSERVE_KSERVE_ELEMENTS_H_
#define MILLRACE_SERVER_HTTP_KSERVE_KSERVE_ELEMENTS_H_

#include <string>

#include "absl/status/status.h"
#include "formats/json/exact_json.h"
#include "server/kserve/tensor_query.h"

namespace millrace {

// Appends the elements of the list `json`, in which lists may be nested, as WireTensor::data has
// them. `name` is the list's own, "inputs[0].data". InvalidArgument names the element or the type.
absl::Status ReadElements(const std::string& name, const std::string& datatype,
                          const OrderedJson& json, std::string* data);

// Appends a tensor's elements, separated by commas. A number that JSON does not have is null.
// InvalidArgument for a type that JSON does not have.
absl::Status AppendElements(const WireTensor& tensor, std::string& out);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_KSERVE_KSERVE_ELEMENTS_H_
