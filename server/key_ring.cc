#include "server/key_ring.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "base/file_stamp.h"
#include "base/log.h"
#include "base/regular_file.h"
#include "base/status.h"
#include "base/strings.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "scheduler/sequence_request.h"

namespace millrace {
namespace {

constexpr Logger kLog(LogComponent::kServer);
constexpr auto kPeriod = std::chrono::milliseconds(250);
// Until a file that could not be read is read again, be it as it was.
constexpr auto kPause = std::chrono::seconds(30);
constexpr size_t kMostBytes = 16 << 20;
constexpr int64_t kMostCount = int64_t{1} << 40;

constexpr std::array<std::string_view, kNumScopes> kScopeNames = {"any", "infer", "metrics",
                                                                  "admin"};
constexpr std::string_view kFields[] = {
    "name",
    "sha256",
    "certificate",
    "scopes",
    "share",
    "requests_per_minute",
    "tokens_per_minute",
    "max_streams",
    "priority",
    "cache_salt",
};

absl::Status CheckNames(const JsonFields& fields) {
  for (const auto& [name, value] : fields.object().items()) {
    if (std::find(std::begin(kFields), std::end(kFields), name) == std::end(kFields)) {
      return fields.Bad(
          Printable(name),
          StrCat("is unknown; allowed: ",
                 JoinList(std::vector<std::string_view>(std::begin(kFields), std::end(kFields)))));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<int64_t>> OptionalInt(const JsonFields& fields,
                                                   std::string_view name) {
  if (fields.Find(name) == nullptr) return std::nullopt;
  MILLRACE_ASSIGN_OR_RETURN(const int64_t value, fields.Int(name, 1, kMostCount));
  return value;
}

absl::StatusOr<TenantLimits> ReadLimits(const JsonFields& fields) {
  TenantLimits limits;
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view name, fields.String("name"));
  limits.name = name;
  if (name.empty() || name.size() > 128 || Printable(name) != name) {
    return fields.Bad("name", "must be 1 to 128 printable characters");
  }
  if (fields.Find("share") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(const int64_t share, fields.Int("share", 1, kMaxTenantWeight));
    limits.share = static_cast<int32_t>(share);
  }
  MILLRACE_ASSIGN_OR_RETURN(limits.requests_per_minute, OptionalInt(fields, "requests_per_minute"));
  MILLRACE_ASSIGN_OR_RETURN(limits.tokens_per_minute, OptionalInt(fields, "tokens_per_minute"));
  MILLRACE_ASSIGN_OR_RETURN(limits.max_streams, OptionalInt(fields, "max_streams"));
  if (fields.Find("priority") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(const std::vector<int64_t> range,
                              fields.Ints("priority", INT32_MIN, INT32_MAX));
    if (range.size() != 2 || range[0] > range[1]) {
      return fields.Bad("priority", "must be two numbers, the least and the most allowed");
    }
    limits.least_priority = static_cast<int32_t>(range[0]);
    limits.most_priority = static_cast<int32_t>(range[1]);
  }
  if (fields.Find("cache_salt") != nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(const std::string_view salt, fields.String("cache_salt"));
    if (salt.empty()) return fields.Bad("cache_salt", "is empty");
    limits.cache_salt = StrCat("salt:", salt);
  }
  return limits;
}

absl::Status ReadScopes(const JsonFields& fields, KeyTable::Entry& entry) {
  entry.scopes[static_cast<size_t>(Scope::kAny)] = true;
  if (fields.Find("scopes") == nullptr) {
    entry.scopes[static_cast<size_t>(Scope::kInfer)] = true;
    return absl::OkStatus();
  }
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<std::string> scopes, fields.Strings("scopes"));
  for (const std::string& scope : scopes) {
    const auto found = std::find(kScopeNames.begin() + 1, kScopeNames.end(), scope);
    if (found == kScopeNames.end()) {
      return fields.Bad("scopes",
                        StrCat("has \"", Printable(scope), "\"; allowed: infer, metrics, admin"));
    }
    entry.scopes[found - kScopeNames.begin()] = true;
  }
  return absl::OkStatus();
}

// Reads a text, or a list of some.
absl::StatusOr<std::vector<std::string>> ReadTexts(const JsonFields& fields,
                                                   std::string_view name) {
  std::vector<std::string> texts;
  if (const Json* one = fields.Find(name); one != nullptr && one->is_string()) {
    texts.push_back(one->get<std::string>());
  } else {
    MILLRACE_ASSIGN_OR_RETURN(texts, fields.Strings(name));
  }
  if (texts.empty()) return fields.Bad(name, "is empty");
  return texts;
}

bool IsCertificateName(std::string_view name) {
  const auto is_printable = [](char c) { return c >= ' ' && c <= '~'; };
  if (!std::all_of(name.begin(), name.end(), is_printable)) return false;
  for (const std::string_view kind : {"DNS:", "URI:", "email:"}) {
    if (name.starts_with(kind)) return name.size() > kind.size();
  }
  const size_t equals = name.find('=');
  return equals != name.npos && equals > 0 && equals + 1 < name.size();
}

// Reads the names of a tenant's certificates; none if it has none.
absl::StatusOr<std::vector<std::string>> ReadCertificates(const JsonFields& fields, bool allowed) {
  if (fields.Find("certificate") == nullptr) return std::vector<std::string>();
  MILLRACE_ASSIGN_OR_RETURN(std::vector<std::string> names, ReadTexts(fields, "certificate"));
  if (!allowed) {
    return fields.Bad("certificate", "is set, but without --ssl-ca-certs no client shows one");
  }
  for (const std::string& name : names) {
    if (IsCertificateName(name)) continue;
    return fields.Bad("certificate",
                      StrCat("has \"", Printable(name),
                             "\"; allowed: a subject as \"CN=client-7,O=Example\", or "
                             "\"DNS:...\", \"URI:...\", \"email:...\""));
  }
  return names;
}

// Reads a key's digest, or several of one tenant; none if it has certificates alone.
absl::StatusOr<std::vector<Sha256Digest>> ReadDigests(const JsonFields& fields) {
  if (fields.Find("sha256") == nullptr && fields.Find("certificate") != nullptr) {
    return std::vector<Sha256Digest>();
  }
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<std::string> texts, ReadTexts(fields, "sha256"));
  std::vector<Sha256Digest> digests;
  for (const std::string& text : texts) {
    const bool hex = text.size() == 2 * sizeof(Sha256Digest) &&
                     text.find_first_not_of("0123456789abcdefABCDEF") == text.npos;
    if (!hex) return fields.Bad("sha256", "must be the 64 hexadecimal digits of SHA-256(key)");
    const std::string bytes = absl::HexStringToBytes(text);
    std::copy(bytes.begin(), bytes.end(), digests.emplace_back().begin());
  }
  return digests;
}

// Returns OK and the entry's tenant if it has the scope.
absl::Status Admit(const KeyTable::Entry& entry, Scope scope,
                   std::shared_ptr<const Tenant>* tenant) {
  if (!entry.scopes[static_cast<size_t>(scope)]) {
    return absl::PermissionDeniedError(
        StrCat("the key lacks the scope ", kScopeNames[static_cast<size_t>(scope)]));
  }
  if (tenant != nullptr) *tenant = entry.tenant;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<KeyRing>> KeyRing::Open(std::string path, bool shared_cache,
                                                       bool certificates, const Clock& clock) {
  std::unique_ptr<KeyRing> ring(new KeyRing(std::move(path), shared_cache, certificates, clock));
  ring->stamp_ = FileStamp(ring->path_);
  MILLRACE_RETURN_IF_ERROR(ring->Read());
  ring->thread_ = std::thread([ring = ring.get()] { ring->Follow(); });
  return ring;
}

KeyRing::KeyRing(std::string path, bool shared_cache, bool certificates, const Clock& clock)
    : path_(std::move(path)),
      shared_cache_(shared_cache),
      certificates_(certificates),
      clock_(clock),
      reading_("keys", "the keys stay as they were, and one that was revoked since still opens",
               clock) {}

KeyRing::~KeyRing() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  stop_.notify_all();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<const KeyTable> KeyRing::table() const {
  std::lock_guard lock(mutex_);
  return table_;
}

absl::Status KeyRing::Authorize(std::string_view key, Scope scope,
                                std::shared_ptr<const Tenant>* tenant) const {
  const std::shared_ptr<const KeyTable> table = this->table();
  // The table is searched by digest: how long that takes tells nothing of any key.
  const auto found = table->keys.find(Sha256Of(key));
  if (found == table->keys.end()) {
    return absl::UnauthenticatedError("authorization: the key is unknown");
  }
  return Admit(found->second, scope, tenant);
}

absl::Status KeyRing::AuthorizeCertificate(std::span<const std::string> identities, Scope scope,
                                           std::shared_ptr<const Tenant>* tenant) const {
  const std::shared_ptr<const KeyTable> table = this->table();
  for (const std::string& identity : identities) {
    const auto found = table->certificates.find(identity);
    if (found != table->certificates.end()) return Admit(found->second, scope, tenant);
  }
  return absl::UnauthenticatedError(
      StrCat("authorization: a key is required, as \"Bearer <key>\"; the certificate of ",
             Printable(identities.front()), " stands for none"));
}

std::vector<std::shared_ptr<const Tenant>> KeyRing::tenants() const {
  const std::shared_ptr<const KeyTable> table = this->table();
  std::map<uint32_t, std::shared_ptr<const Tenant>> by_id;
  for (const auto& [digest, entry] : table->keys) by_id[entry.tenant->id()] = entry.tenant;
  for (const auto& [name, entry] : table->certificates) by_id[entry.tenant->id()] = entry.tenant;
  std::vector<std::shared_ptr<const Tenant>> tenants;
  for (auto& [id, tenant] : by_id) tenants.push_back(std::move(tenant));
  return tenants;
}

absl::Status KeyRing::Read() {
  const absl::StatusOr<std::string> text = ReadRegularFile(path_, kMostBytes);
  if (!text.ok()) {
    return absl::InvalidArgumentError(
        StrCat("keys: cannot read ", path_, ": ", std::string(text.status().message())));
  }
  absl::StatusOr<KeyTable> table = Parse(*text);
  if (!table.ok()) return Annotate(table.status(), StrCat("keys: ", path_));
  auto shared = std::make_shared<const KeyTable>(*std::move(table));
  std::lock_guard lock(mutex_);
  table_ = std::move(shared);
  return absl::OkStatus();
}

// {"keys": [{"name": ..., "sha256": ..., ...}, ...]}
absl::StatusOr<KeyTable> KeyRing::Parse(std::string_view text) {
  MILLRACE_ASSIGN_OR_RETURN(const Json json, ParseJson(text, {.depth = 8}));
  const Json* const entries = json.is_object() ? FindField(json, "keys") : nullptr;
  if (entries == nullptr || !entries->is_array() || json.size() != 1) {
    return absl::InvalidArgumentError("must be an object with the one field \"keys\", a list");
  }
  KeyTable table;
  std::set<std::string> names;
  for (size_t i = 0; i < entries->size(); ++i) {
    const JsonFields fields((*entries)[i], StrCat("keys[", i, "]."));
    if (!fields.object().is_object()) {
      return absl::InvalidArgumentError(StrCat("keys[", i, "] is not an object"));
    }
    MILLRACE_RETURN_IF_ERROR(AddEntry(fields, names, table));
  }
  return table;
}

absl::Status KeyRing::AddEntry(const JsonFields& fields, std::set<std::string>& names,
                               KeyTable& table) {
  MILLRACE_RETURN_IF_ERROR(CheckNames(fields));
  MILLRACE_ASSIGN_OR_RETURN(TenantLimits limits, ReadLimits(fields));
  if (!names.insert(limits.name).second) return fields.Bad("name", "is another entry's, too");
  if (limits.cache_salt.empty() && !shared_cache_) {
    limits.cache_salt = StrCat("tenant:", limits.name);
  }
  KeyTable::Entry entry;
  MILLRACE_RETURN_IF_ERROR(ReadScopes(fields, entry));
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<Sha256Digest> digests, ReadDigests(fields));
  MILLRACE_ASSIGN_OR_RETURN(const std::vector<std::string> certificates,
                            ReadCertificates(fields, certificates_));
  const uint32_t next_id = static_cast<uint32_t>(known_.size()) + 1;
  const Known& known =
      known_.try_emplace(limits.name, Known{next_id, std::make_shared<TenantUsage>()})
          .first->second;
  entry.tenant = std::make_shared<const Tenant>(known.id, std::move(limits), known.usage);
  for (const Sha256Digest& digest : digests) {
    if (!table.keys.emplace(digest, entry).second) {
      return fields.Bad("sha256", "has a key that is listed twice");
    }
  }
  for (const std::string& name : certificates) {
    if (!table.certificates.emplace(name, entry).second) {
      return fields.Bad("certificate", StrCat("has ", name, ", which is listed twice"));
    }
  }
  return absl::OkStatus();
}

void KeyRing::Follow() {
  SteadyTime again = SteadyTime::max();
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, kPeriod, [this] { return stopping_; })) {
    lock.unlock();
    if (std::string stamp = FileStamp(path_); stamp != stamp_ || clock_.Now() >= again) {
      stamp_ = std::move(stamp);
      const absl::Status status = Read();
      again = status.ok() ? SteadyTime::max() : clock_.Now() + kPause;
      if (status.ok()) kLog.Info("keys: read again");
      reading_.Report(status);
    }
    lock.lock();
  }
}

}  // namespace millrace
