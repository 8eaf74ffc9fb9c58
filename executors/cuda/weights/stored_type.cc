#include "executors/cuda/weights/stored_type.h"

namespace millrace::cuda {

std::optional<kernels::StoredType> StoredTypeOf(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return kernels::StoredType::kF32;
    case TensorType::kF16:
      return kernels::StoredType::kF16;
    case TensorType::kBf16:
      return kernels::StoredType::kBf16;
    case TensorType::kQ8_0:
      return kernels::StoredType::kQ8_0;
    case TensorType::kQ4_1:
      return kernels::StoredType::kQ4_1;
    case TensorType::kQ4_0:
      return kernels::StoredType::kQ4_0;
    case TensorType::kQ5_0:
      return kernels::StoredType::kQ5_0;
    case TensorType::kQ5_1:
      return kernels::StoredType::kQ5_1;
    case TensorType::kQ2K:
      return kernels::StoredType::kQ2K;
    case TensorType::kQ3K:
      return kernels::StoredType::kQ3K;
    case TensorType::kQ4K:
      return kernels::StoredType::kQ4K;
    case TensorType::kQ5K:
      return kernels::StoredType::kQ5K;
    case TensorType::kQ6K:
      return kernels::StoredType::kQ6K;
    case TensorType::kIq4Nl:
      return kernels::StoredType::kIq4Nl;
    case TensorType::kMxfp4:
      return kernels::StoredType::kMxfp4;
    case TensorType::kInt4x32:
      return kernels::StoredType::kInt4x32;
    case TensorType::kInt4x128:
      return kernels::StoredType::kInt4x128;
    case TensorType::kIq4Xs:
      return kernels::StoredType::kIq4Xs;
    case TensorType::kIq3S:
      return kernels::StoredType::kIq3S;
    case TensorType::kIq3Xxs:
      return kernels::StoredType::kIq3Xxs;
    case TensorType::kIq2S:
      return kernels::StoredType::kIq2S;
    case TensorType::kIq2Xs:
      return kernels::StoredType::kIq2Xs;
    case TensorType::kIq2Xxs:
      return kernels::StoredType::kIq2Xxs;
    case TensorType::kIq1S:
      return kernels::StoredType::kIq1S;
    case TensorType::kIq1M:
      return kernels::StoredType::kIq1M;
    case TensorType::kFp8E4m3:
    case TensorType::kU8:
    case TensorType::kI32:
    case TensorType::kI64:
      break;
  }
  return std::nullopt;
}

}  // namespace millrace::cuda
