#include "base/sha256.h"

#include "base/evp_digest.h"

namespace millrace {
namespace {

// Returns the algorithm, fetched once and never freed: fetching by name costs more than hashing a
// short message.
const EVP_MD* Algorithm() {
  static const EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  return algorithm;
}

}  // namespace

void Sha256::Free::operator()(void* context) const { EVP_MD_CTX_free(evp::Context(context)); }

Sha256::Sha256() : context_(evp::Begin(Algorithm())) {}

void Sha256::Update(const void* data, size_t size) { evp::Update(context_.get(), data, size); }

Sha256Digest Sha256::Finish() {
  return evp::Finish<Sha256Digest().size()>(context_.get(), Algorithm());
}

Sha256Digest Sha256Of(std::string_view message) {
  Sha256 hasher;
  hasher.Update(message);
  return hasher.Finish();
}

}  // namespace millrace
