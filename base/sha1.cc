#include "base/sha1.h"

#include "base/evp_digest.h"

namespace millrace {
namespace {

const EVP_MD* Algorithm() {
  static const EVP_MD* const algorithm = EVP_MD_fetch(nullptr, "SHA1", nullptr);
  return algorithm;
}

}  // namespace

void Sha1::Free::operator()(void* context) const { EVP_MD_CTX_free(evp::Context(context)); }

Sha1::Sha1() : context_(evp::Begin(Algorithm())) {}

void Sha1::Update(const void* data, size_t size) { evp::Update(context_.get(), data, size); }

Sha1Digest Sha1::Finish() { return evp::Finish<Sha1Digest().size()>(context_.get(), Algorithm()); }

}  // namespace millrace
