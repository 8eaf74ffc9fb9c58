#include "hub/downloader.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <thread>

#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kHub);
constexpr int64_t kDiskReserve = 64 << 20;  // bytes of the disk that stay free

// Returns whether a 206 response's range begins at `begin` and belongs to a file of `file_bytes`.
bool IsRequestedRange(std::string_view content_range, int64_t begin, int64_t file_bytes) {
  const size_t slash = content_range.rfind('/');
  if (!content_range.starts_with(StrCat("bytes ", begin, "-")) || slash == content_range.npos) {
    return false;
  }
  const std::string_view size = content_range.substr(slash + 1);
  return size == "*" || ParseNumber<int64_t>(size) == file_bytes;
}

}  // namespace

Downloader::Downloader(const HubOptions& options, const HubCache& cache, std::string repository,
                       std::string commit)
    : asked_to_stop_(*options.stop),
      options_(options),
      cache_(cache),
      repository_(std::move(repository)),
      commit_(std::move(commit)) {
  options_.stop = &stop_;
}

absl::Status Downloader::Fetch(std::vector<HubFile> files) {
  // Locks are always taken in this order, which excludes deadlocks between processes.
  std::sort(files.begin(), files.end(),
            [](const HubFile& a, const HubFile& b) { return a.etag < b.etag; });
  std::vector<HubFile> blobs = files;
  blobs.erase(std::unique(blobs.begin(), blobs.end(),
                          [](const HubFile& a, const HubFile& b) { return a.etag == b.etag; }),
              blobs.end());
  MILLRACE_RETURN_IF_ERROR(CheckDiskSpace(blobs));
  for (const HubFile& blob : blobs) MILLRACE_RETURN_IF_ERROR(Open(blob));
  int64_t total = 0, missing = 0;
  for (Target& target : targets_) {
    total += target.file.bytes;
    missing += target.data->missing_bytes();
  }
  if (!targets_.empty()) {
    kLog.Info("fetching ", ShortSize(missing), " of ", repository_, " (", commit_.substr(0, 12),
              "), ", targets_.size(), " files");
    Progress progress(repository_, total - missing, total, options_.progress);
    unfinished_ = targets_.size();
    for (Target& target : targets_) AddJobs(target);
    std::vector<std::thread> threads;
    for (int i = 0; i < options_.connections; ++i) {
      threads.emplace_back([&] { Run(progress); });
    }
    WaitForAll();
    for (std::thread& thread : threads) thread.join();
  }
  locks_.clear();
  MILLRACE_RETURN_IF_ERROR(failure_);
  for (const HubFile& file : files) {
    MILLRACE_RETURN_IF_ERROR(cache_.Link(commit_, file.name, file.etag));
  }
  return absl::OkStatus();
}

absl::Status Downloader::Open(const HubFile& file) {
  if (cache_.HasBlob(file.etag, file.bytes)) return absl::OkStatus();
  MILLRACE_ASSIGN_OR_RETURN(FileLock lock, FileLock::Take(cache_.Lock(file.etag), asked_to_stop_));
  if (cache_.HasBlob(file.etag, file.bytes)) return absl::OkStatus();
  locks_.push_back(std::move(lock));
  std::error_code error;
  std::filesystem::create_directories(Incomplete(file).parent_path(), error);
  Target& target = targets_.emplace_back();
  target.file = file;
  MILLRACE_ASSIGN_OR_RETURN(target.data,
                            PartialFile::Open(Incomplete(file), file.bytes, options_.part_bytes));
  return absl::OkStatus();
}

std::filesystem::path Downloader::Incomplete(const HubFile& file) const {
  return StrCat(cache_.Blob(file.etag).string(), ".millrace.incomplete");
}

// Called before anything is written. Bytes that another process has fetched so far count as
// present.
absl::Status Downloader::CheckDiskSpace(const std::vector<HubFile>& files) const {
  int64_t missing = 0;
  for (const HubFile& file : files) {
    if (cache_.HasBlob(file.etag, file.bytes)) continue;
    missing += std::max<int64_t>(file.bytes - PartialFile::BytesOnDisk(Incomplete(file)), 0);
  }
  if (missing == 0) return absl::OkStatus();
  std::error_code error;
  const std::filesystem::path folder = cache_.Blob("x").parent_path();
  std::filesystem::create_directories(folder, error);
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  // If the free space is unknown, the download is attempted.
  if (error || static_cast<int64_t>(space.available) >= missing + kDiskReserve) {
    return absl::OkStatus();
  }
  return absl::ResourceExhaustedError(
      StrCat("hub: ", repository_, " needs ", ShortSize(missing), " more on the disk of ",
             folder.string(), ", which has ", ShortSize(static_cast<int64_t>(space.available)),
             " free: free some space, or name another folder with HF_HUB_CACHE"));
}

void Downloader::AddJobs(Target& target) {
  // Counts one extra for this function, so that a part that is done at once does not complete the
  // file.
  target.parts_left = 1;
  {
    std::lock_guard lock(mutex_);
    for (int part = 0; part < target.data->parts(); ++part) {
      const auto [begin, end] = target.data->Missing(part);
      if (begin == end) continue;
      ++target.parts_left;
      jobs_.emplace_back(&target, part);
    }
    if (--target.parts_left == 0) {
      ++target.parts_left;
      jobs_.emplace_back(&target, -1);  // only the completion is left
    }
  }
  changed_.notify_all();
}

std::optional<Downloader::Job> Downloader::NextJob() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stop_ || !jobs_.empty() || unfinished_ == 0; });
  if (stop_ || jobs_.empty()) return std::nullopt;
  const Job job = jobs_.front();
  jobs_.pop_front();
  return job;
}

void Downloader::Fail(absl::Status status) {
  std::lock_guard lock(mutex_);
  if (failure_.ok()) failure_ = std::move(status);
  stop_ = true;
  changed_.notify_all();
}

void Downloader::Run(Progress& progress) {
  HubApi api(options_, repository_, commit_);
  while (const std::optional<Job> job = NextJob()) {
    Target& target = *job->first;
    absl::Status status;
    if (job->second >= 0) status = FetchPart(api, target, job->second, progress);
    if (status.ok() && --target.parts_left == 0) status = Complete(target, progress);
    if (!status.ok()) return Fail(std::move(status));
  }
}

absl::Status Downloader::FetchPart(HubApi& api, Target& target, int part, Progress& progress) {
  while (true) {
    const int64_t before = target.data->Missing(part).first;
    absl::Status status = WithAttempts(options_, options_.attempts, [&] {
      return stop_ ? absl::CancelledError("stopped") : FetchOnce(api, target, part, progress);
    });
    // As long as attempts make progress, more follow.
    if (!absl::IsUnavailable(status) || target.data->Missing(part).first == before) return status;
  }
}

absl::Status Downloader::FetchOnce(HubApi& api, Target& target, int part, Progress& progress) {
  if (target.no_ranges && target.data->parts() > 1) return absl::OkStatus();
  const int64_t begin = target.data->Missing(part).first;
  const int64_t end = target.data->Missing(part).second;
  if (begin == end) return absl::OkStatus();
  int64_t left = end - begin;
  bool ranged = true;
  absl::Status wrong;
  const absl::Status status = api.Fetch(
      commit_, target.file.name, begin, end,
      [&](const HttpReply& response, std::string_view bytes) {
        if (stop_) return false;
        const bool whole = begin == 0 && end == target.file.bytes;
        if (response.status != 206 && !whole) {
          ranged = false;
          return false;
        }
        const std::string range = response.Header("content-range").value_or("");
        if (response.status == 206 && !IsRequestedRange(range, begin, target.file.bytes)) {
          wrong = absl::FailedPreconditionError(StrCat(
              "hub: ", repository_, ": ", Printable(target.file.name),
              ": requested were the bytes from ", begin, " of ", target.file.bytes,
              ", Content-Range is \"", Printable(range), "\": check HF_ENDPOINT and the proxy"));
          return false;
        }
        if (static_cast<int64_t>(bytes.size()) > left) {
          wrong = absl::DataLossError(
              StrCat("hub: ", repository_, ": ", Printable(target.file.name),
                     " has more bytes than the hub stated (", target.file.bytes, ")"));
          return false;
        }
        wrong = target.data->Append(part, bytes);
        left -= static_cast<int64_t>(bytes.size());
        if (wrong.ok()) progress.Add(static_cast<int64_t>(bytes.size()));
        return wrong.ok();
      });
  MILLRACE_RETURN_IF_ERROR(wrong);
  if (stop_) return absl::CancelledError("stopped");
  if (!ranged) {
    target.no_ranges = true;  // the file is restarted once its other parts have ended (Complete)
    return absl::OkStatus();
  }
  MILLRACE_RETURN_IF_ERROR(status);
  const auto [now, last] = target.data->Missing(part);
  if (now == last) return absl::OkStatus();
  return absl::UnavailableError(StrCat("hub: ", repository_, ": ", Printable(target.file.name),
                                       ": the connection broke off"));
}

// Waits until all files are complete, one fails, or a stop is requested.
void Downloader::WaitForAll() {
  constexpr auto kStep = std::chrono::milliseconds(50);
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kStep, [&] { return stop_ || unfinished_ == 0; })) {
    if (!asked_to_stop_) continue;
    failure_ =
        absl::CancelledError("hub: stopped; what was fetched stays, and another start goes on");
    stop_ = true;
    changed_.notify_all();
  }
}

absl::Status Downloader::Complete(Target& target, Progress& progress) {
  if (target.no_ranges && target.data->missing_bytes() > 0) return Restart(target, progress);
  absl::Status status = target.data->Verify(target.file.etag, stop_);
  if (absl::IsDataLoss(status)) {
    status = Annotate(status, StrCat("hub: ", repository_, ": ", Printable(target.file.name)));
    if (std::exchange(target.wrong_once, true)) {
      MILLRACE_RETURN_IF_ERROR(target.data->Restart());
      return Annotate(status, "fetched twice and discarded");
    }
    kLog.Warning(std::string(status.message()), ": fetching it again");
    return Restart(target, progress);
  }
  MILLRACE_RETURN_IF_ERROR(status);
  MILLRACE_RETURN_IF_ERROR(target.data->MoveTo(cache_.Blob(target.file.etag)));
  std::lock_guard lock(mutex_);
  --unfinished_;
  changed_.notify_all();
  return absl::OkStatus();
}

absl::Status Downloader::Restart(Target& target, Progress& progress) {
  if (++target.restarts > options_.attempts) {
    return absl::UnavailableError(
        StrCat("hub: ", repository_, ": ", Printable(target.file.name),
               ": the connection breaks off again and again, and the server sends "
               "only whole files"));
  }
  progress.Add(target.data->missing_bytes() - target.file.bytes);
  MILLRACE_RETURN_IF_ERROR(target.data->Restart());
  AddJobs(target);
  return absl::OkStatus();
}

}  // namespace millrace
