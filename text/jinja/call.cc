#include "text/jinja/call.h"

#include <algorithm>
#include <iterator>

#include "base/status.h"
#include "base/strings.h"

namespace millrace::jinja {
namespace {

template <typename... Parts>
absl::Status Error(std::string_view what, const Parts&... parts) {
  return absl::InvalidArgumentError(StrCat(what.substr(0, 100), parts...));
}

}  // namespace

absl::StatusOr<std::vector<std::optional<Value>>> BindArguments(
    std::string_view what, const std::vector<std::string_view>& parameters, Arguments& arguments) {
  auto& [positional, named] = arguments;
  std::vector<std::optional<Value>> bound(parameters.size());
  const size_t by_position = std::min(positional.size(), parameters.size());
  std::move(positional.begin(), positional.begin() + static_cast<ptrdiff_t>(by_position),
            bound.begin());
  positional.erase(positional.begin(), positional.begin() + static_cast<ptrdiff_t>(by_position));
  for (auto argument = named.begin(); argument != named.end();) {
    const auto found = std::find(parameters.begin(), parameters.end(), argument->first);
    if (found == parameters.end()) {
      ++argument;
      continue;
    }
    std::optional<Value>& value = bound[static_cast<size_t>(found - parameters.begin())];
    if (value) return Error(what, " is given the argument '", *found, "' twice");
    value = std::move(argument->second);
    argument = named.erase(argument);
  }
  return bound;
}

absl::Status CheckNoneLeft(std::string_view what, size_t parameters, const Arguments& arguments) {
  if (!arguments.positional.empty())
    return Error(what, " takes at most ", parameters, " arguments");
  if (arguments.named.empty()) return absl::OkStatus();
  return Error(what, " has no argument '", arguments.named.front().first.substr(0, 100), "'");
}

absl::StatusOr<Value> CallBuiltin(CallContext& context, const Builtin& builtin, const Value& self,
                                  Arguments arguments) {
  std::vector<std::string_view> names;
  for (const Parameter& parameter : builtin.parameters) names.push_back(parameter.name);
  MILLRACE_ASSIGN_OR_RETURN(const auto bound, BindArguments(builtin.name, names, arguments));
  std::vector<Value> args;
  for (size_t i = 0; i < bound.size(); ++i) {
    const Parameter& parameter = builtin.parameters[i];
    if (!bound[i] && parameter.required) {
      return Error(builtin.name, " needs the argument '", parameter.name, "'");
    }
    args.push_back(bound[i].value_or(parameter.otherwise));
  }
  if (!builtin.variadic) {
    MILLRACE_RETURN_IF_ERROR(CheckNoneLeft(builtin.name, names.size(), arguments));
    return builtin.run(context, self, args);
  }
  MILLRACE_ASSIGN_OR_RETURN(
      Value rest, MakeList(context.budget, std::move(arguments.positional), ListKind::kTuple));
  std::vector<std::pair<Value, Value>> named;
  for (auto& [name, value] : arguments.named) named.emplace_back(std::move(name), std::move(value));
  MILLRACE_ASSIGN_OR_RETURN(Value named_rest, MakeDict(context.budget, std::move(named)));
  args.push_back(std::move(rest));
  args.push_back(std::move(named_rest));
  return builtin.run(context, self, args);
}

}  // namespace millrace::jinja
