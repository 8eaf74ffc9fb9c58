#include "loadtest/flags.h"

#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "loadtest/flag_setters.h"

namespace millrace {
namespace {

// Makes a row of the table: LoadFlag's members, those last that most flags do not have.
LoadFlag Flag(std::string_view group, std::string_view name, std::string_view alias,
              std::string_view value, std::string_view help,
              std::function<absl::Status(Options&, std::string_view)> set,
              std::vector<std::string_view> choices = {}, bool many = false) {
  return {group, name, alias, value, help, std::move(choices), std::move(set), many};
}

std::vector<LoadFlag> ServerFlags() {
  const std::string_view group = "Server";
  return {
      Flag(group, "url", "base-url", "URL",
           "the server: http://HOST:PORT, by default http://127.0.0.1:8000; of gRPC HOST:PORT, by "
           "default 127.0.0.1:8001; https://HOST:PORT: with TLS, of either",
           SetText(&Options::url)),
      Flag(group, "protocol", "", "PROTOCOL",
           "http: any server with OpenAI's API; grpc: millrace.v1.Inference",
           SetOneOf(&Options::protocol,
                    std::vector<std::pair<std::string_view, Protocol>>{{"http", Protocol::kHttp},
                                                                       {"grpc", Protocol::kGrpc}}),
           {"http", "grpc"}),
      Flag(group, "endpoint", "", "PATH",
           "path of the HTTP API; default /v1/completions. Requests to a path that ends with "
           "/chat/completions have messages",
           SetText(&Options::endpoint), {"/v1/completions", "/v1/chat/completions"}),
      Flag(group, "model", "", "NAME", "the model; default: the first that is listed",
           SetText(&Options::model)),
      Flag(group, "api-key", "", "KEY",
           "sent as a bearer token; default: the environment's OPENAI_API_KEY",
           SetText(&Options::api_key)),
      Flag(group, "cacert", "", "FILE",
           "authorities (PEM), one of which has signed the server's certificate; default: the "
           "system's",
           SetText(&Options::cacert)),
      Flag(group, "cert", "", "FILE", "a certificate (PEM) to show to the server, and its chain",
           SetText(&Options::cert)),
      Flag(group, "key", "", "FILE", "the key (PEM) of --cert; default: the same file has it",
           SetText(&Options::key)),
      Flag(group, "insecure", "", "", "take any certificate of the server",
           SetSwitch(&Options::insecure, true)),
      Flag(group, "header", "", "NAME:VALUE",
           "a further header, or metadata of gRPC; may be repeated", AddHeader),
      Flag(group, "extra-body", "", "JSON",
           "an object whose fields are added to each HTTP request, over those of the same name",
           SetText(&Options::extra_body)),
      Flag(group, "connections", "", "N",
           "connections of gRPC; default: one for every 100 calls at once, and at least one a "
           "thread",
           SetWhole<int64_t>(&Options::connections, 1, 10'000)),
  };
}

std::vector<LoadFlag> LoadShapeFlags() {
  const std::string_view group = "Load";
  return {
      Flag(group, "concurrency", "max-concurrency", "N",
           "clients of the closed loop, which each send a request when the one before has ended; "
           "of an open loop, the most requests at once. Default: 1, and no bound",
           SetWhole<int64_t>(&Options::concurrency, 1, 1'000'000)),
      Flag(group, "rate", "request-rate", "R",
           "requests a second, whatever the server's pace (open loop). Latencies then count from "
           "the time at which a request was due. inf: closed loop",
           SetRate),
      Flag(
          group, "arrival", "", "KIND",
          "how an open loop's requests arrive; default poisson. burst: --burst-size at once; ramp: "
          "from --ramp-up-start-rps to --rate over --duration; trace FILE: at the times of a file",
          SetArrival, {"poisson", "constant", "burst", "ramp", "trace"}),
      Flag(
          group, "burstiness", "", "SHAPE",
          "shape of the gamma distribution of gaps; default 1, a Poisson process; less is burstier",
          SetReal(&Options::burstiness, 1e-2, 1e6)),
      Flag(group, "burst-size", "", "N", "requests of a burst; default 10",
           SetWhole<int64_t>(&Options::burst_size, 1, 1'000'000)),
      Flag(group, "ramp-up-start-rps", "", "R", "requests a second at a ramp's start; default 1",
           SetReal(&Options::ramp_start, 0, 1e6)),
      Flag(group, "duration", "", "TIME", "sends no more after it; default: until --num-prompts",
           SetSeconds(&Options::duration)),
      Flag(
          group, "num-prompts", "", "N",
          "sends so many requests, or sessions of several --turns; default 100 without --duration, "
          "and of a replayed file all sessions",
          SetWhole<int64_t>(&Options::num_prompts, 1, 1'000'000'000)),
      Flag(group, "num-warmups", "", "N",
           "requests before the run, which count for nothing; default 0",
           SetWhole<int64_t>(&Options::num_warmups, 0, 1'000'000)),
      Flag(group, "grace", "", "TIME",
           "how long running requests may take after --duration; default 60s",
           SetSeconds(&Options::grace)),
      Flag(group, "threads", "", "N", "threads; default: one a core, and two at most",
           SetWhole<int64_t>(&Options::threads, 1, 256)),
      Flag(group, "seed", "", "N",
           "the same seed and flags give the same requests at the same times; default 0",
           SetWhole<uint64_t>(&Options::seed, 0, UINT64_MAX)),
  };
}

std::vector<LoadFlag> RequestFlags() {
  const std::string_view group = "Requests";
  return {
      Flag(group, "input-len", "random-input-len", "LENGTH",
           "tokens of a prompt: N, uniform:LOW:HIGH, normal:MEAN:DEVIATION or "
           "lognormal:MEDIAN:SIGMA; default 128. Of sessions, of each turn",
           SetLengths(&Options::input_len)),
      Flag(group, "output-len", "random-output-len", "LENGTH",
           "tokens of an answer; default 128, or those of --dataset or a trace",
           SetLengths(&Options::output_len)),
      Flag(group, "prefix-len", "random-prefix-len", "N",
           "tokens before those of --input-len that requests share; default 0",
           SetWhole<int64_t>(&Options::prefix_len, 0, 1'000'000)),
      Flag(group, "num-prefixes", "", "N", "different shared prefixes; default 1",
           SetWhole<int64_t>(&Options::num_prefixes, 1, 1'000'000)),
      Flag(group, "turns", "", "LENGTH",
           "turns of a session, each of which sends what was said before again; default 1",
           SetLengths(&Options::turns)),
      Flag(group, "think-time", "", "TIME",
           "between an answer and the session's next turn; default 0",
           SetSeconds(&Options::think_time)),
      Flag(group, "dataset", "dataset-path", "FILE",
           "prompts from a JSON Lines file, or an array, of ShareGPT's conversations, of objects "
           "with messages, or with prompt and output_tokens",
           SetText(&Options::dataset)),
      Flag(group, "vocab-size", "", "N",
           "prompts are random token ids below N, so that their lengths are exact; not for chats",
           SetWhole<int64_t>(&Options::vocab_size, 2, 10'000'000)),
      Flag(group, "no-calibrate", "", "",
           "count a word as a token, in place of asking the server with two requests",
           SetSwitch(&Options::calibrate, false)),
      Flag(group, "no-ignore-eos", "", "", "let answers end where the model ends them",
           SetSwitch(&Options::ignore_eos, false)),
      Flag(group, "temperature", "", "T", "default 0", SetReal(&Options::temperature, 0, 2)),
      Flag(group, "usage", "", "WHEN",
           "when the server counts tokens for us: at the end of a stream (final, the default), in "
           "each event (continuous), or not at all (none), and each event counts as one",
           SetOneOf(&Options::usage,
                    std::vector<std::pair<std::string_view, UsageReports>>{
                        {"final", UsageReports::kFinal},
                        {"continuous", UsageReports::kContinuous},
                        {"none", UsageReports::kNone}}),
           {"final", "continuous", "none"}),
  };
}

std::vector<LoadFlag> ReplayFlags() {
  const std::string_view group = "Replay";
  return {
      Flag(group, "recorded-answers", "", "",
           "the trace's answers stand in the history of later turns, in place of the server's",
           SetSwitch(&Options::recorded_answers, true)),
      Flag(group, "keep-reasoning", "", "", "send the server's thoughts back, too",
           SetSwitch(&Options::keep_reasoning, true)),
      Flag(group, "delay-ratio", "", "R", "multiplies the pauses between turns; default 1",
           SetReal(&Options::delay_ratio, 0, 1000)),
      Flag(group, "tools", "", "N",
           "tools that synthetic sessions define; with them later turns bring a tool's result",
           SetWhole<int64_t>(&Options::tools, 1, 1000)),
      Flag(group, "result-len", "", "LENGTH", "tokens of a tool's result; default 200",
           SetLengths(&Options::result_len)),
      Flag(group, "result-ratio", "", "SHARE",
           "share of later turns that bring a tool's result, the others a question; default 1",
           SetReal(&Options::result_ratio, 0, 1)),
      Flag(group, "tool-time", "", "TIME", "from an answer to its tool's result; default 0",
           SetSeconds(&Options::tool_time)),
      Flag(
          group, "think-sigma", "", "SIGMA",
          "draws each --think-time from a log-normal distribution with this sigma, whose median it "
          "is; default 0",
          SetReal(&Options::think_sigma, 0, 5)),
      Flag(group, "branches", "", "K",
           "synthetic sessions go on K times from the same history, after a turn by chance",
           SetWhole<int64_t>(&Options::branches, 2, 1000)),
      Flag(group, "branch-ratio", "", "SHARE", "share of sessions that branch; default 1",
           SetReal(&Options::branch_ratio, 0, 1)),
      Flag(group, "save-trace", "", "FILE",
           "writes the synthetic sessions as a trace, before they are sent",
           SetText(&Options::save_trace)),
  };
}

std::vector<LoadFlag> ClientFlags() {
  const std::string_view group = "Clients";
  return {
      Flag(group, "deadline", "", "TIME", "a request that takes longer is given up",
           SetSeconds(&Options::deadline)),
      Flag(group, "cancel-ratio", "", "SHARE",
           "share of requests that are given up after a random number of tokens; default 0",
           SetReal(&Options::cancel_ratio, 0, 1)),
      Flag(group, "slow-ratio", "", "SHARE",
           "share of requests that are read slowly, and whose times do not count; default 0",
           SetReal(&Options::slow_ratio, 0, 1)),
      Flag(group, "slow-rate", "", "BYTES", "bytes a second that slow clients read; default 1000",
           SetReal(&Options::slow_rate, 1, 1e9)),
  };
}

std::vector<LoadFlag> ResultFlags() {
  const std::string_view group = "Results";
  return {
      Flag(group, "json", "result-filename", "FILE",
           "writes the result, with the keys of vllm bench serve", SetText(&Options::json_file)),
      Flag(group, "html", "", "FILE", "writes a report with plots, which needs no other file",
           SetText(&Options::html_file)),
      Flag(group, "save-detailed", "", "", "adds each request's figures and text to --json",
           SetSwitch(&Options::save_detailed, true)),
      Flag(group, "label", "", "TEXT", "the result's name in reports", SetText(&Options::label)),
      Flag(group, "metadata", "", "NAME=VALUE",
           "what a report says of the server besides what it says of itself, as gpu=H200 or "
           "flags=\"--quantization fp8\"; may be repeated",
           AddServerFact),
      Flag(group, "goodput", "slo", "GOALS",
           "what a good request keeps, in milliseconds, as ttft:200 tpot:50; also e2el", SetGoal,
           {}, true),
      Flag(group, "metric-percentiles", "", "LIST", "percentiles of the result; default 50,90,99",
           SetList(&Options::percentiles, 0, 100)),
      Flag(group, "quiet", "", "", "show no progress", SetSwitch(&Options::quiet, true)),
  };
}

std::vector<LoadFlag> SweepFlags() {
  const std::string_view group = "Sweep";
  return {
      Flag(group, "rates", "", "LIST", "runs once at each of these rates",
           SetList(&Options::rates, 1e-3, 1e6)),
      Flag(group, "concurrencies", "", "LIST", "runs once with each of these --concurrency",
           SetList(&Options::concurrencies, 1, 1e6)),
      Flag(group, "attainment", "", "SHARE",
           "share of requests that must keep the goals for a rate to hold; default 0.99",
           SetReal(&Options::attainment, 0, 1)),
      Flag(group, "max-rate", "", "R", "highest rate that is tried; default 100000",
           SetReal(&Options::max_rate, 1e-3, 1e6)),
      Flag(group, "steps", "", "N", "most runs of the search for the highest rate; default 12",
           SetWhole<int64_t>(&Options::steps, 2, 1000)),
  };
}

}  // namespace

const std::vector<LoadFlag>& LoadFlags() {
  static const auto* const kFlags = [] {
    auto* flags = new std::vector<LoadFlag>;
    for (const auto& group : {ServerFlags(), LoadShapeFlags(), RequestFlags(), ReplayFlags(),
                              ClientFlags(), ResultFlags(), SweepFlags()}) {
      flags->insert(flags->end(), group.begin(), group.end());
    }
    return flags;
  }();
  return *kFlags;
}

}  // namespace millrace
