#include "executors/cpu/kernels/weight_tiles.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "executors/cpu/kernels/tile_block.h"
#include "formats/tensors/codebook_blocks.h"
#include "formats/tensors/dequantize.h"
#include "formats/tensors/float16.h"

namespace millrace::cpu {
namespace {

static_assert(kBlock == kQuantBlock);

size_t AlignUp(size_t bytes) { return (bytes + 63) / 64 * 64; }

template <typename T>
T Load(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

void Put(uint32_t dword, uint8_t* to) { std::memcpy(to, &dword, sizeof(dword)); }

TileFormat DescribeFormat(const TileRun& run, int64_t columns, const Kernels& kernels) {
  const std::optional<TileKind> kind = TileKindOf(run.type);
  if (!kind.has_value()) std::abort();  // the placer refuses them
  TileFormat format{.type = run.type,
                    .kind = *kind,
                    .input = run.order ? Form::kFloat : InputForm(run.type, kernels),
                    .order = run.order,
                    .gemm = kernels.gemm[static_cast<int>(*kind)]};
  const TileLayout& layout = kTileLayouts[static_cast<int>(*kind)];
  switch (*kind) {
    case TileKind::kF32:
      format.depth = static_cast<int>(columns);
      format.bytes = columns * kTileRows * sizeof(float);
      break;
    case TileKind::kF16:
      format.depth = static_cast<int>(columns);
      format.bytes = AlignUp(columns * kTileRows * sizeof(uint16_t));
      break;
    case TileKind::kBf16:
      format.depth = static_cast<int>((columns + 1) / 2);
      format.bytes = static_cast<size_t>(format.depth) * 64;
      break;
    default:
      format.depth = static_cast<int>((columns + kBlock - 1) / kBlock);
      format.bytes =
          static_cast<size_t>((format.depth + layout.group - 1) / layout.group) * layout.header +
          static_cast<size_t>(format.depth) * layout.codes;
  }
  return format;
}

template <int kBytes>
void TileElements(const uint8_t* row, int64_t columns, int lane, uint8_t* tile) {
  uint8_t* to = tile + lane * kBytes;
  for (int64_t i = 0; i < columns; ++i, row += kBytes, to += kTileRows * kBytes) {
    std::memcpy(to, row, kBytes);
  }
}

// The numbers of the group that block `block` of the file begins or is in.
void TileHeader(const TileFormat& format, const uint8_t* from, int block, int lane,
                uint8_t* header) {
  const auto half = [&](int at, int to) { std::memcpy(header + to + 2 * lane, from + at, 2); };
  // `count` bytes in dwords of 16 rows.
  const auto bytes = [&](const uint8_t* source, int count) {
    for (int i = 0; i < count; i += 4) {
      std::memcpy(header + 64 + 16 * i + 4 * lane, source + i, 4);
    }
  };
  switch (format.kind) {
    case TileKind::kInt4x32:
    case TileKind::kInt4x128:
      std::memcpy(header + 4 * lane, from, 4);
      std::memcpy(header + 64 + 4 * lane, from + 4, 4);
      return;
    case TileKind::kQ4_1:
    case TileKind::kQ5_1:
      half(0, 0);
      return half(2, 32);
    case TileKind::kMxfp4: {
      const uint32_t scale = std::bit_cast<uint32_t>(ScaleMxfp4(from[0]));
      const uint16_t upper = static_cast<uint16_t>(scale >> 16);  // it has no lower bits
      std::memcpy(header + block % 2 * 32 + 2 * lane, &upper, sizeof(upper));
      return;
    }
    case TileKind::kQ4K:
    case TileKind::kQ5K:
      half(0, 0);
      half(2, 32);
      return bytes(from + 4, 12);
    case TileKind::kQ6K:
      half(208, 0);
      return bytes(from + 192, 16);
    case TileKind::kQ3K: {
      half(108, 0);
      int8_t scales[16];
      ReadScalesQ3K(from + 96, scales);
      return bytes(reinterpret_cast<const uint8_t*>(scales), 16);
    }
    case TileKind::kIq4Xs:
    case TileKind::kIq3S:
    case TileKind::kIq3Xxs:
    case TileKind::kIq2:
    case TileKind::kIq1: {
      const CodebookScales scales = ReadCodebookScales(format.type, from);
      std::memcpy(header + 2 * lane, &scales.d, sizeof(scales.d));
      return bytes(reinterpret_cast<const uint8_t*>(scales.halves), 16);
    }
    case TileKind::kQ2K:
      half(80, 0);
      half(82, 32);
      return bytes(from, 16);
    default:
      return half(0, block % 2 * 32);
  }
}

// The codes of a block in the order of a tile's, of one lane.
void TileCodes(TileKind kind, const uint8_t* codes, uint8_t* to) {
  uint32_t w[8];
  std::memcpy(w, codes, sizeof(w));
  if (kind == TileKind::kQ8_0) {
    for (int j = 0; j < 8; ++j) Put(w[j], to + 64 * j);
    return;
  }
  for (int j = 0; j < 4; ++j) {
    Put((w[j] & 0x0f0f0f0f) | (w[j + 4] & 0x0f0f0f0f) << 4, to + 64 * j);
  }
  const int codes_bytes = kTileLayouts[static_cast<int>(kind)].codes;
  if (codes_bytes == 320) {
    uint32_t fifth = 0;
    for (int j = 0; j < 8; ++j) fifth |= (w[j] >> 4 & 0x01010101) << j;
    Put(fifth, to + 256);
  } else if (codes_bytes == 384) {
    for (int j = 0; j < 2; ++j) {
      uint32_t upper = 0;
      for (int k = 0; k < 4; ++k) upper |= (w[4 * j + k] >> 4 & 0x03030303) << (2 * k);
      Put(upper, to + 256 + 64 * j);
    }
  }
}

// Where a block's nibbles begin that lie in the file as they do in a tile; 0 for other kinds.
int NibblesAt(TileKind kind) {
  switch (kind) {
    case TileKind::kQ4_0:
    case TileKind::kIq4Nl:
      return 2;
    case TileKind::kQ4_1:
      return 4;
    case TileKind::kMxfp4:
      return 1;
    case TileKind::kInt4x32:
    case TileKind::kInt4x128:
      return 8;
    default:
      return 0;
  }
}

void TileBlocks(const TileFormat& format, const uint8_t* row, int lane, uint8_t* tile) {
  const TensorTypeTraits& traits = Traits(format.type);
  const int blocks = traits.block_elements / kBlock;  // of ours in one of the file's
  const int nibbles = NibblesAt(format.kind);
  for (int b = 0; b < format.depth; ++b) {
    const uint8_t* from = row + static_cast<size_t>(b / blocks) * traits.block_bytes;
    if (b % blocks == 0) TileHeader(format, from, b, lane, tile + GroupOffset(format.kind, b));
    uint8_t* to = tile + CodesOffset(format.kind, b) + 4 * lane;
    if (nibbles > 0) {
      from += nibbles + b % blocks * kBlock / 2;
      for (int j = 0; j < 4; ++j) std::memcpy(to + 64 * j, from + 4 * j, 4);
    } else if (format.kind == TileKind::kQ8_0) {
      // + 128 on each byte: codes are unsigned.
      for (int j = 0; j < 8; ++j) Put(Load<uint32_t>(from + 2 + 4 * j) ^ 0x80808080, to + 64 * j);
    } else {
      TileCodes(format.kind, ReadBlock(format.type, row, b).codes, to);
    }
  }
}

}  // namespace

std::optional<TileKind> TileKindOf(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return TileKind::kF32;
    case TensorType::kF16:
      return TileKind::kF16;
    case TensorType::kBf16:
      return TileKind::kBf16;
    case TensorType::kQ4_0:
      return TileKind::kQ4_0;
    case TensorType::kQ4_1:
      return TileKind::kQ4_1;
    case TensorType::kQ5_0:
      return TileKind::kQ5_0;
    case TensorType::kQ5_1:
      return TileKind::kQ5_1;
    case TensorType::kQ8_0:
      return TileKind::kQ8_0;
    case TensorType::kIq4Nl:
      return TileKind::kIq4Nl;
    case TensorType::kMxfp4:
      return TileKind::kMxfp4;
    case TensorType::kQ2K:
      return TileKind::kQ2K;
    case TensorType::kQ3K:
      return TileKind::kQ3K;
    case TensorType::kQ4K:
      return TileKind::kQ4K;
    case TensorType::kQ5K:
      return TileKind::kQ5K;
    case TensorType::kQ6K:
      return TileKind::kQ6K;
    case TensorType::kInt4x32:
      return TileKind::kInt4x32;
    case TensorType::kInt4x128:
      return TileKind::kInt4x128;
    case TensorType::kIq4Xs:
      return TileKind::kIq4Xs;
    case TensorType::kIq3S:
      return TileKind::kIq3S;
    case TensorType::kIq3Xxs:
      return TileKind::kIq3Xxs;
    case TensorType::kIq2S:
    case TensorType::kIq2Xs:
    case TensorType::kIq2Xxs:
      return TileKind::kIq2;
    case TensorType::kIq1S:
    case TensorType::kIq1M:
      return TileKind::kIq1;
    case TensorType::kFp8E4m3:
    case TensorType::kU8:
    case TensorType::kI32:
    case TensorType::kI64:
      break;
  }
  return std::nullopt;
}

Form InputForm(TensorType type, const Kernels& kernels) {
  if (Traits(type).quantized) return Form::kQ8;
  return type == TensorType::kBf16 ? kernels.bf16_input : Form::kFloat;
}

TiledMatrix DescribeTiles(absl::Span<const TileRun> runs, int64_t columns, const Kernels& kernels) {
  TiledMatrix matrix;
  matrix.columns = columns;
  for (const TileRun& run : runs) {
    size_t format = 0;
    while (format < matrix.formats.size() &&
           (matrix.formats[format].type != run.type || matrix.formats[format].order != run.order)) {
      ++format;
    }
    if (format == matrix.formats.size()) {
      matrix.formats.push_back(DescribeFormat(run, columns, kernels));
      const Form input = matrix.formats[format].input;
      if (std::find(matrix.inputs.begin(), matrix.inputs.end(), input) == matrix.inputs.end()) {
        matrix.inputs.push_back(input);
      }
    }
    for (int64_t row = 0; row < run.rows; row += kTileRows) {
      matrix.places.push_back(
          {.offset = matrix.bytes,
           .format = static_cast<int>(format),
           .row = static_cast<int>(matrix.rows + row),
           .rows = static_cast<int>(std::min<int64_t>(kTileRows, run.rows - row))});
      matrix.bytes += matrix.formats[format].bytes;
    }
    matrix.rows += run.rows;
  }
  matrix.tiles = static_cast<int64_t>(matrix.places.size());
  // Behind the last row an output has space up to a multiple of 16.
  TiledMatrix::Place& last = matrix.places.back();
  if (last.row % kTileRows == 0) last.rows = kTileRows;
  return matrix;
}

void TiledMatrix::MultiplyPart(int64_t tile, GemmTile gemm) const {
  constexpr int kTokens = 32;
  float outputs[kTokens * kTileRows] = {};
  const GemmTile all = gemm;
  const int count = places[tile].rows;
  for (int first = 0; first < all.rows; first += kTokens) {
    gemm.rows = std::min(kTokens, all.rows - first);
    gemm.x = static_cast<const uint8_t*>(all.x) + first * all.x_stride;
    gemm.out = outputs;
    gemm.out_stride = kTileRows;
    float* const to = all.out + first * all.out_stride;
    for (int i = 0; i < gemm.rows && all.add; ++i) {
      std::copy_n(to + i * all.out_stride, count, outputs + i * kTileRows);
    }
    Multiply(tile, gemm);
    for (int i = 0; i < gemm.rows; ++i) {
      std::copy_n(outputs + i * kTileRows, count, to + i * all.out_stride);
    }
  }
}

void TileRow(const TileFormat& format, int64_t columns, const uint8_t* row, int lane,
             uint8_t* tile) {
  switch (format.kind) {
    case TileKind::kF32:
      return TileElements<4>(row, columns, lane, tile);
    case TileKind::kF16:
      return TileElements<2>(row, columns, lane, tile);
    case TileKind::kBf16:
      for (int64_t i = 0; i < columns; ++i) {
        std::memcpy(tile + i / 2 * 64 + 4 * lane + i % 2 * 2, row + 2 * i, 2);
      }
      return;
    default:
      return TileBlocks(format, row, lane, tile);
  }
}

void UntileRow(const TiledMatrix& matrix, int64_t row, float* out) {
  const uint8_t* tile = matrix.Tile(row / kTileRows);
  const TileFormat& format = matrix.Format(row / kTileRows);
  const int lane = static_cast<int>(row % kTileRows);
  switch (format.kind) {
    case TileKind::kF32:
      for (int64_t i = 0; i < matrix.columns; ++i)
        out[i] = Load<float>(tile + (i * kTileRows + lane) * 4);
      return;
    case TileKind::kF16:
      for (int64_t i = 0; i < matrix.columns; ++i)
        out[i] = HalfToFloat(Load<uint16_t>(tile + (i * kTileRows + lane) * 2));
      return;
    case TileKind::kBf16:
      for (int64_t i = 0; i < matrix.columns; ++i)
        out[i] = Bf16ToFloat(Load<uint16_t>(tile + i / 2 * 64 + 4 * lane + i % 2 * 2));
      return;
    default:
      break;
  }
  TileBlock block;
  for (int b = 0; b < format.depth; ++b) {
    ReadTileBlock(format.kind, tile, b, lane, lane + 1, &block);
    for (int i = 0; i < kBlock; ++i) {
      const float scaled = static_cast<float>(block.values[i][lane]) * block.scales[i / 16][lane];
      *out++ = scaled - block.minima[i / 16][lane];
    }
  }
}

}  // namespace millrace::cpu
