#include <benchmark/benchmark.h>

#include <random>
#include <string>

#include "formats/tokenizers/tokenizer_gguf.h"
#include "formats/twins/gguf_test_util.h"
#include "text/tokenizer/pipeline_tokenizer.h"
#include "text/utf8.h"

namespace millrace {
namespace {

void BM_OpenModel(benchmark::State& state) {
  for (auto _ : state) {
    const auto file = GgufFile::Open(DefaultModelPath());
    benchmark::DoNotOptimize(ReadGgufTokenizer(*file));
  }
}
BENCHMARK(BM_OpenModel)->Unit(benchmark::kMillisecond);

void BM_CreateTokenizer(benchmark::State& state) {
  const GgufFile file = *GgufFile::Open(DefaultModelPath());
  const GgufTokenizer config = *ReadGgufTokenizer(file);
  for (auto _ : state) {
    benchmark::DoNotOptimize(PipelineTokenizer::Create(*MakeTokenizerSpec(config)));
  }
}
BENCHMARK(BM_CreateTokenizer)->Unit(benchmark::kMillisecond);

// Words drawn from the vocabulary, which is about what a prompt is made of.
void BM_Encode(benchmark::State& state) {
  const GgufFile file = *GgufFile::Open(DefaultModelPath());
  const auto tokenizer = *PipelineTokenizer::Create(*MakeTokenizerSpec(*ReadGgufTokenizer(file)));
  std::mt19937 random(1);
  std::string text;
  while (text.size() < static_cast<size_t>(state.range(0))) {
    const std::string_view word = tokenizer->TokenBytes(300 + static_cast<Token>(random() % 40000));
    if (word.starts_with(' ') && FindInvalidUtf8(word) == std::string_view::npos) text += word;
  }
  size_t tokens = 0;
  for (auto _ : state) tokens += tokenizer->Encode(text, {})->size();
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations() * text.size()));
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_Encode)->Arg(200)->Arg(200000)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace millrace
