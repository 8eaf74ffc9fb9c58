// The one declaration of every setting.
#ifndef MILLRACE_CONFIG_SETTINGS_TABLE_H_
#define MILLRACE_CONFIG_SETTINGS_TABLE_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "config/settings.h"

namespace millrace {

enum class SettingKind { kValue, kList, kSwitch };

struct Setting {
  std::string_view group;  // its heading in --help
  std::string_view name;   // "http-port": --http-port, http-port or http_port, MILLRACE_HTTP_PORT
  SettingKind kind = SettingKind::kValue;
  std::string_view placeholder;  // "PORT": what stands for the value in --help; none for a switch
  std::string allowed;           // "a whole number from 0 to 65535"
  std::string default_text;      // empty: nothing
  std::string_view help;
  std::vector<std::string_view> choices = {};  // all allowed values, where they are few
  bool is_path = false;                        // a path is allowed
  bool secret = false;                         // its value is never shown
  bool serving_only = false;  // means nothing to `millraced bench`, which refuses its flag

  // Puts the value into the settings, a list's at its end; false, changing nothing, where `text` is
  // not allowed.
  std::function<bool(std::string_view text, Settings& settings)> set;
  // Takes a list's values out again.
  std::function<void(Settings& settings)> clear;
};

// Returns all settings in the order of --help; a group's settings follow each other.
const std::vector<Setting>& SettingsTable();

// Returns whether the command takes the setting as a flag.
bool IsFor(const Setting& setting, Command command);

// Returns the setting of this name, with - or _ between its words; null if there is none.
const Setting* FindSetting(std::string_view name);

// Returns the setting that someone who wrote `name` probably meant; null if none is near.
const Setting* NearestSetting(std::string_view name);

// Returns the setting's environment variable: "http-port" has "MILLRACE_HTTP_PORT".
std::string EnvironmentName(const Setting& setting);

// These settings have no meaning on any other device, and are refused there.
inline constexpr std::string_view kFakeDeviceGroup = "Fake device (--device fake)";
inline constexpr std::string_view kGpuGroup = "GPU (--device cuda)";
inline constexpr std::string_view kTorchGroup = "LibTorch (--device torch)";

// These connect the nodes of a model that runs on several hosts, and are refused without others.
inline constexpr std::string_view kNodesGroup = "Several hosts (--nnodes)";

// These belong to `millraced bench`, and are refused where it serves.
inline constexpr std::string_view kBenchGroup = "Bench (millraced bench)";
// These belong to `millraced health`, and are refused where it serves.
inline constexpr std::string_view kHealthGroup = "Health (millraced health)";

// These belong to `millraced chat`, and are refused as flags of other commands.
inline constexpr std::string_view kChatGroup = "Chat (millraced chat)";

// These belong to `millraced convert`, likewise.
inline constexpr std::string_view kConvertGroup = "Convert (millraced convert)";

}  // namespace millrace

#endif  // MILLRACE_CONFIG_SETTINGS_TABLE_H_
