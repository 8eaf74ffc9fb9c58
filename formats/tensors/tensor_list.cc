#include "formats/tensors/tensor_list.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace millrace {
namespace {

constexpr std::string_view kLayer = "blk.";
constexpr std::string_view kStacked = "_exps";
constexpr std::string_view kShared = "ffn_gate_up_shexp.weight";
constexpr int64_t kCodeBytes = 16;  // of a block of MXFP4

bool IsNumber(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

// "blk.3.ffn_up_exps.weight" in its parts.
struct Name {
  std::string_view layer;   // "blk.3."
  std::string_view linear;  // "ffn_up"
  std::string_view part;    // "weight"
};

// The parts of the name of a stacked tensor; of another name, `linear` is empty.
Name Parse(std::string_view name) {
  Name parsed;
  if (!name.starts_with(kLayer)) return parsed;
  const size_t dot = name.find('.', kLayer.size());
  const size_t stacked = name.find(kStacked);
  if (dot == name.npos || stacked == name.npos || stacked < dot) return parsed;
  const std::string_view end = name.substr(stacked + kStacked.size());
  const std::string_view linear = name.substr(dot + 1, stacked - dot - 1);
  for (const std::string_view known : {"ffn_gate", "ffn_up", "ffn_down", "ffn_gate_up"}) {
    if (linear != known || !end.starts_with('.')) continue;
    return {.layer = name.substr(0, dot + 1), .linear = linear, .part = end.substr(1)};
  }
  return parsed;
}

}  // namespace

// Cuts the tensors of one list.
class TensorList::Cutter {
 public:
  using GgufName = std::function<std::string(std::string_view)>;

  Cutter(TensorList* list, const GgufName& gguf_name, GateOrder order)
      : list_(*list), order_(order) {
    named_.resize(list->tensors_.size());
    for (const auto& [name, at] : list->index_) named_[at] = {name, gguf_name(name)};
    for (size_t at = 0; at < named_.size(); ++at) by_gguf_.emplace(named_[at].gguf, at);
    made.names_ = std::move(list->names_);
  }

  // Makes the list that takes the place of the one that is cut.
  absl::Status Cut() {
    for (size_t at = 0; at < named_.size(); ++at) {
      const TensorInfo& tensor = list_.tensors_[at];
      const auto& [name, gguf] = named_[at];
      const Name parsed = Parse(gguf);
      if (gguf.ends_with(kShared) && gguf.starts_with(kLayer)) {
        MILLRACE_RETURN_IF_ERROR(CutShared(tensor, gguf));
      } else if (parsed.linear.empty() || parsed.part == "scales") {
        // Scales go with their codes; without them they are left over and refused by name.
        if (parsed.linear.empty() || !by_gguf_.contains(Beside(parsed, "blocks"))) {
          MILLRACE_RETURN_IF_ERROR(Keep(tensor, name));
        }
      } else {
        MILLRACE_RETURN_IF_ERROR(CutStacked(tensor, parsed));
      }
    }
    return absl::OkStatus();
  }

  TensorList made;

 private:
  // The rows of one expert's linear in a stacked tensor: every `step`-th from `first` on.
  struct RowRange {
    std::string_view linear;
    int64_t first;
    int64_t count;
    int64_t step;
  };

  static std::string Beside(const Name& name, std::string_view part) {
    return StrCat(name.layer, name.linear, kStacked, ".", part);
  }

  static absl::Status Bad(const TensorInfo& tensor, std::string_view what) {
    return absl::InvalidArgumentError(StrCat("tensor ", Printable(tensor.name), ": ", what));
  }

  absl::Status Keep(const TensorInfo& tensor, std::string_view name) {
    if (made.Add(tensor, name)) return absl::OkStatus();
    return Bad(tensor, StrCat("is a layer's ", name, ", which comes twice"));
  }

  // Adds a tensor that `from` holds, by GGUF's name.
  absl::Status Add(TensorInfo tensor, const TensorInfo& from, std::string name,
                   std::string_view which) {
    tensor.name = made.names_.emplace_back(StrCat(from.name, ", ", which));
    if (made.AddAs(std::move(tensor), std::move(name))) return absl::OkStatus();
    return Bad(from, StrCat("has ", which, ", which comes twice"));
  }

  // The rows of each linear that a tensor of `rows` rows an expert holds.
  std::vector<RowRange> Ranges(const Name& name, int64_t rows) const {
    if (name.linear != "ffn_gate_up") return {{name.linear, 0, rows, 1}};
    const int64_t half = rows / 2;
    if (order_ == GateOrder::kTurns) return {{"ffn_gate", 0, half, 2}, {"ffn_up", 1, half, 2}};
    return {{"ffn_gate", 0, half, 1}, {"ffn_up", half, half, 1}};
  }

  absl::Status CutStacked(const TensorInfo& tensor, const Name& name) {
    const bool bias = name.part == "bias";
    const bool codes = name.part == "blocks";
    if (!bias && !codes && name.part != "weight") return Bad(tensor, "is not one that is read");
    const size_t rank = bias ? 2 : codes ? 4 : 3;
    if (tensor.shape.size() != rank) {
      return Bad(tensor, StrCat("shape ", ShapeString(tensor.shape), ", must have ", rank,
                                " dimensions, the experts first"));
    }
    if (tensor.shape[0] > kMaxExperts) {
      return Bad(tensor, StrCat(tensor.shape[0], " experts, must be at most ", kMaxExperts));
    }
    if ((tensor.type == TensorType::kU8) != codes || (codes && tensor.shape[3] != kCodeBytes)) {
      return Bad(tensor, StrCat("is ", Traits(tensor.type).name, " ", ShapeString(tensor.shape),
                                codes ? ", must be U8 [experts, rows, blocks, 16]"
                                      : ", must hold numbers"));
    }
    const TensorInfo* scales = nullptr;
    if (codes) {
      MILLRACE_ASSIGN_OR_RETURN(scales, ScalesOf(tensor, name));
    }
    const bool transposed = order_ == GateOrder::kTurns && !bias && !codes;
    const int64_t rows = tensor.shape[transposed ? 2 : 1];
    if (name.linear == "ffn_gate_up" && rows % 2 != 0) {
      return Bad(tensor, StrCat("shape ", ShapeString(tensor.shape), ": ", rows,
                                " rows of gate and up, must be an even number"));
    }
    for (int64_t expert = 0; expert < tensor.shape[0]; ++expert) {
      for (const RowRange& range : Ranges(name, rows)) {
        TensorInfo cut = transposed ? Transposed(tensor, expert, range)
                         : codes    ? Codes(tensor, *scales, expert, range)
                                    : Rows(tensor, expert, range);
        MILLRACE_RETURN_IF_ERROR(
            Add(std::move(cut), tensor,
                StrCat(name.layer, range.linear, ".", expert, ".", codes ? "weight" : name.part),
                StrCat("expert ", expert, " (", range.linear, ")")));
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<const TensorInfo*> ScalesOf(const TensorInfo& codes, const Name& name) const {
    const auto found = by_gguf_.find(Beside(name, "scales"));
    if (found == by_gguf_.end()) return Bad(codes, "has no scales beside it");
    const TensorInfo& scales = list_.tensors_[found->second];
    const std::vector<int64_t> shape(codes.shape.begin(), codes.shape.end() - 1);
    if (scales.type == TensorType::kU8 && scales.shape == shape) return &scales;
    return Bad(scales, StrCat("is ", Traits(scales.type).name, " ", ShapeString(scales.shape),
                              ", must be U8 ", ShapeString(shape)));
  }

  // Rows as they lie, of a matrix or a vector; a part of the file where they are neighbours.
  static TensorInfo Rows(const TensorInfo& tensor, int64_t expert, const RowRange& range) {
    TensorInfo cut = tensor;
    const uint64_t expert_bytes = tensor.bytes / tensor.shape[0];
    const uint64_t row_bytes = expert_bytes / tensor.shape[1];
    cut.shape.erase(cut.shape.begin());
    cut.shape[0] = range.count;
    cut.offset += expert * expert_bytes + range.first * row_bytes;
    cut.bytes = range.count * row_bytes;
    if (range.step > 1) cut.scattered = Scattered{.row_step = range.step * row_bytes};
    return cut;
  }

  static TensorInfo Transposed(const TensorInfo& tensor, int64_t expert, const RowRange& range) {
    TensorInfo cut = tensor;
    const uint64_t element = Traits(tensor.type).block_bytes;
    const int64_t columns = tensor.shape[1];
    cut.shape = {range.count, columns};
    cut.offset += expert * (tensor.bytes / tensor.shape[0]) + range.first * element;
    cut.bytes = range.count * columns * element;
    cut.scattered =
        Scattered{.row_step = range.step * element, .column_step = tensor.shape[2] * element};
    return cut;
  }

  static TensorInfo Codes(const TensorInfo& codes, const TensorInfo& scales, int64_t expert,
                          const RowRange& range) {
    TensorInfo cut = codes;
    const TensorTypeTraits& traits = Traits(TensorType::kMxfp4);
    const int64_t blocks = codes.shape[2];
    const uint64_t row = expert * codes.shape[1] + range.first;
    cut.type = TensorType::kMxfp4;
    cut.shape = {range.count, blocks * traits.block_elements};
    cut.offset += row * blocks * kCodeBytes;
    cut.bytes = range.count * blocks * traits.block_bytes;
    cut.scattered = Scattered{
        .row_step = static_cast<uint64_t>(range.step * blocks * kCodeBytes),
        .column_step = kCodeBytes,
        .scales = Scattered::BlockScales{.offset = scales.offset + row * blocks,
                                         .row_step = static_cast<uint64_t>(range.step * blocks),
                                         .file = scales.file}};
    return cut;
  }

  absl::Status CutShared(const TensorInfo& tensor, const std::string& gguf) {
    if (tensor.shape.size() != 2 || tensor.shape[0] % 2 != 0) {
      return Bad(tensor, StrCat("shape ", ShapeString(tensor.shape),
                                ", must be [2 * rows, columns], of gate and up"));
    }
    const std::string layer = gguf.substr(0, gguf.size() - kShared.size());
    TensorInfo half = tensor;
    half.shape[0] /= 2;
    half.bytes /= 2;
    MILLRACE_RETURN_IF_ERROR(Add(half, tensor, layer + "ffn_gate_shexp.weight", "its gate"));
    half.offset += half.bytes;
    return Add(half, tensor, layer + "ffn_up_shexp.weight", "its up");
  }

  struct Named {
    std::string_view name;  // that the tensor was added by
    std::string gguf;
  };

  const TensorList& list_;
  const GateOrder order_;
  std::vector<Named> named_;  // of each tensor of the list
  absl::flat_hash_map<std::string_view, size_t, StringHash> by_gguf_;
};

const TensorInfo* TensorList::Find(std::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

bool TensorList::AddAs(TensorInfo tensor, std::string name) {
  return Add(std::move(tensor), names_.emplace_back(std::move(name)));
}

bool TensorList::Add(TensorInfo tensor, std::string_view name) {
  if (!index_.emplace(name, tensors_.size()).second) return false;
  tensors_.push_back(std::move(tensor));
  return true;
}

absl::Status TensorList::CutExperts(
    const std::function<std::string(std::string_view name)>& gguf_name, GateOrder order) {
  Cutter cutter(this, gguf_name, order);
  MILLRACE_RETURN_IF_ERROR(cutter.Cut());
  *this = std::move(cutter.made);
  return absl::OkStatus();
}

StackedName StackedNameOf(std::string_view name) {
  if (!name.starts_with(kLayer)) return {};
  const size_t linear = name.find('.', kLayer.size());
  const size_t expert = linear == name.npos ? name.npos : name.find('.', linear + 1);
  const size_t part = expert == name.npos ? name.npos : name.find('.', expert + 1);
  if (part == name.npos) return {};
  const std::string_view number = name.substr(expert + 1, part - expert - 1);
  if (!IsNumber(number)) return {};
  StackedName stacked{.tensors = {StrCat(name.substr(0, expert), kStacked, name.substr(part))},
                      .expert = number};
  const std::string_view kind = name.substr(linear + 1, expert - linear - 1);
  if (kind == "ffn_gate" || kind == "ffn_up") {
    stacked.tensors.push_back(
        StrCat(name.substr(0, linear), ".ffn_gate_up", kStacked, name.substr(part)));
  }
  return stacked;
}

std::string SharedGateUpName(std::string_view name) {
  for (const std::string_view half : {".ffn_gate_shexp.", ".ffn_up_shexp."}) {
    const size_t at = name.find(half);
    if (at == name.npos) continue;
    return StrCat(name.substr(0, at), ".ffn_gate_up_shexp.", name.substr(at + half.size()));
  }
  return {};
}

}  // namespace millrace
