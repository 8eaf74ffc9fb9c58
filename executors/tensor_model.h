// A model of named tensors: what goes in comes out at once, and nothing stays from one run to the
// next. Names and meanings are those of the Open Inference Protocol, version 2.
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

// The protocol's name, as "FP32".
std::string_view DataTypeName(DataType type);
int64_t DataTypeBytes(DataType type);  // of an element
std::optional<DataType> FindDataType(std::string_view name);
// All names, for messages.
std::string DataTypeNames();

// One size of a shape. Where it is not fixed it has a name, and dimensions of one name have one
// size in a run.
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
  // Of an input of whole numbers: what its elements may be. A model reads its memory by them and
  // does not look again, so this is where a foreign index is stopped.
  std::optional<ValueRange> values;
};

// Elements in row-major order, little-endian, without gaps; a BOOL is a byte, 0 or 1.
struct Tensor {
  DataType type = DataType::kFp32;
  std::vector<int64_t> shape;
  std::string data;
};

struct TensorModelInfo {
  std::string platform;  // as Triton names it: "pytorch_aotinductor"
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;
};

// InvalidArgument, naming the input, what came and what is allowed, unless `inputs` (as many as the
// model's, in their order) have the types, shapes, sizes and values that the model takes.
absl::Status CheckInputs(absl::Span<const TensorSpec> specs, absl::Span<const Tensor> inputs);

class TensorModel {
 public:
  virtual ~TensorModel() = default;

  virtual const TensorModelInfo& info() const = 0;

  // The outputs, in the order of info().outputs. `inputs` have passed CheckInputs. Internal: the
  // model's code failed; it can be run again. One call at a time.
  virtual absl::StatusOr<std::vector<Tensor>> Run(std::vector<Tensor> inputs) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_TENSOR_MODEL_H_
