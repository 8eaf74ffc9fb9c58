// The digests that tests/reference/make_class_reference.py took of Hugging Face's tokenizers.
#ifndef MILLRACE_TEXT_TOKENIZER_CLASS_REFERENCE_TEST_UTIL_H_
#define MILLRACE_TEXT_TOKENIZER_CLASS_REFERENCE_TEST_UTIL_H_

#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "base/sha256.h"
#include "text/utf8.h"

namespace millrace {

inline const nlohmann::json& ClassReference() {
  static const auto& reference = *new nlohmann::json([] {
    std::ifstream file("tests/reference/class_reference.json");
    return nlohmann::json::parse(file);
  }());
  return reference;
}

// Digests texts and numbers as the script does.
class ReferenceDigest {
 public:
  void Add(std::string_view text) { sha256_.Update(text); }
  void Add(uint32_t number) {
    char bytes[4];
    for (int i = 0; i < 4; ++i) bytes[i] = static_cast<char>(number >> 8 * i & 0xff);
    sha256_.Update(bytes, sizeof bytes);
  }

  std::string Finish() {
    const Sha256Digest digest = sha256_.Finish();
    return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), 8});
  }

 private:
  Sha256 sha256_;
};

// Calls `use` with each code point from `first` up to `end` that a text can have.
template <typename Use>
void ForEachCharacter(char32_t first, char32_t end, Use use) {
  for (char32_t code = first; code < end; ++code) {
    if (code < 0xd800 || code >= 0xe000) use(code);
  }
}

// Returns all characters that a text can have.
inline const std::string& EveryCharacter() {
  static const auto& text = *new std::string([] {
    std::string characters;
    ForEachCharacter(0, 0x110000, [&](char32_t code) { AppendCharacter(code, &characters); });
    return characters;
  }());
  return text;
}

}  // namespace millrace

#endif  // MILLRACE_TEXT_TOKENIZER_CLASS_REFERENCE_TEST_UTIL_H_
