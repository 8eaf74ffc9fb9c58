#include "executors/cuda/weights/rank_writer.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "executors/cuda/weights/four_bit_rows.h"
#include "executors/cuda/weights/packed_rows.h"
#include "executors/cuda/weights/stored_type.h"
#include "formats/tensors/dequantize.h"
#include "formats/tensors/float16.h"
#include "formats/tensors/quant_scheme.h"
#include "kernels/weights/quantize_weights.h"
#include "kernels/weights/split_blocks.h"

namespace millrace::cuda {

PackedForm KeptForm(const WeightPiece& piece) {
  const KeptRows kept = Kept(piece);
  const PendingMatrix& matrix = *piece.matrix;
  return {matrix.four_bit,
          {kept.begin, kept.count},
          {matrix.column_share.begin, matrix.column_share.count}};
}

PackedForm WholeForm(const WeightPiece& piece) {
  return {piece.matrix->whole_four_bit,
          {piece.begin, piece.end - piece.begin},
          {0, piece.matrix->column_share.total}};
}

int64_t PackedBytes(const PackedForm& form) {
  if (!form.format.has_value()) {
    return form.rows.count * form.columns.count * static_cast<int64_t>(sizeof(kernels::Bf16));
  }
  return static_cast<int64_t>(
      PackedRows(*form.format, form.rows.count, form.columns.count).bytes());
}

void ReadPacked(const WeightPiece& piece, const PackedForm& form, uint8_t* host) {
  const PendingMatrix& matrix = *piece.matrix;
  const int64_t rows = form.rows.count;
  const Interval& columns = form.columns;
  const bool interleaved = matrix.gate == kernels::GateLayout::kInterleaved;
  // Calls `read` with each part, its rows, and the row of `host` that they begin at.
  const auto for_parts = [&](const auto& read) {
    if (interleaved) {
      for (int64_t i = 0; i < 2; ++i) {
        read(i, Interval{matrix.row_parts[i].begin + form.rows.begin / 2, rows / 2}, i * rows / 2);
      }
    } else {
      read(piece.part - matrix.row_parts.data(),
           Interval{piece.part->begin + form.rows.begin, rows}, 0);
    }
  };
  if (form.format.has_value()) {
    const PackedRows plain(*form.format, rows, columns.count);
    for_parts([&](int64_t part, const Interval& of_part, int64_t to) {
      plain.Read(*matrix.packed[part], of_part, columns, to, host);
    });
    plain.MapRows(interleaved, host);
    return;
  }
  auto* const values = reinterpret_cast<uint16_t*>(host);
  for_parts([&](int64_t part, const Interval& of_part, int64_t to) {
    std::vector<float> row(matrix.packed[part]->columns());
    for (int64_t i = 0; i < of_part.count; ++i) {
      matrix.packed[part]->ReadFloats(of_part.begin + i, row.data());
      // By turns 8 of the gate and 8 of the other factor.
      const int64_t at = interleaved ? i / 8 * 16 + i % 8 + (to > 0 ? 8 : 0) : to + i;
      std::transform(row.begin() + columns.begin, row.begin() + columns.begin + columns.count,
                     values + at * columns.count, FloatToBf16);
    }
  });
}

absl::Status RankWriter::Open(const LargestPiece& largest) {
  MILLRACE_RETURN_IF_ERROR(UseDevice(device_));
  MILLRACE_ASSIGN_OR_RETURN(stream_, MakeStream());
  for (Slot& slot : slots_) {
    MILLRACE_ASSIGN_OR_RETURN(slot.device, DeviceMemory::Allocate(largest.bytes, "loading"));
    MILLRACE_ASSIGN_OR_RETURN(slot.copied, MakeEvent());
  }
  // The stream orders its users.
  MILLRACE_ASSIGN_OR_RETURN(bf16_, DeviceMemory::Allocate(largest.bf16, "loading"));
  MILLRACE_ASSIGN_OR_RETURN(four_bit_, DeviceMemory::Allocate(largest.four_bit, "loading"));
  return absl::OkStatus();
}

absl::Status RankWriter::Place(const WeightPiece& piece, int slot_index, uint8_t* host) {
  MILLRACE_RETURN_IF_ERROR(UseDevice(device_));
  const Slot& slot = slots_[slot_index];
  const KeptRows kept = Kept(piece);
  const std::string_view name = piece.part->tensor->name;
  if (!piece.matrix->present || kept.count == 0 || piece.matrix->column_share.count == 0) {
    return absl::OkStatus();
  }
  if (IsPacked(piece.part->tensor->type)) {
    MILLRACE_RETURN_IF_ERROR(ToStatus(PlacePacked(piece, kept, host, slot.device.data()), name));
  } else if (piece.matrix->expands_fp8) {
    MILLRACE_RETURN_IF_ERROR(ToStatus(PlaceExpanded(piece, kept, host), name));
  } else {
    MILLRACE_RETURN_IF_ERROR(ToStatus(Upload(piece, kept, host, slot.device.data()), "loading"));
    MILLRACE_RETURN_IF_ERROR(ToStatus(Convert(piece, kept, slot.device.data()), name));
  }
  return ToStatus(cudaEventRecord(slot.copied.get(), stream_.get()), "loading");
}

cudaError_t RankWriter::Upload(const WeightPiece& piece, const KeptRows& kept, const uint8_t* host,
                               uint8_t* device) {
  const TensorInfo& tensor = *piece.part->tensor;
  const TensorTypeTraits& traits = Traits(tensor.type);
  const auto bytes = [&](int64_t columns) {
    return columns / traits.block_elements * traits.block_bytes;
  };
  const Share& columns = piece.matrix->column_share;
  const int64_t row_bytes = RowBytes(tensor);
  const uint8_t* from = host + (kept.begin - piece.begin) * row_bytes + bytes(columns.begin);
  if (columns.count == columns.total) {
    return cudaMemcpyAsync(device, from, kept.count * row_bytes, cudaMemcpyHostToDevice,
                           stream_.get());
  }
  return cudaMemcpy2DAsync(device, bytes(columns.count), from, row_bytes, bytes(columns.count),
                           kept.count, cudaMemcpyHostToDevice, stream_.get());
}

cudaError_t RankWriter::PlacePacked(const WeightPiece& piece, const KeptRows& kept, uint8_t* host,
                                    uint8_t* device) {
  const PendingMatrix& matrix = *piece.matrix;
  const PackedForm form = KeptForm(piece);
  ReadPacked(piece, form, host);
  const cudaError_t error =
      cudaMemcpyAsync(device, host, PackedBytes(form), cudaMemcpyHostToDevice, stream_.get());
  if (error != cudaSuccess) return error;
  if (!form.format.has_value()) {
    return Dequantize(matrix, device, kernels::StoredType::kBf16, kept.count, kept.to);
  }
  const FourBitRows to = {&matrix, kept.to, kept.count, arena_};
  const PackedRows plain(*form.format, kept.count, form.columns.count);
  return kernels::LaunchTileFourBit(plain.TileArgs(device, matrix.stride, to.out()), stream_.get());
}

cudaError_t RankWriter::PlaceExpanded(const WeightPiece& piece, const KeptRows& kept,
                                      const uint8_t* host) {
  const PendingMatrix& matrix = *piece.matrix;
  const Share& columns = matrix.column_share;
  const auto tensor = std::find(matrix.parts.begin(), matrix.parts.end(), piece.part->tensor);
  const float* const scales = matrix.host_scales.data() +
                              (tensor - matrix.parts.begin()) * kFp8Blocks.Across(columns.total);
  std::vector<float> row(columns.total);
  std::vector<uint16_t> values;
  for (int64_t i = 0; i < kept.count; ++i) {
    const uint8_t* const codes = host + (kept.begin - piece.begin + i) * columns.total;
    millrace::Dequantize(TensorType::kFp8E4m3, {codes, row.size()}, absl::MakeSpan(row));
    for (int64_t at = columns.begin; at < columns.begin + columns.count; ++at) {
      values.push_back(FloatToBf16(row[at] * scales[at / kFp8Block]));
    }
  }
  const size_t row_bytes = columns.count * sizeof(uint16_t);
  const size_t stride_bytes = matrix.stride * sizeof(uint16_t);
  const cudaError_t error = cudaMemcpy2DAsync(arena_ + matrix.data_offset + kept.to * stride_bytes,
                                              stride_bytes, values.data(), row_bytes, row_bytes,
                                              kept.count, cudaMemcpyHostToDevice, stream_.get());
  return error == cudaSuccess ? cudaStreamSynchronize(stream_.get()) : error;  // `values` go
}

cudaError_t RankWriter::Dequantize(const PendingMatrix& matrix, const uint8_t* from,
                                   kernels::StoredType stored, int64_t rows, int64_t to) {
  return kernels::LaunchDequantize(
      {.source = from,
       .stored = stored,
       .rows = rows,
       .columns = matrix.column_share.count,
       .out = arena_ + matrix.data_offset + to * matrix.stride * ElementBytes(matrix.type),
       .type = matrix.type,
       .stride = matrix.stride},
      stream_.get());
}

cudaError_t RankWriter::Convert(const WeightPiece& piece, const KeptRows& kept,
                                const uint8_t* from) {
  const PendingMatrix& matrix = *piece.matrix;
  const int64_t rows = kept.count;
  const int64_t columns = matrix.column_share.count;
  uint8_t* out = arena_ + matrix.data_offset + kept.to * matrix.stride * ElementBytes(matrix.type);
  if (matrix.stored_fp8) {
    return cudaMemcpy2DAsync(out, matrix.stride, from, columns, columns, rows,
                             cudaMemcpyDeviceToDevice, stream_.get());
  }
  const std::optional<kernels::StoredType> stored = StoredTypeOf(piece.part->tensor->type);
  if (!stored.has_value()) return cudaErrorInvalidValue;
  const FourBitRows four_bit = {&matrix, kept.to, rows, arena_};
  if (matrix.four_bit.has_value() && kernels::FourBitFormatOf(*stored) == matrix.four_bit &&
      !matrix.quantized_int4) {
    return TileBlocks(four_bit, from, *stored, four_bit_.data(), stream_.get());
  }
  const bool quantized = matrix.type == kernels::Type::kFp8 || matrix.four_bit.has_value();
  if (!quantized) return Dequantize(matrix, from, *stored, rows, kept.to);
  const cudaError_t error = kernels::LaunchDequantize({.source = from,
                                                       .stored = *stored,
                                                       .rows = rows,
                                                       .columns = columns,
                                                       .out = bf16_.data(),
                                                       .type = kernels::Type::kBf16,
                                                       .stride = matrix.stride},
                                                      stream_.get());
  if (error != cudaSuccess) return error;
  if (matrix.four_bit.has_value()) {
    return TileQuantized(four_bit, bf16_.As<kernels::Bf16>(), four_bit_.data(), stream_.get());
  }
  const int64_t first_scale = matrix.scaling == kernels::WeightScaling::kBlock
                                  ? kept.to / 128 * kernels::BlockScaleStride(matrix.stride)
                                  : kept.to;
  float* scales = reinterpret_cast<float*>(arena_ + matrix.scales_offset) + first_scale;
  return kernels::LaunchQuantizeWeights({.source = bf16_.As<kernels::Bf16>(),
                                         .rows = rows,
                                         .stride = matrix.stride,
                                         .out = out,
                                         .scaling = matrix.scaling,
                                         .scales = scales},
                                        stream_.get());
}

}  // namespace millrace::cuda
