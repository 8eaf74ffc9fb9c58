// A cache of the linears' plans measured on this machine's GPU, kept in a file between starts:
// ${XDG_CACHE_HOME:-~/.cache}/millrace/gemm/GPU-cublaslt-VERSION.txt. The file has a line per
// product (printed by kernels/gemm/gemm_desc.h) and may be deleted at any time.
//
// The file is not trusted: lines that do not parse are skipped, and ranges from it are checked
// before use (gemm_plans.h). A file that cannot be read or written costs a log line and the time of
// another measurement.
#ifndef MILLRACE_EXECUTORS_CUDA_WEIGHTS_GEMM_CACHE_H_
#define MILLRACE_EXECUTORS_CUDA_WEIGHTS_GEMM_CACHE_H_

#include <cstddef>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "kernels/gemm/gemm_desc.h"
#include "kernels/gemm/linear.h"

namespace millrace::cuda {

// The properties, other than the product itself, on which the fastest plan depends.
struct GemmCacheKey {
  std::string gpu;     // its name
  size_t library = 0;  // cuBLASLt's version
  bool exact = true;   // LinearOptions
  kernels::Gemm gemm = kernels::Gemm::kAuto;
};

class GemmCache {
 public:
  // Reads the file of `key` in `folder`. With an empty `folder` nothing is kept.
  GemmCache(const std::filesystem::path& folder, GemmCacheKey key);

  // Returns the folder that the environment names, or an empty path if it names none.
  static std::filesystem::path DefaultFolder();

  std::optional<kernels::GemmRanges> Find(const kernels::GemmDesc& desc) const;
  void Add(const kernels::GemmDesc& desc, const kernels::GemmRanges& ranges);

  // Writes the file, merged with the lines that other processes have added meanwhile. Errors name
  // the path.
  absl::Status Save() const;

  const std::filesystem::path& path() const { return path_; }

 private:
  // Maps a line's beginning, the mode and the product, to its ranges.
  using Lines = std::map<std::string, std::string, std::less<>>;

  std::string LineKey(const kernels::GemmDesc& desc) const;
  std::string Header() const;
  Lines Read() const;

  std::filesystem::path path_;
  GemmCacheKey key_;
  Lines lines_;
};

}  // namespace millrace::cuda

#endif  // MILLRACE_EXECUTORS_CUDA_WEIGHTS_GEMM_CACHE_H_
