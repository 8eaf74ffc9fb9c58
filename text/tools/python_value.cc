#include "text/tools/python_value.h"

#include <algorithm>

#include "base/strings.h"
#include "text/tools/json_prefix.h"
#include "text/tools/xml_value.h"

namespace millrace {
namespace {

constexpr int kMaxDepth = 100;

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool Value(std::string* out, int depth) {
    SkipSpace();
    if (text_.empty() || depth > kMaxDepth) return false;
    switch (text_.front()) {
      case '\'':
      case '"':
        return String(out);
      case '[':
        return List(']', out, depth);
      case '(':
        return List(')', out, depth);
      case '{':
        return Dictionary(out, depth);
      default:
        return Word(out);
    }
  }

  bool AtEnd() {
    SkipSpace();
    return text_.empty();
  }

 private:
  void SkipSpace() {
    text_.remove_prefix(std::min(text_.find_first_not_of(" \n\t\r"), text_.size()));
  }

  bool Take(char c) {
    SkipSpace();
    if (!text_.starts_with(c)) return false;
    text_.remove_prefix(1);
    return true;
  }

  bool String(std::string* out) {
    const char quote = text_.front();
    text_.remove_prefix(1);
    std::string value;
    while (!text_.empty()) {
      const char c = text_.front();
      text_.remove_prefix(1);
      if (c == quote) {
        *out += Quoted(value);
        return true;
      }
      if (c != '\\') {
        value += c;
      } else if (!Escape(&value)) {
        return false;
      }
    }
    return false;
  }

  bool Escape(std::string* value) {
    if (text_.empty()) return false;
    const char c = text_.front();
    text_.remove_prefix(1);
    switch (c) {
      case 'n':
        *value += '\n';
        return true;
      case 't':
        *value += '\t';
        return true;
      case 'r':
        *value += '\r';
        return true;
      case '\n':
        return true;
      case '\\':
      case '\'':
      case '"':
        *value += c;
        return true;
      default:
        // Python leaves an escape that it does not know as it stands.
        *value += '\\';
        *value += c;
        return c != 'x' && c != 'u' && c != 'U' && c != 'N' && (c < '0' || c > '7');
    }
  }

  bool List(char end, std::string* out, int depth) {
    text_.remove_prefix(1);
    *out += '[';
    for (bool first = true; !Take(end); first = false) {
      if (!first && !Take(',')) return false;
      if (!first && Take(end)) break;
      if (!first) *out += ", ";
      if (!Value(out, depth + 1)) return false;
    }
    *out += ']';
    return true;
  }

  bool Dictionary(std::string* out, int depth) {
    text_.remove_prefix(1);
    *out += '{';
    for (bool first = true; !Take('}'); first = false) {
      if (!first && !Take(',')) return false;
      if (!first && Take('}')) break;
      if (!first) *out += ", ";
      SkipSpace();
      if (text_.empty() || (text_.front() != '\'' && text_.front() != '"')) return false;
      if (!String(out) || !Take(':')) return false;
      *out += ": ";
      if (!Value(out, depth + 1)) return false;
    }
    *out += '}';
    return true;
  }

  // Reads a number or a constant.
  bool Word(std::string* out) {
    const size_t end = std::min(text_.find_first_of(" \n\t\r,]}):"), text_.size());
    const std::string_view word = text_.substr(0, end);
    text_.remove_prefix(end);
    if (word == "True" || word == "False" || word == "None") {
      *out += word == "True" ? "true" : word == "False" ? "false" : "null";
      return true;
    }
    JsonPrefix json;
    if (!std::all_of(word.begin(), word.end(), [&](char c) { return json.Step(c); })) return false;
    *out += word;
    return json.complete();
  }

  std::string_view text_;
};

}  // namespace

std::optional<std::string> PythonValueToJson(std::string_view text) {
  Reader reader(text);
  std::string out;
  if (!reader.Value(&out, 0) || !reader.AtEnd()) return std::nullopt;
  return out;
}

}  // namespace millrace
