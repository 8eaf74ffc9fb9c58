// The state of the server that its endpoints see.
#ifndef MILLRACE_SERVER_FRONTEND_IMPL_H_
#define MILLRACE_SERVER_FRONTEND_IMPL_H_

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/file_reading.h"
#include "base/load_progress.h"
#include "base/sha256.h"
#include "engine/metrics/metrics.h"
#include "server/frontend.h"
#include "server/key_ring.h"

namespace millrace {

class FrontendImpl final : public Frontend {
 public:
  // Without keys every client is authorized.
  explicit FrontendImpl(const std::vector<std::string>& api_keys);

  // Adds the keys of a file. Call before the endpoints open.
  void SetKeyRing(std::unique_ptr<KeyRing> ring);

  // Follows the readings of a file, or of some, which outlive the endpoints.
  void Follow(FileReading& reading);

  // Adds a model, and further names of it. Call before SetReady. The model outlives the endpoints.
  void AddModel(ServedModel* model, const std::vector<std::string>& aliases = {});
  // Makes Find and models() show the models from now on, and takes new work.
  void SetReady();
  // Says that the server is not ready any more, while it goes on to take work.
  void BeginLeave();
  void BeginDrain();
  // Is told how the loading goes, before SetReady.
  LoadProgress& progress() { return progress_; }

  absl::StatusOr<ServedModel*> Find(std::string_view model) const override;
  std::vector<ServedModel*> models() const override;
  std::vector<std::string> names(const ServedModel& model) const override;
  bool ready() const override { return takes_work() && !leaving_; }
  bool takes_work() const override { return started_ && !draining_ && live(); }
  std::string loading() const override { return started_ ? "" : progress_.Describe(); }
  std::vector<std::string> stale_files() const override;
  bool live() const override;
  bool draining() const override { return draining_; }
  bool leaving() const override { return leaving_; }
  using Frontend::Authorize;
  absl::Status Authorize(const Credentials& shown, Scope scope,
                         std::shared_ptr<const Tenant>* tenant) const override;
  bool guards_admin() const override { return ring_ != nullptr; }
  Metrics& metrics() override { return metrics_; }

 private:
  Metrics metrics_;  // outlives the followed files' threads, which tell it of their readings
  std::vector<Sha256Digest> keys_;  // which may all, and have no tenant
  std::unique_ptr<KeyRing> ring_;   // null: none
  mutable std::mutex files_mutex_;
  std::vector<FileReading*> files_;  // guarded by files_mutex_
  // Constant once started_.
  std::vector<std::pair<std::string, ServedModel*>> names_;  // in the order of their declaration
  std::map<std::string, ServedModel*, std::less<>> models_;  // by each name
  LoadProgress progress_;
  std::atomic<bool> started_ = false;
  std::atomic<bool> leaving_ = false;
  std::atomic<bool> draining_ = false;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_FRONTEND_IMPL_H_
