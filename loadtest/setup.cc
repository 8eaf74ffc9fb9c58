#include "loadtest/setup.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/str_format.h"
#include "base/strings.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

// A stranger's answer takes no more of a report.
constexpr size_t kMostFacts = 16;
constexpr size_t kLongestFact = 200;

std::string Quoted(std::string_view text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=.,:/+@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == text.npos) return std::string(text);
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

// Returns a text, number or truth as text, "" of anything else.
std::string PlainText(const Json& value) {
  if (value.is_string()) return value.get<std::string>().substr(0, kLongestFact);
  if (value.is_number() || value.is_boolean()) return value.dump();
  return "";
}

}  // namespace

std::string FlagsText(const std::vector<std::string>& arguments) {
  std::string text;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    std::string shown = Quoted(argument);
    for (const std::string_view secret : {"--api-key", "--header"}) {
      if (argument.starts_with(StrCat(secret, "="))) shown = StrCat(secret, "=...");
      if (i > 0 && arguments[i - 1] == secret) shown = "...";
    }
    text += StrCat(text.empty() ? "" : " ", shown);
  }
  return text;
}

std::string MachineText(std::string_view cpuinfo, unsigned cores, double memory_bytes) {
  constexpr std::string_view kModel = "model name";
  std::string_view name = "CPU";
  const size_t at = cpuinfo.find(kModel);
  const size_t colon = cpuinfo.find(':', std::min(at, cpuinfo.size()));
  if (at != cpuinfo.npos && colon != cpuinfo.npos) {
    name = cpuinfo.substr(colon + 1, cpuinfo.find('\n', colon) - colon - 1);
    name.remove_prefix(std::min(name.find_first_not_of(" \t"), name.size()));
  }
  return absl::StrFormat("%u x %s, %.1f GiB of memory", cores, AbslView(name),
                         memory_bytes / (1 << 30));
}

Facts GeneratorFacts(const Options& options) {
  std::ifstream file("/proc/cpuinfo");
  const std::string cpuinfo((std::istreambuf_iterator<char>(file)), {});
  const double memory =
      static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGESIZE));
  return {{"version", StrCat("millrace-loadtest ", LoadtestVersion())},
          {"machine", MachineText(cpuinfo, std::thread::hardware_concurrency(), memory)},
          {"flags", options.flags}};
}

Facts ServerFacts(std::string_view version, std::string_view models, std::string_view model) {
  Facts facts;
  const auto add = [&facts](const std::string& name, const Json& value) {
    std::string text = PlainText(value);
    if (text.empty() || facts.size() == kMostFacts) return;
    facts.emplace_back(name.substr(0, kLongestFact), std::move(text));
  };
  const Json said = Json::parse(version, nullptr, false);
  if (said.is_object() && said.contains("version")) add("version", said["version"]);
  const Json list = Json::parse(models, nullptr, false);
  if (!list.is_object() || !list.contains("data") || !list["data"].is_array()) return facts;
  for (const Json& one : list["data"]) {
    if (!one.is_object() || !one.contains("id") || one["id"] != Json(model)) continue;
    for (const auto& [name, value] : one.items()) {
      if (name != "id" && name != "object" && name != "created") add(name, value);
    }
    break;
  }
  return facts;
}

}  // namespace millrace
