#include "loadtest/options.h"

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/status.h"
#include "base/strings.h"
#include "loadtest/flag_setters.h"
#include "loadtest/flags.h"
#include "loadtest/setup.h"

#ifndef MILLRACE_VERSION
#error "the build defines MILLRACE_VERSION"
#endif

namespace millrace {
namespace {

using Arguments = std::vector<std::string>;

constexpr double kSweepDuration = 30;  // seconds, of each run at a rate
constexpr int64_t kDefaultPrompts = 100;

absl::Status Wrong(std::string_view message) {
  return absl::InvalidArgumentError(StrCat(message, "; see --help"));
}

bool IsFlag(std::string_view argument) { return argument.starts_with("--"); }

// Returns the flag of that name or alias, null if there is none.
const LoadFlag* FindFlag(std::string_view name) {
  for (const LoadFlag& flag : LoadFlags()) {
    if (flag.name == name || (!flag.alias.empty() && flag.alias == name)) return &flag;
  }
  return nullptr;
}

// Reads the flag at `at`, with its value, and moves `at` behind it.
absl::Status ReadFlag(const Arguments& arguments, size_t& at, Options& options) {
  const std::string_view argument = arguments[at++];
  const size_t equals = argument.find('=');
  const std::string_view name = argument.substr(2, equals == argument.npos ? equals : equals - 2);
  const LoadFlag* const flag = FindFlag(name);
  if (flag == nullptr) {
    return Wrong(StrCat("flag --", Printable(name), ": there is no such flag"));
  }
  const std::string shown = StrCat("flag --", name);
  if (flag->value.empty()) {
    if (equals != argument.npos) return Wrong(StrCat(shown, ": it takes no value"));
    return flag->set(options, "");
  }
  if (equals != argument.npos) {
    return Annotate(flag->set(options, argument.substr(equals + 1)), shown);
  }
  if (at == arguments.size()) return Wrong(StrCat(shown, ": its value is missing"));
  std::string value = arguments[at++];
  if (flag->name == "arrival" && value == "trace" && at < arguments.size() &&
      !IsFlag(arguments[at])) {
    value += ":" + arguments[at++];
  }
  while (flag->many && at < arguments.size() && !IsFlag(arguments[at])) {
    value += "," + arguments[at++];
  }
  return Annotate(flag->set(options, value), shown);
}

absl::Status CheckLoad(Options& options) {
  const bool is_trace = options.arrival == ArrivalKind::kTrace;
  if (is_trace == options.trace_file.empty()) {
    return Wrong("flag --arrival: trace needs a file, as in --arrival trace FILE");
  }
  if (is_trace && options.rate) {
    return Wrong("flag --rate: a trace has its own times");
  }
  const bool searches = options.command == LoadCommand::kSweep;
  if (options.arrival && !is_trace && !options.rate && !searches) {
    return Wrong("flag --arrival: it needs --rate");
  }
  if (options.arrival == ArrivalKind::kRamp && options.duration == 0) {
    return Wrong("flag --arrival: ramp needs --duration, over which the rate rises to --rate");
  }
  if (options.burstiness != 1 &&
      options.arrival.value_or(ArrivalKind::kPoisson) != ArrivalKind::kPoisson) {
    return Wrong("flag --burstiness: it is for --arrival poisson alone");
  }
  const bool has_end = options.num_prompts > 0 || options.duration > 0 || is_trace;
  if (has_end || (options.replays() && !options.files.empty())) return absl::OkStatus();
  if (searches && options.concurrencies.empty()) {
    // A rate must last for a while: a queue that grows slowly shows late.
    options.duration = kSweepDuration;
  } else {
    options.num_prompts = kDefaultPrompts;
  }
  return absl::OkStatus();
}

absl::Status CheckSweep(Options& options) {
  if (options.command != LoadCommand::kSweep) {
    if (!options.rates.empty() || !options.concurrencies.empty()) {
      return Wrong("flags --rates and --concurrencies are for `millrace-loadtest sweep` alone");
    }
    return absl::OkStatus();
  }
  if (!options.rates.empty() && !options.concurrencies.empty()) {
    return Wrong("flag --rates: a sweep is of rates or of concurrencies, not of both");
  }
  if (options.rates.empty() && options.concurrencies.empty() && options.goals.empty()) {
    return Wrong("a sweep needs --slo (as --slo ttft:200 tpot:50), --rates or --concurrencies");
  }
  if (options.arrival == ArrivalKind::kTrace || options.arrival == ArrivalKind::kRamp) {
    return Wrong("flag --arrival: a sweep's rates are steady; allowed: poisson, constant, burst");
  }
  if (!options.concurrencies.empty() && options.open_loop()) {
    return Wrong("flag --concurrencies: it sweeps a closed loop, which has no --rate or --arrival");
  }
  return absl::OkStatus();
}

// Refuses flags that the others leave without a use.
absl::Status CheckUses(const Options& options) {
  const Options usual;
  const bool sweeps = options.command == LoadCommand::kSweep;
  struct Use {
    const char* flag;
    bool is_given, is_used;
    const char* what;
  };
  for (const Use& use : {
           Use{"burst-size", options.burst_size != usual.burst_size,
               options.arrival == ArrivalKind::kBurst, "it is for --arrival burst"},
           Use{"ramp-up-start-rps", options.ramp_start != usual.ramp_start,
               options.arrival == ArrivalKind::kRamp, "it is for --arrival ramp"},
           Use{"burstiness", options.burstiness != usual.burstiness, options.open_loop() || sweeps,
               "a closed loop has none; it needs --rate"},
           Use{"think-time", options.think_time > 0,
               options.turns.most() > 1 || !options.dataset.empty(), "it needs --turns"},
           Use{"think-sigma", options.think_sigma > 0, options.think_time > 0,
               "it needs --think-time"},
           Use{"result-len", options.result_len.ToString() != usual.result_len.ToString(),
               options.tools > 0, "it needs --tools"},
           Use{"result-ratio", options.result_ratio != usual.result_ratio, options.tools > 0,
               "it needs --tools"},
           Use{"tool-time", options.tool_time > 0, options.tools > 0, "it needs --tools"},
           Use{"branch-ratio", options.branch_ratio != usual.branch_ratio, options.branches > 1,
               "it needs --branches"},
           Use{"slow-rate", options.slow_rate != usual.slow_rate, options.slow_ratio > 0,
               "it needs --slow-ratio"},
           Use{"num-prefixes", options.num_prefixes != usual.num_prefixes, options.prefix_len > 0,
               "it needs --prefix-len"},
           Use{"save-detailed", options.save_detailed, !options.json_file.empty() && !sweeps,
               "it needs --json, of one run"},
           Use{"attainment", options.attainment != usual.attainment, sweeps,
               "it is for `millrace-loadtest sweep` alone"},
           Use{"max-rate", options.max_rate != usual.max_rate, sweeps,
               "it is for `millrace-loadtest sweep` alone"},
           Use{"steps", options.steps != usual.steps, sweeps,
               "it is for `millrace-loadtest sweep` alone"},
           Use{"concurrency", options.concurrency > 0, options.concurrencies.empty(),
               "--concurrencies says how many"},
           Use{"rate", options.rate.has_value(), options.rates.empty(), "--rates says which"},
       }) {
    if (use.is_given && !use.is_used) return Wrong(StrCat("flag --", use.flag, ": ", use.what));
  }
  return absl::OkStatus();
}

absl::Status CheckReplay(const Options& options) {
  const Options usual;
  const bool is_synthetic = options.replays() && options.files.empty();
  struct Use {
    const char* flag;
    bool is_given, is_used;
  };
  for (const Use& use :
       {Use{"recorded-answers", options.recorded_answers, options.replays()},
        Use{"keep-reasoning", options.keep_reasoning, options.replays()},
        Use{"delay-ratio", options.delay_ratio != 1, options.replays()},
        Use{"tools", options.tools > 0, is_synthetic},
        Use{"think-sigma", options.think_sigma > 0, is_synthetic},
        Use{"branches", options.branches > 1, is_synthetic},
        Use{"save-trace", !options.save_trace.empty(), is_synthetic},
        Use{"turns", options.turns.most() > 1, !options.replays() || is_synthetic},
        Use{"prefix-len", options.prefix_len > 0, !options.replays() || is_synthetic},
        Use{"input-len", options.input_len.ToString() != usual.input_len.ToString(),
            !options.replays() || is_synthetic},
        Use{"dataset", !options.dataset.empty(), !options.replays()},
        Use{"vocab-size", options.vocab_size > 0, !options.replays()}}) {
    if (!use.is_given || use.is_used) continue;
    return Wrong(StrCat("flag --", use.flag, ": ",
                        options.replays() ? "a replay has no use for it"
                                          : "it is for `millrace-loadtest replay` alone",
                        options.replays() && !options.files.empty() ? " where it has a file" : ""));
  }
  if (!options.replays()) return absl::OkStatus();
  if (options.files.size() > 1) return Wrong("replay takes one file at most");
  if (is_synthetic && options.turns.most() < 2) {
    return Wrong("replay needs a file, as in replay sessions.jsonl, or --turns");
  }
  if (options.protocol == Protocol::kGrpc || !options.chat()) {
    return Wrong(
        "a replay is of chats over HTTP: allowed are --protocol http and an --endpoint "
        "that ends with /chat/completions");
  }
  if (!options.save_trace.empty() && options.num_prompts == 0) {
    return Wrong("flag --save-trace: it needs --num-prompts");
  }
  if (!options.extra_body.empty() &&
      nlohmann::json::parse(options.extra_body, nullptr, false).contains("messages")) {
    return Wrong("flag --extra-body: a replay has messages of its own");
  }
  return absl::OkStatus();
}

absl::Status CheckRequests(const Options& options) {
  if (!options.endpoint.starts_with('/') ||
      options.endpoint.find_first_of(" \r\n\t") != options.endpoint.npos) {
    return Wrong(StrCat("flag --endpoint: got \"", Printable(options.endpoint),
                        "\", expected a path that begins with /"));
  }
  if (!IsPrintableAscii(options.api_key)) {
    return Wrong(
        "the API key (--api-key, OPENAI_API_KEY) has characters that are not printable ASCII");
  }
  if (options.vocab_size > 0 && options.chat()) {
    return Wrong("flag --vocab-size: chats have no token ids");
  }
  if (!options.dataset.empty() && (options.vocab_size > 0 || options.prefix_len > 0)) {
    return Wrong(
        "flag --dataset: its prompts come as they are, without --vocab-size or --prefix-len");
  }
  if (options.vocab_size > 0 && options.turns.most() > 1) {
    return Wrong("flag --turns: sessions are of text, not of token ids (--vocab-size)");
  }
  if (!options.extra_body.empty()) {
    if (options.protocol == Protocol::kGrpc)
      return Wrong("flag --extra-body: it is for HTTP alone");
    if (!nlohmann::json::parse(options.extra_body, nullptr, false).is_object()) {
      return Wrong("flag --extra-body: expected a JSON object");
    }
  }
  if (!options.url.starts_with("https://")) {
    for (const auto& [flag, is_given] :
         {std::pair{"cacert", !options.cacert.empty()}, std::pair{"cert", !options.cert.empty()},
          std::pair{"key", !options.key.empty()}, std::pair{"insecure", options.insecure}}) {
      if (is_given) return Wrong(StrCat("flag --", flag, ": it is for --url https://HOST:PORT"));
    }
  }
  if (!options.key.empty() && options.cert.empty()) {
    return Wrong("flag --key: it is the key of --cert, which is not given");
  }
  if (options.insecure && !options.cacert.empty()) {
    return Wrong("flag --insecure: it takes any server, whatever --cacert has");
  }
  if (options.protocol == Protocol::kHttp && options.connections > 0) {
    return Wrong("flag --connections: it is for gRPC; over HTTP each stream has its own");
  }
  return absl::OkStatus();
}

// Handles --help and its like. Returns whether the argument was one.
bool Prints(const Arguments& arguments, size_t at, Options& options) {
  if (arguments[at] == "--help" || arguments[at] == "-h") {
    options.print = LoadtestHelp();
  } else if (arguments[at] == "--version") {
    options.print = StrCat("millrace-loadtest ", LoadtestVersion(), "\n");
  } else if (arguments[at] == "--print-man-page") {
    options.print = LoadtestManPage();
  } else if (arguments[at] == "--print-completion" && at + 1 < arguments.size()) {
    options.print = LoadtestCompletion(arguments[at + 1]);
  }
  return !options.print.empty();
}

}  // namespace

std::string Goals::ToString() const {
  std::string text;
  for (const auto& [name, bound] :
       {std::pair{"ttft:", ttft}, std::pair{"tpot:", tpot}, std::pair{"e2el:", e2el}}) {
    if (bound) text += StrCat(text.empty() ? "" : " ", name, *bound);
  }
  return text;
}

std::string_view LoadtestVersion() { return MILLRACE_VERSION; }

absl::StatusOr<Options> ParseOptions(const Arguments& arguments) {
  Options options;
  options.flags = FlagsText(arguments);
  size_t at = 0;
  for (const auto& [name, command] :
       {std::pair{"sweep", LoadCommand::kSweep}, std::pair{"replay", LoadCommand::kReplay},
        std::pair{"compare", LoadCommand::kCompare}}) {
    if (arguments.empty() || arguments[0] != name) continue;
    options.command = command;
    at = 1;
  }
  if (options.replays()) options.endpoint = "/v1/chat/completions";
  while (at < arguments.size()) {
    if (Prints(arguments, at, options)) return options;
    if (IsFlag(arguments[at])) {
      MILLRACE_RETURN_IF_ERROR(ReadFlag(arguments, at, options));
    } else if (options.command == LoadCommand::kCompare || options.replays()) {
      options.files.push_back(arguments[at++]);
    } else {
      return Wrong(StrCat("\"", Printable(arguments[at]),
                          "\" is neither a flag nor a command; commands: sweep, replay, compare"));
    }
  }
  if (options.command == LoadCommand::kCompare) {
    if (options.files.size() != 2)
      return Wrong("compare takes two files, as in compare A.json B.json");
    return options;
  }
  const char* const key = std::getenv("OPENAI_API_KEY");
  if (options.api_key.empty() && key != nullptr) options.api_key = key;
  MILLRACE_RETURN_IF_ERROR(CheckLoad(options));
  MILLRACE_RETURN_IF_ERROR(CheckSweep(options));
  MILLRACE_RETURN_IF_ERROR(CheckUses(options));
  MILLRACE_RETURN_IF_ERROR(CheckRequests(options));
  MILLRACE_RETURN_IF_ERROR(CheckReplay(options));
  if (options.url.empty()) {
    options.url = options.protocol == Protocol::kHttp ? "http://127.0.0.1:8000" : "127.0.0.1:8001";
  }
  return options;
}

}  // namespace millrace
