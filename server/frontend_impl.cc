#include "server/frontend_impl.h"

#include <openssl/crypto.h>

#include "absl/strings/match.h"
#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

constexpr std::string_view kScheme = "Bearer ";

// Digests have one length, so that comparing them tells nothing of the key's.
Sha256Digest Digest(std::string_view key) {
  Sha256 hasher;
  hasher.Update(key);
  return hasher.Finish();
}

}  // namespace

FrontendImpl::FrontendImpl(const std::vector<std::string>& api_keys) {
  for (const std::string& key : api_keys) keys_.push_back(Digest(key));
}

void FrontendImpl::AddEngine(Engine* engine) {
  models_.emplace(engine->info().model_name, Served{.engine = engine});
}

void FrontendImpl::AddInferEngine(InferEngine* engine) {
  models_.emplace(engine->model_name(), Served{.infer = engine});
}

void FrontendImpl::SetReady() {
  started_ = true;
  metrics_.SetReady(true);
}

void FrontendImpl::BeginDrain() {
  draining_ = true;
  metrics_.SetReady(false);
}

absl::StatusOr<const FrontendImpl::Served*> FrontendImpl::Find(std::string_view model) const {
  if (!started_) {
    return WithRetryAfter(absl::UnavailableError("the server is starting"), absl::Seconds(1));
  }
  if (model.empty() && models_.size() == 1) return &models_.begin()->second;
  const auto found = models_.find(model);
  if (found != models_.end()) return &found->second;
  std::string served;
  for (const auto& [name, of_name] : models_) {
    served += StrCat(served.empty() ? "" : ", ", name);
  }
  return absl::NotFoundError(StrCat("model is \"", Printable(model), "\"; allowed: ", served));
}

absl::StatusOr<Engine*> FrontendImpl::FindEngine(std::string_view model) const {
  MILLRACE_ASSIGN_OR_RETURN(const Served* found, Find(model));
  if (found->engine != nullptr) return found->engine;
  return absl::InvalidArgumentError(StrCat("model is \"", found->infer->model_name(),
                                           "\", a model of tensors; allowed here: a language "
                                           "model (Infer runs this one)"));
}

absl::StatusOr<InferEngine*> FrontendImpl::FindInferEngine(std::string_view model) const {
  MILLRACE_ASSIGN_OR_RETURN(const Served* found, Find(model));
  if (found->infer != nullptr) return found->infer;
  return absl::InvalidArgumentError(StrCat("model is \"", found->engine->info().model_name,
                                           "\", a language model; allowed for Infer: a model of "
                                           "tensors, an AOTInductor package"));
}

std::vector<Engine*> FrontendImpl::engines() const {
  std::vector<Engine*> engines;
  if (!started_) return engines;
  for (const auto& [name, served] : models_) {
    if (served.engine != nullptr) engines.push_back(served.engine);
  }
  return engines;
}

std::vector<InferEngine*> FrontendImpl::infer_engines() const {
  std::vector<InferEngine*> engines;
  if (!started_) return engines;
  for (const auto& [name, served] : models_) {
    if (served.infer != nullptr) engines.push_back(served.infer);
  }
  return engines;
}

bool FrontendImpl::live() const {
  for (const Engine* engine : engines()) {
    if (engine->health() != Health::kServing) return false;
  }
  for (const InferEngine* engine : infer_engines()) {
    if (engine->health() != Health::kServing) return false;
  }
  return true;
}

absl::Status FrontendImpl::Authorize(std::string_view authorization) const {
  if (keys_.empty()) return absl::OkStatus();
  // The scheme's name has no case: RFC 9110, section 11.1.
  const bool has_scheme = absl::StartsWithIgnoreCase(AbslView(authorization), AbslView(kScheme));
  if (!has_scheme) {
    return absl::UnauthenticatedError("authorization: a key is required, as \"Bearer <key>\"");
  }
  const Sha256Digest given = Digest(authorization.substr(kScheme.size()));
  bool known = false;
  for (const Sha256Digest& key : keys_) {
    known |= CRYPTO_memcmp(given.data(), key.data(), key.size()) == 0;
  }
  return known ? absl::OkStatus() : absl::UnauthenticatedError("authorization: the key is unknown");
}

}  // namespace millrace
