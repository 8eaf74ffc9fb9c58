// Measures what lookup drafts cost: the preparation of a prompt on the text pool's threads, and
// each token of an answer, with a draft after it, on the engine's. Texts:
//
//   0  tokens by Zipf's law of a vocabulary of 50,000, which repeat pairs and triples as prose does
//   1  a file of 2,000 such tokens again and again, with every 50th token replaced
//   2  one frequent token between distinct ones: a state with transitions for half of the tokens
//   3  one token: a state of its own for each length
//
// `bytes` are those of the automaton for each token of the prompt.
#include <algorithm>
#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "benchmark/benchmark.h"
#include "speculative/lookup_drafter.h"

namespace millrace {
namespace {

constexpr int kProse = 0;
constexpr int kEdited = 1;
constexpr int kOneBetweenDistinct = 2;

std::vector<Token> MakeText(int kind, size_t size) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> uniform;
  // The rank of a word is about the reciprocal of its frequency.
  const auto word = [&] { return static_cast<Token>(std::pow(50'000, uniform(random))); };
  std::vector<Token> text(size);
  for (size_t i = 0; i < size; ++i) {
    if (kind == kProse || (kind == kEdited && (i < 2000 || i % 50 == 0))) {
      text[i] = word();
    } else if (kind == kEdited) {
      text[i] = text[i - 2000];
    } else if (kind == kOneBetweenDistinct) {
      text[i] = i % 2 == 0 ? 0 : static_cast<Token>(i);
    }
  }
  return text;
}

void Prompt(benchmark::State& state) {
  const std::vector<Token> text =
      MakeText(static_cast<int>(state.range(0)), static_cast<size_t>(state.range(1)));
  size_t bytes = 0;
  for (auto _ : state) {
    const auto index = LookupDrafter::IndexPrompt({}, text);
    bytes = index->MemoryBytes();
  }
  state.counters["bytes"] = static_cast<double>(bytes) / static_cast<double>(text.size());
}
BENCHMARK(Prompt)->ArgsProduct({{0, 1, 2, 3}, {2000, 100'000}})->Unit(benchmark::kMillisecond);

// A prompt of 4,000 tokens, and an answer of 1,000 that goes on with it.
void Answer(benchmark::State& state) {
  const std::vector<Token> text = MakeText(static_cast<int>(state.range(0)), 5000);
  const absl::Span<const Token> all = text;
  const auto prompt = LookupDrafter::IndexPrompt({}, all.subspan(0, 4000));
  for (auto _ : state) {
    LookupDrafter drafter({}, prompt, nullptr);
    for (size_t i = 4000; i < text.size(); ++i) {
      drafter.Append(all.subspan(i, 1));
      benchmark::DoNotOptimize(drafter.Draft(8));
    }
  }
  state.counters["per_token"] =
      benchmark::Counter(static_cast<double>(state.iterations() * 1000),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}
BENCHMARK(Answer)->DenseRange(0, 3)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace millrace
