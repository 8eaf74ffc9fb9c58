// `millraced doctor`: whether this machine can serve with the settings, and what to do if not.
#ifndef MILLRACE_SERVER_DOCTOR_DOCTOR_H_
#define MILLRACE_SERVER_DOCTOR_DOCTOR_H_

#include <string>
#include <vector>

#include "config/settings.h"

namespace millrace {

enum class Verdict {
  kOk,
  kUnknown,  // it was not checked, and may keep the server from serving
  kWarning,  // it can serve, and something is worse than it could be
  kError,    // it cannot serve
};

struct Finding {
  Verdict verdict;
  std::string subject;  // "port 8000"
  std::string fact;     // what is so
  std::string advice;   // what to do; empty where there is nothing
};

// Checks the processor, limits, GPU and driver, the files that settings name, the model with its
// text and memory, and the ports, in this order. What it cannot check it names: a model that must
// be fetched, since it contacts no other machine, and a model's weights, which it does not load.
std::vector<Finding> Examine(const Settings& settings);

// Returns the findings as lines, and a last one that sums them up: it says that the machine can
// serve only if nothing is unknown.
std::string FindingsText(const std::vector<Finding>& findings);

// Returns whether any finding is an error.
bool HasErrors(const std::vector<Finding>& findings);

}  // namespace millrace

#endif  // MILLRACE_SERVER_DOCTOR_DOCTOR_H_
