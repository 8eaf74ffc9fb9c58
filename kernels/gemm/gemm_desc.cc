#include "kernels/gemm/gemm_desc.h"

#include <charconv>
#include <iterator>
#include <limits>
#include <span>

namespace millrace::kernels {
namespace {

constexpr std::string_view kTypes[] = {"f32", "bf16", "fp8"};
constexpr std::string_view kWeightScalings[] = {"", "/tensor", "/channel", "/block"};
constexpr std::string_view kScalings[] = {"", "/tensor", "/token", "/group"};
constexpr std::string_view kEpilogues[] = {"store", "gate"};
constexpr std::string_view kKernels[] = {"cublaslt", "skinny", "wide", "block"};
constexpr size_t kAlgorithmNumbers = 9;
constexpr int64_t kMostTokens = int64_t{1} << 30;

// A name by the number of an enumerator, and back.
template <typename Enum>
std::string Name(std::span<const std::string_view> names, Enum value) {
  return std::string(names[static_cast<size_t>(value)]);
}
template <typename Enum>
bool ParseName(std::span<const std::string_view> names, std::string_view text, Enum* value) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] != text) continue;
    *value = static_cast<Enum>(i);
    return true;
  }
  return false;
}

// The text up to the first `separator`, which is taken off with it; all of it where there is none.
std::string_view TakeUntil(char separator, std::string_view* text) {
  const size_t end = text->find(separator);
  const std::string_view word = text->substr(0, end);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end + 1);
  return word;
}

bool ParseNumber(std::string_view text, int64_t most, int64_t* number) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, *number);
  return error == std::errc() && stop == end && *number >= 0 && *number <= most;
}

// "fp8/token": a type, and then how it is scaled.
template <typename Scaling>
bool ParseOperand(std::span<const std::string_view> scalings, std::string_view text, Type* type,
                  Scaling* scaling) {
  const size_t slash = std::min(text.find('/'), text.size());
  return ParseName(kTypes, text.substr(0, slash), type) &&
         ParseName(scalings, text.substr(slash), scaling);
}

std::string Joined(std::initializer_list<int64_t> numbers) {
  std::string text;
  for (const int64_t number : numbers) {
    if (!text.empty()) text += ',';
    text += std::to_string(number);
  }
  return text;
}

struct NumbersOf {
  std::string operator()(const AlgorithmConfig& c) const {
    return Joined({c.id, c.tile, c.stages, c.split_k, c.reduction, c.swizzle, c.custom,
                   c.inner_shape, c.cluster_shape});
  }
  std::string operator()(const sm90::SkinnyConfig& c) const { return Joined({c.stages, c.ctas}); }
  std::string operator()(const sm90::WideConfig& c) const {
    return Joined({c.tile.rows, c.tile.tokens, c.tile.cluster, c.stages, c.ctas});
  }
  std::string operator()(const sm90::BlockConfig& c) const {
    return Joined({c.tile.rows, c.tile.tokens, c.stages, c.ctas});
  }
};

// Exactly `count` numbers between commas.
std::optional<std::vector<int>> ParseNumbers(std::string_view text, size_t count) {
  std::vector<int> numbers;
  while (!text.empty() && numbers.size() < count) {
    int64_t number;
    if (!ParseNumber(TakeUntil(',', &text), std::numeric_limits<uint16_t>::max(), &number)) break;
    numbers.push_back(static_cast<int>(number));
  }
  if (numbers.size() != count || !text.empty()) return std::nullopt;
  return numbers;
}

}  // namespace

std::string ToString(const GemmDesc& desc) {
  return std::to_string(desc.rows) + "x" + std::to_string(desc.stride) + " " +
         Name(kTypes, desc.weight) + Name(kWeightScalings, desc.weight_scaling) + " " +
         Name(kTypes, desc.input) + Name(kScalings, desc.input_scaling) + " " +
         Name(kTypes, desc.output) + " " + Name(kEpilogues, desc.epilogue);
}

std::optional<GemmDesc> ParseGemmDesc(std::string_view text) {
  GemmDesc desc = {};
  if (!ParseNumber(TakeUntil('x', &text), kMostTokens, &desc.rows) ||
      !ParseNumber(TakeUntil(' ', &text), kMostTokens, &desc.stride) ||
      !ParseOperand(kWeightScalings, TakeUntil(' ', &text), &desc.weight, &desc.weight_scaling) ||
      !ParseOperand(kScalings, TakeUntil(' ', &text), &desc.input, &desc.input_scaling) ||
      !ParseName(kTypes, TakeUntil(' ', &text), &desc.output) ||
      !ParseName(kEpilogues, text, &desc.epilogue)) {
    return std::nullopt;
  }
  return desc;
}

std::string ToString(const GemmConfig& config) {
  std::string text = Name(kKernels, config.kernel.index()) + ":";
  text += std::visit(NumbersOf(), config.kernel);
  if (config.run_tokens > 0) text += "@" + std::to_string(config.run_tokens);
  return text;
}

std::optional<GemmConfig> ParseGemmConfig(std::string_view text) {
  GemmConfig config;
  size_t kernel;
  if (!ParseName(kKernels, TakeUntil(':', &text), &kernel)) return std::nullopt;
  constexpr size_t kCounts[] = {kAlgorithmNumbers, 2, 5, 4};
  const bool padded = text.find('@') != std::string_view::npos;
  const auto numbers = ParseNumbers(TakeUntil('@', &text), kCounts[kernel]);
  if (!numbers.has_value()) return std::nullopt;
  if (padded && (kernel != 0 || !ParseNumber(text, kMostTokens, &config.run_tokens) ||
                 config.run_tokens == 0)) {
    return std::nullopt;
  }
  const std::vector<int>& n = *numbers;
  const auto at = [&](size_t i) { return static_cast<uint16_t>(n[i]); };
  if (kernel == 0) {
    config.kernel = AlgorithmConfig{at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7), at(8)};
  } else if (kernel == 1) {
    config.kernel = sm90::SkinnyConfig{.stages = n[0], .ctas = n[1]};
  } else if (kernel == 2) {
    config.kernel = sm90::WideConfig{
        .tile = {.rows = n[0], .tokens = n[1], .cluster = n[2]}, .stages = n[3], .ctas = n[4]};
  } else {
    config.kernel =
        sm90::BlockConfig{.tile = {.rows = n[0], .tokens = n[1]}, .stages = n[2], .ctas = n[3]};
  }
  return config;
}

std::string ToString(const GemmRanges& ranges) {
  std::string text;
  for (const GemmRange& range : ranges) {
    if (!text.empty()) text += ' ';
    text += std::to_string(range.tokens) + "=" + ToString(range.config);
  }
  return text;
}

std::optional<GemmRanges> ParseGemmRanges(std::string_view text) {
  GemmRanges ranges;
  while (!text.empty()) {
    std::string_view word = TakeUntil(' ', &text);
    GemmRange range = {};
    if (!ParseNumber(TakeUntil('=', &word), kMostTokens, &range.tokens)) return std::nullopt;
    if (range.tokens <= (ranges.empty() ? 0 : ranges.back().tokens)) return std::nullopt;
    const std::optional<GemmConfig> config = ParseGemmConfig(word);
    if (!config.has_value()) return std::nullopt;
    range.config = *config;
    ranges.push_back(range);
  }
  if (ranges.empty()) return std::nullopt;
  return ranges;
}

void MakeMonotone(std::vector<TimedRange>* ranges, int64_t (*capacity)(int64_t tokens)) {
  constexpr double kAsFast = 1.01;  // a smaller difference is noise
  for (size_t i = 0; i < ranges->size(); ++i) {
    TimedRange& range = (*ranges)[i];
    const int64_t least = i == 0 ? 1 : (*ranges)[i - 1].range.tokens + 1;
    const TimedRange* best = nullptr;
    for (size_t j = i + 1; j < ranges->size(); ++j) {
      const TimedRange& larger = (*ranges)[j];
      const bool library = std::holds_alternative<AlgorithmConfig>(larger.range.config.kernel);
      if (library && larger.range.tokens > capacity(least)) continue;
      if (larger.time > range.time * kAsFast) continue;
      if (best == nullptr || larger.time < best->time) best = &larger;
    }
    if (best == nullptr) continue;
    range.range.config = best->range.config;
    if (std::holds_alternative<AlgorithmConfig>(best->range.config.kernel)) {
      range.range.config.run_tokens = best->range.tokens;
    }
    range.time = best->time;
  }
}

}  // namespace millrace::kernels
