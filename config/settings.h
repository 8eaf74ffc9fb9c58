// Every setting of the server, with its default. How each is named, what it may be and what it is
// for stands in settings_table.cc; from the two come the flags, the file's keys, the environment's
// names, --help and the table of docs/settings.md.
#ifndef MILLRACE_CONFIG_SETTINGS_H_
#define MILLRACE_CONFIG_SETTINGS_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/log.h"

namespace millrace {

enum class Command {
  kServe,
  kBench,
  kHealth,
  kDoctor,
  kGet,
  kList,
  kRemove,
  kChat,
  kConvert,
  kPrintKernels,
  kUsage,  // nothing was asked for: print what to do
};
enum class Runner { kAuto, kGenerate, kPooling };
enum class Device { kCpu, kCuda, kTorch, kFake };
enum class KvCacheType { kAuto, kFp8, kFloat32 };
enum class Quantization { kNone, kFp8, kInt8, kInt4 };
enum class LoadFormat { kAuto, kDummy };
enum class Routing { kUniform, kReal };
enum class FloatType { kFloat32, kBfloat16 };
enum class Probe { kReady, kLive };
enum class OutputType { kAuto, kBfloat16, kFloat16, kFloat32 };
enum class KernelSet { kAuto, kPortable };
// The treatment of a request's field that no table of fields declares.
enum class UnknownFields { kRefuse, kIgnore };
enum class Gemm { kAuto, kCublasLt };
enum class AllReduce { kAuto, kNccl };

// A point that `millraced bench` measures: `batch` sequences at a time, `input` prompt tokens each,
// one or two numbers of tokens to generate, ascending.
struct BenchPoint {
  int32_t batch;
  int32_t input;
  std::vector<int32_t> outputs;
};

// Read-only once the server has started.
struct Settings {
  // Model, a path or a name at the hub. Empty: the cached default model; its own tokenizer; the
  // file's stem; main.
  std::string model;
  std::string tokenizer;
  std::vector<std::string> served_model_names;
  std::string revision;
  std::string tokenizer_revision;
  bool offline = false;
  Runner runner = Runner::kAuto;
  std::string generation_config = "auto";  // "vllm", or a folder
  std::string tool_call_parser = "auto";
  std::string reasoning_parser = "auto";
  bool enable_auto_tool_choice = true;

  // Sampling, for requests that do not say it. Unset: as generation_config has it.
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<int32_t> top_k;
  std::optional<double> min_p;
  std::optional<double> typical_p;
  std::optional<double> repetition_penalty;
  std::optional<double> frequency_penalty;
  std::optional<double> presence_penalty;
  std::optional<int32_t> max_tokens;

  // Engine.
  Device device = Device::kCpu;
  int32_t threads = 0;        // 0: all cores
  int32_t max_model_len = 0;  // positions; 0: the model's
  int32_t max_num_seqs = 256;
  // 0, until LoadSettings puts the device's own in its place; the memories of caches stay 0 on a
  // GPU, and on the CPU until their sizes follow from the model and the memory
  // (server/doctor/memory_report.h).
  int32_t max_num_batched_tokens = 0;
  int32_t itl_slo_ms = 0;          // 0: prompts are cut as far as that takes at most a tenth longer
  int32_t block_size = 0;          // tokens
  int64_t kv_cache_memory = 0;     // bytes
  int64_t state_cache_memory = 0;  // bytes, as kv_cache_memory
  KvCacheType kv_cache_dtype = KvCacheType::kAuto;
  bool prefix_caching = true;
  std::string speculative_config;  // as ParseSpeculativeConfig takes it
  int32_t max_waiting = 1024;
  std::string faults;  // as ArmFaultPoints takes it
  Quantization quantization = Quantization::kNone;
  int32_t tensor_parallel_size = 1;
  bool enable_expert_parallel = false;
  Duration step_timeout = std::chrono::seconds(60);

  // The GPU.
  double gpu_memory_utilization = 0.9;
  LoadFormat load_format = LoadFormat::kAuto;
  KernelSet kernels = KernelSet::kAuto;
  Gemm gemm = Gemm::kAuto;
  bool quantize_lm_head = false;
  bool enforce_eager = false;
  int32_t graph_tokens = 1024;
  std::vector<int32_t> devices;  // the GPU of each rank; empty: 0, 1, 2 ...
  bool virtual_ranks = false;    // all ranks on one GPU
  AllReduce all_reduce = AllReduce::kAuto;
  bool exact = true;

  // Several hosts.
  int32_t nnodes = 1;
  int32_t node_rank = 0;
  std::string master_addr;  // node 0's
  int32_t master_port = 29500;
  std::string node_key;
  Duration node_timeout = std::chrono::minutes(10);
  std::string node_tls_cert;  // PEM files; all three or none
  std::string node_tls_key;
  std::string node_tls_ca;

  // LibTorch.
  FloatType dtype = FloatType::kFloat32;

  // Endpoints. `host` is an IPv4 or IPv6 address; a port of 0 is any free one.
  std::string host = "127.0.0.1";
  int32_t http_port = 8000;
  int32_t grpc_port = 8001;
  int32_t admin_port = 8002;
  std::string metrics_host;  // an address; empty: no listener for metrics alone
  int32_t metrics_port = 8003;
  std::string ready_file;  // empty: none
  UnknownFields unknown_fields = UnknownFields::kRefuse;

  // Access.
  std::vector<std::string> api_keys;
  std::string keys;  // a file; empty: none
  bool shared_prefix_cache = false;
  bool insecure = false;
  std::vector<std::string> allowed_hosts;
  std::vector<std::string> admin_allowed_hosts;    // of the administration's port
  std::vector<std::string> metrics_allowed_hosts;  // of the listener of metrics_host
  int32_t max_connections = 4096;
  int32_t grpc_max_streams = 256;
  Duration header_timeout = std::chrono::seconds(10);
  Duration unread_timeout = std::chrono::seconds(30);
  int64_t answer_memory = 64 << 20;  // of all clients; a tenant's share is a half of it
  Duration sse_ping_interval = std::chrono::seconds(10);
  std::vector<std::string> allowed_origins;
  std::vector<std::string> trusted_proxies;  // ranges of addresses
  std::string ssl_certfile;                  // PEM files; empty: no TLS
  std::string ssl_keyfile;                   // empty: the key stands in ssl_certfile
  std::string ssl_ca_certs;                  // empty: clients show no certificates
  std::string ssl_crl_file;                  // empty: no certificate is revoked
  int32_t ssl_cert_reqs = 2;  // of ssl_ca_certs: 0 none, 1 optional, 2 required, as in Python

  // Life.
  Duration drain_delay = Duration::zero();
  Duration drain_timeout = std::chrono::seconds(30);
  Duration stall_timeout = std::chrono::seconds(10);

  // Logs.
  std::string log = "info";  // as SetLogLevels takes it
  LogFormat log_format = LogFormat::kText;
  bool log_prompts = false;
  std::string otlp_traces_endpoint;
  std::string kv_events_config;  // a JSON object; empty: no events

  // The fake device.
  int64_t fake_step_us = 1000;
  int64_t fake_token_us = 10;
  int64_t fake_prompt_us = 0;
  int32_t fake_token_tile = 1;
  std::string fake_answer;  // empty: predictable characters

  bool dry_run = false;    // print the plan of memory instead of serving
  int64_t gpu_memory = 0;  // of the plan, bytes of each GPU; 0: of the GPU that is there

  // millraced bench.
  std::vector<int32_t> bench_batch_sizes = {1};
  int32_t bench_input_len = 128;
  std::vector<int32_t> bench_output_lens = {16, 144};
  std::vector<BenchPoint> bench_points;  // empty: made of the three above
  int32_t bench_reps = 3;
  std::string bench_json;  // empty: none
  std::string bench_peer;  // empty: none
  bool bench_trace = false;
  bool bench_lone_rank = false;
  Routing bench_routing = Routing::kUniform;

  // millraced health.
  Probe probe = Probe::kReady;
  Duration probe_timeout = std::chrono::seconds(3);

  // millraced chat.
  std::string chat_url;     // a server's; empty: the model is served for the chat alone
  std::string chat_system;  // empty: none
  std::string chat_prompt;  // empty: messages come from the input

  // millraced convert.
  std::string output;        // the new folder
  std::string model_config;  // a folder
  std::string rules;         // a file; empty: names are known by what they look like
  OutputType output_type = OutputType::kAuto;  // kAuto: each tensor keeps its own
  int64_t shard_size = 5'000'000'000;          // bytes
  std::string check;                           // a prompt; empty: none

  std::string config;  // the file that settings were read from; empty: none
};

}  // namespace millrace

#endif  // MILLRACE_CONFIG_SETTINGS_H_
