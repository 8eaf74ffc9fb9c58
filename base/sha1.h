// SHA-1 (FIPS 180-4), by libcrypto: for what others name by it, as git does. Not against forgers.
#ifndef MILLRACE_BASE_SHA1_H_
#define MILLRACE_BASE_SHA1_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace millrace {

using Sha1Digest = std::array<uint8_t, 20>;

// One message after another. One thread at a time.
class Sha1 {
 public:
  Sha1();

  void Update(const void* data, size_t size);
  void Update(std::string_view bytes) { Update(bytes.data(), bytes.size()); }

  // Of all that came since the last Finish; begins the next message.
  Sha1Digest Finish();

 private:
  struct Free {
    void operator()(void* context) const;
  };
  std::unique_ptr<void, Free> context_;  // EVP_MD_CTX
};

}  // namespace millrace

#endif  // MILLRACE_BASE_SHA1_H_
