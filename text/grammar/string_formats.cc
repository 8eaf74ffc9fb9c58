#include "text/grammar/string_formats.h"

#include <algorithm>

#include "base/strings.h"

namespace millrace {
namespace {

// Days that each month has, so that no answer has a February 30th; 29 February in leap years alone.
// Without the year 0, which Python's and JavaScript's dates do not have or read otherwise.
constexpr std::string_view kDate =
    "(?:(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]"
    "[0-9]|3[01])|"
    "(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|"
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)-02-29)";
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

// The networks of pydantic and of Python's ipaddress: the bits of the host are 0.
std::string Ipv4Network() {
  std::string regex = StrCat(kByte, "(?:\\.", kByte, "){3}(?:/32)?|0\\.0\\.0\\.0/0");
  for (int length = 1; length < 32; ++length) {
    const int whole = (length - 1) / 8, step = 1 << (7 - (length - 1) % 8);
    std::string octet;
    for (int value = 0; value < 256; value += step) octet += StrCat(value == 0 ? "" : "|", value);
    std::string address;
    for (int i = 0; i < 4; ++i) {
      address += i == 0 ? "" : "\\.";
      address += i < whole ? std::string(kByte) : i > whole ? "0" : StrCat("(?:", octet, ")");
    }
    regex += StrCat("|", address, "/", length);
  }
  return regex;
}

std::string Uuid(std::string_view version) {
  constexpr std::string_view kHex = "[0-9A-Fa-f]";
  return StrCat(kHex, "{8}-", kHex, "{4}-", version, kHex, "{3}-",
                version == kHex ? kHex : "[89ABab]", kHex, "{3}-", kHex, "{12}");
}

struct NamedRegex {
  std::string_view name, regex;
};

// The formats that pydantic and zod add to those of JSON schema, as their own checks have them.
constexpr NamedRegex kLibraryFormats[] = {
    {"jwt", "eyJ[A-Za-z0-9_-]+\\.[A-Za-z0-9_-]+\\.[A-Za-z0-9_-]+"},
    {"e164", "\\+[1-9][0-9]{6,14}"},
    {"nanoid", "[A-Za-z0-9_-]{21}"},
    {"cuid", "[cC][^\\s-]{8,}"},
    {"cuid2", "[0-9a-z]+"},
    {"ulid", "[0-7][0-9A-HJKMNP-TV-Za-hjkmnp-tv-z]{25}"},
    {"xid", "[0-9a-vA-V]{20}"},
    {"ksuid", "[A-Za-z0-9]{27}"},
};
constexpr std::string_view kLength4 = "/(?:[0-9]|[12][0-9]|3[0-2])";
constexpr std::string_view kLength6 = "/(?:[0-9]|[1-9][0-9]|1[01][0-9]|12[0-8])";

// Addresses and networks under the names of pydantic and zod.
std::optional<std::string> NetworkRegex(std::string_view format) {
  const std::string v4 = StrCat(kByte, "(?:\\.", kByte, "){3}");
  if (format == "ipv4") return v4;
  if (format == "ipv6") return Ipv6();
  if (format == "ipvanyaddress") return StrCat(v4, "|", Ipv6());
  if (format == "cidrv4") return StrCat(v4, kLength4);
  if (format == "cidrv6") return StrCat("(?:", Ipv6(), ")", kLength6);
  if (format == "ipv4interface") return StrCat(v4, "(?:", kLength4, ")?");
  if (format == "ipv6interface") return StrCat("(?:", Ipv6(), ")(?:", kLength6, ")?");
  if (format == "ipv4network" || format == "ipvanynetwork") return Ipv4Network();
  return std::nullopt;
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
  if (format == "uuid" || format == "guid") return Uuid("[0-9A-Fa-f]");
  if (format.size() == 5 && format.starts_with("uuid") && format[4] >= '1' && format[4] <= '8') {
    return Uuid(format.substr(4));
  }
  if (auto network = NetworkRegex(format)) return network;
  for (const NamedRegex& named : kLibraryFormats) {
    if (format == named.name) return std::string(named.regex);
  }
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
