#include "text/grammar/json_grammar.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "text/grammar/regex_parser.h"

namespace millrace {
namespace {

constexpr uint32_t kWholeDigits = 20;  // of 2^64, as ids are that long
constexpr uint32_t kFractionDigits = 16;
// Digits that a double tells apart: a number near a bound has no more, lest it be rounded to it.
constexpr int kExactDigits = 15;
constexpr uint32_t kMostIndentation = 60;
constexpr uint32_t kMostName = 127;  // characters behind the first

}  // namespace

JsonGrammar::JsonGrammar(GrammarBuilder& builder, bool any_whitespace, Notation notation)
    : builder_(builder), pool_(builder.regular()), notation_(notation) {
  const Regular blank = pool_.Literal(" ");
  if (IsGemma(notation)) {
    space_ = builder_.Term(kEmptyText);
    comma_ = builder_.Literal(",");
    colon_ = builder_.Literal(":");
  } else if (any_whitespace) {
    // Bounded, so that no answer is white space without end.
    ByteSet indentation;
    indentation.set(' ');
    indentation.set('\t');
    const Regular line =
        pool_.Concat({pool_.Optional(pool_.Literal("\r")), pool_.Repeat(pool_.Literal("\n"), 1, 2),
                      pool_.Repeat(pool_.Set(indentation), 0, kMostIndentation)});
    const Regular space = pool_.Alt({kEmptyText, blank, line});
    space_ = builder_.Term(space);
    comma_ = builder_.Term(pool_.Concat({space, pool_.Literal(","), space}));
    colon_ = builder_.Term(pool_.Concat({space, pool_.Literal(":"), space}));
  } else {
    space_ = builder_.Term(kEmptyText);
    comma_ = builder_.Term(pool_.Concat(pool_.Literal(","), pool_.Optional(blank)));
    colon_ = builder_.Term(pool_.Concat(pool_.Literal(":"), pool_.Optional(blank)));
  }

  ByteSet hex = ByteRange('0', '9') | ByteRange('a', 'f') | ByteRange('A', 'F');
  const Regular digit = pool_.Set(hex);
  ByteSet d;
  d.set('d');
  d.set('D');
  const Regular surrogate_lead = pool_.Set(d);
  const Regular first_half = pool_.Concat(
      surrogate_lead,
      pool_.Concat(pool_.Set(ByteRange('8', '9') | ByteRange('a', 'b') | ByteRange('A', 'B')),
                   pool_.Repeat(digit, 2, 2)));
  const Regular second_half = pool_.Concat(
      surrogate_lead, pool_.Concat(pool_.Set(ByteRange('c', 'f') | ByteRange('C', 'F')),
                                   pool_.Repeat(digit, 2, 2)));
  const Regular single = pool_.Alt(
      {pool_.Concat(pool_.Set(hex & ~d), pool_.Repeat(digit, 3, 3)),
       pool_.Concat({surrogate_lead, pool_.Set(ByteRange('0', '7')), pool_.Repeat(digit, 2, 2)})});
  const Regular pair =
      pool_.Concat({pool_.Literal("\\u"), first_half, pool_.Literal("\\u"), second_half});
  const Regular ascii = pool_.Concat({pool_.Literal("00"), pool_.Set(ByteRange('0', '7')), digit});
  escape_ =
      pool_.Alt({pool_.Concat(pool_.Literal("\\u"), pool_.And({single, pool_.Not(ascii)})), pair});
  ByteSet letters;
  for (const char c : std::string_view("\"\\/bfnrt")) letters.set(static_cast<uint8_t>(c));
  if (python()) letters.reset('/');
  character_ = pool_.Alt({
      EncodeSet(pool_, {{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, 0x10ffff}},
                TextForm::kPlain),
      pool_.Concat(pool_.Literal("\\"), pool_.Set(letters)),
      pool_.Concat(pool_.Literal("\\u"), single),
      pair,
  });
}

GrammarNode JsonGrammar::String(uint32_t min, uint32_t max) {
  if (IsGemma(notation_)) {
    return GemmaString(pool_.Repeat(EncodeSet(pool_, {{0, 0x10ffff}}, TextForm::kPlain), min, max));
  }
  const Regular quote = pool_.Literal("\"");
  const Regular string = pool_.Concat({quote, pool_.Repeat(character_, min, max), quote});
  if (!python()) return builder_.Term(string);
  const Regular single = pool_.Literal("'");
  ByteSet escaped;
  for (const char c : std::string_view("'\"\\nrt")) escaped.set(static_cast<uint8_t>(c));
  const Regular character =
      pool_.Alt({EncodeSet(pool_, {{0x20, '\'' - 1}, {'\'' + 1, '\\' - 1}, {'\\' + 1, 0x10ffff}},
                           TextForm::kPlain),
                 pool_.Concat(pool_.Literal("\\"), pool_.Set(escaped))});
  return builder_.Term(
      pool_.Alt({string, pool_.Concat({single, pool_.Repeat(character, min, max), single})}));
}

GrammarNode JsonGrammar::GemmaString(Regular inside) {
  const std::string_view quote = QuoteOf(notation_);
  const Regular any = AnyText(pool_, TextForm::kPlain);
  const Regular quoted = pool_.Concat({any, pool_.Literal(quote), any});
  return builder_.Sequence({builder_.Marker(quote),
                            builder_.Term(pool_.And({inside, pool_.Not(quoted)})),
                            builder_.Marker(quote)});
}

Regular JsonGrammar::AnyName() {
  ByteSet first = ByteRange('a', 'z') | ByteRange('A', 'Z');
  first.set('_');
  return pool_.Concat(pool_.Set(first),
                      pool_.Repeat(pool_.Set(first | ByteRange('0', '9')), 0, kMostName));
}

GrammarNode JsonGrammar::StringOf(Regular inside) {
  if (IsGemma(notation_)) return GemmaString(inside);
  const GrammarNode quote = builder_.Literal("\"");
  return builder_.Sequence({quote, builder_.Term(inside), quote});
}

Regular JsonGrammar::AnyKey() {
  const Regular plain = EncodeSet(pool_, {{0, 0x10ffff}}, TextForm::kJsonString);
  return pool_.Repeat(pool_.Alt({plain, escape_}), 0);
}

Regular JsonGrammar::QuotedLiteral(std::string_view text) {
  const Regular quote = pool_.Literal("\"");
  return pool_.Concat({quote, EncodeLiteral(pool_, text, TextForm::kJsonString), quote});
}

Regular JsonGrammar::Digits(uint32_t min, uint32_t max) {
  return pool_.Repeat(pool_.Set(ByteRange('0', '9')), min, max);
}

// Numbers from 0 up that are at least `bound`, which is not negative.
Regular JsonGrammar::AtLeast(const Decimal& bound, bool strict, int fraction_digits) {
  const std::string& whole = bound.whole;
  const auto size = static_cast<uint32_t>(whole.size());
  const auto digits = static_cast<uint32_t>(fraction_digits);
  const Regular point = pool_.Literal(".");
  const Regular any_fraction =
      digits == 0 ? kEmptyText : pool_.Optional(pool_.Concat(point, Digits(1, digits)));
  std::vector<Regular> parts;
  if (size < kWholeDigits) {
    parts.push_back(pool_.Concat(
        {pool_.Set(ByteRange('1', '9')), Digits(size, kWholeDigits - 1), any_fraction}));
  }
  for (uint32_t i = 0; i < size; ++i) {
    if (whole[i] == '9') continue;
    parts.push_back(
        pool_.Concat({pool_.Literal(whole.substr(0, i)), pool_.Set(ByteRange(whole[i] + 1, '9')),
                      Digits(size - i - 1, size - i - 1), any_fraction}));
  }
  // The whole part is the bound's: the fraction decides, from its last digit on.
  const std::string& fraction = bound.fraction;
  const auto left = [&](size_t used) { return digits - std::min<uint32_t>(digits, used); };
  const size_t known = std::min<size_t>(fraction.size(), digits);
  Regular rest;
  if (known < fraction.size()) {
    rest = kNothing;  // it would take more digits to reach the bound
  } else {
    const uint32_t more = left(known);
    rest = Digits(0, more);
    if (strict) {
      std::vector<Regular> beyond;
      for (uint32_t zeros = 0; zeros < more; ++zeros) {
        beyond.push_back(
            pool_.Concat({pool_.Literal(std::string(zeros, '0')), pool_.Set(ByteRange('1', '9')),
                          Digits(0, more - zeros - 1)}));
      }
      rest = pool_.Alt(beyond);
    }
  }
  for (size_t i = known; i-- > 0;) {
    std::vector<Regular> next = {pool_.Concat(pool_.Literal(fraction.substr(i, 1)), rest)};
    if (fraction[i] != '9') {
      next.push_back(
          pool_.Concat(pool_.Set(ByteRange(fraction[i] + 1, '9')), Digits(0, left(i + 1))));
    }
    rest = pool_.Alt(next);
  }
  const bool bare = fraction.empty() && !strict;  // the bound itself, without a point
  const Regular some = pool_.And({rest, Digits(1, std::max<uint32_t>(digits, 1))});
  std::vector<Regular> same;
  if (bare) same.push_back(kEmptyText);
  if (digits > 0) same.push_back(pool_.Concat(point, some));
  parts.push_back(pool_.Concat(pool_.Literal(whole), pool_.Alt(same)));
  return pool_.Alt(parts);
}

// Numbers from 0 up that are at most `bound`, which is not negative.
Regular JsonGrammar::AtMost(const Decimal& bound, bool strict, int fraction_digits) {
  const std::string& whole = bound.whole;
  const auto size = static_cast<uint32_t>(whole.size());
  const auto digits = static_cast<uint32_t>(fraction_digits);
  const Regular point = pool_.Literal(".");
  const Regular any_fraction =
      digits == 0 ? kEmptyText : pool_.Optional(pool_.Concat(point, Digits(1, digits)));
  std::vector<Regular> parts;
  if (size > 1) {
    parts.push_back(pool_.Concat(pool_.Literal("0"), any_fraction));
    if (size > 2) {
      parts.push_back(
          pool_.Concat({pool_.Set(ByteRange('1', '9')), Digits(0, size - 3), any_fraction}));
    }
    parts.push_back(
        pool_.Concat({pool_.Set(ByteRange('1', '9')), Digits(size - 2, size - 2), any_fraction}));
  }
  for (uint32_t i = 0; i < size; ++i) {
    const char lowest = i == 0 && size > 1 ? '1' : '0';
    if (whole[i] - 1 < lowest) continue;
    parts.push_back(pool_.Concat({pool_.Literal(whole.substr(0, i)),
                                  pool_.Set(ByteRange(lowest, static_cast<char>(whole[i] - 1))),
                                  Digits(size - i - 1, size - i - 1), any_fraction}));
  }
  const std::string& fraction = bound.fraction;
  const auto left = [&](size_t used) { return digits - std::min<uint32_t>(digits, used); };
  const size_t known = std::min<size_t>(fraction.size(), digits);
  const bool cut = known < fraction.size();  // then every end stays below the bound
  Regular rest = cut      ? kEmptyText
                 : strict ? kNothing
                          : pool_.Repeat(pool_.Literal("0"), 0, left(known));
  for (size_t i = known; i-- > 0;) {
    std::vector<Regular> next = {kEmptyText,
                                 pool_.Concat(pool_.Literal(fraction.substr(i, 1)), rest)};
    if (fraction[i] != '0') {
      next.push_back(
          pool_.Concat(pool_.Set(ByteRange('0', fraction[i] - 1)), Digits(0, left(i + 1))));
    }
    rest = pool_.Alt(next);
  }
  const bool bare = !fraction.empty() || !strict;
  const Regular some = pool_.And({rest, Digits(1, std::max<uint32_t>(digits, 1))});
  std::vector<Regular> same;
  if (bare) same.push_back(kEmptyText);
  if (digits > 0) same.push_back(pool_.Concat(point, some));
  parts.push_back(pool_.Concat(pool_.Literal(whole), pool_.Alt(same)));
  return pool_.Alt(parts);
}

// Numbers from 0 up within bounds, which are not negative.
Regular JsonGrammar::Magnitude(const NumberBounds& bounds, int fraction_digits) {
  const Regular least = AtLeast(bounds.least.value_or(Decimal{false, "0", ""}),
                                bounds.least.has_value() && bounds.above_least, fraction_digits);
  if (!bounds.most.has_value()) return least;
  // Numbers have no more digits than this, so that a longer bound says nothing.
  const size_t longest =
      std::max<size_t>(kWholeDigits, bounds.least.has_value() ? bounds.least->whole.size() : 0);
  if (bounds.most->whole.size() > longest) return least;
  return pool_.And({least, AtMost(*bounds.most, bounds.below_most, fraction_digits)});
}

Regular JsonGrammar::Signed(const NumberBounds& bounds, int fraction_digits) {
  const Decimal zero{false, "0", ""};
  std::vector<Regular> parts;
  if (!bounds.most.has_value() || !bounds.most->negative) {
    NumberBounds positive = bounds;
    if (positive.least.has_value() && positive.least->negative) {
      positive.least.reset();
      positive.above_least = false;
    }
    parts.push_back(Magnitude(positive, fraction_digits));
  }
  if (!bounds.least.has_value() || bounds.least->negative) {
    NumberBounds mirrored;
    if (bounds.most.has_value() && bounds.most->negative) {
      mirrored.least = bounds.most;
      mirrored.least->negative = false;
      mirrored.above_least = bounds.below_most;
    } else {
      mirrored.least = zero;  // 0 has no sign
      mirrored.above_least = true;
    }
    if (bounds.least.has_value()) {
      mirrored.most = bounds.least;
      mirrored.most->negative = false;
      mirrored.below_most = bounds.above_least;
    }
    parts.push_back(pool_.Concat(pool_.Literal("-"), Magnitude(mirrored, fraction_digits)));
  }
  return pool_.Alt(parts);
}

Regular JsonGrammar::Integer(const NumberBounds& bounds) { return Signed(bounds, 0); }

Regular JsonGrammar::Number(const NumberBounds& bounds) {
  if (bounds.least.has_value() || bounds.most.has_value()) {
    size_t whole = 1;
    if (bounds.least.has_value()) whole = std::max(whole, bounds.least->whole.size());
    if (bounds.most.has_value()) whole = std::max(whole, bounds.most->whole.size());
    return Signed(bounds, std::max(0, kExactDigits - static_cast<int>(whole)));
  }
  ByteSet e;
  e.set('e');
  e.set('E');
  ByteSet sign;
  sign.set('+');
  sign.set('-');
  return pool_.Concat({pool_.Optional(pool_.Literal("-")),
                       pool_.Alt({pool_.Literal("0"), pool_.Concat(pool_.Set(ByteRange('1', '9')),
                                                                   Digits(0, kWholeDigits - 1))}),
                       pool_.Optional(pool_.Concat(pool_.Literal("."), Digits(1, kFractionDigits))),
                       pool_.Optional(pool_.Concat(
                           {pool_.Set(e), pool_.Optional(pool_.Set(sign)), Digits(1, 2)}))});
}

Regular JsonGrammar::WithFraction() {
  return pool_.Concat({pool_.Optional(pool_.Literal("-")), Digits(1, kUnbounded),
                       pool_.Literal("."), Digits(0, kUnbounded), pool_.Set(ByteRange('1', '9')),
                       Digits(0, kUnbounded)});
}

// A number is a multiple of k / 10^e if its digits, with e of them behind the point, are one of k.
std::optional<Regular> JsonGrammar::MultipleOf(const Decimal& divisor, const NumberBounds& bounds,
                                               bool integers_only) {
  constexpr size_t kMostDigits = 5;
  std::string digits = divisor.whole == "0" ? "" : divisor.whole;
  digits += divisor.fraction;
  digits.erase(0, digits.find_first_not_of('0'));
  const auto places = static_cast<uint32_t>(divisor.fraction.size());
  if (digits.empty() || digits.size() > kMostDigits || places > kMostDigits) return std::nullopt;
  const auto k = static_cast<uint32_t>(std::stoul(digits));
  uint32_t power = 1;
  for (uint32_t i = 0; i < places; ++i) power *= 10;
  const Regular minus = pool_.Optional(pool_.Literal("-"));
  const auto multiples = [&](uint32_t of) { return pool_.Concat(minus, pool_.MultipleOf(of)); };
  const uint32_t of_integers = k / std::gcd(k, power);
  const Regular integers =
      of_integers == 1 ? Integer(bounds) : pool_.And({Integer(bounds), multiples(of_integers)});
  if (integers_only || places == 0) return integers;
  const Regular any = Signed(bounds, static_cast<int>(places));
  std::vector<Regular> forms = {integers};
  // Zeros at the end may be left out: 12.5 is a multiple of 0.01.
  for (uint32_t written = places, left_out = 1; written > 0; --written, left_out *= 10) {
    forms.push_back(pool_.And({any,
                               pool_.Concat({minus, Digits(1, kWholeDigits), pool_.Literal("."),
                                             Digits(written, written)}),
                               multiples(k / std::gcd(k, left_out))}));
  }
  return pool_.Alt(forms);
}

void JsonGrammar::MakeAny() {
  const uint32_t rule = builder_.AddRule("value");
  value_ = builder_.Rule(rule);
  const GrammarNode string = String(0, kUnbounded);
  const GrammarNode key = IsGemma(notation_) ? builder_.Term(AnyName()) : string;
  const GrammarNode member = builder_.Sequence({key, colon_, *value_});
  const auto list = [&](GrammarNode element) {
    return builder_.Optional(
        builder_.Sequence({element, builder_.Repeat(builder_.Sequence({comma_, element}), 0)}));
  };
  object_ = Object(list(member));
  array_ = Array(list(*value_));
  builder_.SetRule(
      rule, builder_.Alternative({builder_.Literal(null()), builder_.Literal(truth(true)),
                                  builder_.Literal(truth(false)), string, builder_.Term(Number({})),
                                  *object_, *array_}));
}

GrammarNode JsonGrammar::AnyValue() {
  if (!value_.has_value()) MakeAny();
  return *value_;
}
GrammarNode JsonGrammar::AnyObject() {
  if (!value_.has_value()) MakeAny();
  return *object_;
}
GrammarNode JsonGrammar::AnyArray() {
  if (!value_.has_value()) MakeAny();
  return *array_;
}

GrammarNode JsonGrammar::Object(GrammarNode members) {
  return builder_.Sequence({builder_.Literal("{"), space_, members, space_, builder_.Literal("}")});
}

GrammarNode JsonGrammar::Array(GrammarNode elements) {
  return builder_.Sequence(
      {builder_.Literal("["), space_, elements, space_, builder_.Literal("]")});
}

GrammarNode JsonGrammar::Constant(const JsonValue& value) {
  std::vector<GrammarNode> parts;
  switch (value.type) {
    case JsonValue::Type::kString: {
      if (IsGemma(notation_)) return GemmaString(pool_.Literal(value.text));
      const GrammarNode string = builder_.Term(QuotedLiteral(value.text));
      const bool plain = value.text.find_first_of("'\"\\") == value.text.npos &&
                         std::all_of(value.text.begin(), value.text.end(),
                                     [](char c) { return static_cast<uint8_t>(c) >= 0x20; });
      if (!python() || !plain) return string;
      return builder_.Alternative({string, builder_.Literal("'" + value.text + "'")});
    }
    case JsonValue::Type::kNumber: {
      const auto decimal = ParseDecimal(value.text);
      if (!decimal.has_value() || decimal->whole.size() > 40) return builder_.Literal(value.text);
      const std::string plain = decimal->ToString();
      std::vector<Regular> forms = {pool_.Literal(value.text), pool_.Literal(plain)};
      if (decimal->is_integer()) forms.push_back(pool_.Literal(plain + ".0"));
      return builder_.Term(pool_.Alt(forms));
    }
    case JsonValue::Type::kArray:
      for (const JsonValue& item : value.items) {
        if (!builder_.Check().ok()) break;  // Finish says why
        if (!parts.empty()) parts.push_back(comma_);
        parts.push_back(Constant(item));
      }
      return Array(builder_.Sequence(parts));
    case JsonValue::Type::kObject:
      for (const auto& [name, member] : value.members) {
        if (!builder_.Check().ok()) break;
        if (!parts.empty()) parts.push_back(comma_);
        parts.push_back(IsGemma(notation_) ? builder_.Literal(name)
                                           : builder_.Term(QuotedLiteral(name)));
        parts.push_back(colon_);
        parts.push_back(Constant(member));
      }
      return Object(builder_.Sequence(parts));
    case JsonValue::Type::kNull:
      return builder_.Literal(null());
    default:
      return builder_.Literal(truth(value.type == JsonValue::Type::kTrue));
  }
}

}  // namespace millrace
