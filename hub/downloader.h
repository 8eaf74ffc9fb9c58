// Downloads the files of one commit into the cache, several parts at a time.
#ifndef MILLRACE_HUB_DOWNLOADER_H_
#define MILLRACE_HUB_DOWNLOADER_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "hub/cache.h"
#include "hub/hub_api.h"
#include "hub/options.h"
#include "hub/partial_file.h"
#include "hub/progress.h"

namespace millrace {

class Downloader {
 public:
  // The references must outlive this object.
  Downloader(const HubOptions& options, const HubCache& cache, std::string repository,
             std::string commit);

  // Puts the files into the commit's snapshot: cached files are only linked, files that another
  // process is fetching are waited for, and partial files are resumed. A file appears in its place
  // only when it is complete and its checksum is right. Returns HubApi's errors, RESOURCE_EXHAUSTED
  // if the disk has too little space, and DATA_LOSS if a checksum is wrong twice.
  absl::Status Fetch(std::vector<HubFile> files);

 private:
  struct Target {
    HubFile file;
    std::unique_ptr<PartialFile> data;
    std::atomic<int> parts_left = 0;
    std::atomic<bool> no_ranges = false;  // the server sends whole files only
    int restarts = 0;
    bool wrong_once = false;  // a checksum was wrong
  };
  using Job = std::pair<Target*, int>;  // the file, and the index of a part

  absl::Status Open(const HubFile& file);
  absl::Status CheckDiskSpace(const std::vector<HubFile>& files) const;
  std::filesystem::path Incomplete(const HubFile& file) const;
  void Run(Progress& progress);
  std::optional<Job> NextJob();
  absl::Status FetchPart(HubApi& api, Target& target, int part, Progress& progress);
  // Makes one attempt, from the first missing byte of the part.
  absl::Status FetchOnce(HubApi& api, Target& target, int part, Progress& progress);
  void WaitForAll();
  absl::Status Complete(Target& target, Progress& progress);
  absl::Status Restart(Target& target, Progress& progress);
  void AddJobs(Target& target);
  void Fail(absl::Status status);

  const std::atomic<bool>& asked_to_stop_;
  HubOptions options_;  // a copy whose `stop` is `stop_`
  const HubCache& cache_;
  const std::string repository_;
  const std::string commit_;
  std::vector<FileLock> locks_;
  std::deque<Target> targets_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  size_t unfinished_ = 0;  // targets
  absl::Status failure_;
  std::atomic<bool> stop_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_HUB_DOWNLOADER_H_
