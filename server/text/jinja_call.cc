#include "server/text/jinja_call.h"

#include <algorithm>

#include "base/strings.h"
#include "server/text/jinja_token_stream.h"

namespace millrace::jinja {

absl::StatusOr<Exprs> BindArguments(int line, std::string_view kind, const Builtin* builtin,
                                    std::string_view name, ExprPtr self, CallArguments arguments) {
  const auto error = [&](const auto&... parts) {
    return TokenStream::ErrorAt(line, StrCat(kind, " ", name.substr(0, 100), parts...));
  };
  if (builtin == nullptr) return error(" is not supported");
  const std::vector<Parameter>& parameters = builtin->parameters;
  if (arguments.positional.size() > parameters.size()) {
    return error(" takes at most ", parameters.size(), " arguments");
  }
  Exprs operands;
  operands.push_back(std::move(self));
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto named =
        std::find_if(arguments.named.begin(), arguments.named.end(),
                     [&](const auto& argument) { return argument.first == parameters[i].name; });
    if (i < arguments.positional.size()) {
      operands.push_back(std::move(arguments.positional[i]));
    } else if (named != arguments.named.end()) {
      operands.push_back(std::move(named->second));
      arguments.named.erase(named);
    } else if (parameters[i].required) {
      return error(" needs the argument '", parameters[i].name, "'");
    } else {
      operands.push_back(MakeExpr(ExprKind::kConstant, line, {}, parameters[i].otherwise));
    }
  }
  if (!arguments.named.empty()) {
    return error(" has no argument '", arguments.named.front().first.substr(0, 100),
                 "', or is given it twice");
  }
  return operands;
}

absl::StatusOr<Exprs> NamespaceItems(int line, CallArguments arguments) {
  if (!arguments.positional.empty()) {
    return TokenStream::ErrorAt(line, "namespace of a dict is not supported");
  }
  Exprs items;
  for (auto& item : arguments.named) {
    items.push_back(MakeExpr(ExprKind::kConstant, line, {}, std::move(item.first)));
    items.push_back(std::move(item.second));
  }
  return items;
}

}  // namespace millrace::jinja
