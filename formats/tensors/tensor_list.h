// The tensors of a source and the names by which they are looked up.
#ifndef MILLRACE_FORMATS_TENSORS_TENSOR_LIST_H_
#define MILLRACE_FORMATS_TENSORS_TENSOR_LIST_H_

#include <deque>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/strings.h"
#include "formats/tensors/tensor.h"

namespace millrace {

// How a file orders the rows of the gate and of up, where one tensor holds both.
enum class GateOrder {
  kHalves,  // all of the gate's first
  kTurns,   // in turns, the gate's first; and matrices are [in, out], but for codes of MXFP4, which
            // are [out, in / 32, 16] (gpt-oss's folders)
};

inline constexpr int kMaxExperts = 4096;  // of a layer

// Tensors' addresses hold once all are added and cut, also when the list is moved.
class TensorList {
 public:
  absl::Span<const TensorInfo> tensors() const { return tensors_; }
  const TensorInfo* Find(std::string_view name) const;

  // Returns false, and adds nothing, where the name is taken. Add's outlives the list.
  bool Add(TensorInfo tensor, std::string_view name);
  bool AddAs(TensorInfo tensor, std::string name);

  // Puts tensors of single experts, in the names and shapes of families/decoder.h, in the place of
  // those that hold all experts of a layer, and of those that hold a shared expert's gate and up.
  // `gguf_name` translates the name that a tensor was added by to GGUF's; what is cut is
  //   blk.N.ffn_{gate,up,down}_exps.weight  [experts, out, in]
  //   blk.N.ffn_gate_up_exps.weight         [experts, 2 * out, in], ordered by `order`
  //   the same names with .bias             without `in`
  //   the same names with .blocks, .scales  MXFP4's, U8, as GateOrder has them
  //   blk.N.ffn_gate_up_shexp.weight        [2 * out, in], the gate's rows first
  // INVALID_ARGUMENT, naming the tensor, for another shape or type, more than kMaxExperts, codes
  // without scales, and an expert that comes twice.
  absl::Status CutExperts(const std::function<std::string(std::string_view name)>& gguf_name,
                          GateOrder order);

 private:
  class Cutter;

  std::vector<TensorInfo> tensors_;
  std::deque<std::string> names_;  // that the list has made, pointed into
  absl::flat_hash_map<std::string_view, size_t, StringHash> index_;
};

// Returns the names that a tensor which holds an expert's among others may have, and the expert's
// number: "blk.3.ffn_up_exps.weight" and "blk.3.ffn_gate_up_exps.weight", and 7, for
// "blk.3.ffn_up.7.weight". Empty for other names.
struct StackedName {
  std::vector<std::string> tensors;
  std::string_view expert;
};
StackedName StackedNameOf(std::string_view name);

// Returns the name of the tensor that holds a shared expert's gate, and then its up, for either's:
// "blk.3.ffn_gate_up_shexp.weight" for "blk.3.ffn_up_shexp.weight". Empty for other names.
std::string SharedGateUpName(std::string_view name);

}  // namespace millrace

#endif  // MILLRACE_FORMATS_TENSORS_TENSOR_LIST_H_
