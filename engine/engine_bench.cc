// Measures the host's cost of a token: the whole engine over an executor whose steps take no time,
// from the request to the event that an endpoint would read.
#include <memory>
#include <string>
#include <vector>

#include "base/log.h"
#include "benchmark/benchmark.h"
#include "engine/engine_test_util.h"

namespace millrace {
namespace {

// `streams` requests at a time, 100 tokens each, read at the end.
void BM_Engine(benchmark::State& state) {
  constexpr int kTokens = 100;
  const auto streams = static_cast<int32_t>(state.range(0));
  (void)SetLogLevels("warning");
  StepLimits limits = SmallLimits();
  limits.max_num_seqs = streams;
  limits.max_num_batched_tokens = 4096;
  limits.num_blocks = {streams * 16};
  auto engine = MakeEngine(std::make_shared<Script>(std::string(kTokens, 'x')), {}, limits);
  GenerateRequest request = TextRequest("Why is the sky blue?");
  request.max_tokens = kTokens;
  for (auto _ : state) {
    std::vector<std::unique_ptr<Reader>> readers;
    for (int32_t i = 0; i < streams; ++i) {
      readers.push_back(std::make_unique<Reader>(engine.get(), request));
    }
    engine->WaitIdle(SteadyTime::max());
    for (const std::unique_ptr<Reader>& reader : readers) reader->ReadAll();
  }
  state.counters["tokens"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * streams * kTokens, benchmark::Counter::kIsRate);
}
BENCHMARK(BM_Engine)->Arg(1)->Arg(16)->Arg(256)->UseRealTime()->MeasureProcessCPUTime();

}  // namespace
}  // namespace millrace
