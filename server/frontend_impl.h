// The state of the server that its endpoints see.
#ifndef MILLRACE_SERVER_FRONTEND_IMPL_H_
#define MILLRACE_SERVER_FRONTEND_IMPL_H_

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/sha256.h"
#include "engine/metrics.h"
#include "server/frontend.h"

namespace millrace {

class FrontendImpl final : public Frontend {
 public:
  // Without keys everyone may come in.
  explicit FrontendImpl(const std::vector<std::string>& api_keys);

  // Call before SetReady. The model outlives the endpoints.
  void AddModel(ServedModel* model);
  // From now on Find and models() show the models, and new work is taken.
  void SetReady();
  void BeginDrain();

  absl::StatusOr<ServedModel*> Find(std::string_view model) const override;
  std::vector<ServedModel*> models() const override;
  bool ready() const override { return started_ && !draining_ && live(); }
  bool live() const override;
  bool draining() const override { return draining_; }
  absl::Status Authorize(std::string_view authorization) const override;
  Metrics& metrics() override { return metrics_; }

 private:
  std::vector<Sha256Digest> keys_;
  std::map<std::string, ServedModel*, std::less<>> models_;  // constant once started_
  std::atomic<bool> started_ = false;
  std::atomic<bool> draining_ = false;
  Metrics metrics_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_FRONTEND_IMPL_H_
