#include "base/log.h"

#include <spdlog/details/log_msg.h>
#include <spdlog/pattern_formatter.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/log_fields.h"
#include "base/log_writer.h"
#include "base/status.h"

namespace millrace {
namespace {

constexpr std::array<std::string_view, 5> kLevelNames = {"debug", "info", "warning", "error",
                                                         "off"};
constexpr std::array<spdlog::level::level_enum, 4> kSpdlogLevels = {
    spdlog::level::debug, spdlog::level::info, spdlog::level::warn, spdlog::level::err};

using Levels = std::array<LogLevel, kLogComponentNames.size()>;

template <typename Names>
std::optional<size_t> IndexOf(const Names& names, std::string_view name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) return std::nullopt;
  return found - names.begin();
}

absl::StatusOr<LogLevel> ParseLevel(std::string_view name) {
  if (const auto level = IndexOf(kLevelNames, name)) return static_cast<LogLevel>(*level);
  return absl::InvalidArgumentError(
      StrCat("no log level \"", name, "\"; there are: ", JoinList(kLevelNames)));
}

absl::StatusOr<Levels> ParseLevels(std::string_view spec) {
  std::array<std::optional<LogLevel>, kLogComponentNames.size()> named;
  std::optional<LogLevel> rest;
  for (const std::string_view part : SplitList(spec)) {
    const size_t equals = part.find('=');
    std::optional<LogLevel>* target = &rest;
    if (equals != part.npos) {
      const std::string_view name = part.substr(0, equals);
      const auto component = IndexOf(kLogComponentNames, name);
      if (!component.has_value()) {
        return absl::InvalidArgumentError(
            StrCat("no log component \"", name, "\"; there are: ", JoinList(kLogComponentNames)));
      }
      target = &named[*component];
    }
    if (target->has_value()) {
      return absl::InvalidArgumentError(StrCat("\"", part, "\" sets a level a second time"));
    }
    MILLRACE_ASSIGN_OR_RETURN(*target,
                              ParseLevel(equals == part.npos ? part : part.substr(equals + 1)));
  }
  Levels levels;
  for (size_t i = 0; i < levels.size(); ++i) {
    levels[i] = named[i].value_or(rest.value_or(LogLevel::kInfo));
  }
  return levels;
}

// Returns the length of the well-formed UTF-8 sequence at the beginning of `text`, or 0 if there is
// none (Unicode 15, table 3-7).
size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0; };
  const auto continues = [&](size_t i, uint8_t low = 0x80, uint8_t high = 0xBF) {
    return byte(i) >= low && byte(i) <= high;
  };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return continues(1) ? 2 : 0;
  if (lead >= 0xE0 && lead <= 0xEF) {
    const bool second = continues(1, lead == 0xE0 ? 0xA0 : 0x80, lead == 0xED ? 0x9F : 0xBF);
    return second && continues(2) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead <= 0xF4) {
    const bool second = continues(1, lead == 0xF0 ? 0x90 : 0x80, lead == 0xF4 ? 0x8F : 0xBF);
    return second && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

// Appends `text` as well-formed UTF-8, with control characters (including C1, which terminals
// interpret) in JSON's notation. `quoted` also escapes the characters that end a JSON string.
void AppendEscaped(std::string_view text, bool quoted, std::string& out) {
  while (!text.empty()) {
    const size_t length = Utf8Length(text);
    const uint8_t first = text[0];
    if (length == 0) {
      out += "\uFFFD";
    } else if (length == 1 && (first < 0x20 || first == 0x7F)) {
      switch (first) {
        case '\n':
          out += "\\n";
          break;
        case '\r':
          out += "\\r";
          break;
        case '\t':
          out += "\\t";
          break;
        default:
          absl::StrAppend(&out, "\\u", absl::Hex(first, absl::kZeroPad4));
      }
    } else if (length == 2 && first == 0xC2 && static_cast<uint8_t>(text[1]) < 0xA0) {
      absl::StrAppend(&out, "\\u", absl::Hex(static_cast<uint8_t>(text[1]), absl::kZeroPad4));
    } else {
      if (quoted && (first == '"' || first == '\\')) out += '\\';
      out += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
}

void AppendField(const LogField& field, std::string& line) {
  absl::StrAppend(&line, ",\"", AbslView(field.name), field.is_number ? "\":" : "\":\"");
  if (field.is_number) {
    line += field.value;
  } else {
    AppendEscaped(field.value, /*quoted=*/true, line);
    line += '"';
  }
}

// Terminals' colours of the levels' names.
constexpr std::array<std::string_view, 4> kColors = {"\033[36m", "\033[32m", "\033[33m\033[1m",
                                                     "\033[31m\033[1m"};
constexpr std::string_view kNoColor = "\033[m";

class Output {
 public:
  Output() { SetFormat(LogFormat::kText); }

  void SetFormat(LogFormat format) {
    format_.store(format, std::memory_order_relaxed);
    const std::lock_guard lock(mutex_);
    formatter_ = std::make_unique<spdlog::pattern_formatter>(
        format == LogFormat::kJson
            ? R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l","component":"%n",%v})"
            : "%Y-%m-%dT%H:%M:%S.%eZ %^%l%$ %n %v",
        spdlog::pattern_time_type::utc);
  }

  void Write(LogLevel level, std::string_view component, std::string_view request_id,
             std::string_view message, std::span<const LogField> fields) {
    writer_.Write(Line(level, component, request_id, message, fields));
  }

  LogWriter& writer() { return writer_; }

 private:
  std::string Line(LogLevel level, std::string_view component, std::string_view request_id,
                   std::string_view message, std::span<const LogField> fields = {}) {
    const bool json = format_.load(std::memory_order_relaxed) == LogFormat::kJson;
    std::string line;
    if (!request_id.empty()) {
      line += json ? R"("request_id":")" : "[";
      AppendEscaped(request_id, json, line);
      line += json ? R"(",)" : "] ";
    }
    if (json) line += R"("message":")";
    AppendEscaped(message, json, line);
    if (json) {
      line += '"';
      for (const LogField& field : fields) AppendField(field, line);
    }
    const spdlog::details::log_msg entry(spdlog::string_view_t(component.data(), component.size()),
                                         kSpdlogLevels[static_cast<size_t>(level)],
                                         spdlog::string_view_t(line.data(), line.size()));
    spdlog::memory_buf_t buffer;
    {
      const std::lock_guard lock(mutex_);
      formatter_->format(entry, buffer);
    }
    std::string text(buffer.data(), buffer.size());
    if (terminal_ && entry.color_range_end > entry.color_range_start) {
      text.insert(entry.color_range_end, kNoColor);
      text.insert(entry.color_range_start, kColors[static_cast<size_t>(level)]);
    }
    return text;
  }

  std::string LostLine(uint64_t dropped) {
    return Line(LogLevel::kWarning, kLogComponentNames[static_cast<size_t>(LogComponent::kServer)],
                "", StrCat(dropped, " log lines were lost: stderr was not read, or took no more"));
  }

  const bool terminal_ = isatty(STDERR_FILENO) == 1;
  std::atomic<LogFormat> format_;
  std::mutex mutex_;
  std::unique_ptr<spdlog::pattern_formatter> formatter_;  // guarded by mutex_
  LogWriter writer_{STDERR_FILENO, [this](uint64_t dropped) { return LostLine(dropped); }};
};

Output& TheOutput() {
  static Output* const output = new Output;
  return *output;
}

}  // namespace

void log_internal::Write(LogLevel level, LogComponent component, std::string_view request_id,
                         std::string_view message) {
  TheOutput().Write(level, kLogComponentNames[static_cast<size_t>(component)], request_id, message,
                    {});
}

void LogWithFields(LogLevel level, LogComponent component, std::string_view request_id,
                   std::string_view message, std::span<const LogField> fields) {
  if (!Logger(component).Enabled(level)) return;
  TheOutput().Write(level, kLogComponentNames[static_cast<size_t>(component)], request_id, message,
                    fields);
}

absl::Status SetLogLevels(std::string_view spec) {
  MILLRACE_ASSIGN_OR_RETURN(const Levels levels, ParseLevels(spec));
  for (size_t i = 0; i < levels.size(); ++i) log_internal::levels[i] = levels[i];
  return absl::OkStatus();
}

absl::Status CheckLogLevels(std::string_view spec) { return ParseLevels(spec).status(); }

std::string LogLevels() {
  std::vector<std::string> parts;
  for (size_t i = 0; i < kLogComponentNames.size(); ++i) {
    const size_t level = static_cast<size_t>(log_internal::levels[i].load());
    parts.push_back(StrCat(kLogComponentNames[i], "=", kLevelNames[level]));
  }
  return JoinList(parts);
}

void SetLogFormat(LogFormat format) { TheOutput().SetFormat(format); }

uint64_t DroppedLogLines() { return TheOutput().writer().dropped(); }

void FlushLogs(Duration most) { TheOutput().writer().Flush(most); }

}  // namespace millrace
