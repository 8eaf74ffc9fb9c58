// Certificates as text and time.
#ifndef MILLRACE_SERVER_TLS_X509_TEXT_H_
#define MILLRACE_SERVER_TLS_X509_TEXT_H_

#include <openssl/x509.h>

#include <cstddef>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace millrace {

// Returns the subject as RFC 2253 has it, "CN=client-7,O=Example"; of a certificate without one,
// its first alternative name, "URI:spiffe://example/client-7". At most 256 bytes, all of them
// printable.
std::string NameOf(const X509& certificate);

// Returns the names by which a certificate stands for its owner, all of them whole: the subject as
// RFC 2253 has it, and the alternative names as "DNS:client-7.example", "URI:spiffe://a/client-7"
// and "email:client-7@example". A name that is empty, not printable ASCII or longer than
// kMostIdentityBytes is left out.
std::vector<std::string> IdentitiesOf(const X509& certificate);
inline constexpr size_t kMostIdentityBytes = 1024;

absl::Time ToTime(const ASN1_TIME& time);

// Returns the text of the oldest error that OpenSSL has for this thread, and clears them all.
std::string TakeOpenSslError();

}  // namespace millrace

#endif  // MILLRACE_SERVER_TLS_X509_TEXT_H_
