// Linears of every table on every kind of weights, against plain arithmetic in double precision.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "executors/cpu/kernels/kernels_test_util.h"
#include "executors/cpu/kernels/weight_tiles.h"
#include "executors/cpu/memory.h"
#include "formats/json/json.h"
#include "formats/tensors/float16.h"
#include "formats/twins/tensor_test_util.h"
#include "gtest/gtest.h"

namespace millrace::cpu {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<TensorType> TiledTypes() {
  std::vector<TensorType> types;
  for (int type = 0; type < kNumTensorTypes; ++type) {
    if (TileKindOf(static_cast<TensorType>(type)).has_value()) {
      types.push_back(static_cast<TensorType>(type));
    }
  }
  return types;
}

class GemmTest : public TableTest {};
INSTANTIATE_TEST_SUITE_P(All, GemmTest, ::testing::ValuesIn(Tables()), TableName);

struct Matrix {
  TiledMatrix tiled;
  std::vector<float> values;  // [rows][columns], what the tensor's bytes stand for
  Memory memory;
};

Matrix MakeMatrix(TensorType type, int64_t rows, int64_t columns, const Kernels& kernels,
                  const std::string& bytes) {
  Matrix matrix;
  matrix.tiled = DescribeTiles({{type, rows}}, columns, kernels);
  matrix.memory = *Memory::Reserve(matrix.tiled.bytes, "a test");
  matrix.tiled.data = matrix.memory.data();
  const uint8_t* data = reinterpret_cast<const uint8_t*>(bytes.data());
  matrix.values = DecodeTensor(type, absl::MakeConstSpan(data, bytes.size()));
  for (int64_t row = 0; row < rows; ++row) {
    TileRow(matrix.tiled.formats[0], columns, data + row * (bytes.size() / rows),
            static_cast<int>(row % kTileRows),
            matrix.memory.data() + matrix.tiled.places[row / kTileRows].offset);
  }
  return matrix;
}

Matrix MakeMatrix(TensorType type, int64_t rows, int64_t columns, const Kernels& kernels,
                  const std::vector<float>& values) {
  return MakeMatrix(type, rows, columns, kernels, EncodeTensor(type, values));
}

// Activations as a linear reads them, and the numbers that they then stand for.
struct Input {
  std::vector<uint8_t> bytes;
  size_t stride;
  std::vector<float> values;
};

Input MakeInput(const Kernels& kernels, Form form, int tokens, int columns,
                const std::vector<float>& x) {
  Input input;
  const int padded = (columns + kBlock - 1) / kBlock * kBlock;
  input.stride = form == Form::kFloat  ? padded * sizeof(float)
                 : form == Form::kBf16 ? padded * sizeof(uint16_t)
                                       : columns / kBlock * sizeof(QuantizedBlock);
  input.bytes.resize(input.stride * tokens + 64);
  for (int token = 0; token < tokens; ++token) {
    std::vector<float> row(&x[static_cast<size_t>(token) * columns],
                           &x[static_cast<size_t>(token) * columns] + columns);
    row.resize(padded);  // where columns are no multiple of 16, zeros are stored, too
    uint8_t* out = &input.bytes[input.stride * token];
    kernels.store(row.data(), form == Form::kQ8 ? columns : padded, form, out);
    for (int i = 0; i < columns; ++i) {
      if (form == Form::kQ8) {
        QuantizedBlock block;
        std::memcpy(&block, out + i / kBlock * sizeof(block), sizeof(block));
        input.values.push_back(static_cast<float>(block.values[i % kBlock]) * block.scale);
      } else if (form == Form::kBf16) {
        uint16_t value;
        std::memcpy(&value, out + i * sizeof(value), sizeof(value));
        EXPECT_EQ(value, FloatToBf16(row[i]));
        input.values.push_back(Bf16ToFloat(value));
      } else {
        input.values.push_back(row[i]);
      }
    }
  }
  return input;
}

std::vector<float> Multiply(const Matrix& matrix, const Input& input, int tokens, bool add) {
  const size_t stride = matrix.tiled.tiles * kTileRows;
  std::vector<float> out(stride * tokens,
                         add ? 1.0f : kNan);  // poisoned where it is to be overwritten
  GemmTile gemm{.weights = nullptr,
                .depth = 0,
                .x = input.bytes.data(),
                .x_stride = input.stride,
                .rows = tokens,
                .out = nullptr,
                .out_stride = stride,
                .add = add};
  for (int64_t tile = 0; tile < matrix.tiled.tiles; ++tile) {
    gemm.out = &out[tile * kTileRows];
    matrix.tiled.Multiply(tile, gemm);
  }
  return out;
}

void ExpectAgreement(const Matrix& matrix, const Input& input, int tokens, bool add) {
  const int64_t columns = matrix.tiled.columns;
  const std::vector<float> out = Multiply(matrix, input, tokens, add);
  for (int token = 0; token < tokens; ++token) {
    for (int64_t row = 0; row < matrix.tiled.rows; ++row) {
      double sum = add ? 1 : 0;
      double magnitude = 1;
      for (int64_t i = 0; i < columns; ++i) {
        const double product = double{matrix.values[row * columns + i]} *
                               input.values[static_cast<size_t>(token * columns + i)];
        sum += product;
        magnitude += std::fabs(product);
      }
      ASSERT_NEAR(out[token * matrix.tiled.tiles * kTileRows + row], sum, 1e-6 * magnitude)
          << Traits(matrix.tiled.formats[0].type).name << " of " << columns << " columns x "
          << tokens << ", row " << row;
    }
  }
}

TEST_P(GemmTest, LinearsAgreeWithDoubles) {
  for (const TensorType type : TiledTypes()) {
    const int block = Traits(type).block_elements;
    for (const int columns :
         {block * 32 / std::min(block, 32), block * 3, block == 1 ? 77 : block * 2}) {
      constexpr int kRows = 37;  // the last tile has 5
      const Matrix matrix = MakeMatrix(type, kRows, columns, kernels_, Floats(kRows * columns));
      for (const int tokens : {1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 17, 65}) {
        const Input input =
            MakeInput(kernels_, matrix.tiled.inputs[0], tokens, columns, Floats(tokens * columns));
        for (const bool add : {false, true}) ExpectAgreement(matrix, input, tokens, add);
      }
    }
  }
}

// Bits that no encoder of ours makes: every scale, minimum and code.
TEST_P(GemmTest, LinearsTakeAnyBlock) {
  std::ifstream file("tests/reference/quantized_reference.json");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const absl::StatusOr<Json> json = ParseJson(text, {});
  ASSERT_TRUE(json.ok()) << json.status();
  const std::vector<TensorType> types = TiledTypes();
  for (const auto& item : json->items()) {
    const std::string& name = item.key();
    const Json& kind = item.value();
    const auto type = std::find_if(types.begin(), types.end(),
                                   [&](TensorType t) { return Traits(t).name == name; });
    ASSERT_NE(type, types.end()) << name;
    const std::string bytes = absl::HexStringToBytes(kind["bytes"].get<std::string>());
    const Matrix matrix = MakeMatrix(*type, 1, 256, kernels_, bytes);
    const Input input = MakeInput(kernels_, Form::kQ8, 3, 256, Floats(3 * 256));
    ExpectAgreement(matrix, input, 3, false);
    std::vector<float> row(256);
    UntileRow(matrix.tiled, 0, row.data());
    EXPECT_EQ(row, matrix.values) << name;
  }
}

// Runs whose rows are no multiples of 16, each in the form of x that it reads: what each gives
// alone, and not a value more is written.
TEST_P(GemmTest, RunsOfOtherTypesAreWhatTheyAreAlone) {
  constexpr int kColumns = 256;
  constexpr int kTokens = 70;
  constexpr int kStride = 96;
  constexpr TileRun kRuns[] = {
      {TensorType::kQ4K, 20}, {TensorType::kF16, 7}, {TensorType::kBf16, 50}};
  TiledMatrix matrix = DescribeTiles(kRuns, kColumns, kernels_);
  EXPECT_EQ(matrix.inputs.size(), kernels_.bf16_input == Form::kBf16 ? 3 : 2);
  EXPECT_EQ(matrix.rows, 77);
  const Memory memory = *Memory::Reserve(matrix.bytes, "a test");
  matrix.data = memory.data();
  const std::vector<float> x = Floats(kTokens * kColumns);
  for (const bool add : {false, true}) {
    std::vector<float> out(kTokens * kStride, add ? 1.0f : kNan);
    std::vector<float> expected = out;
    int64_t tile = 0;
    int first_row = 0;
    for (const TileRun& run : kRuns) {
      const int rows = static_cast<int>(run.rows);
      const Matrix alone = MakeMatrix(run.type, rows, kColumns, kernels_, Floats(rows * kColumns));
      const Input input = MakeInput(kernels_, InputForm(run.type, kernels_), kTokens, kColumns, x);
      for (int64_t i = 0; i < alone.tiled.tiles; ++i, ++tile) {
        const TiledMatrix::Place& place = matrix.places[tile];
        std::memcpy(memory.data() + place.offset, alone.tiled.Tile(i), matrix.Format(tile).bytes);
        const GemmTile gemm{.weights = nullptr,
                            .depth = 0,
                            .x = input.bytes.data(),
                            .x_stride = input.stride,
                            .rows = kTokens,
                            .out = &out[place.row],
                            .out_stride = kStride,
                            .add = add};
        matrix.MultiplyPart(tile, gemm);
      }
      const std::vector<float> products = Multiply(alone, input, kTokens, add);
      for (int token = 0; token < kTokens; ++token) {
        std::copy_n(&products[token * alone.tiled.tiles * kTileRows], rows,
                    &expected[token * kStride + first_row]);
      }
      first_row += rows;
    }
    EXPECT_EQ(tile, matrix.tiles);
    EXPECT_EQ(std::memcmp(out.data(), expected.data(), out.size() * sizeof(float)), 0);
  }
}

TEST_P(GemmTest, ALinearsRowDoesNotDependOnTheOthers) {
  for (const TensorType type : TiledTypes()) {
    constexpr int kColumns = 512;
    constexpr int kTokens = 65;
    const Matrix matrix = MakeMatrix(type, 48, kColumns, kernels_, Floats(48 * kColumns));
    const std::vector<float> x = Floats(kTokens * kColumns);
    const std::vector<float> all = Multiply(
        matrix, MakeInput(kernels_, matrix.tiled.inputs[0], kTokens, kColumns, x), kTokens, false);
    for (int tokens = 1; tokens <= 17; ++tokens) {
      const std::vector<float> some = Multiply(
          matrix, MakeInput(kernels_, matrix.tiled.inputs[0], tokens, kColumns, x), tokens, false);
      EXPECT_EQ(some, std::vector<float>(all.begin(), all.begin() + some.size()))
          << Traits(type).name << ", " << tokens << " tokens";
    }
  }
}

TEST_P(GemmTest, UntileGivesBackEveryRow) {
  for (const TensorType type : TiledTypes()) {
    const int columns = Traits(type).block_elements == 1 ? 77 : 256 * 3;
    const Matrix matrix = MakeMatrix(type, 21, columns, kernels_, Floats(21 * columns));
    std::vector<float> row(columns);
    for (int64_t r = 0; r < 21; ++r) {
      UntileRow(matrix.tiled, r, row.data());
      const float* values = &matrix.values[r * columns];
      EXPECT_EQ(row, std::vector<float>(values, values + columns)) << Traits(type).name;
    }
  }
}

TEST(GemmTablesTest, InstructionSetsGiveTheSameBits) {
  const std::vector<const Kernels*> tables = VectorTables();
  if (tables.size() < 2) GTEST_SKIP() << "fewer than two vector instruction sets here";
  std::mt19937 random(5);
  std::uniform_real_distribution<float> draw(-1, 1);
  std::vector<float> weights(37 * 512), x(9 * 512);
  for (float& value : weights) value = draw(random);
  for (float& value : x) value = draw(random);
  for (const TensorType type : TiledTypes()) {
    std::vector<float> first;
    for (size_t i = 0; i < tables.size(); ++i) {
      if (InputForm(type, *tables[i]) == Form::kBf16) continue;  // it rounds otherwise
      const Matrix matrix = MakeMatrix(type, 37, 512, *tables[i], weights);
      const Input input = MakeInput(*tables[i], matrix.tiled.inputs[0], 9, 512, x);
      const std::vector<float> out = Multiply(matrix, input, 9, false);
      if (i == 0) {
        first = out;
      } else {
        EXPECT_EQ(out, first) << Traits(type).name << ", " << tables[i]->name;
      }
    }
  }
}

}  // namespace
}  // namespace millrace::cpu
