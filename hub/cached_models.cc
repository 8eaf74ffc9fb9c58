#include "hub/cached_models.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <system_error>

#include "base/random_bits.h"
#include "base/status.h"
#include "base/strings.h"
#include "formats/gguf/gguf_split.h"
#include "hub/cache.h"
#include "hub/cached_snapshot.h"
#include "hub/model_name.h"
#include "hub/options.h"
#include "hub/partial_file.h"
#include "hub/selection.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFolderPrefix = "models--";
constexpr char kIncomplete[] = "files are missing: fetch it with `millraced get`";

absl::StatusOr<fs::path> CacheFolder() {
  MILLRACE_ASSIGN_OR_RETURN(const HubOptions options, HubOptionsOfEnvironment());
  return fs::path(options.cache);
}

// "models--org--name" → "org/name".
std::optional<std::string> RepositoryOf(const std::string& folder) {
  if (!folder.starts_with(kFolderPrefix)) return std::nullopt;
  std::string name = folder.substr(kFolderPrefix.size());
  const size_t dashes = name.find("--");
  if (dashes == name.npos) return std::nullopt;
  name.replace(dashes, 2, "/");
  const std::optional<HubModelName> parsed = ParseHubModelName(name);
  if (!parsed.has_value() || !parsed->file.empty()) return std::nullopt;
  return name;
}

std::vector<fs::path> Entries(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    entries.push_back(entry->path());
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

// Returns the revisions of a repository: branches and tags, and commits that none of them names.
std::vector<std::string> Revisions(const fs::path& root) {
  std::map<std::string, std::string> of_commit;
  for (const fs::path& snapshot : Entries(root / "snapshots")) {
    const std::string commit = snapshot.filename().string();
    if (IsCommit(commit)) of_commit[commit] = commit;
  }
  std::vector<std::string> revisions;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(root / "refs", error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    if (!entry->is_regular_file(ignored)) continue;
    const std::string revision = entry->path().lexically_relative(root / "refs").string();
    const std::optional<std::string> commit = ReadCommit(entry->path());
    if (!commit || !IsSafeRevision(revision) || of_commit.count(*commit) == 0) continue;
    of_commit[*commit].clear();
    revisions.push_back(revision);
  }
  for (const auto& [commit, alone] : of_commit) {
    if (!alone.empty()) revisions.push_back(commit);
  }
  std::sort(revisions.begin(), revisions.end());
  return revisions;
}

// Returns the later of a file's last access and change; 0 if it is not there.
int64_t LastUse(const fs::path& path) {
  struct stat found;
  if (stat(path.c_str(), &found) != 0) return 0;
  return std::max<int64_t>(found.st_atime, found.st_mtime);
}

// Adds what a revision holds: each of its GGUF files, and its folder if it is a model of its own.
void AddRevision(const fs::path& cache, const std::string& repository, const std::string& revision,
                 std::vector<CachedModel>& models) {
  const HubCache place(cache.string(), repository);
  const std::optional<std::string> commit = place.Commit(revision);
  if (!commit.has_value()) return;
  const fs::path snapshot = place.Snapshot(*commit);
  uint64_t folder_bytes = 0;
  bool has_config = false;
  int64_t folder_used = 0;
  struct Gguf {
    uint64_t bytes = 0;
    int64_t used = 0;
  };
  std::map<std::string, Gguf> gguf;  // by name, of several parts the first's
  for (const std::string& file : place.Files(*commit)) {
    std::error_code error;
    const uintmax_t bytes = fs::file_size(snapshot / file, error);
    if (error) continue;
    has_config = has_config || file == "config.json";
    const int64_t used = LastUse(snapshot / file);
    if (!file.ends_with(".gguf")) {
      folder_bytes += bytes;
      folder_used = std::max(folder_used, used);
      continue;
    }
    const std::optional<GgufPart> part = ParseGgufPart(file);
    Gguf& model = gguf[part.has_value() ? part->Name(1) : file];
    model.bytes += bytes;
    model.used = std::max(model.used, used);
  }
  for (const auto& [file, found] : gguf) {
    const bool whole = FindCached(place, revision, file, HubContent::kModel).ok();
    models.push_back({StrCat(repository, ":", file), revision, found.bytes, found.used,
                      whole ? "" : kIncomplete});
  }
  if (!gguf.empty() && !has_config) return;
  CachedModel model{repository, revision, folder_bytes, folder_used, ""};
  const absl::StatusOr<CachedSnapshot> found =
      FindCached(place, revision, /*wanted=*/"", HubContent::kModel);
  if (!found.ok()) {
    model.missing = kIncomplete;
  } else if (!found->unknown.empty()) {
    model.missing = "perhaps incomplete: `millraced get` asks the hub";
  }
  if (gguf.empty() || found.ok()) models.push_back(std::move(model));
}

// Returns whether some process holds a lock on one of the repository's files.
bool IsBeingFetched(const fs::path& locks) {
  for (const fs::path& path : Entries(locks)) {
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) continue;
    const bool locked = flock(fd, LOCK_EX | LOCK_NB) != 0;
    close(fd);
    if (locked) return true;
  }
  return false;
}

// Returns the bytes of the files, without the holes of those that are fetched in part.
uint64_t BytesOf(const std::vector<fs::path>& files) {
  uint64_t bytes = 0;
  for (const fs::path& file : files) {
    std::error_code error;
    const uintmax_t size = fs::file_size(file, error);
    if (!error) bytes += std::min<uintmax_t>(size, PartialFile::BytesOnDisk(file));
  }
  return bytes;
}

// Adds what downloads of a repository have begun, and what they left where no revision has a file.
void AddBegun(const fs::path& cache, const std::string& repository, bool has_revisions,
              std::vector<CachedModel>& models) {
  const HubCache place(cache.string(), repository);
  std::vector<fs::path> files = place.Incomplete();
  if (files.empty() && has_revisions) return;
  const fs::path blobs = place.Blob("x").parent_path();
  if (!has_revisions) files = Entries(blobs);
  if (files.empty()) return;
  const bool running = IsBeingFetched(cache / ".locks" / blobs.parent_path().filename());
  int64_t used = 0;
  for (const fs::path& file : files) used = std::max(used, LastUse(file));
  models.push_back({repository, "", BytesOf(files), used,
                    running ? "being fetched"
                            : "a fetch broke off: `millraced get` it again, or `millraced rm` it"});
}

// Returns the contents that snapshots link to.
std::set<fs::path> LinkedBlobs(const fs::path& root) {
  std::set<fs::path> blobs;
  std::error_code error;
  for (fs::recursive_directory_iterator entry(root / "snapshots", error), end;
       !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_symlink(ignored)) blobs.insert(fs::weakly_canonical(entry->path(), ignored));
  }
  return blobs;
}

// Removes a GGUF model from all revisions, and the contents that no link of another file needs.
absl::StatusOr<uint64_t> RemoveGguf(const HubCache& place, const HubModelName& name,
                                    const fs::path& root) {
  uint64_t bytes = 0;
  bool found = false;
  absl::Status why = absl::NotFoundError("no revision is in the cache");
  for (const fs::path& snapshot : Entries(root / "snapshots")) {
    const std::string commit = snapshot.filename().string();
    if (!IsCommit(commit)) continue;
    const absl::StatusOr<Selection> selected =
        Select(place.Files(commit), name.file, HubContent::kModel);
    if (!selected.ok()) {
      why = selected.status();
      continue;
    }
    for (const std::string& file : selected->files) {
      if (!file.ends_with(".gguf")) continue;
      std::error_code error;
      const fs::path link = snapshot / file;
      const fs::path blob = fs::weakly_canonical(link, error);
      const bool is_link = fs::is_symlink(link, error);
      const uint64_t size = BytesOf({blob});
      if (!fs::remove(link, error) && !error) continue;  // a part that is missing
      const bool free = is_link && !LinkedBlobs(root).contains(blob);
      if (!error && free) fs::remove(blob, error);
      if (error) {
        return absl::FailedPreconditionError(
            StrCat("rm: cannot remove ", link.string(), ": ", error.message()));
      }
      found = true;
      if (free || !is_link) bytes += size;
    }
  }
  if (!found) {
    return absl::Status(why.code(),
                        StrCat("rm: ", name.repository, ": ", std::string(why.message()),
                               "; `millraced list` prints what the cache has"));
  }
  return bytes;
}

}  // namespace

absl::StatusOr<std::vector<CachedModel>> ListCachedModels() {
  MILLRACE_ASSIGN_OR_RETURN(const fs::path cache, CacheFolder());
  std::vector<CachedModel> models;
  for (const fs::path& root : Entries(cache)) {
    const std::optional<std::string> repository = RepositoryOf(root.filename().string());
    if (!repository.has_value()) continue;
    const size_t before = models.size();
    for (const std::string& revision : Revisions(root)) {
      AddRevision(cache, *repository, revision, models);
    }
    AddBegun(cache, *repository, models.size() > before, models);
  }
  return models;
}

absl::StatusOr<uint64_t> RemoveCachedModel(const std::string& name) {
  const std::optional<HubModelName> parsed = ParseHubModelName(name);
  if (!parsed.has_value()) {
    return absl::InvalidArgumentError(StrCat("rm: ", Printable(name),
                                             " is no model of the hub; allowed: org/name, which is "
                                             "removed with all its files, or org/name:FILE.gguf"));
  }
  MILLRACE_ASSIGN_OR_RETURN(const fs::path cache, CacheFolder());
  const fs::path root =
      HubCache(cache.string(), parsed->repository).Blob("x").parent_path().parent_path();
  std::error_code error;
  if (!fs::is_directory(root, error)) {
    return absl::NotFoundError(StrCat("rm: ", name, " is not in the cache, ", cache.string(),
                                      "; `millraced list` prints what is"));
  }
  if (IsBeingFetched(cache / ".locks" / root.filename())) {
    return absl::FailedPreconditionError(
        StrCat("rm: another process is fetching ", name, ": try again when it has ended"));
  }
  if (!parsed->file.empty())
    return RemoveGguf(HubCache(cache.string(), parsed->repository), *parsed, root);
  const uint64_t bytes = BytesOf(Entries(root / "blobs"));
  // It is gone at once for those who look for it, and not file by file.
  const fs::path gone = cache / StrCat(".removed.", RandomBits(), ".", root.filename().string());
  fs::rename(root, gone, error);
  if (!error) fs::remove_all(gone, error);
  if (error) {
    return absl::FailedPreconditionError(
        StrCat("rm: cannot remove ", root.string(), ": ", error.message()));
  }
  fs::remove_all(cache / ".locks" / root.filename(), error);
  return bytes;
}

}  // namespace millrace
