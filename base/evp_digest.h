// Message digests by libcrypto, shared by the hashes of this folder and private to their sources.
#ifndef MILLRACE_BASE_EVP_DIGEST_H_
#define MILLRACE_BASE_EVP_DIGEST_H_

#include <openssl/evp.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace millrace::evp {

// Aborts if `ok` is false. libcrypto fails here only when it is broken or memory is exhausted, and
// a wrong digest must not be used.
inline void Require(bool ok) {
  if (!ok) std::abort();
}

inline EVP_MD_CTX* Context(void* context) { return static_cast<EVP_MD_CTX*>(context); }

inline EVP_MD_CTX* Begin(const EVP_MD* algorithm) {
  EVP_MD_CTX* const context = EVP_MD_CTX_new();
  Require(context != nullptr && algorithm != nullptr);
  Require(EVP_DigestInit_ex2(context, algorithm, nullptr) == 1);
  return context;
}

inline void Update(void* context, const void* data, size_t size) {
  Require(EVP_DigestUpdate(Context(context), data, size) == 1);
}

// Returns the digest and begins the next message.
template <size_t kBytes>
std::array<uint8_t, kBytes> Finish(void* context, const EVP_MD* algorithm) {
  std::array<uint8_t, kBytes> digest;
  Require(EVP_DigestFinal_ex(Context(context), digest.data(), nullptr) == 1);
  Require(EVP_DigestInit_ex2(Context(context), algorithm, nullptr) == 1);
  return digest;
}

}  // namespace millrace::evp

#endif  // MILLRACE_BASE_EVP_DIGEST_H_
