// A stateless model of named tensors. Names and semantics are those of the Open Inference Protocol,
// version 2.
#ifndef MILLRACE_EXECUTORS_TENSOR_MODEL_H_
#define MILLRACE_EXECUTORS_TENSOR_MODEL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace millrace {

enum class DataType { kBool, kUint8, kInt8, kInt16, kInt32, kInt64, kFp16, kBf16, kFp32, kFp64 };

// Returns the protocol's name, e.g. "FP32".
std::string_view DataTypeName(DataType type);
int64_t DataTypeBytes(DataType type);  // of an element
std::optional<DataType> FindDataType(std::string_view name);
// Returns all names, for messages.
std::string DataTypeNames();

// One dimension of a shape. A dynamic dimension has a name, and dimensions with the same name have
// the same size in a run.
struct Dimension {
  std::string name;  // empty: fixed, min == max
  int64_t min = 0;
  int64_t max = 0;
};

struct ValueRange {
  int64_t min;
  int64_t max;
};

struct TensorSpec {
  std::string name;
  DataType type;
  std::vector<Dimension> shape;
  // For an integer input: the allowed values. The model uses them as memory indices without a check
  // of its own, so invalid ones must be rejected by this range.
  std::optional<ValueRange> values;
};

// Elements in row-major order, little-endian, without gaps; a BOOL is a byte, 0 or 1.
struct Tensor {
  DataType type = DataType::kFp32;
  std::vector<int64_t> shape;
  std::string data;
};

struct TensorModelInfo {
  std::string platform;  // in Triton's terms: "pytorch_aotinductor"
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;
};

// Checks that `inputs` (as many as the model's, in its order) have the types, shapes, sizes and
// values that the model takes. Returns InvalidArgument, naming the input, the value and what is
// allowed, otherwise.
absl::Status CheckInputs(absl::Span<const TensorSpec> specs, absl::Span<const Tensor> inputs);

class TensorModel {
 public:
  virtual ~TensorModel() = default;

  virtual const TensorModelInfo& info() const = 0;

  // Runs the model on `inputs`, which have passed CheckInputs, and returns the outputs in the order
  // of info().outputs. Returns Internal if the model's code failed; it can be run again. One call
  // at a time.
  virtual absl::StatusOr<std::vector<Tensor>> Run(std::vector<Tensor> inputs) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_TENSOR_MODEL_H_
