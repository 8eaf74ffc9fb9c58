// The keys of --keys: a file that is read again when it changes.
#ifndef MILLRACE_SERVER_KEY_RING_H_
#define MILLRACE_SERVER_KEY_RING_H_

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/file_reading.h"
#include "base/sha256.h"
#include "engine/request/tenant.h"
#include "server/frontend.h"

namespace millrace {

class JsonFields;

// The keys and their tenants as one reading found them. Constant.
struct KeyTable {
  struct Entry {
    std::shared_ptr<const Tenant> tenant;
    bool scopes[kNumScopes] = {};  // by Scope
  };
  std::map<Sha256Digest, Entry> keys;
  std::map<std::string, Entry, std::less<>> certificates;  // by what IdentitiesOf a certificate has
};

// Thread-safe.
class KeyRing {
 public:
  // Reads the file, and again within half a second after each change. `shared_cache`: tenants that
  // name no cache_salt share the prefix cache. InvalidArgument names the entry and the field.
  // `certificates`: clients show some, so that entries may name them.
  // A later reading that fails is repeated every 30 s, and the keys stay as they were.
  static absl::StatusOr<std::unique_ptr<KeyRing>> Open(std::string path, bool shared_cache,
                                                       bool certificates = false,
                                                       const Clock& clock = Clock::Real());
  ~KeyRing();
  KeyRing(const KeyRing&) = delete;
  KeyRing& operator=(const KeyRing&) = delete;

  // OK if the key may do what needs `scope`; then `tenant`, unless null, is set. Unauthenticated:
  // there is no such key. PermissionDenied: it lacks the scope.
  absl::Status Authorize(std::string_view key, Scope scope,
                         std::shared_ptr<const Tenant>* tenant) const;

  // As Authorize, for a client that sends no key and whose certificate stands for these names: the
  // first that an entry names counts.
  absl::Status AuthorizeCertificate(std::span<const std::string> identities, Scope scope,
                                    std::shared_ptr<const Tenant>* tenant) const;

  // The state of the readings after the first.
  FileReading& reading() { return reading_; }

  // Returns the tenants of the last reading.
  std::vector<std::shared_ptr<const Tenant>> tenants() const;

 private:
  KeyRing(std::string path, bool shared_cache, bool certificates, const Clock& clock);

  absl::Status Read();
  absl::StatusOr<KeyTable> Parse(std::string_view text);
  // `names`: of the tenants before it.
  absl::Status AddEntry(const JsonFields& fields, std::set<std::string>& names, KeyTable& table);
  std::shared_ptr<const KeyTable> table() const;
  void Follow();

  const std::string path_;
  const bool shared_cache_;
  const bool certificates_;
  const Clock& clock_;

  // The reading thread's. Usage outlives a tenant's absence from the file.
  struct Known {
    uint32_t id;
    std::shared_ptr<TenantUsage> usage;
  };
  std::map<std::string, Known, std::less<>> known_;
  std::string stamp_;

  FileReading reading_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable stop_;
  bool stopping_ = false;
  std::shared_ptr<const KeyTable> table_;

  std::thread thread_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_KEY_RING_H_
