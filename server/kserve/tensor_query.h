// Queries of the Open Inference Protocol, whatever carries them: HTTP's JSON or gRPC.
#ifndef MILLRACE_SERVER_KSERVE_TENSOR_QUERY_H_
#define MILLRACE_SERVER_KSERVE_TENSOR_QUERY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/request/trace.h"
#include "server/frontend.h"

namespace millrace {

// The datatype of texts, which the models of tensors do not have.
inline constexpr std::string_view kBytesType = "BYTES";

// The only version of every model.
inline constexpr std::string_view kModelVersion = "1";

// A tensor on its way. `data` has the elements in row-major order, little-endian; an element of
// BYTES has its size before it, in four bytes.
struct WireTensor {
  std::string name;
  std::string datatype;
  std::vector<int64_t> shape;
  std::string data;
};

// A parameter of a request, which no model has another type for.
struct WireParameter {
  std::string name;
  std::optional<int64_t> number;  // unset: its value is of another type
};

struct TensorQuery {
  std::string model;    // empty: the only one
  std::string version;  // empty, or kModelVersion
  std::string id;       // for logs
  std::vector<WireTensor> inputs;
  std::vector<std::string> outputs;  // by name, in the order of the answer; empty: all
  std::vector<WireParameter> parameters;
  std::optional<absl::Time> deadline;
  std::shared_ptr<const Tenant> tenant;  // null: of none
  std::optional<TraceContext> trace;     // the caller's
};

// Calls `done` once, from any thread, perhaps before it returns, with the outputs or the reason why
// there are none: NotFound names the model or the version, InvalidArgument the input, the output or
// the parameter; else as Engine::Embed and InferEngine::Infer have them. Returns what gives the
// query up, which may be called at any time.
//
// A model of embeddings has the input "text", BYTES [n] or [n, 1], and the output "embedding", FP32
// [n, size]. A cross-encoder has two inputs of as many texts each, "text_1" and "text_2", and the
// output "score", FP32 [n]. Models that generate have none.
std::function<void()> RunQuery(const Frontend& frontend, TensorQuery query,
                               std::function<void(absl::StatusOr<std::vector<WireTensor>>)> done);

// A model's tensors, with -1 for a dimension that is not fixed.
struct TensorMetadata {
  std::string name;
  std::string datatype;
  std::vector<int64_t> shape;
};
struct QueryModel {
  std::string name;
  std::string platform;
  std::vector<TensorMetadata> inputs;
  std::vector<TensorMetadata> outputs;
};

// Returns what a model takes and gives. NotFound as RunQuery's. A model that generates has no
// tensors.
absl::StatusOr<QueryModel> DescribeModel(const Frontend& frontend, const std::string& name,
                                         std::string_view version);

// Appends an element of BYTES.
void AppendBytes(std::string_view element, std::string& data);
// Returns the elements of BYTES; nothing if the sizes do not add up.
std::optional<std::vector<std::string_view>> SplitBytes(std::string_view data);

}  // namespace millrace

#endif  // MILLRACE_SERVER_KSERVE_TENSOR_QUERY_H_
