#include "server/doctor/start_checks.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "base/strings.h"
#include "server/endpoint_options.h"
#include "server/key_ring.h"
#include "server/kv_events/kv_events_config.h"
#include "server/startup_guard.h"
#include "server/tls/tls_context.h"

namespace millrace {
namespace {

Finding Judge(const std::string& subject, const std::string& fact, const absl::Status& status,
              const std::string& advice) {
  if (status.ok()) return {Verdict::kOk, subject, fact, ""};
  std::string message(status.message());
  if (message.starts_with(subject + ": ")) message.erase(0, subject.size() + 2);
  return {Verdict::kError, subject, std::move(message), advice};
}

// The server would replace or remove the file, which the doctor leaves alone.
Finding ExamineReadyFile(const std::string& path) {
  Finding finding{Verdict::kOk, "ready-file", Printable(path, 1024), ""};
  struct stat found;
  if (lstat(path.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) {
    finding = {Verdict::kError, "ready-file", finding.fact + " is there and is no regular file",
               "name a file, or nothing yet"};
  } else {
    const std::string folder = std::filesystem::path(path).parent_path().string();
    if (access(folder.empty() ? "." : folder.c_str(), W_OK) != 0) {
      finding = {Verdict::kError, "ready-file", finding.fact + ": its folder cannot be written",
                 "name a file in another one"};
    }
  }
  return finding;
}

}  // namespace

std::vector<Finding> ExamineStart(const Settings& settings) {
  std::vector<Finding> findings;
  const TlsFiles tls = TlsFilesOf(settings);
  findings.push_back(Judge("threads", "the system gives as many as the server begins with",
                           CheckThreads(settings), "raise the limit (ulimit -u, TasksMax)"));
  if (const absl::Status status = CheckKvCacheMemory(settings); !status.ok()) {
    findings.push_back(Judge("KV cache", "", status, "lower --kv-cache-memory"));
  }
  if (!settings.keys.empty()) {
    const auto ring = KeyRing::Open(settings.keys, settings.shared_prefix_cache,
                                    tls.clients != ClientCertificates::kNone);
    findings.push_back(
        Judge("keys", Printable(settings.keys, 1024), ring.status(), "mend the file"));
  }
  if (!tls.certificate.empty()) {
    const auto context = TlsContext::Load(tls);
    findings.push_back(Judge("TLS", context.ok() ? Printable((*context)->subject(), 1024) : "",
                             context.status(), "mend the file, or name another"));
  }
  if (!settings.ready_file.empty()) findings.push_back(ExamineReadyFile(settings.ready_file));
  if (settings.nnodes > 1) {
    findings.push_back({Verdict::kUnknown, "nodes",
                        "the other nodes, the ways to them and their certificates are not checked",
                        ""});
  }
  if (!settings.kv_events_config.empty()) {
    const auto config = ParseKvEventsConfig(settings.kv_events_config);
    const bool enabled = config.ok() && config->enabled;
    findings.push_back(Judge(
        "KV events", enabled ? Printable(AtHost(config->endpoint, settings.host), 1024) : "off",
        config.status(), "mend --kv-events-config"));
  }
  if (!settings.otlp_traces_endpoint.empty()) {
    findings.push_back({Verdict::kUnknown, "traces",
                        "whether --otlp-traces-endpoint takes them is not checked", ""});
  }
  return findings;
}

}  // namespace millrace
