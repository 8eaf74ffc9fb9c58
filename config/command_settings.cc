#include "config/command_settings.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "base/strings.h"
#include "config/setting_makers.h"

namespace millrace {
namespace {

using setting_makers::Choice;
using setting_makers::kMaxTokens;
using setting_makers::List;
using setting_makers::Path;
using setting_makers::Size;
using setting_makers::Switch;
using setting_makers::Text;
using setting_makers::Time;
using setting_makers::Whole;
using setting_makers::WholeList;

// Parses a point, as "64:2048:16:80".
std::optional<BenchPoint> ParsePoint(std::string_view text) {
  std::vector<int32_t> numbers;
  for (const std::string_view part : SplitList(text, ':')) {
    const auto number = ParseNumber<int32_t>(part);
    if (!number || *number < 1 || *number > kMaxTokens) return {};
    numbers.push_back(*number);
  }
  const auto colons = static_cast<size_t>(std::count(text.begin(), text.end(), ':'));
  if (numbers.size() < 3 || numbers.size() > 4 || colons + 1 != numbers.size()) return {};
  return BenchPoint{numbers[0], numbers[1], {numbers.begin() + 2, numbers.end()}};
}

}  // namespace

std::vector<Setting> BenchSettings() {
  return {
      WholeList({"batch-sizes", "N,...", "sequences at a time, a line of the table for each"},
                &Settings::bench_batch_sizes, 1, 4096),
      Whole({"input-len", "TOKENS", "tokens of each prompt, which are drawn anew for each run"},
            &Settings::bench_input_len, 1, kMaxTokens),
      WholeList({"output-lens", "TOKENS[,TOKENS]",
                 "tokens to generate. Of two lengths a and b, a step is (T(b) - T(a)) / (b - a), T "
                 "being the medians of the wall times; with 1 alone, T is the prefill"},
                &Settings::bench_output_lens, 1, kMaxTokens),
      List({"points", "BATCH:INPUT:OUTPUT[:OUTPUT],...",
            "what to measure instead of the three above, as 64:2048:16:80,1:4096:1"},
           "comma-separated points of 3 or 4 whole numbers", "", &Settings::bench_points,
           ParsePoint),
      Whole({"reps", "N", "timed runs of each length; one more goes before them"},
            &Settings::bench_reps, 1, 1000),
      Path({"json", "FILE", "write all figures there too"}, &Settings::bench_json),
      Path({"peer", "FILE",
            "figures to stand beside these: what --json wrote in another run, or llama-bench -o "
            "json"},
           &Settings::bench_peer),
      Switch("trace",
             "then run each point once more and list where its steps' time goes on the GPU "
             "(--device cuda; needs libcupti)",
             &Settings::bench_trace),
      Switch("lone-rank",
             "run the first of --tensor-parallel-size ranks alone, on one GPU; it plays the "
             "others, so that its tokens mean nothing (--device cuda)",
             &Settings::bench_lone_rank),
      Choice({"routing", "LOADS",
              "how mixtures divide tokens among their experts, with --load-format dummy; uniform: "
              "each expert gets about as many; real: some get several times the mean, as in "
              "trained models"},
             &Settings::bench_routing, std::array<std::string_view, 2>{"uniform", "real"}),
  };
}

std::vector<Setting> HealthSettings() {
  using namespace std::chrono_literals;
  return {
      Choice({"probe", "PROBE",
              "what to ask of the server at --host and --http-port; ready: /readyz; live: /livez"},
             &Settings::probe, std::array<std::string_view, 2>{"ready", "live"}),
      Time({"probe-timeout", "TIME", "how long the answer may take"}, &Settings::probe_timeout,
           100ms, 1h),
  };
}

std::vector<Setting> ChatSettings() {
  return {
      Text({"url", "URL",
            "the server to talk to, http://127.0.0.1:8000; its key is --api-key. Without it the "
            "model is served for the chat alone"},
           "http:// or https:// with a host", &Settings::chat_url,
           [](std::string_view url) {
             const bool plain = url.starts_with("http://");
             return (plain || url.starts_with("https://")) && url.size() > (plain ? 7u : 8u);
           }),
      Text({"system", "TEXT", "what the model is told before the chat"}, "a line of text",
           &Settings::chat_system, [](std::string_view) { return true; }),
      Text({"prompt", "TEXT",
            "a message; its answer is printed, and the chat ends. A second word on the command "
            "line is the same"},
           "a line of text", &Settings::chat_prompt, [](std::string_view) { return true; }),
  };
}

std::vector<Setting> ConvertSettings() {
  return {
      Path({"output", "FOLDER",
            "the folder to make, new or empty. A second word on the command line is the same"},
           &Settings::output),
      Path({"model-config", "FOLDER",
            "a folder whose config.json, generation_config.json and tokenizer go with the model"},
           &Settings::model_config),
      Path({"rules", "FILE",
            "how the checkpoint's tensors are called in the folder (docs/models-and-formats.md). "
            "Without it: names of Hugging Face's stay, and those of torchtitan's Llama 3 and Qwen3 "
            "are known"},
           &Settings::rules),
      Choice({"output-dtype", "TYPE",
              "what float32, float16 and bfloat16 tensors are rounded to; auto: they stay as they "
              "are"},
             &Settings::output_type,
             std::array<std::string_view, 4>{"auto", "bfloat16", "float16", "float32"}),
      Size({"shard-size", "SIZE", "of each file, unless a tensor is larger"}, &Settings::shard_size,
           1 << 10, int64_t{1} << 44),
      Text({"check", "PROMPT",
            "then load the folder on the CPU and print this prompt's log-probabilities, before the "
            "folder gets its name"},
           "a line of text", &Settings::check, [](std::string_view) { return true; }),
  };
}

}  // namespace millrace
