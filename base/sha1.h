// SHA-1 (FIPS 180-4) by libcrypto, for identifiers that others define by it, such as git's. Not
// collision-resistant.
#ifndef MILLRACE_BASE_SHA1_H_
#define MILLRACE_BASE_SHA1_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace millrace {

using Sha1Digest = std::array<uint8_t, 20>;

// Hashes one message after another. Used by one thread at a time.
class Sha1 {
 public:
  Sha1();

  void Update(const void* data, size_t size);
  void Update(std::string_view bytes) { Update(bytes.data(), bytes.size()); }

  // Returns the digest of all data since the last Finish, and begins the next message.
  Sha1Digest Finish();

 private:
  struct Free {
    void operator()(void* context) const;
  };
  std::unique_ptr<void, Free> context_;  // EVP_MD_CTX
};

}  // namespace millrace

#endif  // MILLRACE_BASE_SHA1_H_
