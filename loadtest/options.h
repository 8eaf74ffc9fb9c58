// Everything that the command line says.
#ifndef MILLRACE_LOADTEST_OPTIONS_H_
#define MILLRACE_LOADTEST_OPTIONS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "loadtest/arrivals.h"
#include "loadtest/lengths.h"

namespace millrace {

enum class Protocol { kHttp, kGrpc };
enum class LoadCommand { kRun, kSweep, kReplay, kCompare };
// How the server counts tokens for us: at a stream's end, in each chunk, or not at all.
enum class UsageReports { kFinal, kContinuous, kNone };

// Bounds that a good request keeps, in milliseconds.
struct Goals {
  std::optional<double> ttft;
  std::optional<double> tpot;
  std::optional<double> e2el;

  bool empty() const { return !ttft && !tpot && !e2el; }
  // Returns "ttft:200 tpot:50".
  std::string ToString() const;
};

struct Options {
  LoadCommand command = LoadCommand::kRun;
  std::vector<std::string> files;  // of compare, and that of replay, if it has one
  std::string print;               // --help and its like: print this, and end
  std::string flags;               // the arguments, as FlagsText has them

  // Server.
  std::string url;
  Protocol protocol = Protocol::kHttp;
  std::string endpoint = "/v1/completions";
  std::string model;
  std::string api_key;
  std::string cacert;  // PEM files, with https://
  std::string cert;
  std::string key;
  bool insecure = false;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string extra_body;   // a JSON object
  int64_t connections = 0;  // gRPC channels; 0: one for every 100 calls

  // Load.
  int64_t concurrency = 0;  // 0: 1 in a closed loop, unlimited in an open one
  std::optional<double> rate;
  std::optional<ArrivalKind> arrival;
  std::string trace_file;
  double burstiness = 1;
  int64_t burst_size = 10;
  double ramp_start = 1;
  double duration = 0;  // seconds; 0: until num_prompts are done
  int64_t num_prompts = 0;
  int64_t num_warmups = 0;
  double grace = 60;    // seconds
  int64_t threads = 0;  // 0: a thread a core, two at most
  uint64_t seed = 0;

  // Requests.
  Lengths input_len = Lengths(128);
  std::optional<Lengths> output_len;  // default: 128, or what a data set or a trace says
  int64_t prefix_len = 0;
  int64_t num_prefixes = 1;
  Lengths turns = Lengths(1);
  double think_time = 0;  // seconds
  std::string dataset;
  int64_t vocab_size = 0;  // above 0: prompts are random token ids
  bool calibrate = true;
  bool ignore_eos = true;
  double temperature = 0;
  UsageReports usage = UsageReports::kFinal;

  // Replay.
  bool recorded_answers = false;
  bool keep_reasoning = false;
  double delay_ratio = 1;
  double think_sigma = 0;  // of the logarithm of think_time
  int64_t tools = 0;
  Lengths result_len = Lengths(200);
  double result_ratio = 1;
  double tool_time = 0;  // seconds
  int64_t branches = 1;
  double branch_ratio = 1;
  std::string save_trace;

  // Clients.
  double deadline = 0;  // seconds; 0: none
  double cancel_ratio = 0;
  double slow_ratio = 0;
  double slow_rate = 1000;  // bytes a second

  // Results.
  std::string json_file;
  std::string html_file;
  std::string label;
  std::vector<std::pair<std::string, std::string>> metadata;  // of the server, for reports
  bool save_detailed = false;
  bool quiet = false;
  Goals goals;
  std::vector<double> percentiles = {50, 90, 99};

  // Sweep.
  std::vector<double> rates;
  std::vector<int64_t> concurrencies;
  double attainment = 0.99;
  double max_rate = 100'000;
  int64_t steps = 12;

  bool replays() const { return command == LoadCommand::kReplay; }
  bool open_loop() const { return rate || arrival; }
  bool chat() const { return endpoint.ends_with("/chat/completions"); }
};

// Reads the arguments after the program's name. An error names the flag, what came and what is
// allowed.
absl::StatusOr<Options> ParseOptions(const std::vector<std::string>& arguments);

// Returns "0.1.0".
std::string_view LoadtestVersion();

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_OPTIONS_H_
