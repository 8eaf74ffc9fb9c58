// The state of the server that its doors see.
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
#include "server/frontend.h"
#include "server/infer_engine.h"
#include "server/metrics.h"

namespace millrace {

class FrontendImpl final : public Frontend {
 public:
  // Without keys everyone may come in.
  explicit FrontendImpl(const std::vector<std::string>& api_keys);

  // Before SetReady. The engine outlives the doors.
  void AddEngine(Engine* engine);
  void AddInferEngine(InferEngine* engine);
  // From now on FindEngine and engines() tell of the engines, and new work is taken.
  void SetReady();
  void BeginDrain();

  absl::StatusOr<Engine*> FindEngine(std::string_view model) const override;
  std::vector<Engine*> engines() const override;
  absl::StatusOr<InferEngine*> FindInferEngine(std::string_view model) const override;
  std::vector<InferEngine*> infer_engines() const override;
  bool ready() const override { return started_ && !draining_ && live(); }
  bool live() const override;
  bool draining() const override { return draining_; }
  absl::Status Authorize(std::string_view authorization) const override;
  Metrics& metrics() override { return metrics_; }

 private:
  // A model of one of two kinds; the other pointer is null.
  struct Served {
    Engine* engine = nullptr;
    InferEngine* infer = nullptr;
  };

  absl::StatusOr<const Served*> Find(std::string_view model) const;

  std::vector<Sha256Digest> keys_;
  std::map<std::string, Served, std::less<>> models_;  // constant once started_
  std::atomic<bool> started_ = false;
  std::atomic<bool> draining_ = false;
  Metrics metrics_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_FRONTEND_IMPL_H_
