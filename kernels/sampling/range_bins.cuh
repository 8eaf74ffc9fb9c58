// A range of tokens in order of likelihood, and its division into histogram bins.
#ifndef MILLRACE_KERNELS_SAMPLING_RANGE_BINS_CUH_
#define MILLRACE_KERNELS_SAMPLING_RANGE_BINS_CUH_

#include "kernels/sampling/sample_internal.cuh"

namespace millrace::kernels::sampling {

inline constexpr int kBins = 1024;

// Undecided tokens: low <= key < high. Tokens at `high` and beyond are kept; `above` is their
// number or their mass.
struct Range {
  Key low;
  Key high;
  Mass above;
};

// Division of a range into bins; larger keys fall into lower bins. Bins are uniform in the logit,
// which separates spread-out logits, or uniform in the key if the logits hardly differ, which
// separates ties.
struct RangeBins {
  float half_top;
  float scale;  // 0 selects bins by key
  Key last;     // the range's largest key
  int shift;

  __device__ explicit RangeBins(const Range& range) : last(range.high - 1) {
    half_top = 0.5f * LogitOf(last);
    const float half_span = half_top - 0.5f * LogitOf(range.low);
    scale = half_span > 1e-30f ? (kBins - 1) / half_span : 0;
    shift = max(0, 64 - __clzll(last - range.low) - 10);
  }
  __device__ int OfLogit(float x) const {
    return min(static_cast<int>(fmaf(x, -0.5f, half_top) * scale), kBins - 1);
  }
  __device__ int Of(Key key) const {
    return scale > 0 ? OfLogit(LogitOf(key)) : static_cast<int>((last - key) >> shift);
  }
  // Returns the smallest key in bins 0 to `bin`. `range` is the range given to the constructor.
  __device__ Key LowOf(int bin, const Range& range) const {
    if (bin < 0) return range.high;
    if (scale == 0) {
      const Key size = (Key{static_cast<uint32_t>(bin)} + 1) << shift;
      return size > last - range.low ? range.low : range.high - size;
    }
    uint32_t low = OrderedBitsOf(range.low);
    uint32_t high = OrderedBitsOf(last);  // always in one of the bins
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      if (OfLogit(FromOrderedBits(middle)) <= bin) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return max(LowestKey(high), range.low);
  }
};

}  // namespace millrace::kernels::sampling

#endif  // MILLRACE_KERNELS_SAMPLING_RANGE_BINS_CUH_
