// The checks of a start that need no model: files that settings name, threads, and memory.
#ifndef MILLRACE_SERVER_DOCTOR_START_CHECKS_H_
#define MILLRACE_SERVER_DOCTOR_START_CHECKS_H_

#include <vector>

#include "config/settings.h"
#include "server/doctor/doctor.h"

namespace millrace {

// Checks --keys, the files of TLS, --ready-file, the threads and the KV cache as the server does
// when it starts, and names what only the start can tell: whether other nodes and a collector of
// traces can be reached. Writes nothing.
std::vector<Finding> ExamineStart(const Settings& settings);

}  // namespace millrace

#endif  // MILLRACE_SERVER_DOCTOR_START_CHECKS_H_
