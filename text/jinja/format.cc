// https://docs.python.org/3/library/string.html#formatspec and
// https://docs.python.org/3/library/stdtypes.html#printf-style-string-formatting
#include "text/jinja/format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/status.h"
#include "base/strings.h"
#include "text/jinja/operators.h"
#include "text/jinja/text.h"

namespace millrace::jinja {
namespace {

constexpr int64_t kMostPrecision = 100;
constexpr std::string_view kIntegerTypes = "dboxX";
constexpr std::string_view kFloatTypes = "fFeEgG%";

struct Spec {
  std::string fill = " ";
  char align = '\0';  // One of "<>=^", or that of the type.
  char sign = '-';    // One of "+- ".
  bool alternate = false;
  int64_t width = 0;
  char grouping = '\0';
  std::optional<int64_t> precision;
  char type = '\0';
};

absl::Status Malformed(std::string_view format) {
  return absl::InvalidArgumentError(
      StrCat("the format '", format.substr(0, 100), "' is malformed or not supported"));
}

// Passes the first character of `text` if it is one of `of`; otherwise 0.
char Take(std::string_view& text, std::string_view of) {
  if (text.empty() || of.find(text.front()) == of.npos) return '\0';
  const char taken = text.front();
  text.remove_prefix(1);
  return taken;
}

// Passes the digits that `text` begins with; nothing if there are none.
std::optional<int64_t> TakeNumber(std::string_view& text) {
  const size_t count = std::min(text.find_first_not_of("0123456789"), text.size());
  if (count == 0) return std::nullopt;
  const auto number = ParseNumber<int64_t>(text.substr(0, count));
  text.remove_prefix(count);
  return number.value_or(std::numeric_limits<int64_t>::max());
}

absl::StatusOr<Spec> ParseSpec(std::string_view format) {
  constexpr std::string_view kAligns = "<>=^";
  Spec spec;
  std::string_view rest = format;
  if (!rest.empty()) {
    const size_t first = NextCodePoint(rest).size;
    if (first < rest.size() && kAligns.find(rest[first]) != kAligns.npos) {
      spec.fill = rest.substr(0, first);
      rest.remove_prefix(first);
    }
  }
  spec.align = Take(rest, kAligns);
  if (const char sign = Take(rest, "+- ")) spec.sign = sign;
  spec.alternate = Take(rest, "#") != '\0';
  if (rest.starts_with("0") && spec.align == '\0') {
    spec.fill = "0";
    spec.align = '=';
  }
  spec.width = TakeNumber(rest).value_or(0);
  spec.grouping = Take(rest, ",_");
  if (Take(rest, ".") != '\0') {
    spec.precision = TakeNumber(rest);
    if (!spec.precision || *spec.precision > kMostPrecision) return Malformed(format);
  }
  spec.type = Take(rest, "sdboxXfFeEgG%");
  if (!rest.empty()) return Malformed(format);
  return spec;
}

void Group(std::string& digits, char separator) {
  const size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
  for (size_t at = end; at > 3; at -= 3) digits.insert(at - 3, 1, separator);
}

std::string IntegerDigits(uint64_t number, const Spec& spec) {
  const unsigned base = spec.type == 'b' ? 2 : spec.type == 'o' ? 8 : spec.type == 'd' ? 10 : 16;
  std::string digits;
  do {
    digits += "0123456789abcdef"[number % base];
    number /= base;
  } while (number > 0);
  if (spec.alternate && base != 10) {
    digits += static_cast<char>(absl::ascii_tolower(static_cast<unsigned char>(spec.type)));
    digits += '0';
  }
  std::reverse(digits.begin(), digits.end());
  return spec.type == 'X' ? Upper(digits) : digits;
}

std::string FloatDigits(double number, const Spec& spec) {
  if (spec.type == '\0' && !spec.precision) return FloatText(number);
  const bool percent = spec.type == '%';
  const char type = percent ? 'f' : spec.type == '\0' ? 'g' : spec.type;
  const char pattern[] = {'%', '.', '*', type, '\0'};
  char buffer[512];  // 309 digits before the point, kMostPrecision after it.
  const int size =
      std::snprintf(buffer, sizeof(buffer), pattern, static_cast<int>(spec.precision.value_or(6)),
                    percent ? number * 100 : number);
  return std::string(buffer, static_cast<size_t>(size)) + (percent ? "%" : "");
}

// Fills up to the width; '=' fills after `sign`.
absl::StatusOr<std::string> Pad(Budget& budget, std::string_view sign, std::string_view body,
                                const Spec& spec) {
  const size_t size = CountCodePoints(sign) + CountCodePoints(body);
  const auto width = static_cast<size_t>(spec.width);
  const size_t missing = width > size ? width - size : 0;
  MILLRACE_RETURN_IF_ERROR(budget.SpendText(sign.size() + body.size() + missing));
  std::string result;
  const auto fill = [&](size_t count) {
    for (size_t i = 0; i < count; ++i) result += spec.fill;
  };
  const size_t before = spec.align == '<' ? 0 : spec.align == '^' ? missing / 2 : missing;
  if (spec.align == '=') result += sign;
  fill(before);
  if (spec.align != '=') result += sign;
  result += body;
  fill(missing - before);
  return result;
}

absl::StatusOr<std::string> FormatString(Budget& budget, std::string_view text, Spec spec) {
  if (spec.precision) {
    const auto kept = std::min(static_cast<size_t>(*spec.precision), CountCodePoints(text));
    text = CodePointRange(text, 0, kept);
  }
  if (spec.align == '\0') spec.align = '<';
  return Pad(budget, "", text, spec);
}

absl::StatusOr<std::string> FormatNumber(Budget& budget, const Value& value, Spec spec) {
  const bool is_float =
      !value.integer().has_value() || kFloatTypes.find(spec.type) != kFloatTypes.npos;
  bool negative;
  std::string body;
  if (is_float) {
    const double number = *value.number();
    negative = std::signbit(number);
    body = FloatDigits(std::abs(number), spec);
  } else {
    const int64_t number = *value.integer();
    negative = number < 0;
    if (spec.type == '\0') spec.type = 'd';
    body = IntegerDigits(negative ? -static_cast<uint64_t>(number) : static_cast<uint64_t>(number),
                         spec);
  }
  if (spec.grouping != '\0') Group(body, spec.grouping);
  if (spec.align == '\0') spec.align = '>';
  const std::string_view plus = spec.sign == '+' ? "+" : spec.sign == ' ' ? " " : "";
  return Pad(budget, negative ? "-" : plus, body, spec);
}

absl::StatusOr<std::string> FormatValue(Budget& budget, const Value& value,
                                        std::string_view format) {
  if (format.empty()) return ToText(budget, value);
  MILLRACE_ASSIGN_OR_RETURN(const Spec spec, ParseSpec(format));
  const bool for_text = spec.type == '\0' || spec.type == 's';
  if (const std::string* text = value.string()) {
    if (!for_text || spec.sign != '-' || spec.align == '=') return Malformed(format);
    return FormatString(budget, *text, spec);
  }
  const bool is_float = !value.integer().has_value();
  const bool fits = value.number() && spec.type != 's' &&
                    !(is_float && kIntegerTypes.find(spec.type) != kIntegerTypes.npos) &&
                    !(!is_float && spec.precision && for_text);
  if (!fits) return TypeError(StrCat("use the format '", format.substr(0, 100), "' for"), value);
  return FormatNumber(budget, value, spec);
}

// "repr(value)".
absl::StatusOr<std::string> Represent(Budget& budget, const Value& value) {
  if (value.string() != nullptr) {
    MILLRACE_RETURN_IF_ERROR(budget.SpendText(value.string()->size()));
    return Repr(*value.string());
  }
  return ToText(budget, value);
}

// The value of "0.name[key]"; `next` is the number of a field without one.
absl::StatusOr<Value> FieldValue(Budget& budget, std::string_view field, const List& positional,
                                 const Dict& named, size_t& next) {
  const size_t end = std::min(field.find_first_of(".["), field.size());
  const std::string_view name = field.substr(0, end);
  std::string_view rest = field.substr(end);
  Value value;
  if (name.empty() || name.find_first_not_of("0123456789") == name.npos) {
    const size_t index = name.empty() ? next++ : ParseNumber<uint32_t>(name).value_or(UINT32_MAX);
    if (index >= positional.items.size()) {
      return absl::InvalidArgumentError(StrCat("format() has no argument ", index));
    }
    value = positional.items[index];
  } else {
    MILLRACE_ASSIGN_OR_RETURN(const Value* found, FindKey(budget, named, name));
    if (found == nullptr) {
      return absl::InvalidArgumentError(
          StrCat("format() has no argument '", name.substr(0, 100), "'"));
    }
    value = *found;
  }
  while (!rest.empty()) {
    const bool is_item = rest.front() == '[';
    const size_t stop =
        std::min(is_item ? rest.find(']') : rest.find_first_of(".[", 1), rest.size());
    const std::string_view key = rest.substr(1, stop - 1);
    if (key.empty() || (is_item && stop == rest.size())) return Malformed(field);
    const auto index = is_item ? ParseNumber<int64_t>(key) : std::nullopt;
    if (index) {
      MILLRACE_ASSIGN_OR_RETURN(value, GetItem(budget, value, *index));
    } else {
      const auto text = std::make_shared<const std::string>(key);
      MILLRACE_ASSIGN_OR_RETURN(
          value, is_item ? GetItem(budget, value, text) : GetAttribute(budget, value, text));
    }
    rest.remove_prefix(stop + (is_item ? 1 : 0));
  }
  return value;
}

absl::StatusOr<std::string> FormatField(Budget& budget, std::string_view field,
                                        const List& positional, const Dict& named, size_t& next) {
  const size_t colon = std::min(field.find(':'), field.size());
  const std::string_view format = colon < field.size() ? field.substr(colon + 1) : "";
  std::string_view name = field.substr(0, colon);
  const size_t mark = std::min(name.find('!'), name.size());
  const std::string_view conversion = name.substr(mark);
  name = name.substr(0, mark);
  MILLRACE_ASSIGN_OR_RETURN(const Value value, FieldValue(budget, name, positional, named, next));
  if (conversion.empty()) return FormatValue(budget, value, format);
  if (conversion != "!r" && conversion != "!s") return Malformed(field);
  MILLRACE_ASSIGN_OR_RETURN(std::string text,
                            conversion == "!r" ? Represent(budget, value) : ToText(budget, value));
  return FormatValue(budget, std::move(text), format);
}

absl::Status AppendBounded(Budget& budget, std::string_view text, std::string& result) {
  result += text;
  MILLRACE_RETURN_IF_ERROR(budget.SpendText(text.size()));
  return result.size() <= budget.limits().max_output_bytes ? absl::OkStatus()
                                                           : budget.SpendText(result.size());
}

// One directive of %, after the sign: "(key)", flags, width, precision and type.
struct Directive {
  std::optional<std::string_view> key;
  Spec spec;
  char type = '\0';
};

absl::StatusOr<Directive> TakeDirective(std::string_view& rest) {
  Directive directive;
  const std::string_view whole = rest;
  if (Take(rest, "(") != '\0') {
    const size_t end = rest.find(')');
    if (end == rest.npos) return Malformed(whole);
    directive.key = rest.substr(0, end);
    rest.remove_prefix(end + 1);
  }
  Spec& spec = directive.spec;
  spec.align = '>';
  while (const char flag = Take(rest, "-+ #0")) {
    if (flag == '-') spec.align = '<';
    if (flag == '+' || (flag == ' ' && spec.sign != '+')) spec.sign = flag;
    if (flag == '#') spec.alternate = true;
    if (flag == '0' && spec.align != '<') {
      spec.fill = "0";
      spec.align = '=';
    }
  }
  if (spec.align == '<') spec.fill = " ";
  spec.width = TakeNumber(rest).value_or(0);
  if (Take(rest, ".") != '\0') spec.precision = TakeNumber(rest).value_or(0);
  if (spec.precision.value_or(0) > kMostPrecision) return Malformed(whole);
  directive.type = Take(rest, "srdiuoxXfFeEgG%");
  if (directive.type == '\0') return Malformed(whole);
  return directive;
}

absl::StatusOr<std::string> FormatDirective(Budget& budget, const Directive& directive,
                                            const Value& value) {
  Spec spec = directive.spec;
  if (directive.type == 's' || directive.type == 'r') {
    MILLRACE_ASSIGN_OR_RETURN(const std::string text, directive.type == 'r'
                                                          ? Represent(budget, value)
                                                          : ToText(budget, value));
    spec.fill = " ";
    if (spec.align == '=') spec.align = '>';
    return FormatString(budget, text, spec);
  }
  if (!value.number()) return TypeError("format as a number", value);
  const bool is_decimal = directive.type == 'd' || directive.type == 'i' || directive.type == 'u';
  spec.type = is_decimal ? 'd' : directive.type;
  if (kFloatTypes.find(spec.type) != kFloatTypes.npos || value.integer()) {
    return FormatNumber(budget, value, spec);
  }
  const double truncated = std::trunc(*value.number());
  if (!is_decimal || !(std::abs(truncated) < 9.2e18)) return TypeError("format as integer", value);
  return FormatNumber(budget, static_cast<int64_t>(truncated), spec);
}

}  // namespace

absl::StatusOr<std::string> FormatFields(Budget& budget, std::string_view pattern,
                                         const List& positional, const Dict& named) {
  std::string result;
  size_t next = 0;
  while (!pattern.empty()) {
    const size_t brace = std::min(pattern.find_first_of("{}"), pattern.size());
    MILLRACE_RETURN_IF_ERROR(AppendBounded(budget, pattern.substr(0, brace), result));
    pattern.remove_prefix(brace);
    if (pattern.empty()) break;
    if (pattern.size() > 1 && pattern[1] == pattern[0]) {
      result += pattern.front();
      pattern.remove_prefix(2);
      continue;
    }
    const size_t end = pattern.find_first_of("{}", 1);
    if (pattern.front() == '}' || end == pattern.npos || pattern[end] == '{') {
      return Malformed(pattern);
    }
    MILLRACE_ASSIGN_OR_RETURN(
        const std::string text,
        FormatField(budget, pattern.substr(1, end - 1), positional, named, next));
    MILLRACE_RETURN_IF_ERROR(AppendBounded(budget, text, result));
    pattern.remove_prefix(end + 1);
  }
  return result;
}

absl::StatusOr<std::string> FormatPercent(Budget& budget, std::string_view pattern,
                                          const Value& values) {
  const List* tuple = values.list();
  if (tuple != nullptr && tuple->kind != ListKind::kTuple) tuple = nullptr;
  const size_t count = tuple != nullptr ? tuple->items.size() : 1;
  std::string result;
  size_t next = 0;
  while (!pattern.empty()) {
    const size_t sign = std::min(pattern.find('%'), pattern.size());
    MILLRACE_RETURN_IF_ERROR(AppendBounded(budget, pattern.substr(0, sign), result));
    pattern.remove_prefix(sign);
    if (pattern.empty()) break;
    pattern.remove_prefix(1);
    MILLRACE_ASSIGN_OR_RETURN(const Directive directive, TakeDirective(pattern));
    if (directive.type == '%') {
      result += '%';
      continue;
    }
    Value value;
    if (directive.key) {
      if (values.dict() == nullptr) return TypeError("take names from", values);
      MILLRACE_ASSIGN_OR_RETURN(const Value* found,
                                FindKey(budget, *values.dict(), *directive.key));
      if (found == nullptr) return Malformed(*directive.key);
      value = *found;
    } else {
      if (next >= count) return absl::InvalidArgumentError("% has too few values");
      value = tuple != nullptr ? tuple->items[next] : values;
      ++next;
    }
    MILLRACE_ASSIGN_OR_RETURN(const std::string text, FormatDirective(budget, directive, value));
    MILLRACE_RETURN_IF_ERROR(AppendBounded(budget, text, result));
  }
  if (next < count && values.dict() == nullptr) {
    return absl::InvalidArgumentError("% has more values than the format asks for");
  }
  return result;
}

}  // namespace millrace::jinja
