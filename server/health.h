// Asks a running server for its health: `millraced health`.
#ifndef MILLRACE_SERVER_HEALTH_H_
#define MILLRACE_SERVER_HEALTH_H_

#include "absl/status/status.h"
#include "config/settings.h"

namespace millrace {

// Requests /readyz or /livez (`probe`) from the server at `host` and `http_port`, on loopback where
// the server listens on all addresses. Returns OK if the answer is 200, and else Unavailable with
// what was asked and what came. Where that port speaks TLS, it asks `admin_port` on loopback.
// Takes at most about `probe_timeout` for each.
absl::Status AskForHealth(const Settings& settings);

}  // namespace millrace

#endif  // MILLRACE_SERVER_HEALTH_H_
