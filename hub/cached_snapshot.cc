#include "hub/cached_snapshot.h"

#include <optional>
#include <string_view>

#include "base/regular_file.h"
#include "base/status.h"
#include "base/strings.h"
#include "hub/model_name.h"

namespace millrace {
namespace {

constexpr char kModules[] = "modules.json";
constexpr char kPoolingFolder[] = "1_Pooling";
// Every repository has it, and only tools that download all of a repository download it.
constexpr char kGitAttributes[] = ".gitattributes";

std::string ReadText(const std::filesystem::path& path) {
  return ReadRegularFile(path, static_cast<size_t>(kMaxIndexBytes)).value_or("");
}

absl::Status CheckComplete(const HubCache& cache, const std::string& commit,
                           const Selection& selection) {
  std::vector<std::string> missing;
  for (const std::string& file : selection.files) {
    if (!cache.Has(commit, file)) missing.push_back(file);
  }
  if (missing.empty()) return absl::OkStatus();
  return absl::NotFoundError(
      StrCat("has no ", Printable(missing[0]),
             missing.size() == 1 ? "" : StrCat(", one of ", missing.size(), " missing files")));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ReadShards(const HubCache& cache,
                                                    const std::string& commit) {
  return Shards(ReadText(cache.Snapshot(commit) / kWeightsIndex));
}

absl::StatusOr<CachedSnapshot> FindCached(const HubCache& cache, const std::string& revision,
                                          const std::string& wanted, HubContent content) {
  const std::optional<std::string> commit = cache.Commit(revision);
  if (!commit.has_value()) {
    return absl::NotFoundError(StrCat("has no revision ", Printable(revision)));
  }
  CachedSnapshot found{*commit, {}, {}};
  MILLRACE_ASSIGN_OR_RETURN(found.selection, Select(cache.Files(*commit), wanted, content));
  Selection& selection = found.selection;
  if (selection.has_index) {
    MILLRACE_ASSIGN_OR_RETURN(const std::vector<std::string> shards, ReadShards(cache, *commit));
    selection.files.insert(selection.files.end(), shards.begin(), shards.end());
  }
  if (!selection.gguf.has_value() && content != HubContent::kText && cache.Has(*commit, kModules) &&
      ReadText(cache.Snapshot(*commit) / kModules).find(kPoolingFolder) != std::string::npos) {
    selection.files.push_back(StrCat(kPoolingFolder, "/config.json"));
  }
  MILLRACE_RETURN_IF_ERROR(CheckComplete(cache, *commit, selection));
  if (cache.Has(*commit, kGitAttributes) && cache.Incomplete().empty()) return found;
  for (const std::string& file : selection.absent) {
    if (!cache.IsAbsent(*commit, file)) found.unknown.push_back(file);
  }
  return found;
}

}  // namespace millrace
