#include "config/flags.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "config/commands.h"
#include "config/foreign_flags.h"
#include "config/settings_table.h"
#include "config/value.h"

namespace millrace {
namespace {

bool IsNear(std::string_view typed, std::string_view name) {
  const int distance = EditDistance(typed, name);
  return distance <= 2 && distance * 3 <= static_cast<int>(name.size());
}

// Returns whether each word between dashes of `few` is one of `many`.
bool HasWords(std::string_view few, std::string_view many) {
  const std::vector<std::string_view> words = SplitList(many, '-');
  const std::vector<std::string_view> wanted = SplitList(few, '-');
  return wanted.size() > 1 &&
         std::all_of(wanted.begin(), wanted.end(), [&words](std::string_view word) {
           return std::find(words.begin(), words.end(), word) != words.end();
         });
}

// Returns the name of the flag that someone who typed `name` probably meant; empty if none is near.
std::string NearestFlag(std::string_view name) {
  constexpr size_t kShortestPart = 4;
  if (name.size() > 64) return "";
  if (const Setting* near = NearestSetting(name)) return std::string(near->name);
  for (const std::string_view printer : kPrintFlags) {
    if (IsNear(name, printer)) return std::string(printer);
  }
  if (name.starts_with("no-")) {
    const Setting* near = NearestSetting(name.substr(3));
    if (near != nullptr && near->kind == SettingKind::kSwitch) return StrCat("no-", near->name);
  }
  std::string_view best;
  for (const Setting& setting : SettingsTable()) {
    const bool part =
        name.size() >= kShortestPart && setting.name.find(name) != std::string_view::npos;
    if (!part && !HasWords(name, setting.name)) continue;
    if (best.empty() || setting.name.size() < best.size()) best = setting.name;
  }
  return std::string(best);
}

std::string ForeignAdvice(const ForeignFlag& flag) {
  return StrCat(flag.origin, flag.origin.find(" and ") == std::string_view::npos ? " has" : " have",
                " it; here: ", flag.text);
}

// The meaning of an argument's name: a setting, for a switch whether it is turned off, or a switch
// of another server that is always on here.
struct Named {
  const Setting* setting = nullptr;
  bool negated = false;
  const ForeignFlag* always = nullptr;
};

Named FindOwn(std::string_view name) {
  if (const Setting* setting = FindSetting(name)) return {setting};
  if (name.starts_with("no-") || name.starts_with("no_")) {
    const Setting* setting = FindSetting(name.substr(3));
    if (setting != nullptr && setting->kind == SettingKind::kSwitch) return {setting, true};
  }
  return {};
}

// `written` is the flag with its dashes.
absl::StatusOr<Named> FindFlag(const std::string& written) {
  const bool is_long = written.starts_with("--");
  const std::string_view name = std::string_view(written).substr(is_long ? 2 : 1);
  if (is_long) {
    if (const Named own = FindOwn(name); own.setting != nullptr) return own;
  } else if (written == "-m") {
    return Named{FindSetting("model")};
  }
  const ForeignFlag* foreign = FindForeignFlag(written);
  const bool negated = foreign == nullptr && is_long && name.starts_with("no-");
  if (negated) foreign = FindForeignFlag(StrCat("--", name.substr(3)));
  if (foreign == nullptr) {
    return absl::InvalidArgumentError(StrCat("flag ", Printable(written),
                                             ": there is no such setting; ",
                                             AdviceOnUnknown(name, is_long ? "--" : "-")));
  }
  if (foreign->kind == ForeignKind::kAlways && !negated) return Named{nullptr, false, foreign};
  if (foreign->kind == ForeignKind::kSame) {
    const Setting* setting = FindSetting(foreign->text);
    if (!negated || setting->kind == SettingKind::kSwitch) return Named{setting, negated};
  }
  return absl::InvalidArgumentError(
      StrCat("flag ", written, ": there is no such setting; ", ForeignAdvice(*foreign)));
}

// A word in place of a flag: the model, unless it looks like a mistyped command.
absl::StatusOr<Assignment> ReadModel(const std::string& word, bool is_first) {
  if (FindCommand(word) != nullptr) {
    return absl::InvalidArgumentError(StrCat("argument \"", word,
                                             "\": expected a command as the first word, once "
                                             "(--model ",
                                             word, " serves a model of that name)"));
  }
  constexpr struct {
    std::string_view word;
    std::string_view advice;
  } kOllama[] = {
      {"ps",
       "a server has one model: `millraced health` asks it whether it is ready, and its "
       "/v1/models says what it serves"},
      {"stop", "end the server with Ctrl-C or SIGTERM"},
      {"show", "`millraced doctor MODEL` says what a model is, and --dry-run what it takes"},
      {"create",
       "there is no Modelfile: sampling is set by --temperature and the like, a system "
       "message by requests"},
      {"cp", "name a model with --served-model-name"},
      {"push", "models are uploaded with Hugging Face's tools"},
      {"signin", "set HF_TOKEN in the environment"},
      {"signout", "unset HF_TOKEN in the environment"},
      {"launch", "docs/clients.md says how programs are pointed at the server"}};
  for (const auto& foreign : kOllama) {
    if (is_first && word == foreign.word) {
      return absl::InvalidArgumentError(
          StrCat("argument \"", word, "\": there is no such command; ", foreign.advice,
                 " (--model ", word, " serves a model of that name)"));
    }
  }
  for (const CommandInfo& info : Commands()) {
    const bool near =
        EditDistance(word.substr(0, 16), info.word) * 2 < static_cast<int>(info.word.size());
    if (is_first && near) {
      return absl::InvalidArgumentError(
          StrCat("argument \"", Printable(word), "\": there is no such command; did you mean ",
                 info.word, "? (--model ", Printable(word), " serves a model of that name)"));
    }
  }
  return Assignment{FindSetting("model"), word, "argument", /*from_flag=*/true};
}

absl::Status CheckOneModel(const std::vector<Assignment>& assignments) {
  const Assignment* word = nullptr;
  const Assignment* flag = nullptr;
  for (const Assignment& assignment : assignments) {
    if (assignment.setting->name != "model") continue;
    const bool is_word = assignment.origin == "argument";
    if (is_word && word != nullptr) {
      return absl::InvalidArgumentError(StrCat("argument \"", Printable(assignment.value),
                                               "\": expected one model, which is \"",
                                               Printable(word->value), "\"; see --help"));
    }
    (is_word ? word : flag) = &assignment;
  }
  if (word == nullptr || flag == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(StrCat("argument \"", Printable(word->value), "\": the ",
                                           flag->origin, " names a model, too: expected one"));
}

}  // namespace

std::string AdviceOnUnknown(std::string_view name, std::string_view dashes) {
  const std::string flag = StrCat("--", name);
  if (const ForeignFlag* foreign = FindForeignFlag(flag)) {
    if (foreign->kind == ForeignKind::kSame) return StrCat("use ", foreign->text);
    return ForeignAdvice(*foreign);
  }
  const std::string near = NearestFlag(name);
  if (near.empty()) return "see --help";
  return StrCat("did you mean ", dashes.empty() ? "" : "--", near, "?");
}

absl::StatusOr<std::vector<Assignment>> ReadFlags(Command command,
                                                  const std::vector<std::string>& arguments,
                                                  std::vector<std::string>& warnings) {
  std::vector<Assignment> assignments;
  const auto names_model = [](const Assignment& assignment) {
    return assignment.setting->name == "model";
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument.empty() || argument == "-" || argument == "--") {
      return absl::InvalidArgumentError(StrCat("argument \"", Printable(argument),
                                               "\": expected --name value, or a model; see "
                                               "--help"));
    }
    if ((command == Command::kChat || command == Command::kConvert) && !argument.starts_with('-') &&
        std::any_of(assignments.begin(), assignments.end(), names_model)) {
      const std::string_view second = command == Command::kChat ? "prompt" : "output";
      assignments.push_back({FindSetting(second), argument, "argument", /*from_flag=*/true});
      continue;
    }
    if (!argument.starts_with('-')) {
      MILLRACE_ASSIGN_OR_RETURN(Assignment model, ReadModel(argument, i == 0));
      assignments.push_back(std::move(model));
      continue;
    }
    const size_t equals = std::min(argument.find('='), argument.size());
    const std::string written = argument.substr(0, equals);
    MILLRACE_ASSIGN_OR_RETURN(const Named named, FindFlag(written));
    const std::string origin = StrCat("flag ", written);
    const bool has_value = equals < argument.size();
    std::string value = argument.substr(has_value ? equals + 1 : equals);
    if (named.always != nullptr) {
      if (has_value && ParseBool(value) != true) {
        return absl::InvalidArgumentError(
            StrCat(origin, ": got \"", Printable(value), "\", but ", named.always->text));
      }
      warnings.push_back(StrCat(origin, ": has no effect: ", named.always->text));
      continue;
    }
    if (named.setting->kind == SettingKind::kSwitch) {
      if (named.negated && has_value) {
        return absl::InvalidArgumentError(
            StrCat(origin, ": got \"", Printable(value), "\", takes no value"));
      }
      if (!has_value) value = named.negated ? "false" : "true";
    } else if (!has_value) {
      if (i + 1 == arguments.size() || arguments[i + 1].starts_with("--")) {
        return absl::InvalidArgumentError(
            StrCat(origin, ": got no value, expected ", named.setting->allowed));
      }
      value = arguments[++i];
    }
    assignments.push_back({named.setting, std::move(value), origin, /*from_flag=*/true});
  }
  MILLRACE_RETURN_IF_ERROR(CheckOneModel(assignments));
  return assignments;
}

}  // namespace millrace
