// Makes the rows of the settings' table: one function for each kind of value. A setting's default
// is its member's in a new Settings.
#ifndef MILLRACE_CONFIG_SETTING_MAKERS_H_
#define MILLRACE_CONFIG_SETTING_MAKERS_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "base/strings.h"
#include "config/settings_table.h"
#include "config/value.h"

namespace millrace::setting_makers {

inline const Settings& Defaults() {
  static const Settings* const defaults = new Settings;
  return *defaults;
}

struct About {
  std::string_view name;
  std::string_view placeholder;
  std::string_view help;
};

template <typename Parse, typename Member>
Setting Make(const About& about, const std::string& allowed, const std::string& default_text,
             Member member, Parse parse) {
  return {.name = about.name,
          .placeholder = about.placeholder,
          .allowed = allowed,
          .default_text = default_text,
          .help = about.help,
          .set = [member, parse](std::string_view text, Settings& settings) {
            auto value = parse(text);
            if (!value.has_value()) return false;
            settings.*member = *std::move(value);
            return true;
          }};
}

// Makes a setting that is a whole number from `least` to `most`, both included, and a multiple of
// `step`.
template <typename Number>
Setting Whole(const About& about, Number Settings::*member, Number least, Number most,
              Number step = 1) {
  std::string allowed = StrCat("a whole number from ", least, " to ", most);
  if (step != 1) allowed += StrCat(", a multiple of ", step);
  return Make(about, allowed, StrCat(Defaults().*member), member,
              [=](std::string_view text) -> std::optional<Number> {
                const auto number = ParseNumber<Number>(text);
                if (!number || *number < least || *number > most || *number % step != 0) return {};
                return number;
              });
}

inline Setting Real(const About& about, double Settings::*member, double least, double most) {
  return Make(about, StrCat("a number from ", least, " to ", most), StrCat(Defaults().*member),
              member, [=](std::string_view text) -> std::optional<double> {
                const auto number = ParseReal(text);
                if (!number || *number < least || *number > most) return {};
                return number;
              });
}

// Makes a setting without a default. `above_least`: `least` itself is not allowed.
inline Setting OptionalReal(const About& about, std::optional<double> Settings::*member,
                            double least, double most, bool above_least = false) {
  return Make(about,
              StrCat("a number ", above_least ? "above " : "from ", least,
                     above_least ? ", at most " : " to ", most),
              "", member, [=](std::string_view text) -> std::optional<double> {
                const auto number = ParseReal(text);
                if (!number || *number < least || *number > most) return {};
                if (above_least && *number == least) return {};
                return number;
              });
}

inline Setting OptionalWhole(const About& about, std::optional<int32_t> Settings::*member,
                             int32_t least, int32_t most) {
  return Make(about, StrCat("a whole number from ", least, " to ", most), "", member,
              [=](std::string_view text) -> std::optional<int32_t> {
                const auto number = ParseNumber<int32_t>(text);
                if (!number || *number < least || *number > most) return {};
                return number;
              });
}

// `or_zero`: 0 is allowed as well.
inline Setting Size(const About& about, int64_t Settings::*member, int64_t least, int64_t most,
                    bool or_zero = false) {
  return Make(about,
              StrCat(or_zero ? "0, or " : "", "bytes, or as 512MiB, 2GiB; from ", FormatSize(least),
                     " to ", FormatSize(most)),
              FormatSize(Defaults().*member), member,
              [=](std::string_view text) -> std::optional<int64_t> {
                const auto bytes = ParseSize(text);
                if (!bytes || *bytes > most) return {};
                if (*bytes < least && !(or_zero && *bytes == 0)) return {};
                return bytes;
              });
}

inline Setting Time(const About& about, Duration Settings::*member, Duration least, Duration most) {
  return Make(about,
              StrCat("seconds, or as 500ms, 30s, 2m; from ", FormatDuration(least), " to ",
                     FormatDuration(most)),
              FormatDuration(Defaults().*member), member,
              [=](std::string_view text) -> std::optional<Duration> {
                const auto duration = ParseDuration(text);
                if (!duration || *duration < least || *duration > most) return {};
                return duration;
              });
}

inline Setting Switch(std::string_view name, std::string_view help, bool Settings::*member) {
  Setting setting = Make({name, "", help}, "true or false", Defaults().*member ? "true" : "false",
                         member, ParseBool);
  setting.kind = SettingKind::kSwitch;
  return setting;
}

// Makes a setting that is one of an enum's values. `names` are the enumerators' names, in their
// order.
template <typename Enum, size_t kCount>
Setting Choice(const About& about, Enum Settings::*member,
               std::array<std::string_view, kCount> names) {
  Setting setting = Make(about, StrCat("one of ", JoinList(names)),
                         std::string(names[static_cast<size_t>(Defaults().*member)]), member,
                         [=](std::string_view text) -> std::optional<Enum> {
                           const auto found = std::find(names.begin(), names.end(), text);
                           if (found == names.end()) return {};
                           return static_cast<Enum>(found - names.begin());
                         });
  setting.choices.assign(names.begin(), names.end());
  return setting;
}

// Returns whether a text is printable and not empty: a variable that a script forgot to set should
// not pass for a value.
inline bool IsText(std::string_view text, size_t most) {
  return !text.empty() && text.size() <= most && std::none_of(text.begin(), text.end(), [](char c) {
    return (c >= 0 && c < ' ') || c == 0x7F;
  });
}

template <typename Valid>
Setting Text(const About& about, const std::string& allowed, std::string Settings::*member,
             Valid valid) {
  return Make(about, allowed, Defaults().*member, member,
              [=](std::string_view text) -> std::optional<std::string> {
                if (!IsText(text, 4096) || !valid(text)) return {};
                return std::string(text);
              });
}

inline Setting Path(const About& about, std::string Settings::*member,
                    const std::string& allowed = "a path") {
  Setting setting = Text(about, allowed, member, [](std::string_view) { return true; });
  setting.is_path = true;
  return setting;
}

// Makes a setting that is a list: values are separated by commas, and the flag may be repeated.
template <typename Value, typename Parse>
Setting List(const About& about, const std::string& allowed, const std::string& default_text,
             std::vector<Value> Settings::*member, Parse parse) {
  return {.name = about.name,
          .kind = SettingKind::kList,
          .placeholder = about.placeholder,
          .allowed = allowed,
          .default_text = default_text,
          .help = about.help,
          .set =
              [=](std::string_view text, Settings& settings) {
                std::vector<Value> values;
                for (const std::string_view part : SplitList(text)) {
                  std::optional<Value> value = parse(part);
                  if (!value.has_value()) return false;
                  values.push_back(*std::move(value));
                }
                std::vector<Value>& list = settings.*member;
                list.insert(list.end(), values.begin(), values.end());
                return !values.empty();
              },
          .clear = [=](Settings& settings) { (settings.*member).clear(); }};
}

template <typename Valid>
Setting Words(const About& about, const std::string& allowed,
              std::vector<std::string> Settings::*member, Valid valid) {
  return List(about, allowed, "", member, [=](std::string_view word) -> std::optional<std::string> {
    if (!valid(word)) return {};
    return std::string(word);
  });
}

// Makes a setting that is a list of whole numbers from `least` to `most`.
template <typename Number>
Setting WholeList(const About& about, std::vector<Number> Settings::*member, Number least,
                  Number most) {
  return List(about, StrCat("whole numbers from ", least, " to ", most, ", comma-separated"),
              absl::StrJoin(Defaults().*member, ","), member,
              [=](std::string_view text) -> std::optional<Number> {
                const auto number = ParseNumber<Number>(text);
                if (!number || *number < least || *number > most) return {};
                return number;
              });
}

// The largest number of tokens that any setting takes.
inline constexpr auto kMaxTokens = int32_t{1} << 24;

// Marks what means nothing to commands that do not serve.
inline Setting ForServing(Setting setting) {
  setting.serving_only = true;
  return setting;
}
inline std::vector<Setting> ForServing(std::vector<Setting> settings) {
  for (Setting& setting : settings) setting.serving_only = true;
  return settings;
}

}  // namespace millrace::setting_makers

#endif  // MILLRACE_CONFIG_SETTING_MAKERS_H_
