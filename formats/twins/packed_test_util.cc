#include "formats/twins/packed_test_util.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <utility>

#include "base/strings.h"
#include "formats/twins/tensor_test_util.h"

namespace millrace {
namespace {

// A matrix of 32-bit words, all zero at first.
class Words {
 public:
  Words(int64_t rows, int64_t columns) : shape_{rows, columns}, words_(rows * columns) {}

  void Put(int64_t row, int64_t column, int64_t nibble, int value) {
    words_[row * shape_[1] + column] |= static_cast<uint32_t>(value) << (4 * nibble);
  }
  void Subtract(uint32_t number) {
    for (uint32_t& word : words_) word -= number;
  }
  StoredTensor Tensor(const std::string& name) const {
    return {name,
            "I32",
            shape_,
            {reinterpret_cast<const char*>(words_.data()), words_.size() * sizeof(uint32_t)}};
  }

 private:
  std::vector<int64_t> shape_;
  std::vector<uint32_t> words_;
};

template <typename T>
StoredTensor Integers(const std::string& name, const std::string& dtype,
                      const std::vector<T>& values) {
  return {name,
          dtype,
          {static_cast<int64_t>(values.size())},
          {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)}};
}

// AutoAWQ's order: nibble i of a word holds column kAwqOrder[i] of its eight.
constexpr int kAwqOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};

int64_t AwqNibble(int64_t column) {
  return std::find(kAwqOrder, kAwqOrder + 8, static_cast<int>(column % 8)) - kAwqOrder;
}

// The numbers of a weight, before they are packed.
struct Quantized {
  int64_t rows, columns, groups;
  std::vector<int32_t> group_of;  // [columns]
  std::vector<int> codes;         // [rows][columns]
  std::vector<float> scales;      // [rows][groups]
  std::vector<int> zeros;         // [rows][groups]
};

Quantized Quantize(const QuantScheme& scheme, TensorType scale_type, int64_t rows, int64_t columns,
                   absl::Span<const float> values, int seed) {
  const int64_t group = scheme.group.columns > 0 ? scheme.group.columns : columns;
  Quantized q{.rows = rows, .columns = columns, .groups = columns / group};
  for (int64_t k = 0; k < columns; ++k) q.group_of.push_back(static_cast<int32_t>(k / group));
  std::mt19937 random(seed);
  if (scheme.reordered) std::shuffle(q.group_of.begin(), q.group_of.end(), random);
  std::vector<float> low(rows * q.groups), wanted(rows * q.groups);
  std::vector<float> high(rows * q.groups);
  const auto group_at = [&](int64_t i) { return i / columns * q.groups + q.group_of[i % columns]; };
  for (int64_t i = 0; i < rows * columns; ++i) {
    low[group_at(i)] = std::min(low[group_at(i)], values[i]);
    high[group_at(i)] = std::max(high[group_at(i)], values[i]);
  }
  for (size_t g = 0; g < wanted.size(); ++g) {
    wanted[g] = scheme.symmetric ? std::max(-low[g] / 8, high[g] / 7) : (high[g] - low[g]) / 15;
  }
  const std::string stored = EncodeTensor(scale_type, wanted);
  q.scales =
      DecodeTensor(scale_type, {reinterpret_cast<const uint8_t*>(stored.data()), stored.size()});
  for (size_t g = 0; g < wanted.size(); ++g) {
    const auto zero = static_cast<int>(std::nearbyint(-low[g] / q.scales[g]));
    // Some groups count from 0, as those without a negative weight do.
    q.zeros.push_back(scheme.symmetric ? 8 : g % 29 == 3 ? 0 : std::clamp(zero, 0, 15));
  }
  for (int64_t i = 0; i < rows * columns; ++i) {
    const auto steps = static_cast<int>(std::nearbyint(values[i] / q.scales[group_at(i)]));
    q.codes.push_back(std::clamp(steps + q.zeros[group_at(i)], 0, 15));
  }
  return q;
}

// [rows][groups], or the other way round.
StoredTensor Scales(const std::string& name, TensorType type, const Quantized& q, bool by_rows) {
  std::vector<float> scales(q.scales);
  for (int64_t n = 0; n < q.rows && !by_rows; ++n) {
    for (int64_t g = 0; g < q.groups; ++g) scales[g * q.rows + n] = q.scales[n * q.groups + g];
  }
  const std::vector<int64_t> shape =
      by_rows ? std::vector<int64_t>{q.rows, q.groups} : std::vector<int64_t>{q.groups, q.rows};
  return {name, std::string(Traits(type).name), shape, EncodeTensor(type, scales)};
}

std::vector<StoredTensor> Gptq(const QuantScheme& scheme, TensorType scale_type,
                               const std::string& module, const Quantized& q) {
  Words codes(q.columns / 8, q.rows), zeros(q.groups, q.rows / 8);
  for (int64_t n = 0; n < q.rows; ++n) {
    for (int64_t k = 0; k < q.columns; ++k) {
      codes.Put(k / 8, n, k % 8, q.codes[n * q.columns + k]);
    }
    for (int64_t g = 0; g < q.groups; ++g) {
      zeros.Put(g, n / 8, n % 8, q.zeros[n * q.groups + g]);
    }
  }
  if (scheme.zeros_less_one) zeros.Subtract(0x11111111);  // as GPTQModel does, borrows included
  return {codes.Tensor(module + ".qweight"), zeros.Tensor(module + ".qzeros"),
          Scales(module + ".scales", scale_type, q, false),
          Integers(module + ".g_idx", "I32", q.group_of)};
}

std::vector<StoredTensor> Awq(TensorType scale_type, const std::string& module,
                              const Quantized& q) {
  Words codes(q.columns, q.rows / 8), zeros(q.groups, q.rows / 8);
  for (int64_t n = 0; n < q.rows; ++n) {
    for (int64_t k = 0; k < q.columns; ++k) {
      codes.Put(k, n / 8, AwqNibble(n), q.codes[n * q.columns + k]);
    }
    for (int64_t g = 0; g < q.groups; ++g) {
      zeros.Put(g, n / 8, AwqNibble(n), q.zeros[n * q.groups + g]);
    }
  }
  return {codes.Tensor(module + ".qweight"), zeros.Tensor(module + ".qzeros"),
          Scales(module + ".scales", scale_type, q, false)};
}

std::vector<StoredTensor> PackQuantized(const QuantScheme& scheme, TensorType scale_type,
                                        const std::string& module, const Quantized& q) {
  Words codes(q.rows, (q.columns + 7) / 8), zeros((q.rows + 7) / 8, q.groups);
  for (int64_t n = 0; n < q.rows; ++n) {
    for (int64_t k = 0; k < q.columns; ++k) {
      codes.Put(n, k / 8, k % 8, q.codes[n * q.columns + k]);
    }
    for (int64_t g = 0; g < q.groups; ++g) zeros.Put(n / 8, g, n % 8, q.zeros[n * q.groups + g]);
  }
  std::vector<StoredTensor> tensors = {
      codes.Tensor(module + ".weight_packed"),
      Scales(module + ".weight_scale", scale_type, q, true),
      Integers<int64_t>(module + ".weight_shape", "I64", {q.rows, q.columns})};
  if (!scheme.symmetric) tensors.push_back(zeros.Tensor(module + ".weight_zero_point"));
  if (scheme.reordered) tensors.push_back(Integers(module + ".weight_g_idx", "I32", q.group_of));
  return tensors;
}

}  // namespace

PackedLinear PackLinear(const QuantScheme& scheme, TensorType scale_type, const std::string& module,
                        int64_t rows, int64_t columns, absl::Span<const float> values, int seed) {
  const Quantized q = Quantize(scheme, scale_type, rows, columns, values, seed);
  PackedLinear linear;
  for (int64_t n = 0; n < rows; ++n) {
    for (int64_t k = 0; k < columns; ++k) {
      const int64_t at = n * q.groups + q.group_of[k];
      linear.values.push_back(q.scales[at] *
                              static_cast<float>(q.codes[n * columns + k] - q.zeros[at]));
    }
  }
  linear.tensors = scheme.packing == Packing::kGptq  ? Gptq(scheme, scale_type, module, q)
                   : scheme.packing == Packing::kAwq ? Awq(scale_type, module, q)
                                                     : PackQuantized(scheme, scale_type, module, q);
  return linear;
}

Json PackedConfig(const QuantScheme& scheme) {
  const int group = scheme.group.columns > 0 ? scheme.group.columns : -1;
  if (scheme.packing == Packing::kGptq) {
    return {{"quant_method", "gptq"},
            {"bits", 4},
            {"group_size", group},
            {"sym", scheme.symmetric},
            {"desc_act", scheme.reordered},
            {"lm_head", false},
            {"checkpoint_format", scheme.zeros_less_one ? "gptq" : "gptq_v2"}};
  }
  if (scheme.packing == Packing::kAwq) {
    return {{"quant_method", "awq"}, {"bits", 4},         {"group_size", group},
            {"zero_point", true},    {"version", "gemm"}, {"modules_to_not_convert", nullptr}};
  }
  Json weights = {{"num_bits", 4},
                  {"type", "int"},
                  {"symmetric", scheme.symmetric},
                  {"dynamic", false},
                  {"strategy", group > 0 ? "group" : "channel"},
                  {"actorder", nullptr}};
  if (group > 0) weights["group_size"] = group;
  if (scheme.reordered) weights["actorder"] = "group";
  return {{"quant_method", "compressed-tensors"},
          {"format", "pack-quantized"},
          {"ignore", Json::array({"lm_head"})},
          {"config_groups",
           {{"group_0",
             {{"targets", Json::array({"Linear"})},
              {"weights", weights},
              {"input_activations", nullptr},
              {"output_activations", nullptr}}}}}};
}

}  // namespace millrace
