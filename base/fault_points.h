// Named places where a test can make something go wrong in a running program.
//
//   FaultPoint row_error("fake.row_error");   // at namespace scope, beside the code
//   if (row_error.Fires()) return absl::InternalError("…");
//
// A point that nobody armed costs one relaxed load. The server arms points only with --faults,
// and says so in its log.
#ifndef MILLRACE_BASE_FAULT_POINTS_H_
#define MILLRACE_BASE_FAULT_POINTS_H_

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "absl/status/status.h"

namespace millrace {

// Lives as long as the process: a variable at namespace scope. Safe to use from any thread.
class FaultPoint {
 public:
  // `name` is unique and outlives the point, e.g. a literal: "<part>.<what goes wrong>".
  explicit FaultPoint(std::string_view name);
  FaultPoint(const FaultPoint&) = delete;
  FaultPoint& operator=(const FaultPoint&) = delete;

  // Whether the fault happens at this pass.
  bool Fires() { return armed_.load(std::memory_order_relaxed) && FiresArmed(); }

  // Lets `skip` passes go by, then fires at the next `times`. Replaces an earlier Arm.
  void Arm(int64_t times = 1, int64_t skip = 0);
  void Disarm() { Arm(0); }

  std::string_view name() const { return name_; }

 private:
  friend absl::Status ArmFaultPoints(std::string_view spec);
  friend void DisarmFaultPoints();

  bool FiresArmed();

  const std::string_view name_;
  FaultPoint* const next_;  // all points of the process, as a list
  std::atomic<bool> armed_{false};
  std::mutex mutex_;
  int64_t skip_ = 0;   // guarded by mutex_
  int64_t times_ = 0;  // guarded by mutex_
};

// Arms points by name: `name[=times][@skip]`, separated by commas:
// "fake.row_error=3,fake.hang@100". InvalidArgument, arming nothing, where a name or a number is
// wrong; it lists the names.
absl::Status ArmFaultPoints(std::string_view spec);

// Disarms every point.
void DisarmFaultPoints();

}  // namespace millrace

#endif  // MILLRACE_BASE_FAULT_POINTS_H_
