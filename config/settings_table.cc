#include "config/settings_table.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/strings.h"
#include "config/value.h"

namespace millrace {
namespace {

const Settings& Defaults() {
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

// From `least` to `most`, both included, and a multiple of `step`.
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

Setting Size(const About& about, int64_t Settings::*member, int64_t least, int64_t most) {
  return Make(
      about,
      StrCat("bytes, or as 512MiB, 2GiB; from ", FormatSize(least), " to ", FormatSize(most)),
      FormatSize(Defaults().*member), member, [=](std::string_view text) -> std::optional<int64_t> {
        const auto bytes = ParseSize(text);
        if (!bytes || *bytes < least || *bytes > most) return {};
        return bytes;
      });
}

Setting Time(const About& about, Duration Settings::*member, Duration least, Duration most) {
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

Setting Switch(std::string_view name, std::string_view help, bool Settings::*member) {
  Setting setting = Make({name, "", help}, "true or false", Defaults().*member ? "true" : "false",
                         member, ParseBool);
  setting.kind = SettingKind::kSwitch;
  return setting;
}

// The enumerators' names, in their order.
template <typename Enum, size_t kCount>
Setting Choice(const About& about, Enum Settings::*member,
               std::array<std::string_view, kCount> names) {
  return Make(about, StrCat("one of ", JoinList(names)),
              std::string(names[static_cast<size_t>(Defaults().*member)]), member,
              [=](std::string_view text) -> std::optional<Enum> {
                const auto found = std::find(names.begin(), names.end(), text);
                if (found == names.end()) return {};
                return static_cast<Enum>(found - names.begin());
              });
}

// Printable, and not empty: a variable that a script forgot to set should not pass for a value.
bool IsText(std::string_view text, size_t most) {
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

Setting Path(const About& about, std::string Settings::*member) {
  return Text(about, "a path", member, [](std::string_view) { return true; });
}

// Comma-separated, and again as often as one likes.
template <typename Valid>
Setting List(const About& about, const std::string& allowed,
             std::vector<std::string> Settings::*member, Valid valid) {
  return {.name = about.name,
          .kind = SettingKind::kList,
          .placeholder = about.placeholder,
          .allowed = allowed,
          .help = about.help,
          .set =
              [=](std::string_view text, Settings& settings) {
                const std::vector<std::string_view> parts = SplitList(text);
                if (parts.empty() || !std::all_of(parts.begin(), parts.end(), valid)) return false;
                (settings.*member).insert((settings.*member).end(), parts.begin(), parts.end());
                return true;
              },
          .clear = [=](Settings& settings) { (settings.*member).clear(); }};
}

bool IsApiKey(std::string_view key) {
  return key.size() <= 512 &&
         std::all_of(key.begin(), key.end(), [](char c) { return c > ' ' && c < 0x7F; });
}

// A host's name or address as a Host header carries it, perhaps with a port; or *.
bool IsHostName(std::string_view name) {
  return name == "*" || (name.size() <= 255 && std::all_of(name.begin(), name.end(), [](char c) {
                           return absl::ascii_isalnum(c) ||
                                  std::string_view(".-_:[]").find(c) != std::string_view::npos;
                         }));
}

std::vector<Setting> ModelSettings() {
  return {
      Path({"model", "PATH",
            "GGUF file to serve. Without it: the default model in "
            "${XDG_CACHE_HOME:-~/.cache}/millrace"},
           &Settings::model),
      Text({"served-model-name", "NAME",
            "the model's name in requests and metrics. Without it: the file's stem"},
           "1 to 256 printable characters", &Settings::served_model_name,
           [](std::string_view name) { return name.size() <= 256; }),
  };
}

std::vector<Setting> EngineSettings() {
  constexpr auto kMaxTokens = int32_t{1} << 24;
  return {
      Choice({"device", "DEVICE",
              "what the model runs on; fake runs no model and takes a stated time"},
             &Settings::device, std::array<std::string_view, 3>{"cpu", "cuda", "fake"}),
      Whole({"threads", "N", "compute threads; 0: one for each core"}, &Settings::threads, 0, 1024),
      Whole({"max-model-len", "TOKENS",
             "longest sequence, prompt and answer together; 0: the model's own limit"},
            &Settings::max_model_len, 0, kMaxTokens),
      Whole({"max-num-seqs", "N", "sequences that run at the same time"}, &Settings::max_num_seqs,
            1, 4096),
      Whole({"max-num-batched-tokens", "TOKENS",
             "token budget of a step, decoding and prefill together"},
            &Settings::max_num_batched_tokens, 1, 65536),
      Whole({"block-size", "TOKENS", "tokens in a block of the KV cache"}, &Settings::block_size,
            16, 256, 16),
      Size({"kv-cache-memory", "SIZE",
            "memory of the KV cache; taken from the system as it is first used"},
           &Settings::kv_cache_memory, int64_t{1} << 20, int64_t{16} << 40),
      Switch("prefix-caching", "reuse the KV blocks of a prompt's beginning that was seen before",
             &Settings::prefix_caching),
      Whole({"max-waiting", "N",
             "requests that wait for their turn; one more is refused (429, RESOURCE_EXHAUSTED)"},
            &Settings::max_waiting, 1, 1'000'000),
  };
}

std::vector<Setting> DoorSettings() {
  return {
      Make({"host", "ADDRESS",
            "where HTTP and gRPC listen; beyond loopback only with --api-key or --insecure"},
           "an IPv4 or IPv6 address, or localhost", Defaults().host, &Settings::host,
           ParseBindAddress),
      Whole({"http-port", "PORT", "HTTP; 0: any free one"}, &Settings::http_port, 0, 65535),
      Whole({"grpc-port", "PORT", "gRPC; 0: any free one"}, &Settings::grpc_port, 0, 65535),
      Whole({"admin-port", "PORT",
             "metrics and administration, always on 127.0.0.1; 0: any free one"},
            &Settings::admin_port, 0, 65535),
      Path({"ready-file", "PATH",
            "written when the server is ready: {\"http\":PORT,\"grpc\":PORT,\"admin\":PORT}"},
           &Settings::ready_file),
  };
}

std::vector<Setting> AccessSettings() {
  Setting api_key = List({"api-key", "KEY,...",
                          "keys that HTTP and gRPC clients must send one of; better given by file "
                          "or environment, where ps does not show it"},
                         "comma-separated keys of up to 512 visible ASCII characters",
                         &Settings::api_keys, IsApiKey);
  api_key.secret = true;
  return {
      std::move(api_key),
      Switch("insecure", "listen beyond loopback without --api-key", &Settings::insecure),
      List({"allowed-hosts", "NAME,...",
            "hosts that a request's Host or Origin may name besides the server's own; *: any"},
           "comma-separated host names or addresses, each with a port or for all, or *",
           &Settings::allowed_hosts, IsHostName),
  };
}

std::vector<Setting> LifeSettings() {
  using namespace std::chrono_literals;
  return {
      Time({"drain-timeout", "TIME", "how long running streams may take to finish after SIGTERM"},
           &Settings::drain_timeout, 0s, 24h),
      Time({"stall-timeout", "TIME",
            "with work and no step finished for this long, /livez and gRPC health fail"},
           &Settings::stall_timeout, 100ms, 24h),
  };
}

std::vector<Setting> LogSettings() {
  return {
      Text({"log", "LEVELS",
            "what to log: a level for all, and levels for components, as info,scheduler=debug"},
           StrCat("level or component=level, comma-separated, each once; levels: debug, info, "
                  "warning, error, off; components: ",
                  JoinList(kLogComponentNames)),
           &Settings::log, [](std::string_view levels) { return CheckLogLevels(levels).ok(); }),
      Choice({"log-format", "FORMAT", "how log lines are written to stderr"}, &Settings::log_format,
             std::array<std::string_view, 2>{"text", "json"}),
      Switch("log-prompts", "let log lines hold the text of prompts and answers",
             &Settings::log_prompts),
      Path({"config", "FILE",
            "YAML or JSON file of these settings, its keys named as the flags, with - or _"},
           &Settings::config),
  };
}

std::vector<Setting> FakeDeviceSettings() {
  constexpr int64_t kMost = 10'000'000;
  return {
      Whole({"fake-step-us", "N", "microseconds that a step takes"}, &Settings::fake_step_us,
            int64_t{0}, kMost),
      Whole({"fake-token-us", "N", "microseconds that each of a step's tokens adds"},
            &Settings::fake_token_us, int64_t{0}, kMost),
      Text({"faults", "POINTS",
            "what shall go wrong, for tests; with a wrong name the server lists all"},
           "name[=times][@skip], comma-separated", &Settings::faults,
           [](std::string_view) { return true; }),
  };
}

// `name` with - for _.
std::string Dashed(std::string_view name) {
  std::string dashed(name);
  std::replace(dashed.begin(), dashed.end(), '_', '-');
  return dashed;
}

}  // namespace

const std::vector<Setting>& SettingsTable() {
  static const std::vector<Setting>* const table = [] {
    auto* all = new std::vector<Setting>;
    const auto add = [all](std::string_view group, std::vector<Setting> settings) {
      for (Setting& setting : settings) {
        setting.group = group;
        all->push_back(std::move(setting));
      }
    };
    add("Model", ModelSettings());
    add("Engine", EngineSettings());
    add("Doors", DoorSettings());
    add("Access", AccessSettings());
    add("Life", LifeSettings());
    add("Logs and settings", LogSettings());
    add(kFakeDeviceGroup, FakeDeviceSettings());
    return all;
  }();
  return *table;
}

const Setting* FindSetting(std::string_view name) {
  const std::string dashed = Dashed(name);
  for (const Setting& setting : SettingsTable()) {
    if (setting.name == dashed) return &setting;
  }
  return nullptr;
}

const Setting* NearestSetting(std::string_view name) {
  if (name.size() > 64) return nullptr;
  const std::string dashed = Dashed(name);
  const Setting* nearest = nullptr;
  int least = 3;  // Further away it is another word.
  for (const Setting& setting : SettingsTable()) {
    const int distance = EditDistance(dashed, setting.name);
    // Of a short name, a third may be wrong.
    if (distance < least && distance * 3 <= static_cast<int>(setting.name.size())) {
      least = distance;
      nearest = &setting;
    }
  }
  return nearest;
}

std::string EnvironmentName(const Setting& setting) {
  std::string name = "MILLRACE_";
  for (const char c : setting.name) name += c == '-' ? '_' : absl::ascii_toupper(c);
  return name;
}

}  // namespace millrace
