#include "server/http/json/json_writer.h"

#include <array>
#include <charconv>
#include <cmath>

#include "text/utf8.h"

namespace millrace {
namespace {

constexpr float kLeastLogprob = -9999.0f;

// Passes through a JSON string as it is.
bool IsPlain(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte >= 0x20 && byte < 0x7F && c != '"' && c != '\\';
}

void AppendEscaped(std::string& out, char c) {
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default: {
      constexpr std::string_view kHex = "0123456789abcdef";
      const auto byte = static_cast<unsigned char>(c);
      out += "\\u00";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
}

}  // namespace

void AppendJsonString(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) {
    size_t plain = 0;
    while (plain < text.size() && IsPlain(text[plain])) ++plain;
    out += text.substr(0, plain);
    text.remove_prefix(plain);
    if (text.empty()) break;
    const Utf8Unit unit = FirstUtf8Unit(text);
    if (unit.kind != Utf8Unit::kCharacter) {
      out += kReplacementCharacter;
    } else if (unit.size == 1) {
      AppendEscaped(out, text.front());
    } else {
      out += text.substr(0, unit.size);
    }
    text.remove_prefix(unit.size);
  }
  out += '"';
}

void AppendJsonNumber(std::string& out, int64_t value) {
  std::array<char, 24> digits;
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  out.append(digits.data(), end);
}

void AppendJsonLogprob(std::string& out, float value) {
  if (!(value > kLeastLogprob) || std::isinf(value)) value = kLeastLogprob;
  AppendJsonFloat(out, value);
}

void AppendJsonFloat(std::string& out, float value) {
  std::array<char, 32> digits;
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  const std::string_view written(digits.data(), end);
  out += written;
  if (written.find_first_of(".e") == std::string_view::npos) out += ".0";
}

void AppendJsonNumbers(std::string& out, std::span<const int32_t> values) {
  out += '[';
  for (size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out += ',';
    AppendJsonNumber(out, values[i]);
  }
  out += ']';
}

}  // namespace millrace
