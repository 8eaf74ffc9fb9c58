// Named places where a test can inject a fault into a running program.
//
//   FaultPoint row_error("fake.row_error");   // at namespace scope, beside the code
//   if (row_error.Fires()) return absl::InternalError("…");
//
// A point that is not armed costs one relaxed load. The server arms points only with --faults, and
// logs that it did.
#ifndef MILLRACE_BASE_FAULT_POINTS_H_
#define MILLRACE_BASE_FAULT_POINTS_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "absl/status/status.h"

namespace millrace {

// A fault point, defined at namespace scope so that it lives as long as the process. Safe to use
// from any thread.
class FaultPoint {
 public:
  // `name` is unique and outlives the point (e.g. a literal), in the form "<part>.<fault>".
  explicit FaultPoint(std::string_view name);
  FaultPoint(const FaultPoint&) = delete;
  FaultPoint& operator=(const FaultPoint&) = delete;

  // Returns whether the fault occurs at this pass.
  bool Fires() { return armed_.load(std::memory_order_relaxed) && FiresArmed(); }

  // Skips `skip` passes and then fires at the next `times`. Replaces an earlier Arm.
  void Arm(int64_t times = 1, int64_t skip = 0);
  void Disarm() { Arm(0); }

  std::string_view name() const { return name_; }

 private:
  friend absl::Status ArmFaultPoints(std::string_view spec);
  friend void DisarmFaultPoints();

  bool FiresArmed();

  const std::string_view name_;
  FaultPoint* const next_;  // links all points of the process
  std::atomic<bool> armed_{false};
  std::mutex mutex_;
  int64_t skip_ = 0;   // guarded by mutex_
  int64_t times_ = 0;  // guarded by mutex_
};

// Arms points by a comma-separated list of `name[=times][@skip]`, e.g.
// "fake.row_error=3,fake.hang@100". Returns InvalidArgument, listing the known names, and arms
// nothing if a name or number is wrong.
absl::Status ArmFaultPoints(std::string_view spec);

// Disarms every point.
void DisarmFaultPoints();

}  // namespace millrace

#endif  // MILLRACE_BASE_FAULT_POINTS_H_
