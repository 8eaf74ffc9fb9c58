// Which rows and scales of a file come to which rank, without a GPU.
#include "executors/cuda/weights/weight_loader.h"

#include <numeric>
#include <string>
#include <vector>

#include "base/strings.h"
#include "executors/weights/shares.h"
#include "gtest/gtest.h"

namespace millrace::cuda {
namespace {

constexpr int64_t kColumns = 1 << 14;  // pieces have few rows

TensorInfo Tensor(int64_t rows) {
  return {.name = "a test",
          .type = TensorType::kBf16,
          .shape = {rows, kColumns},
          .bytes = static_cast<uint64_t>(2 * rows * kColumns)};
}

// Tensors one below the other, which outlive the matrix, cut as `shares` say.
PendingMatrix Matrix(const std::vector<TensorInfo>& tensors, const std::vector<Share>& shares) {
  PendingMatrix matrix;
  auto tensor = tensors.begin();
  int64_t begin = 0;
  for (const Share& share : shares) {
    matrix.row_parts.push_back({&*tensor, begin, share});
    matrix.rows += share.size;
    begin += share.total;
    if (begin == tensor->shape[0]) {
      ++tensor;
      begin = 0;
    }
  }
  matrix.column_share = Whole(kColumns);
  matrix.columns = matrix.stride = kColumns;
  return matrix;
}

// The number, counted from 1, of the row of all tensors that comes to each row of the rank's
// matrix; 0 where none comes. Rows of a part are numbered from `first` of that part.
std::vector<float> Placed(const PendingMatrix& matrix, const std::vector<int64_t>& first) {
  std::vector<float> placed(matrix.rows, 0.0f);
  const std::vector<PendingMatrix> matrices = {matrix};
  for (const WeightPiece& piece : CutIntoPieces(matrices)) {
    const KeptRows kept = Kept(piece);
    const size_t part = piece.part - matrices[0].row_parts.data();
    for (int64_t i = 0; i < kept.count; ++i) {
      EXPECT_EQ(placed[kept.to + i], 0);
      placed[kept.to + i] = static_cast<float>(first[part] + kept.begin + i + 1);
    }
  }
  return placed;
}

std::vector<float> Numbers(int64_t count) {
  std::vector<float> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 1.0f);
  return numbers;
}

TEST(WeightLoaderTest, HeadsComeToTheirRanks) {
  constexpr int kHead = 64;
  for (const bool fused : {false, true}) {
    for (int ranks = 1; ranks <= 8; ++ranks) {
      for (int rank = 0; rank < ranks; ++rank) {
        const HeadShares heads = DivideHeads(9, 3, 1, 1, {rank, ranks});
        const Share kv = Elements(heads.kv, kHead);
        const std::vector<Share> shares = {Elements(heads.q, kHead), kv, kv};
        const std::vector<TensorInfo> tensors =
            fused
                ? std::vector<TensorInfo>{Tensor(15 * kHead)}
                : std::vector<TensorInfo>{Tensor(9 * kHead), Tensor(3 * kHead), Tensor(3 * kHead)};
        EXPECT_EQ(Placed(Matrix(tensors, shares), {0, 9 * kHead, 12 * kHead}),
                  Cut(Numbers(15 * kHead), shares))
            << "rank " << rank << " of " << ranks;
      }
    }
  }
}

// By turns 8 of gate and 8 of up.
std::vector<float> InTurns(const std::vector<float>& gate, const std::vector<float>& up) {
  std::vector<float> rows;
  for (size_t i = 0; i < gate.size(); i += 8) {
    rows.insert(rows.end(), &gate[i], &gate[i] + 8);
    rows.insert(rows.end(), &up[i], &up[i] + 8);
  }
  return rows;
}

TEST(WeightLoaderTest, InterleavedRowsComeToTheirRanks) {
  constexpr int kSize = 488;  // not all ranks have whole shares
  std::vector<float> gate = Numbers(kSize), up = gate;
  for (float& row : up) row += kSize;
  const std::vector<float> all = InTurns(gate, up);
  const std::vector<TensorInfo> tensors = {Tensor(kSize), Tensor(kSize)};
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      const Share share = DivideUnits(kSize, kShareMultiple, {rank, ranks});
      PendingMatrix matrix = Matrix(tensors, {share, share});
      matrix.gate = kernels::GateLayout::kInterleaved;
      std::vector<float> placed = Placed(matrix, {0, 0});
      for (float& row : placed) row = row == 0 ? 0 : all[static_cast<size_t>(row) - 1];
      EXPECT_EQ(placed, InTurns(Cut(gate, 0, share), Cut(up, 0, share)))
          << "rank " << rank << " of " << ranks;
    }
  }
}

// All ranks hash the same pieces.
TEST(WeightLoaderTest, PiecesAreTheSameOnAllRanks) {
  const std::vector<TensorInfo> tensors = {Tensor(900), Tensor(300)};
  const auto cut = [&](RankSpec rank) {
    const std::vector<PendingMatrix> matrices = {
        Matrix(tensors, {DivideUnits(900, 16, rank), DivideUnits(300, 16, rank)})};
    std::string pieces;
    for (const WeightPiece& piece : CutIntoPieces(matrices)) {
      pieces +=
          StrCat(piece.part - matrices[0].row_parts.data(), " ", piece.begin, " ", piece.end, "\n");
    }
    return pieces;
  };
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(cut({rank, 8}), cut({0, 1}));
}

TEST(WeightLoaderTest, ScalesComeToTheirRanks) {
  const std::vector<TensorInfo> pair = {Tensor(100), Tensor(100)};
  const std::vector<TensorInfo> one = {Tensor(600)};
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      SCOPED_TRACE(StrCat("rank ", rank, " of ", ranks));
      // A scale a row.
      const Share share = DivideUnits(100, kShareMultiple, {rank, ranks});
      PendingMatrix channels = Matrix(pair, {share, share});
      channels.scaling = kernels::WeightScaling::kChannel;
      channels.host_scales = Numbers(200);
      channels.host_scales.resize(208, 0.0f);
      std::vector<float> expected = Cut(Numbers(200), {share, share});
      expected.resize((expected.size() + 15) / 16 * 16, 0.0f);
      EXPECT_EQ(RankScales(channels), expected);

      // A scale a block of 128x128, of 5 blocks of rows and 6 of columns, the last not whole.
      const Share rows = DivideUnits(600, 128, {rank, ranks});
      const Share columns = DivideUnits(700, 128, {rank, ranks});
      PendingMatrix blocks = Matrix(one, {rows});
      blocks.scaling = kernels::WeightScaling::kBlock;
      blocks.column_share = columns;
      const auto padded = [](int64_t size) {
        return (size + kernels::kColumnPadding - 1) / kernels::kColumnPadding *
               kernels::kColumnPadding;
      };
      blocks.stride = padded(columns.size);
      const int64_t all_stride = kernels::BlockScaleStride(padded(700));
      blocks.host_scales.assign(5 * all_stride, 0.0f);
      for (int row = 0; row < 5; ++row) {
        for (int column = 0; column < 6; ++column) {
          blocks.host_scales[row * all_stride + column] = static_cast<float>(10 * row + column + 1);
        }
      }
      const int64_t stride = kernels::BlockScaleStride(blocks.stride);
      const std::vector<float> scales = RankScales(blocks);
      ASSERT_EQ(scales.size(), (rows.size + 127) / 128 * stride);
      for (int64_t row = 0; row < static_cast<int64_t>(scales.size()) / stride; ++row) {
        for (int64_t column = 0; column < stride; ++column) {
          const bool has = row * 128 < rows.count && column * 128 < columns.count;
          const int64_t value =
              has ? 10 * (rows.begin / 128 + row) + columns.begin / 128 + column + 1 : 0;
          EXPECT_EQ(scales[row * stride + column], static_cast<float>(value));
        }
      }
    }
  }
}

}  // namespace
}  // namespace millrace::cuda
