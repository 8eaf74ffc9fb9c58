#include "executors/torch/package_file.h"

#include <link.h>
#include <torch/headeronly/version.h>

#include <cstring>
#include <filesystem>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "base/strings.h"

namespace millrace::aten {
namespace {

namespace fs = std::filesystem;

constexpr char kName[] = "model";  // what aoti_compile_and_package calls the only one in a package

using Metadata = std::unordered_map<std::string, std::string>;

std::string Value(const Metadata& metadata, const std::string& key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? "" : found->second;
}

// Checks all that can be known before the package's code is in the process.
absl::StatusOr<PackageSpec> CheckMetadata(const Metadata& metadata) {
  const std::string own = Value(metadata, "millrace");
  if (own.empty()) {
    return absl::InvalidArgumentError(
        "does not say what its inputs are; allowed: packages made by scripts/export_package.sh");
  }
  absl::StatusOr<PackageSpec> spec = ReadPackageSpec(own);
  if (!spec.ok()) return Annotate(spec.status(), "metadata");
  if (spec->torch != TORCH_VERSION) {
    return absl::UnimplementedError(
        StrCat("was made by PyTorch ", Printable(spec->torch), "; allowed: ", TORCH_VERSION));
  }
  const std::string device = Value(metadata, "AOTI_DEVICE_KEY");
  if (device != "cpu") {
    return absl::UnimplementedError(
        StrCat("was compiled for ", Printable(device), "; allowed: cpu"));
  }
  MILLRACE_RETURN_IF_ERROR(CheckInstructionSets(Value(metadata, "AOTI_CPU_ISA")));
  return spec;
}

// Collects the folders /tmp/XXXXXX of libraries that LibTorch has unpacked and opened.
int CollectUnpacked(dl_phdr_info* library, size_t, void* folders) {
  constexpr std::string_view kTmp = "/tmp/";
  const std::string_view path = library->dlpi_name;
  const size_t end = kTmp.size() + std::strlen("XXXXXX");
  if (path.starts_with(kTmp) && path.find('/', kTmp.size()) == end &&
      path.find("/data/aotinductor/") != path.npos) {
    static_cast<std::vector<fs::path>*>(folders)->push_back(path.substr(0, end));
  }
  return 0;
}

// LibTorch keeps what it unpacked until the model goes, and for good where a signal ends the
// process. Nothing reads it once it is in memory.
void RemoveUnpacked() {
  std::vector<fs::path> folders;
  dl_iterate_phdr(&CollectUnpacked, &folders);
  std::error_code ignored;  // then it stays
  for (const fs::path& folder : folders) fs::remove_all(folder, ignored);
}

}  // namespace

absl::StatusOr<PackageSpec> CheckPackage(const std::string& path) {
  return CheckMetadata(PackageCode::load_metadata_from_package(path, kName));
}

std::unique_ptr<PackageCode> LoadPackageCode(const std::string& path) {
  auto code = std::make_unique<PackageCode>(path, kName);
  RemoveUnpacked();
  return code;
}

}  // namespace millrace::aten
