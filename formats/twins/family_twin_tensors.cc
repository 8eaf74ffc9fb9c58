#include "formats/twins/family_twin_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <utility>

#include "base/strings.h"
#include "formats/twins/tensor_test_util.h"

namespace millrace {
namespace {

std::string Replaced(const std::string& text, std::string_view from, std::string_view to) {
  const size_t at = text.find(from);
  if (at == text.npos) std::abort();
  return StrCat(text.substr(0, at), to, text.substr(at + from.size()));
}

const TwinTensor& Named(const std::vector<TwinTensor>& tensors, const std::string& name) {
  for (const TwinTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  std::abort();
}

// Groups of as many rows as `gate` and `up` have in each of `groups`, which are one for a matrix.
TwinTensor Joined(const TwinTensor& gate, const TwinTensor& up, size_t groups, GateOrder order) {
  TwinTensor joined = gate;
  const size_t rank_of_rows = groups > 1 ? 1 : 0;
  const size_t rows = gate.shape[rank_of_rows];
  const size_t row = gate.values.size() / groups / rows;
  joined.shape[rank_of_rows] *= 2;
  joined.values.clear();
  for (size_t group = 0; group < groups; ++group) {
    for (size_t i = 0; i < 2 * rows; ++i) {
      const bool turns = order == GateOrder::kTurns;
      const bool is_up = turns ? i % 2 == 1 : i >= rows;
      const size_t from = group * rows + (turns ? i / 2 : i % rows);
      const std::vector<float>& values = is_up ? up.values : gate.values;
      joined.values.insert(joined.values.end(), values.begin() + from * row,
                           values.begin() + (from + 1) * row);
    }
  }
  return joined;
}

// [experts, rows, columns] to [experts, columns, rows].
TwinTensor Transposed(const TwinTensor& tensor) {
  TwinTensor transposed = tensor;
  std::swap(transposed.shape[1], transposed.shape[2]);
  const size_t rows = tensor.shape[1];
  const size_t columns = tensor.shape[2];
  for (size_t i = 0; i < tensor.values.size(); ++i) {
    const size_t expert = i / (rows * columns);
    const size_t row = i / columns % rows;
    transposed.values[(expert * columns + i % columns) * rows + row] = tensor.values[i];
  }
  return transposed;
}

// The codes and scales of a tensor in MXFP4.
std::vector<TwinTensor> CodesAndScales(const TwinTensor& tensor) {
  constexpr size_t kBlockBytes = 17;
  const std::string bytes = EncodeTensor(TensorType::kMxfp4, tensor.values);
  TwinTensor codes{Replaced(tensor.name, ".weight", ".blocks"), TensorType::kU8, tensor.shape, {}};
  codes.shape[2] /= 32;
  TwinTensor scales{Replaced(tensor.name, ".weight", ".scales"), TensorType::kU8, codes.shape, {}};
  codes.shape.push_back(16);
  for (size_t block = 0; block < bytes.size(); block += kBlockBytes) {
    scales.values.push_back(static_cast<uint8_t>(bytes[block]));
    const auto code = [&](int element) {
      const uint8_t both = bytes[block + 1 + element % 16];
      return element < 16 ? both & 15 : both >> 4;
    };
    for (int i = 0; i < 32; i += 2) {
      codes.values.push_back(static_cast<float>(code(i) | code(i + 1) << 4));
    }
  }
  return {codes, scales};
}

// Brings parts of `size` numbers, one for each value head, from the order of key heads into turns:
// part h becomes the one that reads key head h % key_heads.
void PutInTurns(const GatedDelta& delta, size_t size, float* parts) {
  const int each = delta.value_heads / delta.key_heads;
  const std::vector<float> grouped(parts, parts + delta.value_heads * size);
  for (int head = 0; head < delta.value_heads; ++head) {
    const int turn = head % each * delta.key_heads + head / each;
    std::copy_n(&grouped[head * size], size, parts + turn * size);
  }
}

// The same of the tensors that have a part for each value head.
void PutInTurns(const GatedDelta& delta, const TensorInfo& tensor, std::vector<float>* values) {
  const auto is = [&](std::string_view name) { return tensor.name.ends_with(name); };
  const size_t row = values->size() / tensor.shape[0];
  const size_t first = values->size() - delta.value_heads * delta.value_size * row;
  if (is(".attn_gate.weight") || is(".attn_qkv.weight") || is(".ssm_conv1d.weight")) {
    PutInTurns(delta, delta.value_size * row, values->data() + first);
  } else if (is(".ssm_beta.weight") || is(".ssm_alpha.weight") || is(".ssm_a") ||
             is(".ssm_dt.bias")) {
    PutInTurns(delta, row, values->data());
  } else if (is(".ssm_out.weight")) {
    for (size_t at = 0; at < values->size(); at += row) {
      PutInTurns(delta, delta.value_size, values->data() + at);
    }
  }
}

}  // namespace

std::vector<TwinTensor> StackExperts(const std::vector<TwinTensor>& tensors) {
  std::vector<TwinTensor> stacked;
  for (const TwinTensor& tensor : tensors) {
    const StackedName name = StackedNameOf(tensor.name);
    if (name.tensors.empty()) {
      stacked.push_back(tensor);
      continue;
    }
    if (name.expert == "0") {
      stacked.push_back({name.tensors[0], tensor.type, tensor.shape, {}});
      stacked.back().shape.insert(stacked.back().shape.begin(), 0);
    }
    for (TwinTensor& made : stacked) {
      if (made.name != name.tensors[0]) continue;
      ++made.shape[0];
      made.values.insert(made.values.end(), tensor.values.begin(), tensor.values.end());
    }
  }
  return stacked;
}

void ConvertDelta(const GatedDelta& delta, const TensorInfo& tensor, std::vector<int64_t>* shape,
                  std::vector<float>* values) {
  const auto is = [&](std::string_view name) { return tensor.name.ends_with(name); };
  if (!delta.fused_beta_alpha) PutInTurns(delta, tensor, values);
  if (is(".ssm_conv1d.weight")) shape->erase(shape->begin() + 1);
  if (is(".ssm_a")) {
    for (float& value : *values) value = -std::exp(value);
  }
}

std::vector<TwinTensor> CutDeltaInput(const GatedDelta& delta, const TwinTensor& input) {
  const int64_t keys = delta.key_size;
  const int64_t values = int64_t{delta.value_heads / delta.key_heads} * delta.value_size;
  const int64_t columns = input.shape[1];
  std::vector<TwinTensor> cut;
  for (const char* name : {"attn_qkv", "attn_gate"}) {
    cut.push_back({Replaced(input.name, "ssm_in", name), input.type, {0, columns}, {}});
  }
  int64_t first = 0;  // row of a key head's
  for (const int64_t rows : {keys, keys, values, values}) {
    TwinTensor& part = cut[first == 2 * keys + values ? 1 : 0];
    for (int64_t head = 0; head < delta.key_heads; ++head) {
      const auto from = input.values.begin() + (head * 2 * (keys + values) + first) * columns;
      part.values.insert(part.values.end(), from, from + rows * columns);
    }
    part.shape[0] += delta.key_heads * rows;
    first += rows;
  }
  return cut;
}

std::vector<TwinTensor> JoinGateAndUp(const std::vector<TwinTensor>& stacked, GateOrder order) {
  std::vector<TwinTensor> joined;
  for (TwinTensor tensor : stacked) {
    const bool experts = tensor.name.find("_exps.") != tensor.name.npos;
    const bool shared = tensor.name.ends_with("_shexp.weight");
    if ((experts || shared) && tensor.name.find(".ffn_up_") != tensor.name.npos) continue;
    if ((experts || shared) && tensor.name.find(".ffn_gate_") != tensor.name.npos) {
      const TwinTensor& up = Named(stacked, Replaced(tensor.name, "ffn_gate_", "ffn_up_"));
      tensor = Joined(tensor, up, experts ? tensor.shape[0] : 1, order);
      tensor.name = Replaced(tensor.name, "ffn_gate_", "ffn_gate_up_");
    }
    if (experts && tensor.type == TensorType::kMxfp4) {
      for (TwinTensor& part : CodesAndScales(tensor)) joined.push_back(std::move(part));
    } else if (experts && order == GateOrder::kTurns && tensor.shape.size() == 3) {
      joined.push_back(Transposed(tensor));
    } else {
      joined.push_back(std::move(tensor));
    }
  }
  return joined;
}

}  // namespace millrace
