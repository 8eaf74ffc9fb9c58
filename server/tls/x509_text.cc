#include "server/tls/x509_text.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <ctime>
#include <memory>

#include "base/strings.h"

namespace millrace {
namespace {

constexpr size_t kMostNameBytes = 256;

template <typename Print>
std::string Printed(Print print) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> out(BIO_new(BIO_s_mem()), BIO_free);
  if (out == nullptr) return "";
  print(out.get());
  char* text = nullptr;
  const auto size = BIO_get_mem_data(out.get(), &text);
  return size > 0 ? std::string(text, static_cast<size_t>(size)) : "";
}

}  // namespace

std::string NameOf(const X509& certificate) {
  std::string name = Printed([&](BIO* out) {
    X509_NAME_print_ex(out, X509_get_subject_name(&certificate), 0, XN_FLAG_RFC2253);
  });
  if (name.empty()) {
    auto* const names = static_cast<GENERAL_NAMES*>(
        X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr));
    if (sk_GENERAL_NAME_num(names) > 0) {
      name = Printed([&](BIO* out) { GENERAL_NAME_print(out, sk_GENERAL_NAME_value(names, 0)); });
      name = Printable(name, kMostNameBytes);
    }
    GENERAL_NAMES_free(names);
  }
  if (name.size() > kMostNameBytes) name.resize(kMostNameBytes);
  return name;  // OpenSSL has escaped what is not printable in a subject
}

absl::Time ToTime(const ASN1_TIME& time) {
  std::tm parts = {};
  if (ASN1_TIME_to_tm(&time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

std::string TakeOpenSslError() {
  const auto error = ERR_get_error();
  ERR_clear_error();
  const char* const reason = error == 0 ? nullptr : ERR_reason_error_string(error);
  return reason == nullptr ? "unknown error" : reason;
}

}  // namespace millrace
