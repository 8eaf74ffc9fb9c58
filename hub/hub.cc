#include "hub/hub.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "hub/cache.h"
#include "hub/cached_snapshot.h"
#include "hub/downloader.h"
#include "hub/hub_api.h"
#include "hub/model_name.h"
#include "hub/options.h"
#include "hub/selection.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kHub);

// Fetches one model from the hub into the cache.
class Fetcher {
 public:
  Fetcher(const HubRequest& request, HubModelName name, const HubOptions& options)
      : request_(request),
        name_(std::move(name)),
        options_(options),
        cache_(options.cache, name_.repository) {}

  absl::StatusOr<std::string> Run() {
    const absl::StatusOr<CachedSnapshot> cached =
        FindCached(cache_, request_.revision, name_.file, request_.content);
    const std::string lack =
        StrCat("the cache, ", options_.cache, ", ", std::string(cached.status().message()));
    if (options_.offline) {
      if (cached.ok()) return Use(*cached);
      if (!absl::IsNotFound(cached.status())) return About(cached.status());
      return absl::NotFoundError(StrCat("hub: ", name_.repository, ": ", lack,
                                        ", and the hub is not contacted (--offline, "
                                        "HF_HUB_OFFLINE): fetch the model while online"));
    }
    HubApi api(options_, name_.repository, request_.revision);
    // Retries more often if there is no cached version to fall back on.
    const absl::StatusOr<HubRevision> revision = api.Revision(cached.ok() ? 1 : options_.attempts);
    if (absl::IsUnavailable(revision.status())) {
      const std::string message(revision.status().message());
      if (!cached.ok()) return absl::UnavailableError(StrCat(message, "; ", lack));
      kLog.Warning(message, "; using the cached ", cached->commit.substr(0, 12));
      return Use(*cached);
    }
    MILLRACE_RETURN_IF_ERROR(revision.status());
    return Fetch(api, *revision);
  }

 private:
  absl::Status About(const absl::Status& status) const {
    return Annotate(status, StrCat("hub: ", name_.repository));
  }

  std::string Path(const std::string& commit, const Selection& selection) const {
    const std::filesystem::path snapshot = cache_.Snapshot(commit);
    return (selection.gguf.has_value() ? snapshot / *selection.gguf : snapshot).string();
  }

  std::string Use(const CachedSnapshot& cached) const {
    if (!cached.unknown.empty()) {
      kLog.Warning(name_.repository, ": the cache does not say whether the model has ",
                   JoinList(cached.unknown), ", since another tool has filled it: `millraced get ",
                   name_.repository, "` asks the hub");
    }
    return Path(cached.commit, cached.selection);
  }

  absl::StatusOr<std::string> Fetch(HubApi& api, const HubRevision& revision) {
    absl::StatusOr<Selection> selection = Select(revision.files, name_.file, request_.content);
    if (!selection.ok()) return About(selection.status());
    MILLRACE_RETURN_IF_ERROR(FetchFiles(api, revision.commit, selection->files));
    if (selection->has_index) {
      const absl::StatusOr<std::vector<std::string>> shards = ReadShards(cache_, revision.commit);
      if (!shards.ok()) return About(shards.status());
      MILLRACE_RETURN_IF_ERROR(FetchFiles(api, revision.commit, *shards));
    }
    for (const std::string& file : selection->absent) cache_.NoteAbsent(revision.commit, file);
    // The reference is written last, so that it always leads to a complete snapshot.
    MILLRACE_RETURN_IF_ERROR(cache_.WriteRef(request_.revision, revision.commit));
    return Path(revision.commit, *selection);
  }

  absl::Status FetchFiles(HubApi& api, const std::string& commit,
                          const std::vector<std::string>& names) {
    std::vector<HubFile> files;
    for (const std::string& name : names) {
      if (cache_.Has(commit, name)) continue;
      MILLRACE_ASSIGN_OR_RETURN(HubFile file, api.File(commit, name));
      if (name == kWeightsIndex && file.bytes > kMaxIndexBytes) {
        return absl::FailedPreconditionError(StrCat("hub: ", name_.repository, ": ", name, " has ",
                                                    file.bytes, " bytes, at most ",
                                                    kMaxIndexBytes));
      }
      files.push_back(std::move(file));
    }
    if (files.empty()) return absl::OkStatus();
    MILLRACE_RETURN_IF_ERROR(
        Downloader(options_, cache_, name_.repository, commit).Fetch(std::move(files)));
    kLog.Info(name_.repository, " (", commit.substr(0, 12), "): ", names.size(),
              " files are in the cache");
    return absl::OkStatus();
  }

  const HubRequest& request_;
  const HubModelName name_;
  const HubOptions& options_;
  const HubCache cache_;
};

}  // namespace

bool IsHubModel(std::string_view name) { return ParseHubModelName(name).has_value(); }

absl::StatusOr<std::string> FetchHubModel(const HubRequest& request) {
  static const std::atomic<bool> never = false;
  std::optional<HubModelName> name = ParseHubModelName(request.name);
  if (!name.has_value()) {
    return absl::InvalidArgumentError(StrCat("hub: ", Printable(request.name),
                                             " is no name of a model; allowed: org/name, "
                                             "org/name:FILE.gguf, org/name:TAG"));
  }
  if (!IsSafeRevision(request.revision)) {
    return absl::InvalidArgumentError(StrCat("hub: revision ", Printable(request.revision),
                                             " is no name of a branch, a tag or a commit"));
  }
  MILLRACE_ASSIGN_OR_RETURN(HubOptions options, HubOptionsOfEnvironment());
  options.offline = options.offline || request.offline;
  options.stop = request.stop == nullptr ? &never : request.stop;
  options.progress = request.progress;
  if (!options.endpoint.starts_with("https://") && !options.endpoint.starts_with("http://")) {
    return absl::InvalidArgumentError(StrCat("hub: HF_ENDPOINT is ", Printable(options.endpoint),
                                             "; allowed: a URL of https, or http"));
  }
  // A token has no use where no request is sent, and a malformed one must not stand in the way.
  if (!options.offline) {
    MILLRACE_ASSIGN_OR_RETURN(options.token, HubToken());
  }
  return Fetcher(request, *std::move(name), options).Run();
}

}  // namespace millrace
