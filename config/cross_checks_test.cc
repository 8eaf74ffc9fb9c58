#include "config/cross_checks.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "config/load.h"

namespace millrace {
namespace {

using Arguments = std::vector<std::string>;

std::string Error(const Arguments& arguments, const std::vector<std::string>& environment) {
  const absl::StatusOr<Startup> startup = LoadSettings(arguments, environment);
  if (startup.ok()) return "(no error)";
  EXPECT_EQ(startup.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(startup.status().message());
}

struct Contradiction {
  Arguments arguments;
  std::vector<std::string> environment;
  std::string error;
};

TEST(CrossChecksTest, ALoopbackHostNeedsNoKeyAnotherNeedsOneOrInsecure) {
  EXPECT_EQ(LoadSettings({"--host=localhost"}, {})->settings.host, "localhost");
  EXPECT_EQ(LoadSettings({"--host=0.0.0.0", "--api-key=k"}, {})->settings.host, "0.0.0.0");
  EXPECT_EQ(LoadSettings({"--host=::", "--insecure"}, {})->settings.host, "::");
}

TEST(CrossChecksTest, SpeculationIsTakenAsVllmHasIt) {
  const std::string json = R"({"method": "ngram", "num_speculative_tokens": 5})";
  EXPECT_EQ(LoadSettings({"--speculative-config", json}, {})->settings.speculative_config, json);
  EXPECT_EQ(LoadSettings({"-sc", json}, {})->settings.speculative_config, json);
}

TEST(CrossChecksTest, Contradictions) {
  const Contradiction wrong[] = {
      {{"--host=0.0.0.0"},
       {},
       "flag --host: got \"0.0.0.0\", which others can reach: set --api-key or --keys, or "
       "--insecure to "
       "serve all without a key"},
      {{},
       {"MILLRACE_HOST=::"},
       "environment MILLRACE_HOST: got \"::\", which others can reach: set --api-key or --keys, or "
       "--insecure to serve all without a key"},
      {{"--device=cuda", "--threads=2"},
       {},
       "flag --threads: got \"2\", but on a GPU no threads compute"},
      {{"--device=cuda", "--gpu-memory-utilization=0.5", "--kv-cache-memory=1GiB"},
       {},
       "flag --gpu-memory-utilization: got \"0.5\", but --kv-cache-memory says how much"},
      {{"--speculative-config={method: eagle3}"},
       {},
       "flag --speculative-config: got \"{method: eagle3}\", method is \"eagle3\"; allowed: ngram, "
       "suffix, none (drafts of another model are not supported)"},
      {{"--quantization=fp8"},
       {},
       "flag --quantization: got \"fp8\", allowed only with --device cuda"},
      {{"--device=torch", "--quantization=int4"},
       {},
       "flag --quantization: got \"int4\", allowed only with --device cpu or cuda"},
      {{"--kv-cache-dtype=fp8"},
       {},
       "flag --kv-cache-dtype: got \"fp8\", allowed only with --device cuda"},
      {{"--device=torch", "--kv-cache-dtype=float32"},
       {},
       "flag --kv-cache-dtype: got \"float32\", allowed only with --device cpu"},
      {{"--exact=false"}, {}, "flag --exact: got \"false\", allowed only with --device cuda"},
      {{"--grpc-port=8002"},
       {},
       "flag --grpc-port: got \"8002\", which is --admin-port too: expected different ports, or 0"},
      {{"--http-port=8002"},
       {},
       "flag --http-port: got \"8002\", which is --admin-port too: expected different ports, or 0"},
      {{"--http-port=5", "--admin-port=5"},
       {},
       "flag --admin-port: got \"5\", which is --http-port too: expected different ports, or 0"},
      {{"--max-num-batched-tokens=32"},
       {},
       "flag --max-num-batched-tokens: got \"32\", fewer than --max-num-seqs (256): expected a "
       "token of each step for each running sequence"},
      {{"--max-num-seqs=513"},
       {},
       "flag --max-num-seqs: got \"513\", more than --max-num-batched-tokens (512): expected a "
       "token of each step for each running sequence"},
      {{"--device=fake", "--model=m.gguf"},
       {},
       "flag --model: got \"m.gguf\", but --device fake runs no model"},
      {{"--device=fake", "--threads=2"},
       {},
       "flag --threads: got \"2\", but --device fake runs no model"},
      {{"--revision=v1"}, {}, "flag --revision: got \"v1\", but no --model is given that it is of"},
      {{"--device=fake", "--tokenizer=m.gguf"},
       {},
       "flag --tokenizer: got \"m.gguf\", but --device fake runs no model"},
      {{"--tokenizer-revision=v1"},
       {},
       "flag --tokenizer-revision: got \"v1\", but no --tokenizer is given that it is of"},
      {{"--fake-step-us=1"}, {}, "flag --fake-step-us: got \"1\", allowed only with --device fake"},
      {{"--device=cpu", "--fake-token-us=1"},
       {},
       "flag --fake-token-us: got \"1\", allowed only with --device fake"},
      {{},
       {"MILLRACE_FAULTS=fake.hang"},
       "environment MILLRACE_FAULTS: got \"fake.hang\", but the points of this device begin with "
       "cpu."},
      {{"--faults=cpu.nan_row,cpu.rank_hang"},
       {},
       "flag --faults: got \"cpu.nan_row,cpu.rank_hang\", but with --tensor-parallel-size the "
       "points of the CPU are cpu.nan_row, cpu.small_arena and cpu.rank_…, and without it all but "
       "the last"},
      {{"--tensor-parallel-size=2", "--faults=cpu.hang"},
       {},
       "flag --faults: got \"cpu.hang\", but with --tensor-parallel-size the points of the CPU are "
       "cpu.nan_row, cpu.small_arena and cpu.rank_…, and without it all but the last"},
      {{"--device=torch", "--faults=fake.hang"},
       {},
       "flag --faults: got \"fake.hang\", allowed only with --device cpu, cuda or fake"},
      {{"--tensor-parallel-size=2", "--faults=fake.hang"},
       {},
       "flag --faults: got \"fake.hang\", but the points of this device begin with cpu."},
      {{"--device=cuda", "--tensor-parallel-size=9"},
       {},
       "flag --tensor-parallel-size: got \"9\", allowed with --device cuda: 1 to 8"},
      {{"--device=cuda", "--virtual-ranks"},
       {},
       "flag --virtual-ranks: got \"true\", but there is one rank (--tensor-parallel-size)"},
      {{"--device=cuda", "--tensor-parallel-size=2", "--devices=1"},
       {},
       "flag --devices: got \"1\", expected as many as there are ranks: 2 "
       "(--tensor-parallel-size)"},
      {{"--device=cuda", "--tensor-parallel-size=2", "--virtual-ranks", "--devices=0,1"},
       {},
       "flag --devices: got \"0,1\", expected as many as there are ranks: 1, since "
       "--virtual-ranks share one"},
      {{"--device=torch", "--tensor-parallel-size=2"},
       {},
       "flag --tensor-parallel-size: got \"2\", allowed only with --device cpu or cuda, or 1"},
      {{"--device=fake"},
       {"MILLRACE_TENSOR_PARALLEL_SIZE=3"},
       "environment MILLRACE_TENSOR_PARALLEL_SIZE: got \"3\", allowed only with --device cpu or "
       "cuda, or 1"},
      {{"--enable-expert-parallel"},
       {},
       "flag --enable-expert-parallel: got \"true\", but there is one rank "
       "(--tensor-parallel-size)"},
      {{"--step-timeout=1s"},
       {},
       "flag --step-timeout: got \"1s\", allowed only with --device cuda, or on the CPU with "
       "--tensor-parallel-size"},
      {{"--device=fake", "--step-timeout=1s"},
       {},
       "flag --step-timeout: got \"1s\", allowed only with --device cuda, or on the CPU with "
       "--tensor-parallel-size"},
      {{"--device=torch", "--enforce-eager"},
       {},
       "flag --enforce-eager: got \"true\", allowed only with --device cuda"},
      {{"--dtype=bfloat16"},
       {},
       "flag --dtype: got \"bfloat16\", allowed only with --device torch"},
      {{"--device=torch", "--model=a.pt2", "--max-num-seqs=3"},
       {},
       "flag --max-num-seqs: got \"3\", but an AOTInductor package (.pt2) without --tokenizer has "
       "only tensors, of the types that it was compiled for"},
      {{"--device=torch", "--model=a.pt2", "--otlp-traces-endpoint=http://h:1"},
       {},
       "flag --otlp-traces-endpoint: got \"http://h:1\", but an AOTInductor package (.pt2) without "
       "--tokenizer has only tensors, of the types that it was compiled for"},
      {{"--shared-prefix-cache"},
       {},
       "flag --shared-prefix-cache: got \"true\", but without --keys there are no tenants"},
      {{"--device=fake", "--runner=pooling"},
       {},
       "flag --runner: got \"pooling\", but --device fake runs no model"},
      {{"--kv-events-config=zmq"},
       {},
       "flag --kv-events-config: got \"zmq\", expected a JSON object"},
      {{"--kv-events-config={}", "--no-prefix-caching"},
       {},
       "flag --kv-events-config: got \"{}\", but --prefix-caching is off: no block is stored for "
       "others"},
      {{"--otlp-traces-endpoint=http://me:secret@h"},
       {},
       "flag --otlp-traces-endpoint: got \"http://me:secret@h\", expected http:// or https:// and "
       "a host, perhaps with a port and a path, without a user (OTEL_EXPORTER_OTLP_HEADERS has "
       "credentials), a query and spaces"},
      {{"--otlp-traces-endpoint=http://"},
       {},
       "flag --otlp-traces-endpoint: got \"http://\", expected http:// or https:// and a "
       "host, perhaps with a port and a path, without a user (OTEL_EXPORTER_OTLP_HEADERS has "
       "credentials), a query and spaces"},
      {{"--device=cuda", "--faults=cuda.hang,fake.hang"},
       {},
       "flag --faults: got \"cuda.hang,fake.hang\", but the points of this device begin with "
       "cuda."},
  };
  for (const Contradiction& w : wrong) EXPECT_EQ(Error(w.arguments, w.environment), w.error);
  EXPECT_TRUE(LoadSettings({"--http-port=0", "--grpc-port=0", "--admin-port=0"}, {}).ok());
  EXPECT_TRUE(LoadSettings({"--http-port=5", "--grpc-port=5"}, {}).ok());
}

}  // namespace
}  // namespace millrace
