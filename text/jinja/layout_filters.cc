// The filters that lay text out: center, indent, truncate and wordwrap.
#include <algorithm>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "text/jinja/builtin.h"
#include "text/jinja/operators.h"
#include "text/jinja/wrap.h"

namespace millrace::jinja {
namespace {

using Args = absl::Span<const Value>;

absl::StatusOr<Value> Center(CallContext& context, const Value& self, Args args) {
  MILLRACE_ASSIGN_OR_RETURN(const std::string text, ToText(context.budget, self));
  MILLRACE_ASSIGN_OR_RETURN(const int64_t width, IntegerArgument("width", args[0]));
  return PadText(context.budget, text, width, " ", Side::kBoth);
}

absl::StatusOr<Value> Indent(CallContext& context, const Value& self, Args args) {
  Budget& budget = context.budget;
  if (self.string() == nullptr) return TypeError("indent", self);
  MILLRACE_RETURN_IF_ERROR(budget.SpendText(self.string()->size()));
  Value space = args[0];
  if (space.string() == nullptr) {
    MILLRACE_ASSIGN_OR_RETURN(space, Calculate(budget, Operator::kMultiply, " ", args[0]));
  }
  const bool first = Truthy(args[1]);
  const bool blank = Truthy(args[2]);
  std::string result;
  // With a line end added, as Jinja does: a last empty line is a line then.
  const std::string ended = *self.string() + "\n";
  const std::vector<std::string_view> lines = SplitLines(ended);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) result += '\n';
    if (i == 0 ? first : blank || !lines[i].empty()) result += *space.string();
    result += lines[i];
    MILLRACE_RETURN_IF_ERROR(budget.SpendText(space.string()->size() + lines[i].size()));
    if (result.size() > budget.limits().max_output_bytes) break;
  }
  return MakeText(budget, std::move(result));
}

// Cuts a text that is longer than `length` by more than `leeway`, so that it has `length` with the
// `end` that it gets; without `killwords` it is cut before its last word.
absl::StatusOr<Value> Truncate(CallContext& context, const Value& self, Args args) {
  constexpr int64_t kLeeway = 5;  // Jinja's policy truncate.leeway.
  MILLRACE_ASSIGN_OR_RETURN(const int64_t length, IntegerArgument("length", args[0]));
  MILLRACE_ASSIGN_OR_RETURN(const std::string_view end, StringArgument("end", args[2]));
  int64_t leeway = kLeeway;
  if (!args[3].Is<None>()) {
    MILLRACE_ASSIGN_OR_RETURN(leeway, IntegerArgument("leeway", args[3]));
  }
  const auto end_length = static_cast<int64_t>(CountCodePoints(end));
  if (length < end_length || leeway < 0) {
    return absl::InvalidArgumentError(StrCat("truncate: length is ", length, ", leeway ", leeway,
                                             "; at least ", end_length, " and 0 are needed"));
  }
  if (self.Is<Undefined>()) return self;
  if (self.string() == nullptr) return TypeError("truncate", self);
  const std::string_view text = *self.string();
  MILLRACE_RETURN_IF_ERROR(context.budget.SpendText(text.size()));
  const auto size = static_cast<int64_t>(CountCodePoints(text));
  if (size <= length || size - length <= leeway) return self;
  std::string_view kept = CodePointRange(text, 0, static_cast<size_t>(length - end_length));
  if (!Truthy(args[1])) kept = kept.substr(0, kept.rfind(' '));
  return MakeText(context.budget, StrCat(kept, end));
}

absl::StatusOr<Value> WordWrap(CallContext& context, const Value& self, Args args) {
  Budget& budget = context.budget;
  if (self.string() == nullptr) return TypeError("wrap", self);
  MILLRACE_ASSIGN_OR_RETURN(const int64_t width, IntegerArgument("width", args[0]));
  std::string_view line_end = "\n";
  if (!args[2].Is<None>()) {
    MILLRACE_ASSIGN_OR_RETURN(line_end, StringArgument("wrapstring", args[2]));
  }
  // Each character is looked at a few times.
  MILLRACE_RETURN_IF_ERROR(budget.SpendText(self.string()->size()));
  MILLRACE_RETURN_IF_ERROR(budget.Spend(self.string()->size() / 16));
  std::string result;
  bool first = true;
  for (const std::string_view line : SplitLines(*self.string())) {
    if (width <= 0) {
      return absl::InvalidArgumentError(StrCat("wordwrap: width is ", width, "; allowed: above 0"));
    }
    std::vector<std::string_view> wrapped = WrapLine(line, {.width = static_cast<size_t>(width),
                                                            .break_long_words = Truthy(args[1]),
                                                            .break_on_hyphens = Truthy(args[3])});
    if (wrapped.empty()) wrapped.emplace_back();  // An empty line stays one.
    for (const std::string_view part : wrapped) {
      if (!std::exchange(first, false)) result += line_end;
      result += part;
      MILLRACE_RETURN_IF_ERROR(budget.SpendText(line_end.size() + part.size()));
      if (result.size() > budget.limits().max_output_bytes) return MakeText(budget, result);
    }
  }
  return MakeText(budget, std::move(result));
}

}  // namespace

const Builtin* FindLayoutFilter(std::string_view name) {
  static const auto& table = *new std::vector<Builtin>{
      {"center", {{"width", false, int64_t{80}}}, Center},
      {"indent",
       {{"width", false, int64_t{4}}, {"first", false, false}, {"blank", false, false}},
       Indent},
      {"truncate",
       {{"length", false, int64_t{255}},
        {"killwords", false, false},
        {"end", false, "..."},
        {"leeway", false, None()}},
       Truncate},
      {"wordwrap",
       {{"width", false, int64_t{79}},
        {"break_long_words", false, true},
        {"wrapstring", false, None()},
        {"break_on_hyphens", false, true}},
       WordWrap},
  };
  return FindIn(table, name);
}

}  // namespace millrace::jinja
