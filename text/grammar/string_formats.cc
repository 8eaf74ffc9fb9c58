#include "text/grammar/string_formats.h"

#include <algorithm>

#include "base/strings.h"

namespace millrace {
namespace {

// Days that each month has, so that no answer has a February 30th; 29 February in leap years alone.
constexpr std::string_view kDate =
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|"
    "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|"
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)";
constexpr std::string_view kClock = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?";
constexpr std::string_view kOffset = "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])";
constexpr std::string_view kByte = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
constexpr std::string_view kLabel = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
constexpr std::string_view kUriCharacter = "(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})";

std::string Ipv6() {
  const std::string group = "[0-9A-Fa-f]{1,4}";
  std::string regex = StrCat("(?:", group, ":){7}", group);
  for (int before = 0; before <= 6; ++before) {
    const std::string head = before == 0 ? "" : StrCat(group, "(?::", group, "){", before - 1, "}");
    const int after = 6 - before;
    const std::string tail = after == 0 ? StrCat("(?:", group, ")?")
                                        : StrCat("(?:", group, "(?::", group, "){0,", after, "})?");
    regex += StrCat("|", head, "::", tail);
  }
  return regex;
}

std::string Uri() {
  return StrCat("[A-Za-z][A-Za-z0-9+.-]*:", kUriCharacter, "+(?:\\?", "(?:", kUriCharacter,
                "|\\?)*)?(?:#", "(?:", kUriCharacter, "|\\?)*)?");
}

}  // namespace

std::optional<std::string> FormatRegex(std::string_view format) {
  constexpr std::string_view kAnnotations[] = {
      "int32", "int64",      "float",          "double",  "password", "binary",
      "path",  "file-path",  "directory-path", "html",    "markdown", "json-string",
      "text",  "multi-line", "color",          "decimal",
  };
  if (std::find(std::begin(kAnnotations), std::end(kAnnotations), format) !=
      std::end(kAnnotations)) {
    return "";
  }
  if (format == "date") return std::string(kDate);
  if (format == "time") return StrCat(kClock, kOffset);
  if (format == "date-time") return StrCat(kDate, "T", kClock, kOffset);
  if (format == "duration") {
    return "P(?:[0-9]+W|[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?(?:T[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?)?|"
           "[0-9]+M(?:[0-9]+D)?|[0-9]+D(?:T[0-9]+H)?|"
           "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))";
  }
  if (format == "uuid") {
    return "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}";
  }
  if (format == "ipv4") return StrCat(kByte, "(?:\\.", kByte, "){3}");
  if (format == "ipv6") return Ipv6();
  if (format == "hostname") return StrCat(kLabel, "(?:\\.", kLabel, "){0,3}");
  if (format == "email") {
    return StrCat(
        "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,32}(?:\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,15}){0,2}@",
        kLabel, "(?:\\.", kLabel, "){1,3}");
  }
  if (format == "uri") return Uri();
  if (format == "uri-reference") return StrCat(Uri(), "|/?", kUriCharacter, "*");
  if (format == "byte" || format == "base64") {
    return "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?";
  }
  if (format == "base64url") return "[A-Za-z0-9_-]*={0,2}";
  if (format == "json-pointer") return "(?:/(?:[^/~]|~[01])*)*";
  return std::nullopt;
}

}  // namespace millrace
