// The filters, `value | name(arguments)`, of texts and numbers. Three other files have the others.
// https://jinja.palletsprojects.com/en/stable/templates/#list-of-builtin-filters
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "base/status.h"
#include "base/strings.h"
#include "text/jinja/builtin.h"
#include "text/jinja/format.h"
#include "text/jinja/json.h"
#include "text/jinja/operators.h"

namespace millrace::jinja {
namespace {

using Args = absl::Span<const Value>;

template <std::string (*kMap)(std::string_view)>
absl::StatusOr<Value> MapText(CallContext& context, const Value& self, Args) {
  MILLRACE_ASSIGN_OR_RETURN(const std::string text, ToText(context.budget, self));
  return MakeText(context.budget, kMap(text));
}

absl::StatusOr<Value> Text(CallContext& context, const Value& self, Args) {
  MILLRACE_ASSIGN_OR_RETURN(std::string text, ToText(context.budget, self));
  return Value(std::move(text));
}

absl::StatusOr<Value> Trim(CallContext& context, const Value& self, Args args) {
  MILLRACE_ASSIGN_OR_RETURN(const std::string text, ToText(context.budget, self));
  return StripText(context.budget, text, args[0], Side::kBoth);
}

absl::StatusOr<Value> Replace(CallContext& context, const Value& self, Args args) {
  Budget& budget = context.budget;
  MILLRACE_ASSIGN_OR_RETURN(const std::string text, ToText(budget, self));
  MILLRACE_ASSIGN_OR_RETURN(const std::string from, ToText(budget, args[0]));
  MILLRACE_ASSIGN_OR_RETURN(const std::string to, ToText(budget, args[1]));
  if (args[2].Is<None>()) return ReplaceText(budget, text, from, to, -1);
  MILLRACE_ASSIGN_OR_RETURN(const int64_t count, IntegerArgument("count", args[2]));
  return ReplaceText(budget, text, from, to, count);
}

absl::StatusOr<Value> Safe(CallContext& context, const Value& self, Args) {
  MILLRACE_ASSIGN_OR_RETURN(std::string text, ToText(context.budget, self));
  return Value(Markup{std::make_shared<const std::string>(std::move(text))});
}

absl::StatusOr<Value> Escape(CallContext& context, const Value& self, Args) {
  if (self.Is<Markup>()) return self;
  MILLRACE_ASSIGN_OR_RETURN(const std::string text, ToText(context.budget, self));
  MILLRACE_ASSIGN_OR_RETURN(const Value escaped, MakeText(context.budget, EscapeHtml(text)));
  return Value(Markup{*escaped.Get<String>()});
}

absl::StatusOr<Value> ToJsonFilter(CallContext& context, const Value& self, Args args) {
  JsonStyle style;
  style.ascii = Truthy(args[0]);
  if (const std::string* indent = args[1].string()) {
    style.indent = *indent;
  } else if (!args[1].Is<None>()) {
    MILLRACE_ASSIGN_OR_RETURN(const Value indent,
                              Calculate(context.budget, Operator::kMultiply, " ", args[1]));
    style.indent = *indent.string();
  }
  if (style.indent) style.item_separator = ",";
  if (const List* separators = args[2].list()) {
    if (separators->items.size() != 2) {
      return absl::InvalidArgumentError("the argument 'separators' of tojson is not a pair");
    }
    MILLRACE_ASSIGN_OR_RETURN(style.item_separator,
                              StringArgument("separators", separators->items[0]));
    MILLRACE_ASSIGN_OR_RETURN(style.key_separator,
                              StringArgument("separators", separators->items[1]));
  } else if (!args[2].Is<None>()) {
    return TypeError("take as pair 'separators'", args[2]);
  }
  style.sort_keys = Truthy(args[3]);
  MILLRACE_ASSIGN_OR_RETURN(std::string text, ToJson(context.budget, self, style));
  return Value(std::move(text));
}

absl::StatusOr<Value> Default(CallContext&, const Value& self, Args args) {
  const bool use_other = self.Is<Undefined>() || (Truthy(args[1]) && !Truthy(self));
  return use_other ? args[0] : self;
}

absl::StatusOr<Value> Length(CallContext& context, const Value& self, Args) {
  size_t length = 0;
  if (const std::string* text = self.string()) {
    MILLRACE_RETURN_IF_ERROR(context.budget.SpendText(text->size()));
    length = CountCodePoints(*text);
  } else if (const List* list = self.list()) {
    length = list->items.size();
  } else if (const Dict* dict = self.dict()) {
    length = dict->items.size();
  } else if (!self.Is<Undefined>()) {
    return TypeError("take the length of", self);
  }
  return Value(static_cast<int64_t>(length));
}

// Python's float(text), which unlike absl's knows no hexadecimal numbers.
std::optional<double> ParseFloat(std::string_view text) {
  double number = 0;
  text = StripSpace(text, Side::kBoth);
  if (text.find_first_of("xX") != text.npos) return std::nullopt;
  return absl::SimpleAtod(AbslView(text), &number) ? std::optional(number) : std::nullopt;
}

absl::StatusOr<Value> ToInteger(CallContext&, const Value& self, Args args) {
  double real = 0;
  if (const std::string* text = self.string()) {
    MILLRACE_ASSIGN_OR_RETURN(const int64_t base, IntegerArgument("base", args[1]));
    const bool is_base = base == 0 || (base >= 2 && base <= 36);
    if (is_base) {
      if (const auto integer = ParseInteger(*text, static_cast<int>(base))) return Value(*integer);
    }
    const auto parsed = ParseFloat(*text);
    if (!parsed) return args[0];
    real = *parsed;
  } else if (self.integer()) {
    return Value(*self.integer());
  } else if (self.number()) {
    real = *self.number();
  } else {
    return self.Is<Undefined>() ? UndefinedError(*self.Get<Undefined>())
                                : absl::StatusOr<Value>(args[0]);
  }
  if (!std::isfinite(real)) return args[0];
  if (std::abs(real) >= 9.2e18) {
    return absl::InvalidArgumentError("an integer does not fit 64 bits");
  }
  return Value(static_cast<int64_t>(real));
}

absl::StatusOr<Value> ToFloat(CallContext&, const Value& self, Args args) {
  if (self.number()) return Value(*self.number());
  if (const auto* undefined = self.Get<Undefined>()) return UndefinedError(*undefined);
  const auto parsed = self.string() == nullptr ? std::nullopt : ParseFloat(*self.string());
  return parsed ? Value(*parsed) : args[0];
}

absl::StatusOr<Value> Absolute(CallContext&, const Value& self, Args) {
  if (const double* real = self.Get<double>()) return Value(std::abs(*real));
  if (!self.integer()) return TypeError("take the absolute value of", self);
  return *self.integer() < 0 ? Negate(self) : Value(*self.integer());
}

absl::StatusOr<Value> Round(CallContext&, const Value& self, Args args) {
  constexpr int64_t kMostPrecision = 100;
  if (!self.number()) return TypeError("round", self);
  MILLRACE_ASSIGN_OR_RETURN(const int64_t precision, IntegerArgument("precision", args[0]));
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view method, StringArgument("method", args[1]));
  if (precision < 0 || precision > kMostPrecision) {
    return absl::InvalidArgumentError(
        StrCat("the precision of round is ", precision, "; allowed: 0 to ", kMostPrecision));
  }
  const double number = *self.number();
  if (method == "common") {
    if (self.integer()) return Value(*self.integer());
    // To the nearest of the number as it is, not as a product rounds it.
    char buffer[512];
    std::snprintf(buffer, sizeof(buffer), "%.*f", static_cast<int>(precision), number);
    return Value(std::strtod(buffer, nullptr));
  }
  if (method != "ceil" && method != "floor") {
    return absl::InvalidArgumentError("the method of round is none of common, ceil, floor");
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  return Value((method == "ceil" ? std::ceil(number * scale) : std::floor(number * scale)) / scale);
}

absl::StatusOr<Value> WordCount(CallContext& context, const Value& self, Args) {
  MILLRACE_ASSIGN_OR_RETURN(const std::string text, ToText(context.budget, self));
  int64_t words = 0;
  bool in_word = false;
  for (std::string_view rest = text; !rest.empty(); rest.remove_prefix(NextCodePoint(rest).size)) {
    const CodePoint next = NextCodePoint(rest);
    const bool is_word = rest.front() == '_' || IsAll(rest.substr(0, next.size), CharClass::kAlnum);
    words += is_word && !in_word ? 1 : 0;
    in_word = is_word;
  }
  return Value(words);
}

absl::StatusOr<Value> Format(CallContext& context, const Value& self, Args args) {
  const bool named = !args[1].dict()->items.empty();
  if (named && !args[0].list()->items.empty()) {
    return absl::InvalidArgumentError("format takes positional or named arguments, not both");
  }
  MILLRACE_ASSIGN_OR_RETURN(const std::string pattern, ToText(context.budget, self));
  MILLRACE_ASSIGN_OR_RETURN(std::string text,
                            FormatPercent(context.budget, pattern, named ? args[1] : args[0]));
  return Value(std::move(text));
}

}  // namespace

const Builtin* FindFilter(std::string_view name) {
  static const auto& table = *[] {
    const std::vector<Parameter> otherwise = {{"default_value", false, ""},
                                              {"boolean", false, false}};
    return new std::vector<Builtin>{
        {"abs", {}, Absolute},
        {"capitalize", {}, MapText<Capitalize>},
        {"count", {}, Length},
        {"d", otherwise, Default},
        {"default", otherwise, Default},
        {"e", {}, Escape},
        {"escape", {}, Escape},
        {"float", {{"default", false, 0.0}}, ToFloat},
        {"format", {}, Format, /*variadic=*/true},
        {"int", {{"default", false, int64_t{0}}, {"base", false, int64_t{10}}}, ToInteger},
        {"length", {}, Length},
        {"lower", {}, MapText<Lower>},
        {"replace", {{"old", true}, {"new", true}, {"count", false, None()}}, Replace},
        {"round", {{"precision", false, int64_t{0}}, {"method", false, "common"}}, Round},
        {"safe", {}, Safe},
        {"string", {}, Text},
        {"title", {}, MapText<TitleWords>},
        {"tojson",
         {{"ensure_ascii", false, false},
          {"indent", false, None()},
          {"separators", false, None()},
          {"sort_keys", false, false}},
         ToJsonFilter},
        {"trim", {{"chars", false, None()}}, Trim},
        {"upper", {}, MapText<Upper>},
        {"wordcount", {}, WordCount},
    };
  }();
  const Builtin* found = FindIn(table, name);
  if (found == nullptr) found = FindLayoutFilter(name);
  if (found == nullptr) found = FindListFilter(name);
  return found != nullptr ? found : FindOrderFilter(name);
}

}  // namespace millrace::jinja
