// Without a GPU: what the host hands over is read as four_bit.h defines it.
#include "executors/cuda/weights/packed_rows.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/strings.h"
#include "executors/cuda/weights/weights.h"
#include "executors/models/model.h"
#include "executors/weights/checkpoint.h"
#include "formats/open_model.h"
#include "formats/tensors/float16.h"
#include "formats/twins/hf_test_util.h"
#include "formats/twins/packed_test_util.h"
#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

using kernels::FourBitFormat;
using kernels::FourBitScale;

constexpr int kHidden = 256;
constexpr int kFfn = 512;

class PackedRowsTest : public ::testing::Test {
 protected:
  ~PackedRowsTest() override { std::filesystem::remove_all(folder_); }

  // Writes and opens a model whose linears are packed.
  OpenedModel Open(const HfForm& form, int hidden = kHidden) {
    TinyLlama model;
    model.layers = 1;
    model.hidden = hidden;
    model.ffn = kFfn;
    WriteHfFolder(model, folder_, form);
    absl::StatusOr<OpenedModel> opened = OpenModel(folder_);
    EXPECT_TRUE(opened.ok()) << opened.status();
    return *std::move(opened);
  }

  static PackedReader Reader(const OpenedModel& model, const std::string& linear) {
    const TensorInfo* tensor = model.tensors->FindTensor(StrCat("blk.0.", linear, ".weight"));
    return **Checkpoint(*model.tensors).Packed(*tensor);
  }

  const std::string folder_ = StrCat(::testing::TempDir(), "packed_rows_test_", getpid());
};

// Returns element [row, column] of plain rows by the kernels' definition, before it is rounded.
float ValueAt(const kernels::TileFourBitArgs& args, int64_t row, int64_t column) {
  const int64_t from = args.source_rows[row];
  const int code = args.codes[from * (args.columns / 2) + column / 2] >> (column % 2 * 4) & 15;
  const int64_t at = from * (args.columns / args.format.group) + column / args.format.group;
  uint16_t bits;
  std::memcpy(&bits, static_cast<const uint8_t*>(args.scales) + at * 2, 2);
  const float scale =
      args.format.scale == FourBitScale::kF16 ? HalfToFloat(bits) : Bf16ToFloat(bits);
  const int zero = args.zeros != nullptr ? args.zeros[at] : 8;
  return scale * static_cast<float>(code - zero);
}

// Returns a row of a reader in the order of its columns.
std::vector<float> RowInOrder(const PackedReader& reader, int64_t row) {
  std::vector<float> inputs(reader.columns());
  reader.ReadFloats(row, inputs.data());
  if (reader.order().empty()) return inputs;
  std::vector<float> values;
  for (const int32_t input : reader.order()) values.push_back(inputs[input]);
  return values;
}

std::vector<QuantScheme> Schemes() {
  std::vector<QuantScheme> schemes;
  for (const Packing packing : {Packing::kGptq, Packing::kAwq, Packing::kPackQuantized}) {
    for (const int group : {32, 64, 128, 0}) {
      schemes.push_back({.group = {1, group}, .packing = packing, .symmetric = false});
    }
  }
  for (const int group : {128, 64}) {
    schemes.push_back({.group = {1, group}, .packing = Packing::kPackQuantized, .symmetric = true});
  }
  return schemes;
}

// Gate and up as they lie in the model, and in a part of their rows and columns.
TEST_F(PackedRowsTest, RowsHaveTheReadersValues) {
  int index = 0;
  for (const QuantScheme& scheme : Schemes()) {
    SCOPED_TRACE(PackedConfig(scheme).dump());
    const TensorType type = ++index % 2 == 0 ? TensorType::kF16 : TensorType::kBf16;
    const OpenedModel model = Open({.quantization = scheme, .scale_type = type});
    const PackedReader gate = Reader(model, "ffn_gate"), up = Reader(model, "ffn_up");
    const PackedReader* const parts[] = {&gate, &up};
    // All columns, and columns that the shares of two ranks could have.
    for (const Interval& columns : {Interval{0, kHidden}, {128, 128}, {32, 96}}) {
      const std::optional<FourBitFormat> format = FormatOf(parts, columns);
      ASSERT_TRUE(format.has_value());
      EXPECT_EQ(format->scale, type == TensorType::kF16 ? FourBitScale::kF16 : FourBitScale::kBf16);
      EXPECT_EQ(format->symmetric, scheme.symmetric);
      EXPECT_EQ(gate.group() % format->group, 0);
      EXPECT_LE(columns.begin == 32 ? 32 : std::min<int64_t>(128, gate.group()), format->group);
      for (const Interval& rows : {Interval{0, kFfn}, {40, 24}}) {
        const PackedRows plain(*format, 2 * rows.count, columns.count);
        std::vector<uint8_t> memory(plain.bytes() + 16, 0xaa);
        plain.Read(gate, rows, columns, 0, memory.data());
        plain.Read(up, rows, columns, rows.count, memory.data());
        plain.MapRows(/*interleaved=*/true, memory.data());
        for (size_t i = plain.bytes(); i < memory.size(); ++i) ASSERT_EQ(memory[i], 0xaa);
        const kernels::TileFourBitArgs args = plain.TileArgs(memory.data(), kHidden, nullptr);
        for (int64_t row = 0; row < 2 * rows.count; ++row) {
          const PackedReader& part = row / 8 % 2 == 0 ? gate : up;
          const std::vector<float> expected = RowInOrder(part, rows.begin + row / 16 * 8 + row % 8);
          for (int64_t c = 0; c < columns.count; ++c) {
            ASSERT_EQ(ValueAt(args, row, c), expected[columns.begin + c]) << row << ", " << c;
          }
        }
      }
    }
  }
}

TEST_F(PackedRowsTest, ColumnsStandInTheReadersOrder) {
  for (const bool reordered : {false, true}) {
    const OpenedModel model =
        Open({.quantization = QuantScheme{
                  .group = {1, 64}, .packing = Packing::kGptq, .reordered = reordered}});
    const PackedReader down = Reader(model, "ffn_down");
    EXPECT_EQ(down.order().empty(), !reordered);
    const PackedReader* const parts[] = {&down};
    const PackedRows plain(*FormatOf(parts, {0, kFfn}), 7, kFfn);
    std::vector<uint8_t> memory(plain.bytes());
    plain.Read(down, {5, 7}, {0, kFfn}, 0, memory.data());
    plain.MapRows(/*interleaved=*/false, memory.data());
    const kernels::TileFourBitArgs args = plain.TileArgs(memory.data(), kFfn, nullptr);
    for (int64_t row = 0; row < 7; ++row) {
      const std::vector<float> expected = RowInOrder(down, 5 + row);
      for (int64_t c = 0; c < kFfn; ++c) ASSERT_EQ(ValueAt(args, row, c), expected[c]);
    }
  }
}

// Scales in F32, of which `scales` are some.
TEST_F(PackedRowsTest, ScalesInFloat32AreTakenWhereSixteenBitsHoldThem) {
  struct Case {
    std::vector<float> scales;
    std::optional<FourBitScale> type;
  };
  for (const Case& test :
       {Case{{0x1.ffcp-7f, 0x1p-20f}, FourBitScale::kF16},
        Case{{0x1.fep-7f, 0x1p-60f}, FourBitScale::kBf16},
        Case{{0x1.ffcp-7f, 0x1p-60f}, std::nullopt}, Case{{0x1.fff8p-7f}, std::nullopt}}) {
    const OpenedModel model =
        Open({.quantization = QuantScheme{.group = {1, 64}, .packing = Packing::kGptq},
              .scale_type = TensorType::kF32,
              .change = [&](std::vector<StoredTensor>& tensors) {
                for (StoredTensor& tensor : tensors) {
                  if (!tensor.name.ends_with("v_proj.scales")) continue;
                  for (size_t i = 0; i < tensor.bytes.size() / sizeof(float); ++i) {
                    std::memcpy(tensor.bytes.data() + i * sizeof(float),
                                &test.scales[i % test.scales.size()], sizeof(float));
                  }
                }
              }});
    const PackedReader reader = Reader(model, "attn_v");
    const PackedReader* const parts[] = {&reader};
    const std::optional<FourBitFormat> format = FormatOf(parts, {0, kHidden});
    EXPECT_EQ(format.has_value() ? std::optional(format->scale) : std::nullopt, test.type);
  }
}

// Dummy weights, of which there is a configuration alone, take the memory that a file's would.
TEST_F(PackedRowsTest, FoldersWithoutWeightsHaveTheSameForms) {
  const auto placed = [](const OpenedModel& model) {
    CudaWeightPlacer placer(*model.tensors, model.config, {});
    EXPECT_TRUE(LoadModel(model.config, model.config.context_length, placer).ok());
    return placer.bytes();
  };
  for (const QuantScheme& scheme : Schemes()) {
    SCOPED_TRACE(PackedConfig(scheme).dump());
    const size_t bytes = placed(Open({.quantization = scheme, .scale_type = TensorType::kF16}));
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      if (entry.path().extension() == ".safetensors") std::filesystem::remove(entry.path());
    }
    const absl::StatusOr<OpenedModel> shapes = OpenModel(folder_);
    ASSERT_TRUE(shapes.ok()) << shapes.status();
    EXPECT_FALSE(shapes->tensors->has_data());
    EXPECT_EQ(placed(*shapes), bytes);
  }
}

TEST_F(PackedRowsTest, NoFormatIsGivenWhereNoneHolds) {
  const OpenedModel model =
      Open({.quantization = QuantScheme{.group = {1, 64}, .packing = Packing::kGptq}});
  const PackedReader q = Reader(model, "attn_q");
  const PackedReader* const parts[] = {&q};
  EXPECT_TRUE(FormatOf(parts, {0, 96}).has_value());
  EXPECT_FALSE(FormatOf(parts, {0, 80}).has_value());
  EXPECT_FALSE(FormatOf(parts, {16, 64}).has_value());

  const OpenedModel narrow =
      Open({.quantization = QuantScheme{.group = kPerChannel, .packing = Packing::kGptq}}, 48);
  const PackedReader rows_of_48 = Reader(narrow, "attn_q");
  const PackedReader* const narrow_parts[] = {&rows_of_48};
  EXPECT_FALSE(FormatOf(narrow_parts, {0, 48}).has_value());

  const OpenedModel reordered =
      Open({.quantization =
                QuantScheme{.group = {1, 64}, .packing = Packing::kGptq, .reordered = true}});
  const PackedReader own_order = Reader(reordered, "attn_q");
  const PackedReader other_order = Reader(reordered, "attn_k");
  ASSERT_NE(own_order.order(), other_order.order());
  const PackedReader* const pair[] = {&own_order, &other_order};
  EXPECT_FALSE(FormatOf(pair, {0, kHidden}).has_value());
}

}  // namespace
}  // namespace millrace::cuda
