#include "config/load.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "base/sha256.h"
#include "base/status.h"
#include "base/strings.h"
#include "config/commands.h"
#include "config/completion.h"
#include "config/cross_checks.h"
#include "config/flags.h"
#include "config/foreign_flags.h"
#include "config/help.h"
#include "config/man_page.h"
#include "config/sources.h"

namespace millrace {
namespace {

// Settings as they come together, and where each came from.
class Loader {
 public:
  // Takes one source's assignments; later sources win.
  absl::Status Apply(const std::vector<Assignment>& assignments) {
    std::map<const Setting*, bool> cleared;
    for (const Assignment& assignment : assignments) {
      const Setting& setting = *assignment.setting;
      const bool is_list = setting.kind == SettingKind::kList;
      const bool adds = is_list && std::exchange(cleared[&setting], true);
      if (is_list && !adds) setting.clear(settings_);
      if (!setting.set(assignment.value, settings_)) {
        return absl::InvalidArgumentError(StrCat(
            assignment.origin, ": got ", ShownValue(assignment), ", expected ", setting.allowed));
      }
      Assignment& given = given_[setting.name];
      const std::string before = adds ? StrCat(given.value, ",") : "";
      given = assignment;
      given.value = StrCat(before, assignment.value);
    }
    return absl::OkStatus();
  }

  // Sets the defaults that depend on the device.
  void ResolveDefaults(Command command) {
    Settings& s = settings_;
    const bool gpu = s.device == Device::kCuda;
    // One that serves on the CPU follows from the model. Nodes of one model must have the same.
    const bool by_memory =
        gpu || (s.device == Device::kCpu && s.nnodes == 1 && command != Command::kBench);
    if (s.max_num_batched_tokens == 0) s.max_num_batched_tokens = gpu ? 8192 : 512;
    if (s.block_size == 0) s.block_size = gpu ? 64 : 16;
    if (s.kv_cache_memory == 0 && !by_memory) s.kv_cache_memory = int64_t{1} << 30;
    if (s.state_cache_memory == 0 && (!by_memory || s.nnodes > 1)) {
      s.state_cache_memory = int64_t{1} << 30;
    }
  }

  std::string Given() const {
    std::vector<std::string> parts;
    for (const Setting& setting : SettingsTable()) {
      if (const auto found = given_.find(setting.name); found != given_.end()) {
        parts.push_back(
            StrCat(setting.name, "=", ShownValue(found->second), " (", found->second.origin, ")"));
      }
    }
    return JoinList(parts);
  }

  std::map<std::string, std::string> Values() const {
    std::map<std::string, std::string> values;
    for (const auto& [name, assignment] : given_) {
      values.emplace(name, assignment.setting->secret
                               ? std::string(AsBytes(Sha256Of(assignment.value)))
                               : assignment.value);
    }
    return values;
  }

  Settings& settings() { return settings_; }
  const GivenSettings& given() const { return given_; }

 private:
  Settings settings_;
  GivenSettings given_;
};

// The --config of the flags or, without one, of the environment.
const Assignment* FindConfig(const std::vector<Assignment>& flags,
                             const std::vector<Assignment>& environment) {
  for (const std::vector<Assignment>* source : {&flags, &environment}) {
    for (auto it = source->rbegin(); it != source->rend(); ++it) {
      if (it->setting->name == "config") return &*it;
    }
  }
  return nullptr;
}

bool Holds(const std::vector<std::string>& arguments, std::string_view flag) {
  return std::find(arguments.begin(), arguments.end(), flag) != arguments.end();
}

absl::StatusOr<std::string> TextToPrint(Command command,
                                        const std::vector<std::string>& arguments) {
  if (Holds(arguments, "--help-all")) return HelpText(command);
  if (Holds(arguments, "--help") || Holds(arguments, "-h")) return ShortHelpText(command);
  if (Holds(arguments, "--version")) return VersionText();
  if (Holds(arguments, "--print-settings-table")) return SettingsTableMarkdown();
  if (Holds(arguments, "--print-foreign-flags")) return AllForeignFlagsMarkdown();
  if (Holds(arguments, "--print-man-page")) return ManPage();
  const auto completion = std::find(arguments.begin(), arguments.end(), "--print-completion");
  if (completion != arguments.end()) {
    return CompletionScript(completion + 1 == arguments.end() ? "" : completion[1]);
  }
  return "";
}

}  // namespace

absl::StatusOr<Startup> LoadSettings(const std::vector<std::string>& all_arguments,
                                     const std::vector<std::string>& environment, Pipes pipes) {
  Startup startup;
  std::vector<std::string> arguments = all_arguments;
  // `help bench` is `bench --help`.
  if (!arguments.empty() && (arguments[0] == "help" || arguments[0] == "version")) {
    std::rotate(arguments.begin(), arguments.begin() + 1, arguments.end());
    arguments.back().insert(0, "--");
  }
  if (!arguments.empty()) {
    if (const CommandInfo* info = FindCommand(arguments[0])) {
      startup.command = info->command;
      arguments.erase(arguments.begin());
    }
  }
  MILLRACE_ASSIGN_OR_RETURN(startup.print, TextToPrint(startup.command, arguments));
  if (!startup.print.empty()) return startup;
  if (Holds(arguments, "--print-kernels")) {
    startup.command = Command::kPrintKernels;
    return startup;
  }

  MILLRACE_ASSIGN_OR_RETURN(const std::vector<Assignment> flags,
                            ReadFlags(startup.command, arguments, startup.warnings));
  const std::vector<Assignment> variables = ReadEnvironment(environment, startup.warnings);
  Loader loader;
  if (const Assignment* config = FindConfig(flags, variables)) {
    absl::StatusOr<std::vector<Assignment>> file = ReadFile(config->value, pipes);
    if (!file.ok()) return Annotate(file.status(), config->origin);
    MILLRACE_RETURN_IF_ERROR(loader.Apply(*file));
  }
  MILLRACE_RETURN_IF_ERROR(loader.Apply(variables));
  MILLRACE_RETURN_IF_ERROR(loader.Apply(flags));
  loader.ResolveDefaults(startup.command);
  MILLRACE_RETURN_IF_ERROR(CrossCheck(loader.settings(), loader.given(), startup.command));
  startup.given = loader.Given();
  startup.values = loader.Values();
  startup.settings = std::move(loader.settings());
  if (all_arguments.empty() && startup.given.empty()) {
    startup.command = Command::kUsage;
    startup.print = UsageText();
  }
  return startup;
}

std::vector<std::string> ChangedSettings(const Startup& before, const Startup& after) {
  std::vector<std::string> names;
  for (const auto& [name, value] : before.values) {
    const auto found = after.values.find(name);
    if (found == after.values.end() || found->second != value) names.push_back(name);
  }
  for (const auto& [name, value] : after.values) {
    if (!before.values.contains(name)) names.push_back(name);
  }
  return names;
}

absl::StatusOr<Startup> LoadSettings(int argc, const char* const* argv, Pipes pipes) {
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable)
    environment.push_back(*variable);
  return LoadSettings({argv + std::min(argc, 1), argv + argc}, environment, pipes);
}

}  // namespace millrace
