#include "loadtest/flags.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/status.h"
#include "base/strings.h"
#include "loadtest/numbers.h"

namespace millrace {
namespace {

using Setter = std::function<absl::Status(Options&, std::string_view)>;

absl::Status Expected(std::string_view text, std::string_view expected) {
  return absl::InvalidArgumentError(StrCat("got \"", Printable(text), "\", expected ", expected));
}

template <typename Number>
Setter Whole(Number Options::*field, Number low, Number high) {
  return [=](Options& options, std::string_view text) {
    const std::optional<Number> number = ParseNumber<Number>(text);
    if (!number || *number < low || *number > high) {
      return Expected(text, StrCat("a whole number from ", low, " to ", high));
    }
    options.*field = *number;
    return absl::OkStatus();
  };
}

// Returns a setter of a number from `low` to `high`, for a member that a double can be assigned to.
template <typename Member>
Setter Real(Member Options::*field, double low, double high) {
  return [=](Options& options, std::string_view text) {
    const std::optional<double> number = ParseDecimal(text);
    if (!number || *number < low || *number > high) {
      return Expected(text, StrCat("a number from ", low, " to ", high));
    }
    options.*field = *number;
    return absl::OkStatus();
  };
}

Setter Seconds(double Options::*field) {
  return [=](Options& options, std::string_view text) {
    const std::optional<double> seconds = ParseSeconds(text);
    if (!seconds) return Expected(text, "a time, as 30, 2.5s, 500ms, 10m or 1h");
    options.*field = *seconds;
    return absl::OkStatus();
  };
}

Setter Text(std::string Options::*field) {
  return [=](Options& options, std::string_view text) {
    if (text.empty()) return Expected(text, "a text that is not empty");
    options.*field = std::string(text);
    return absl::OkStatus();
  };
}

template <typename Member>
Setter LengthsOf(Member Options::*field) {
  return [=](Options& options, std::string_view text) {
    MILLRACE_ASSIGN_OR_RETURN(options.*field, Lengths::Parse(text));
    return absl::OkStatus();
  };
}

Setter Switch(bool Options::*field, bool value) {
  return [=](Options& options, std::string_view) {
    options.*field = value;
    return absl::OkStatus();
  };
}

// Returns a setter of one of a few values, which have names.
template <typename Member, typename Value>
Setter OneOf(Member Options::*field, std::vector<std::pair<std::string_view, Value>> values) {
  return [=](Options& options, std::string_view text) {
    std::string allowed;
    for (const auto& [name, value] : values) {
      if (name == text) {
        options.*field = value;
        return absl::OkStatus();
      }
      allowed += StrCat(allowed.empty() ? "" : ", ", name);
    }
    return Expected(text, StrCat("one of ", allowed));
  };
}

absl::Status AddHeader(Options& options, std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const auto is_token = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
  };
  const bool is_name = !name.empty() && std::all_of(name.begin(), name.end(), is_token);
  if (colon == text.npos || !is_name || text.find_first_of("\r\n") != text.npos) {
    return Expected(text, "NAME:VALUE on one line");
  }
  options.headers.emplace_back(name, Trim(text.substr(colon + 1)));
  return absl::OkStatus();
}

absl::Status SetArrival(Options& options, std::string_view text) {
  if (text.starts_with("trace:") || text.starts_with("trace=")) {
    options.trace_file = std::string(text.substr(6));
    text = "trace";
  }
  return OneOf(&Options::arrival, std::vector<std::pair<std::string_view, ArrivalKind>>{
                                      {"poisson", ArrivalKind::kPoisson},
                                      {"constant", ArrivalKind::kConstant},
                                      {"burst", ArrivalKind::kBurst},
                                      {"ramp", ArrivalKind::kRamp},
                                      {"trace", ArrivalKind::kTrace}})(options, text);
}

absl::Status SetRate(Options& options, std::string_view text) {
  if (text == "inf") {  // vLLM's default: all at once, bounded by the concurrency alone
    options.rate.reset();
    return absl::OkStatus();
  }
  return Real(&Options::rate, 1e-3, 1e6)(options, text);
}

absl::Status SetGoal(Options& options, std::string_view text) {
  constexpr std::string_view kAllowed =
      "ttft:MS, tpot:MS or e2el:MS, separated by spaces or commas";
  for (const std::string_view goal : SplitList(text)) {
    const size_t colon = std::min(goal.find(':'), goal.size() - 1);
    const std::optional<double> bound = ParseDecimal(goal.substr(colon + 1));
    const std::string_view name = goal.substr(0, colon);
    if (!bound || *bound < 0) return Expected(goal, kAllowed);
    if (name == "ttft") {
      options.goals.ttft = bound;
    } else if (name == "tpot") {
      options.goals.tpot = bound;
    } else if (name == "e2el") {
      options.goals.e2el = bound;
    } else {
      return Expected(goal, kAllowed);
    }
  }
  return absl::OkStatus();
}

template <typename Number>
Setter ListOf(std::vector<Number> Options::*field, double low, double high) {
  return [=](Options& options, std::string_view text) {
    (options.*field).clear();
    for (const std::string_view part : SplitList(text)) {
      const std::optional<double> number = ParseDecimal(part);
      const bool is_whole = number && *number == std::floor(*number);
      if (!number || *number < low || *number > high || (std::is_integral_v<Number> && !is_whole)) {
        return Expected(part, StrCat("numbers from ", low, " to ", high, ", separated by commas"));
      }
      (options.*field).push_back(static_cast<Number>(*number));
    }
    if ((options.*field).empty()) return Expected(text, "numbers, separated by commas");
    return absl::OkStatus();
  };
}

std::vector<LoadFlag> ServerFlags() {
  const std::string_view group = "Server";
  return {
      {group,
       "url",
       "base-url",
       "URL",
       "the server: http://HOST:PORT, by default http://127.0.0.1:8000; of gRPC HOST:PORT, by "
       "default 127.0.0.1:8001",
       {},
       Text(&Options::url)},
      {group,
       "protocol",
       "",
       "PROTOCOL",
       "http: any server with OpenAI's API; grpc: millrace.v1.Inference",
       {"http", "grpc"},
       OneOf(&Options::protocol,
             std::vector<std::pair<std::string_view, Protocol>>{{"http", Protocol::kHttp},
                                                                {"grpc", Protocol::kGrpc}})},
      {group,
       "endpoint",
       "",
       "PATH",
       "path of the HTTP API; default /v1/completions. Requests to a path that ends with "
       "/chat/completions have messages",
       {"/v1/completions", "/v1/chat/completions"},
       Text(&Options::endpoint)},
      {group,
       "model",
       "",
       "NAME",
       "the model; default: the first that the server lists",
       {},
       Text(&Options::model)},
      {group,
       "api-key",
       "",
       "KEY",
       "sent as a bearer token; default: the environment's OPENAI_API_KEY",
       {},
       Text(&Options::api_key)},
      {group,
       "header",
       "",
       "NAME:VALUE",
       "a further header, or metadata of gRPC; may be repeated",
       {},
       AddHeader},
      {group,
       "extra-body",
       "",
       "JSON",
       "an object whose fields are added to each HTTP request, over those of the same name",
       {},
       Text(&Options::extra_body)},
      {group,
       "connections",
       "",
       "N",
       "connections of gRPC; default: one for every 100 calls at once, and at least one a thread",
       {},
       Whole<int64_t>(&Options::connections, 1, 10'000)},
  };
}

std::vector<LoadFlag> LoadShapeFlags() {
  const std::string_view group = "Load";
  return {
      {group,
       "concurrency",
       "max-concurrency",
       "N",
       "clients of the closed loop, which each send a request when the one before has ended; of an "
       "open loop, the most requests at once. Default: 1, and no bound",
       {},
       Whole<int64_t>(&Options::concurrency, 1, 1'000'000)},
      {group,
       "rate",
       "request-rate",
       "R",
       "requests a second, whatever the server's pace (open loop). Latencies then count from the "
       "time at which a request was due. inf: closed loop",
       {},
       SetRate},
      {group,
       "arrival",
       "",
       "KIND",
       "how an open loop's requests arrive; default poisson. burst: --burst-size at once; ramp: "
       "from "
       "--ramp-up-start-rps to --rate over --duration; trace FILE: at the times of a file",
       {"poisson", "constant", "burst", "ramp", "trace"},
       SetArrival},
      {group,
       "burstiness",
       "",
       "SHAPE",
       "shape of the gamma distribution of gaps; default 1, a Poisson process; less is burstier",
       {},
       Real(&Options::burstiness, 1e-2, 1e6)},
      {group,
       "burst-size",
       "",
       "N",
       "requests of a burst; default 10",
       {},
       Whole<int64_t>(&Options::burst_size, 1, 1'000'000)},
      {group,
       "ramp-up-start-rps",
       "",
       "R",
       "requests a second at a ramp's start; default 1",
       {},
       Real(&Options::ramp_start, 0, 1e6)},
      {group,
       "duration",
       "",
       "TIME",
       "sends no more after it; default: until --num-prompts",
       {},
       Seconds(&Options::duration)},
      {group,
       "num-prompts",
       "",
       "N",
       "sends so many requests, or sessions of several --turns; default 100 without --duration",
       {},
       Whole<int64_t>(&Options::num_prompts, 1, 1'000'000'000)},
      {group,
       "num-warmups",
       "",
       "N",
       "requests before the run, which count for nothing; default 0",
       {},
       Whole<int64_t>(&Options::num_warmups, 0, 1'000'000)},
      {group,
       "grace",
       "",
       "TIME",
       "how long running requests may take after --duration; default 60s",
       {},
       Seconds(&Options::grace)},
      {group,
       "threads",
       "",
       "N",
       "threads; default: one a core, and two at most",
       {},
       Whole<int64_t>(&Options::threads, 1, 256)},
      {group,
       "seed",
       "",
       "N",
       "the same seed and flags give the same requests at the same times; default 0",
       {},
       Whole<uint64_t>(&Options::seed, 0, UINT64_MAX)},
  };
}

std::vector<LoadFlag> RequestFlags() {
  const std::string_view group = "Requests";
  return {
      {group,
       "input-len",
       "random-input-len",
       "LENGTH",
       "tokens of a prompt: N, uniform:LOW:HIGH, normal:MEAN:DEVIATION or lognormal:MEDIAN:SIGMA; "
       "default 128. Of sessions, of each turn",
       {},
       LengthsOf(&Options::input_len)},
      {group,
       "output-len",
       "random-output-len",
       "LENGTH",
       "tokens of an answer; default 128, or those of --dataset or a trace",
       {},
       LengthsOf(&Options::output_len)},
      {group,
       "prefix-len",
       "random-prefix-len",
       "N",
       "tokens before those of --input-len that requests share; default 0",
       {},
       Whole<int64_t>(&Options::prefix_len, 0, 1'000'000)},
      {group,
       "num-prefixes",
       "",
       "N",
       "different shared prefixes; default 1",
       {},
       Whole<int64_t>(&Options::num_prefixes, 1, 1'000'000)},
      {group,
       "turns",
       "",
       "LENGTH",
       "turns of a session, each of which sends what was said before again; default 1",
       {},
       LengthsOf(&Options::turns)},
      {group,
       "think-time",
       "",
       "TIME",
       "between an answer and the session's next turn; default 0",
       {},
       Seconds(&Options::think_time)},
      {group,
       "dataset",
       "dataset-path",
       "FILE",
       "prompts from a JSON Lines file, or an array, of ShareGPT's conversations, of objects with "
       "messages, or with prompt and output_tokens",
       {},
       Text(&Options::dataset)},
      {group,
       "vocab-size",
       "",
       "N",
       "prompts are random token ids below N, so that their lengths are exact; not for chats",
       {},
       Whole<int64_t>(&Options::vocab_size, 2, 10'000'000)},
      {group,
       "no-calibrate",
       "",
       "",
       "count a word as a token, in place of asking the server with two requests",
       {},
       Switch(&Options::calibrate, false)},
      {group,
       "no-ignore-eos",
       "",
       "",
       "let answers end where the model ends them",
       {},
       Switch(&Options::ignore_eos, false)},
      {group, "temperature", "", "T", "default 0", {}, Real(&Options::temperature, 0, 2)},
      {group,
       "usage",
       "",
       "WHEN",
       "when the server counts tokens for us: at the end of a stream (final, the default), in each "
       "event (continuous), or not at all (none), and each event counts as one",
       {"final", "continuous", "none"},
       OneOf(&Options::usage,
             std::vector<std::pair<std::string_view, UsageReports>>{
                 {"final", UsageReports::kFinal},
                 {"continuous", UsageReports::kContinuous},
                 {"none", UsageReports::kNone}})},
  };
}

std::vector<LoadFlag> ClientFlags() {
  const std::string_view group = "Clients";
  return {
      {group,
       "deadline",
       "",
       "TIME",
       "a request that takes longer is given up",
       {},
       Seconds(&Options::deadline)},
      {group,
       "cancel-ratio",
       "",
       "SHARE",
       "share of requests that are given up after a random number of tokens; default 0",
       {},
       Real(&Options::cancel_ratio, 0, 1)},
      {group,
       "slow-ratio",
       "",
       "SHARE",
       "share of requests that are read slowly, and whose times do not count; default 0",
       {},
       Real(&Options::slow_ratio, 0, 1)},
      {group,
       "slow-rate",
       "",
       "BYTES",
       "bytes a second that slow clients read; default 1000",
       {},
       Real(&Options::slow_rate, 1, 1e9)},
  };
}

std::vector<LoadFlag> ResultFlags() {
  const std::string_view group = "Results";
  return {
      {group,
       "json",
       "result-filename",
       "FILE",
       "writes the result, with the keys of vllm bench serve",
       {},
       Text(&Options::json_file)},
      {group,
       "html",
       "",
       "FILE",
       "writes a report with plots, which needs no other file",
       {},
       Text(&Options::html_file)},
      {group,
       "save-detailed",
       "",
       "",
       "adds each request's figures and text to --json",
       {},
       Switch(&Options::save_detailed, true)},
      {group, "label", "", "TEXT", "the result's name in reports", {}, Text(&Options::label)},
      {group,
       "goodput",
       "slo",
       "GOALS",
       "what a good request keeps, in milliseconds, as ttft:200 tpot:50; also e2el",
       {},
       SetGoal,
       true},
      {group,
       "metric-percentiles",
       "",
       "LIST",
       "percentiles of the result; default 50,90,99",
       {},
       ListOf(&Options::percentiles, 0, 100)},
      {group, "quiet", "", "", "show no progress", {}, Switch(&Options::quiet, true)},
  };
}

std::vector<LoadFlag> SweepFlags() {
  const std::string_view group = "Sweep";
  return {
      {group,
       "rates",
       "",
       "LIST",
       "runs once at each of these rates",
       {},
       ListOf(&Options::rates, 1e-3, 1e6)},
      {group,
       "concurrencies",
       "",
       "LIST",
       "runs once with each of these --concurrency",
       {},
       ListOf(&Options::concurrencies, 1, 1e6)},
      {group,
       "attainment",
       "",
       "SHARE",
       "share of requests that must keep the goals for a rate to hold; default 0.99",
       {},
       Real(&Options::attainment, 0, 1)},
      {group,
       "max-rate",
       "",
       "R",
       "highest rate that is tried; default 100000",
       {},
       Real(&Options::max_rate, 1e-3, 1e6)},
      {group,
       "steps",
       "",
       "N",
       "most runs of the search for the highest rate; default 12",
       {},
       Whole<int64_t>(&Options::steps, 2, 1000)},
  };
}

}  // namespace

const std::vector<LoadFlag>& LoadFlags() {
  static const auto* const kFlags = [] {
    auto* flags = new std::vector<LoadFlag>;
    for (const auto& group : {ServerFlags(), LoadShapeFlags(), RequestFlags(), ClientFlags(),
                              ResultFlags(), SweepFlags()}) {
      flags->insert(flags->end(), group.begin(), group.end());
    }
    return flags;
  }();
  return *kFlags;
}

const LoadFlag* FindLoadFlag(std::string_view name) {
  for (const LoadFlag& flag : LoadFlags()) {
    if (flag.name == name || (!flag.alias.empty() && flag.alias == name)) return &flag;
  }
  return nullptr;
}

}  // namespace millrace
