#include "server/frontend_impl.h"

#include <openssl/crypto.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>

#include "absl/strings/match.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr std::string_view kScheme = "Bearer ";

}  // namespace

FrontendImpl::FrontendImpl(const std::vector<std::string>& api_keys) {
  for (const std::string& key : api_keys) keys_.push_back(Sha256Of(key));
}

void FrontendImpl::AddModel(ServedModel* model, const std::vector<std::string>& aliases) {
  const auto add = [&](const std::string& name) {
    if (models_.emplace(name, model).second) names_.emplace_back(name, model);
  };
  add(model->model_name());
  for (const std::string& alias : aliases) add(alias);
}

void FrontendImpl::SetReady() {
  started_ = true;
  metrics_.SetReady(true);
}

void FrontendImpl::BeginLeave() {
  leaving_ = true;
  metrics_.SetReady(false);
}

void FrontendImpl::BeginDrain() {
  BeginLeave();
  draining_ = true;
}

absl::StatusOr<ServedModel*> FrontendImpl::Find(std::string_view model) const {
  if (!started_) {
    return WithRetryAfter(absl::UnavailableError("the server is starting"), absl::Seconds(1));
  }
  if (model.empty() && models().size() == 1) return names_.front().second;
  const auto found = models_.find(model);
  if (found != models_.end()) return found->second;
  std::string served;
  for (const auto& [name, of_name] : names_) {
    served += StrCat(served.empty() ? "" : ", ", name);
  }
  return absl::NotFoundError(StrCat("model is \"", Printable(model), "\"; allowed: ", served));
}

std::vector<ServedModel*> FrontendImpl::models() const {
  std::vector<ServedModel*> models;
  if (!started_) return models;
  for (const auto& [name, model] : names_) {
    if (name == model->model_name()) models.push_back(model);
  }
  return models;
}

std::vector<std::string> FrontendImpl::names(const ServedModel& model) const {
  std::vector<std::string> names;
  for (const auto& [name, of_name] : names_) {
    if (of_name == &model) names.push_back(name);
  }
  return names;
}

void FrontendImpl::Follow(FileReading& reading) {
  prometheus::Gauge& gauge =
      prometheus::BuildGauge()
          .Name("millrace_file_stale")
          .Help("1 while the setting's file cannot be read, and what was read before stays.")
          .Register(metrics_.registry())
          .Add({{"setting", reading.setting()}});
  reading.OnChange([&gauge](bool failing) { gauge.Set(failing ? 1 : 0); });
  const std::lock_guard lock(files_mutex_);
  files_.push_back(&reading);
}

std::vector<std::string> FrontendImpl::stale_files() const {
  std::vector<std::string> settings;
  const std::lock_guard lock(files_mutex_);
  for (const FileReading* reading : files_) {
    if (reading->failing()) settings.push_back(reading->setting());
  }
  return settings;
}

bool FrontendImpl::live() const {
  for (const ServedModel* model : models()) {
    if (model->health() != Health::kServing) return false;
  }
  return true;
}

void FrontendImpl::SetKeyRing(std::unique_ptr<KeyRing> ring) {
  ring_ = std::move(ring);
  metrics_.SetTenants([ring = ring_.get()] { return ring->tenants(); });
  Follow(ring_->reading());
}

absl::Status FrontendImpl::Authorize(const Credentials& shown, Scope scope,
                                     std::shared_ptr<const Tenant>* tenant) const {
  if (keys_.empty() && ring_ == nullptr) return absl::OkStatus();
  const std::string_view authorization = shown.authorization;
  if (authorization.empty() && ring_ != nullptr && !shown.identities.empty()) {
    return ring_->AuthorizeCertificate(shown.identities, scope, tenant);
  }
  // The scheme's name has no case: RFC 9110, section 11.1.
  const bool has_scheme = absl::StartsWithIgnoreCase(AbslView(authorization), AbslView(kScheme));
  if (!has_scheme) {
    return absl::UnauthenticatedError("authorization: a key is required, as \"Bearer <key>\"");
  }
  const std::string_view key = authorization.substr(kScheme.size());
  // Digests have one length, so that comparing them tells nothing of the key's.
  const Sha256Digest given = Sha256Of(key);
  bool known = false;
  for (const Sha256Digest& key : keys_) {
    known |= CRYPTO_memcmp(given.data(), key.data(), key.size()) == 0;
  }
  if (known) return absl::OkStatus();
  if (ring_ != nullptr) return ring_->Authorize(key, scope, tenant);
  return absl::UnauthenticatedError("authorization: the key is unknown");
}

}  // namespace millrace
