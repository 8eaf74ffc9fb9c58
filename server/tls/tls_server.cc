#include "server/tls/tls_server.h"

#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include <chrono>
#include <utility>

#include "base/file_stamp.h"
#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kServer);
constexpr std::chrono::milliseconds kPeriod(250);
// Until files that could not be read are read again, be they as they were.
constexpr std::chrono::seconds kPause(30);

std::string Describe(const TlsContext& context) {
  return StrCat(
      "the certificate of ", context.subject(), ", valid until ",
      absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", context.not_after(), absl::UTCTimeZone()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TlsServer>> TlsServer::Open(TlsFiles files, int handshake_threads,
                                                           prometheus::Registry& registry,
                                                           const Clock& clock) {
  std::unique_ptr<TlsServer> made(
      new TlsServer(std::move(files), handshake_threads, registry, clock));
  MILLRACE_RETURN_IF_ERROR(made->Read());
  kLog.Info(made->files_.settings.speaker, " TLS with ", Describe(*made->context_));
  made->thread_ = std::thread([made = made.get()] { made->Follow(); });
  return made;
}

TlsServer::TlsServer(TlsFiles files, int handshake_threads, prometheus::Registry& registry,
                     const Clock& clock)
    : files_(std::move(files)),
      clock_(clock),
      handshakes_(static_cast<size_t>(handshake_threads)),
      expiry_(&prometheus::BuildGauge()
                   .Name("millrace_tls_certificate_expiry_timestamp_seconds")
                   .Help("When the certificate that new connections see expires, in Unix time.")
                   .Register(registry)
                   .Add({})),
      revocations_expiry_(
          files_.revocations.empty()
              ? nullptr
              : &prometheus::BuildGauge()
                     .Name("millrace_tls_crl_expiry_timestamp_seconds")
                     .Help("When the first of the revocation lists expires, in Unix time.")
                     .Register(registry)
                     .Add({})),
      reading_(std::string(files_.settings.certificate), "the certificate stays as it was", clock) {
}

TlsServer::~TlsServer() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  if (thread_.joinable()) thread_.join();
  handshakes_.join();
}

std::shared_ptr<const TlsContext> TlsServer::context() const {
  const std::lock_guard lock(mutex_);
  return context_;
}

bool TlsServer::BeginHandshake(size_t hello_bytes) {
  const size_t bytes = MemoryOf(hello_bytes);
  if ((shaking_ += bytes) <= kMostForHandshakes) return true;
  shaking_ -= bytes;
  return false;
}

void TlsServer::Reload() { Report(Read()); }

void TlsServer::Report(const absl::Status& read) {
  if (read.ok()) kLog.Info("TLS: read again: ", Describe(*context()));
  reading_.Report(read);
}

absl::Status TlsServer::Read() {
  const std::lock_guard one(one_reading_);
  read_ = Stamp();
  again_ = clock_.Now() + kPause;
  MILLRACE_ASSIGN_OR_RETURN(auto read, TlsContext::Load(files_));
  again_ = SteadyTime::max();
  expiry_->Set(static_cast<double>(absl::ToUnixSeconds(read->not_after())));
  if (revocations_expiry_ != nullptr) {
    revocations_expiry_->Set(absl::ToDoubleSeconds(read->revocations_expire() - absl::UnixEpoch()));
  }
  const std::lock_guard lock(mutex_);
  context_ = std::move(read);
  return absl::OkStatus();
}

std::string TlsServer::Stamp() const {
  return StrCat(FileStamp(files_.certificate), ";", FileStamp(files_.key), ";",
                FileStamp(files_.authorities), ";", FileStamp(files_.revocations));
}

// The files change one after the other, and a file may be written piece by piece: they are read
// when they have been as they are for a period.
void TlsServer::Follow() {
  const auto is_due = [this](const std::string& stamp) {
    const std::lock_guard one(one_reading_);
    return stamp != read_ || clock_.Now() >= again_;
  };
  std::string seen = Stamp();
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, kPeriod, [this] { return stopping_; })) {
    lock.unlock();
    std::string now = Stamp();
    if (now == seen && is_due(now)) {
      Report(Read());
    }
    seen = std::move(now);
    lock.lock();
  }
}

}  // namespace millrace
