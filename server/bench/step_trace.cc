#include "server/bench/step_trace.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_replace.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "base/strings.h"
#include "server/bench/measure.h"

namespace millrace {
namespace {

constexpr double kUsPerNs = 1e-3;

using Operations = absl::Span<const DeviceOperation>;

bool IsKernel(std::string_view name) { return !name.starts_with("mem"); }  // memcpy, memset

// Where each whole step begins, and where the last ends, as indices into `operations`. Empty: they
// cannot be told apart.
std::vector<size_t> WholeSteps(Operations operations, const OfflineRun& run) {
  if (run.whole_steps < 2) return {};
  std::map<std::string_view, std::vector<size_t>> occurrences;
  for (size_t i = 0; i < operations.size(); ++i) occurrences[operations[i].name].push_back(i);
  // Once in each step, or at least in each whole one; of these, what comes first in its step.
  const std::vector<size_t>* mark = nullptr;
  for (const auto& [name, at] : occurrences) {
    const auto count = static_cast<int32_t>(at.size());
    if (count != run.steps && count != run.whole_steps) continue;
    if (!IsKernel(name)) continue;  // a copy for the next step may run beside this one
    // The prompts' step may have a kernel as often as there are steps, once a layer. The last of
    // them is followed by more operations than a step of decoding has.
    if (operations.size() - at.back() > operations.size() / (at.size() - 1)) continue;
    const bool better = mark == nullptr || count > static_cast<int32_t>(mark->size()) ||
                        (at.size() == mark->size() && at.back() < mark->back());
    if (better) mark = &at;
  }
  if (mark == nullptr) return {};
  const bool in_all = static_cast<int32_t>(mark->size()) == run.steps;
  const auto first = mark->begin() + (in_all ? run.first_whole_step : 0);
  return {first, first + run.whole_steps};
}

// By an operation's name. A kernel may be set up, and even begin to read, while the one before it
// ends: what both take is that one's.
struct Sums {
  int64_t busy_ns = 0;  // in which no earlier operation ran
  int64_t idle_ns = 0;  // in which nothing ran, before this did
  int64_t launches = 0;
  int64_t bytes = 0;
};
using Tally = std::map<std::string_view, Sums>;

// For operations that follow each other: the time in which at least one runs, and the longest in
// which none does, up to `end_ns`, where `next` runs, with the name of what ran after it.
struct Occupancy {
  int64_t busy_ns = 0;
  int64_t largest_gap_ns = 0;
  std::string_view after_gap;
};
Occupancy Occupy(Operations operations, int64_t end_ns, std::string_view next, Tally& tally) {
  Occupancy occupancy;
  int64_t until = operations.front().begin_ns;
  const auto see_gap = [&](int64_t begin_ns, std::string_view name) {
    const int64_t gap_ns = std::max<int64_t>(begin_ns - until, 0);
    tally[name].idle_ns += gap_ns;
    if (gap_ns <= occupancy.largest_gap_ns) return;
    occupancy.largest_gap_ns = gap_ns;
    occupancy.after_gap = name;
  };
  for (const DeviceOperation& operation : operations) {
    see_gap(operation.begin_ns, operation.name);
    Sums& sums = tally[operation.name];
    ++sums.launches;
    const int64_t begin = std::max(operation.begin_ns, until);
    const int64_t end = std::min(operation.end_ns, end_ns);
    if (end <= begin) continue;
    sums.busy_ns += end - begin;
    occupancy.busy_ns += end - begin;
    until = end;
  }
  see_gap(end_ns, next);
  return occupancy;
}

// Adds a step's bytes. False: it has other kernels.
bool AddBytes(Operations step, const std::vector<int64_t>& kernel_bytes, Tally& tally) {
  size_t kernel = 0;
  for (const DeviceOperation& operation : step) kernel += IsKernel(operation.name);
  if (kernel != kernel_bytes.size()) return false;
  kernel = 0;
  for (const DeviceOperation& operation : step) {
    if (IsKernel(operation.name)) tally[operation.name].bytes += kernel_bytes[kernel++];
  }
  return true;
}

std::vector<StepTrace::Row> MakeRows(const Tally& tally, double steps, int64_t busy_ns) {
  std::vector<StepTrace::Row> rows;
  for (const auto& [name, sums] : tally) {
    if (sums.launches == 0) continue;
    const auto busy = static_cast<double>(sums.busy_ns);
    rows.push_back({.name = std::string(name),
                    .us = busy * kUsPerNs / steps,
                    .launches = static_cast<double>(sums.launches) / steps,
                    .share = busy_ns > 0 ? busy / static_cast<double>(busy_ns) : 0,
                    .idle_us = static_cast<double>(sums.idle_ns) * kUsPerNs / steps,
                    .bytes = static_cast<double>(sums.bytes) / steps});
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto& a, const auto& b) { return a.us > b.us; });
  return rows;
}

}  // namespace

absl::StatusOr<StepTrace> SummarizeTrace(const std::vector<DeviceOperation>& operations,
                                         const OfflineRun& run,
                                         const std::vector<int64_t>& kernel_bytes) {
  if (operations.empty() || run.steps == 0) {
    return absl::FailedPreconditionError("the trace saw nothing on the device");
  }
  std::vector<size_t> begins = WholeSteps(operations, run);
  StepTrace trace{.steps = run.steps, .only_whole_steps = !begins.empty()};
  int64_t end_ns = 0;  // of all
  if (trace.only_whole_steps) {
    trace.steps = static_cast<int32_t>(begins.size()) - 1;
    end_ns = operations[begins.back()].begin_ns;
  } else {
    begins = {0, operations.size()};
    for (const DeviceOperation& operation : operations) {
      end_ns = std::max(end_ns, operation.end_ns);
    }
  }
  const Operations all =
      Operations(operations).subspan(begins.front(), begins.back() - begins.front());
  int64_t busy_ns = 0;
  std::vector<Occupancy> occupancies;
  Tally tally;
  bool bytes_fit = trace.only_whole_steps;
  for (size_t i = 0; i + 1 < begins.size(); ++i) {
    const size_t next = begins[i + 1];
    const bool last = i + 2 == begins.size();
    const Operations step = Operations(operations).subspan(begins[i], next - begins[i]);
    bytes_fit = bytes_fit && AddBytes(step, kernel_bytes, tally);
    const Occupancy occupancy =
        Occupy(step, last ? end_ns : operations[next].begin_ns,
               next < operations.size() ? std::string_view(operations[next].name) : "", tally);
    busy_ns += occupancy.busy_ns;
    occupancies.push_back(occupancy);
  }
  if (!bytes_fit) {
    for (auto& [name, sums] : tally) sums.bytes = 0;
  }
  const double steps = trace.steps;
  trace.rows = MakeRows(tally, steps, busy_ns);
  trace.launches = static_cast<double>(all.size()) / steps;
  trace.busy_us = static_cast<double>(busy_ns) * kUsPerNs / steps;
  trace.span_us = static_cast<double>(end_ns - all.front().begin_ns) * kUsPerNs / steps;
  std::sort(occupancies.begin(), occupancies.end(),
            [](const auto& a, const auto& b) { return a.largest_gap_ns < b.largest_gap_ns; });
  const Occupancy& median = occupancies[occupancies.size() / 2];
  trace.largest_gap_us = static_cast<double>(median.largest_gap_ns) * kUsPerNs;
  trace.after_gap = std::string(median.after_gap);
  return trace;
}

absl::StatusOr<std::vector<StepTrace>> SummarizeRanks(std::vector<DeviceOperation> operations,
                                                      const OfflineRun& run,
                                                      const std::vector<int64_t>& kernel_bytes) {
  std::map<int32_t, std::vector<DeviceOperation>> ranks = {{0, {}}};
  for (DeviceOperation& operation : operations) {
    ranks[operation.rank].push_back(std::move(operation));
  }
  std::vector<StepTrace> traces;
  for (const auto& [rank, of_rank] : ranks) {
    MILLRACE_ASSIGN_OR_RETURN(traces.emplace_back(), SummarizeTrace(of_rank, run, kernel_bytes));
  }
  return traces;
}

std::string ShortKernelName(std::string_view name) {
  constexpr size_t kMost = 72;
  std::string text = absl::StrReplaceAll(
      AbslView(name),
      {{"(anonymous namespace)::", ""}, {"millrace::kernels::", ""}, {"millrace::", ""}});
  if (text.starts_with("void ")) text.erase(0, 5);
  // The arguments begin at the first parenthesis outside of template arguments.
  int depth = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '<') ++depth;
    if (text[i] == '>') --depth;
    if (text[i] == '(' && depth == 0) {
      text.resize(i);
      break;
    }
  }
  if (text.size() > kMost) text = text.substr(0, kMost - 3) + "...";
  return text;
}

}  // namespace millrace
