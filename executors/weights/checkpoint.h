// Looks weights up in a model file, for placers of every device.
#ifndef MILLRACE_EXECUTORS_WEIGHTS_CHECKPOINT_H_
#define MILLRACE_EXECUTORS_WEIGHTS_CHECKPOINT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "formats/gguf.h"

namespace millrace {

// Errors name the file and the tensor: NOT_FOUND for a missing one, INVALID_ARGUMENT for one of
// another shape than its use asks for, UNIMPLEMENTED for what no placer takes.
class Checkpoint {
 public:
  explicit Checkpoint(const GgufFile& file) : file_(file) {}  // the file outlives this

  const GgufFile& file() const { return file_; }
  bool Has(const std::string& name) const { return file_.FindTensor(name) != nullptr; }

  // [size] in F32.
  absl::StatusOr<const TensorInfo*> Vector(const std::string& name) const;

  // [out, in] each, at least one, all of one type and with one `in`: what a fused linear is made
  // of. A bias beside one of them is refused.
  absl::StatusOr<std::vector<const TensorInfo*>> Matrices(
      const std::vector<std::string>& names) const;

 private:
  const GgufFile& file_;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_WEIGHTS_CHECKPOINT_H_
