// `millraced doctor`: whether this machine can serve with the settings, and what to do if not.
#ifndef MILLRACE_SERVER_DOCTOR_DOCTOR_H_
#define MILLRACE_SERVER_DOCTOR_DOCTOR_H_

#include <string>
#include <vector>

#include "config/settings.h"

namespace millrace {

enum class Verdict {
  kOk,
  kWarning,  // it can serve, and something is worse than it could be
  kError,    // it cannot serve
};

struct Finding {
  Verdict verdict;
  std::string subject;  // "port 8000"
  std::string fact;     // what is so
  std::string advice;   // what to do; empty where nothing is wrong
};

// Checks the processor, memory, limits, GPU and driver, ports, and the model, in this order.
// Contacts no other machine: a model that must be fetched is a warning.
std::vector<Finding> Examine(const Settings& settings);

// Returns the findings as lines, worst last summed up in one.
std::string FindingsText(const std::vector<Finding>& findings);

// Returns whether any finding is an error.
bool HasErrors(const std::vector<Finding>& findings);

}  // namespace millrace

#endif  // MILLRACE_SERVER_DOCTOR_DOCTOR_H_
