#include "base/sha256.h"

#include <openssl/evp.h>

#include <cstdlib>

namespace millrace {
namespace {

// Fetching an algorithm by name costs more than hashing a short message with it. Never freed.
const EVP_MD* Algorithm() {
  static const EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  return algorithm;
}

// libcrypto fails here only when it is broken or memory is out: a wrong digest must not be used.
void Require(bool ok) {
  if (!ok) std::abort();
}

EVP_MD_CTX* Context(void* context) { return static_cast<EVP_MD_CTX*>(context); }

}  // namespace

void Sha256::Free::operator()(void* context) const { EVP_MD_CTX_free(Context(context)); }

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  Require(context_ != nullptr && Algorithm() != nullptr);
  Require(EVP_DigestInit_ex2(Context(context_.get()), Algorithm(), nullptr) == 1);
}

void Sha256::Update(const void* data, size_t size) {
  Require(EVP_DigestUpdate(Context(context_.get()), data, size) == 1);
}

Sha256Digest Sha256::Finish() {
  Sha256Digest digest;
  Require(EVP_DigestFinal_ex(Context(context_.get()), digest.data(), nullptr) == 1);
  Require(EVP_DigestInit_ex2(Context(context_.get()), Algorithm(), nullptr) == 1);
  return digest;
}

}  // namespace millrace
