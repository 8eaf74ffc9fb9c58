#include "server/tls/x509_text.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <string_view>
#include <utility>

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

std::string SubjectOf(const X509& certificate) {
  return Printed([&](BIO* out) {
    X509_NAME_print_ex(out, X509_get_subject_name(&certificate), 0, XN_FLAG_RFC2253);
  });
}

// Returns the name with its kind before it, "DNS:a"; empty for kinds that are none of a client's.
// OpenSSL's own text shows what is not printable as dots, and two names might look the same.
std::string IdentityOf(const GENERAL_NAME& name) {
  int type = 0;
  const void* const value = GENERAL_NAME_get0_value(&name, &type);
  const std::string_view kind = type == GEN_DNS     ? "DNS:"
                                : type == GEN_URI   ? "URI:"
                                : type == GEN_EMAIL ? "email:"
                                                    : "";
  if (kind.empty()) return "";
  const auto* const text = static_cast<const ASN1_STRING*>(value);
  const int size = ASN1_STRING_length(text);
  if (size <= 0) return "";
  return StrCat(kind, std::string_view(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                                       static_cast<size_t>(size)));
}

bool IsIdentity(const std::string& name) {
  const auto is_printable = [](char c) { return c >= ' ' && c <= '~'; };
  return !name.empty() && name.size() <= kMostIdentityBytes &&
         std::all_of(name.begin(), name.end(), is_printable);
}

}  // namespace

std::vector<std::string> IdentitiesOf(const X509& certificate) {
  std::vector<std::string> identities;
  if (std::string subject = SubjectOf(certificate); IsIdentity(subject)) {
    identities.push_back(std::move(subject));
  }
  auto* const names = static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr));
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    std::string identity = IdentityOf(*sk_GENERAL_NAME_value(names, i));
    if (IsIdentity(identity)) identities.push_back(std::move(identity));
  }
  GENERAL_NAMES_free(names);
  return identities;
}

std::string NameOf(const X509& certificate) {
  std::string name = SubjectOf(certificate);
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
