// For the tests of grouped linears and of their assignment: groups of rows made on the host, and a
// problem of each form on the device; for .cu files.
#ifndef MILLRACE_KERNELS_GEMM_GROUPED_TEST_UTIL_H_
#define MILLRACE_KERNELS_GEMM_GROUPED_TEST_UTIL_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "kernels/gemm/four_bit.h"
#include "kernels/gemm/four_bit_test_util.h"
#include "kernels/gemm/grouped.h"
#include "kernels/gemm/grouped_linear.h"
#include "kernels/test_util.h"
#include "kernels/types.h"

namespace millrace::kernels {

// The result of an assignment, computed by its definition on the host.
struct HostRows {
  HostRows(const std::vector<int32_t>& ids, int first, int groups, int tile_rows) {
    for (int group = 0; group < groups; ++group) {
      offsets.push_back(static_cast<int32_t>(order.size()));
      for (size_t pair = 0; pair < ids.size(); ++pair) {
        if (ids[pair] - first == group) order.push_back(static_cast<int32_t>(pair));
      }
      const int rows = static_cast<int>(order.size()) - offsets.back();
      const auto first_tile = static_cast<int32_t>(tiles.size());
      for (int row = 0; row < rows; row += tile_rows) {
        tiles.push_back({group, first_tile, offsets.back(), rows});
      }
    }
    offsets.push_back(static_cast<int32_t>(order.size()));
  }

  // The groups that have a row.
  unsigned Touched() const {
    unsigned touched = 0;
    for (size_t i = 1; i < offsets.size(); ++i) touched += offsets[i] > offsets[i - 1];
    return touched;
  }

  std::vector<int32_t> order, offsets;
  std::vector<GroupTile> tiles;
};

// Memory for an assignment, poisoned.
struct DeviceRows {
  DeviceRows(int pairs, int groups, int tile_rows)
      : order(std::max(pairs, 1)),
        offsets(groups + 1),
        tiles(MaxGroupTiles(pairs, groups, tile_rows) + 1),
        tile_count(1),
        view{order.get(), offsets.get(), tiles.get(), tile_count.get(), tile_rows, pairs, groups} {}
  // Holds the assignment of `ids`, which the host computes.
  DeviceRows(const std::vector<int32_t>& ids, int groups, int tile_rows)
      : DeviceRows(static_cast<int>(ids.size()), groups, tile_rows) {
    HostRows host(ids, 0, groups, tile_rows);
    tile_count.Upload({static_cast<int32_t>(host.tiles.size())});
    host.order.resize(order.size(), -1);
    host.tiles.resize(tiles.size(), {-1, -1, -1, -1});
    order.Upload(host.order);
    offsets.Upload(host.offsets);
    tiles.Upload(host.tiles);
  }

  DeviceBuffer<int32_t> order, offsets;
  DeviceBuffer<GroupTile> tiles;
  DeviceBuffer<int32_t> tile_count;
  GroupedRows view;
};

inline std::vector<int32_t> RandomIds(int tokens, int slots, int groups, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> all(groups), ids;
  for (int i = 0; i < groups; ++i) all[i] = i;
  for (int token = 0; token < tokens; ++token) {
    std::shuffle(all.begin(), all.end(), random);
    for (int slot = 0; slot < slots; ++slot) ids.push_back(all[slot % groups]);
  }
  return ids;
}

struct GroupedForm {
  const char* name;
  Type type;
  WeightScaling weight;
  Scaling input;
  std::optional<FourBitFormat> four_bit;

  size_t ElementBytes() const { return type == Type::kFp8 ? 1 : 2; }
  double Bound() const { return type == Type::kFp8 ? kFp8RowError : kBf16RowError; }
};

inline const GroupedForm kGroupedForms[] = {
    {"BF16", Type::kBf16, WeightScaling::kNone, Scaling::kNone, std::nullopt},
    {"FP8 tensor x tensor", Type::kFp8, WeightScaling::kTensor, Scaling::kTensor, std::nullopt},
    {"FP8 channel x token", Type::kFp8, WeightScaling::kChannel, Scaling::kToken, std::nullopt},
    {"FP8 block x group", Type::kFp8, WeightScaling::kBlock, Scaling::kTokenGroup, std::nullopt},
    {"int4 by 32", Type::kBf16, WeightScaling::kNone, Scaling::kNone,
     FourBitFormat{FourBitType::kInt4, 32, FourBitScale::kF16}},
    {"int4 by 64", Type::kBf16, WeightScaling::kNone, Scaling::kNone,
     FourBitFormat{FourBitType::kInt4, 64, FourBitScale::kBf16}},
    {"int4 by 128", Type::kBf16, WeightScaling::kNone, Scaling::kNone,
     FourBitFormat{FourBitType::kInt4, 128, FourBitScale::kF16}},
    {"MXFP4", Type::kBf16, WeightScaling::kNone, Scaling::kNone,
     FourBitFormat{FourBitType::kMxfp4, 32}},
    {"int4 with minima", Type::kBf16, WeightScaling::kNone, Scaling::kNone,
     FourBitFormat{FourBitType::kInt4Affine, 32}},
    {"symmetric int4 by 128", Type::kBf16, WeightScaling::kNone, Scaling::kNone,
     FourBitFormat{FourBitType::kInt4, 128, FourBitScale::kF16, true}},
    {"symmetric int4 by 64", Type::kBf16, WeightScaling::kNone, Scaling::kNone,
     FourBitFormat{FourBitType::kInt4, 64, FourBitScale::kBf16, true}},
};

// Weights of all groups, inputs of all tokens, on the device and as numbers.
class GroupedProblem {
 public:
  GroupedProblem(const GroupedForm& form, int groups, int64_t rows, int64_t columns, int tokens,
                 bool gated)
      : form_(form),
        groups_(groups),
        rows_(rows),
        // Those behind the last whole group of four-bit weights are padding.
        columns_(form.four_bit.has_value() ? columns / form.four_bit->group * form.four_bit->group
                                           : columns),
        stride_((columns + 127) / 128 * 128),
        tokens_(tokens),
        gated_(gated),
        weight_(form.four_bit.has_value()
                    ? groups * form.four_bit->Bytes(rows, stride_)
                    : groups * rows * stride_ * static_cast<int64_t>(form.ElementBytes())),
        input_(tokens * stride_ * form.ElementBytes()),
        host_weight_scales_(Scales(WeightScales(), 5)),
        weight_scales_(host_weight_scales_),
        host_input_scales_(Scales(InputScales(tokens), 6)),
        input_scales_(host_input_scales_),
        host_bias_(RandomNormal(groups * rows, 7, 0.3f)),
        bias_(host_bias_) {
    if (form.four_bit.has_value()) {
      FillFourBit();
    } else {
      weight_values_ = Fill(weight_, groups * rows, 3);
    }
    input_values_ = Fill(input_, tokens, 4);
  }

  GroupedWeight Weight() const {
    return {.data = weight_.get(),
            .type = form_.type,
            .scaling = form_.weight,
            .groups = groups_,
            .rows = rows_,
            .stride = stride_,
            .scales = form_.type == Type::kFp8 ? weight_scales_.get() : nullptr,
            .four_bit = form_.four_bit};
  }
  Activation Input() const {
    return {input_.get(), form_.type, form_.input, stride_,
            form_.type == Type::kFp8 ? input_scales_.get() : nullptr};
  }
  const float* bias() const { return bias_.get(); }
  const std::vector<float>& host_bias() const { return host_bias_; }
  int64_t stride() const { return stride_; }
  bool GuardsIntact() const { return weight_.GuardsIntact() && input_.GuardsIntact(); }

  // A weight, with its scale.
  double WeightAt(int group, int64_t row, int64_t column) const {
    return WeightScale(group, row, column) *
           weight_values_[(group * rows_ + row) * stride_ + column];
  }

  // Products of a token with a group's rows, in double: with all scales.
  const std::vector<double>& Products(int token, int group) const {
    std::vector<double>& products = products_[{token, group}];
    if (!products.empty()) return products;
    products.resize(rows_);
    for (int64_t row = 0; row < rows_; ++row) {
      double sum = 0;
      for (int64_t c = 0; c < columns_; ++c) {
        sum += static_cast<double>(input_values_[token * stride_ + c]) * InputScale(token, c) *
               WeightAt(group, row, c);
      }
      products[row] = sum;
    }
    return products;
  }

 private:
  static std::vector<float> Scales(int64_t count, uint32_t seed) {
    std::vector<float> scales = RandomNormal(count, seed);
    for (float& scale : scales) scale = 0.01f + 0.01f * std::min(std::abs(scale), 2.0f);
    return scales;
  }
  int64_t RowBlocks() const { return ((gated_ ? rows_ / 2 : rows_) + 127) / 128; }
  int64_t WeightScales() const {
    switch (form_.weight) {
      case WeightScaling::kNone:
        return 1;
      case WeightScaling::kTensor:
        return groups_;
      case WeightScaling::kChannel:
        return groups_ * rows_;
      case WeightScaling::kBlock:
        return groups_ * (gated_ ? 2 : 1) * RowBlocks() * BlockScaleStride(stride_);
    }
    return 0;
  }
  int64_t InputScales(int tokens) const {
    if (form_.input == Scaling::kToken) return tokens;
    return form_.input == Scaling::kTokenGroup ? stride_ / 128 * PaddedTokens(tokens) : 1;
  }
  double WeightScale(int group, int64_t row, int64_t column) const {
    switch (form_.weight) {
      case WeightScaling::kNone:
        return 1;
      case WeightScaling::kTensor:
        return host_weight_scales_[group];
      case WeightScaling::kChannel:
        return host_weight_scales_[group * rows_ + row];
      case WeightScaling::kBlock: {
        // Physical rows of a gated weight: eight of the gate, eight of the other factor.
        const int64_t part = gated_ ? row / 8 % 2 : 0;
        const int64_t logical = gated_ ? row / 16 * 8 + row % 8 : row;
        const int64_t block = (group * (gated_ ? 2 : 1) + part) * RowBlocks() + logical / 128;
        return host_weight_scales_[block * BlockScaleStride(stride_) + column / 128];
      }
    }
    return 0;
  }
  double InputScale(int token, int64_t column) const {
    if (form_.input == Scaling::kTensor) return host_input_scales_[0];
    if (form_.input == Scaling::kToken) return host_input_scales_[token];
    if (form_.input == Scaling::kTokenGroup) {
      return host_input_scales_[column / 128 * PaddedTokens(tokens_) + token];
    }
    return 1;
  }

  // Fills `rows` rows with random elements, zeros behind the columns, and returns their values.
  std::vector<float> Fill(DeviceBuffer<uint8_t>& memory, int64_t rows, uint32_t seed) const {
    std::vector<float> values = RandomNormal(rows * stride_, seed);
    std::vector<uint8_t> bytes(values.size() * form_.ElementBytes());
    for (size_t i = 0; i < values.size(); ++i) {
      if (static_cast<int64_t>(i) % stride_ >= columns_) values[i] = 0;
      if (form_.type == Type::kFp8) {
        bytes[i] = ToFp8(8 * values[i]);
        values[i] = FromFp8(bytes[i]);
      } else {
        const Bf16 value = __float2bfloat16(values[i]);
        std::memcpy(&bytes[2 * i], &value, 2);
        values[i] = static_cast<float>(value);
      }
    }
    memory.Upload(bytes);
    return values;
  }

  void FillFourBit() {
    for (int group = 0; group < groups_; ++group) {
      const FourBitSource source(*form_.four_bit, rows_, columns_, 100 + group);
      CheckCuda(source.Tile(rows_, stride_, nullptr,
                            weight_.get() + group * form_.four_bit->Bytes(rows_, stride_)),
                "tile");
      CheckCuda(cudaDeviceSynchronize(), "tile");
      for (int64_t row = 0; row < rows_; ++row) {
        for (int64_t c = 0; c < stride_; ++c) {
          weight_values_.push_back(c < columns_ ? source.Value(row, c) : 0);
        }
      }
    }
  }

  const GroupedForm form_;
  const int groups_;
  const int64_t rows_, columns_, stride_;
  const int tokens_;
  const bool gated_;
  DeviceBuffer<uint8_t> weight_, input_;
  const std::vector<float> host_weight_scales_;
  const DeviceBuffer<float> weight_scales_;
  const std::vector<float> host_input_scales_;
  const DeviceBuffer<float> input_scales_;
  const std::vector<float> host_bias_;
  const DeviceBuffer<float> bias_;
  std::vector<float> weight_values_, input_values_;
  mutable std::map<std::pair<int, int>, std::vector<double>> products_;  // those computed so far
};

}  // namespace millrace::kernels

#endif  // MILLRACE_KERNELS_GEMM_GROUPED_TEST_UTIL_H_
