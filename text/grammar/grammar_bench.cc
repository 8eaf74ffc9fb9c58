// Times compilation and masks over the vocabulary of MILLRACE_VOCABULARY, a GGUF file (llama.cpp's
// sources hold ggml-vocab-qwen2.gguf), or of the default model.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <numeric>
#include <string>

#include "formats/tokenizers/tokenizer_gguf.h"
#include "formats/twins/gguf_test_util.h"
#include "text/grammar/grammar.h"
#include "text/tokenizer/pipeline_tokenizer.h"

namespace millrace {
namespace {

struct Sample {
  const char* schema;
  const char* instance;
};

// As applications write them: pydantic's models, OpenAI's examples, free forms.
constexpr Sample kSamples[] = {
    {R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"},
         "email":{"type":"string","format":"email"}},"required":["name","age"],
         "additionalProperties":false})",
     R"({"name": "Ada Lovelace, Countess of London", "age": 36, "email": "ada@example.org"})"},
    {R"({"type":"object","properties":{"steps":{"type":"array","items":{"type":"object",
         "properties":{"explanation":{"type":"string"},"output":{"type":"string"}},
         "required":["explanation","output"],"additionalProperties":false}},
         "final_answer":{"type":"string"}},"required":["steps","final_answer"],
         "additionalProperties":false})",
     R"({"steps": [{"explanation": "Subtract 7 from both sides.", "output": "8x = -30"},
        {"explanation": "Divide by 8, and simplify.", "output": "x = -15/4"}],
        "final_answer": "x = -3.75"})"},
    {R"({"$defs":{"Node":{"type":"object","properties":{"value":{"type":"number"},
         "children":{"type":"array","items":{"$ref":"#/$defs/Node"}}},"required":["value"]}},
         "$ref":"#/$defs/Node"})",
     R"({"value": 1.5, "children": [{"value": 2, "children": []}, {"value": -3e2}]})"},
    {R"({"type":"object","properties":{"id":{"type":"string","format":"uuid"},
         "when":{"type":"string","format":"date-time"},"kind":{"enum":["create","update","delete"]},
         "count":{"type":"integer","minimum":0,"maximum":1000},
         "note":{"anyOf":[{"type":"string","maxLength":80},{"type":"null"}]},
         "code":{"type":"string","pattern":"^[A-Z]{2}-[0-9]+$"}},
         "required":["id","when","kind","count","note","code"],"additionalProperties":false})",
     R"({"id": "123e4567-e89b-12d3-a456-426614174000", "when": "2024-02-29T12:00:00Z",
        "kind": "update", "count": 512, "note": "The second note, after the first.",
        "code": "AB-1234"})"},
    {R"({"type":"object","additionalProperties":{"type":"array","items":{"type":"string"}}})",
     R"({"fruit": ["apple", "pear"], "colours of the rainbow": ["red", "orange", "yellow"]})"},
    {R"({"type":"object"})",
     R"({"any": {"thing": [1, true, null, "text with \"quotes\" and \u00e9"]}, "n": -0.25})"},
};

struct Text {
  std::unique_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const GrammarVocabulary> vocabulary;
};

const Text& Loaded() {
  static const Text& text = *new Text([] {
    const char* path = std::getenv("MILLRACE_VOCABULARY");
    const auto file = GgufFile::Open(path != nullptr ? path : DefaultModelPath());
    Text loaded;
    loaded.tokenizer = *PipelineTokenizer::Create(*MakeTokenizerSpec(*ReadGgufTokenizer(*file)));
    std::vector<VocabularyToken> tokens(loaded.tokenizer->vocab_size());
    for (size_t i = 0; i < tokens.size(); ++i) {
      const auto token = static_cast<Token>(i);
      tokens[i] = {loaded.tokenizer->TokenBytes(token), loaded.tokenizer->IsSpecial(token)};
    }
    const auto ends = loaded.tokenizer->end_of_generation();
    loaded.vocabulary = std::make_shared<GrammarVocabulary>(
        tokens, std::vector<Token>(ends.begin(), ends.end()), static_cast<int32_t>(tokens.size()));
    return loaded;
  }());
  return text;
}

void BM_Compile(benchmark::State& state) {
  const Sample& sample = kSamples[state.range(0)];
  for (auto _ : state) {
    benchmark::DoNotOptimize(
        Grammar::Compile({.kind = GrammarSpec::Kind::kJsonSchema, .text = sample.schema}));
  }
}
BENCHMARK(BM_Compile)->DenseRange(0, std::size(kSamples) - 1)->Unit(benchmark::kMicrosecond);

// Every mask along an instance of each schema. Each round begins with grammars that have seen
// nothing, as the first request with a schema does.
void BM_Masks(benchmark::State& state) {
  const Text& text = Loaded();
  std::vector<double> micros;
  for (auto _ : state) {
    for (const Sample& sample : kSamples) {
      const auto grammar =
          *Grammar::Compile({.kind = GrammarSpec::Kind::kJsonSchema, .text = sample.schema});
      GrammarMatcher matcher(grammar, text.vocabulary);
      std::vector<Token> tokens;
      if (auto encoded = text.tokenizer->Encode(sample.instance, {.add_special = false});
          encoded.ok()) {
        tokens = *std::move(encoded);
      }
      for (const Token token : tokens) {
        const auto begin = std::chrono::steady_clock::now();
        benchmark::DoNotOptimize(matcher.Mask());
        const std::chrono::duration<double, std::micro> took =
            std::chrono::steady_clock::now() - begin;
        micros.push_back(took.count());
        if (!matcher.Accept(token)) return state.SkipWithError("an instance was refused");
      }
    }
  }
  std::sort(micros.begin(), micros.end());
  const auto at = [&](double share) { return micros[static_cast<size_t>(share * micros.size())]; };
  state.counters["average_us"] =
      std::accumulate(micros.begin(), micros.end(), 0.0) / static_cast<double>(micros.size());
  state.counters["p50_us"] = at(0.5);
  state.counters["p90_us"] = at(0.9);
  state.counters["p99_us"] = at(0.99);
  state.counters["max_us"] = micros.back();
  state.counters["tokens"] = text.vocabulary->mask_size();
}
BENCHMARK(BM_Masks)->Unit(benchmark::kMillisecond);

// Grammars that count far, and a text whose repetitions they allow: 2,000 tokens, before each of
// which the mask is asked for. `masks` is the number of different ones.
struct FarCount {
  GrammarSpec spec;
  const char* begin;
  const char* repeated;
};

void BM_FarCounts(benchmark::State& state) {
  using Kind = GrammarSpec::Kind;
  constexpr size_t kTokens = 2000;
  const FarCount counts[] = {
      {{Kind::kRegex, "[a-zA-Z ]{20000}"}, "", "The quick brown fox jumps over the lazy dog "},
      {{Kind::kRegex, "(ab?){5000}"}, "", "abaabab"},
      {{Kind::kJsonSchema, R"({"type":"string","pattern":"^[a-z ,]*$","maxLength":20000})"},
       "\"",
       "the quick brown fox, the lazy dog, "},
      {{Kind::kJsonSchema, R"({"type":"array","maxItems":1000,"items":{"type":"object",
        "properties":{"name":{"type":"string"}},"required":["name"],
        "additionalProperties":false}})"},
       "[",
       "{\"name\": \"fox\"}, "},
  };
  const Text& text = Loaded();
  const FarCount& one = counts[state.range(0)];
  std::string answer = one.begin;
  for (size_t i = 0; i < kTokens; ++i) answer += one.repeated;
  const std::vector<Token> tokens = *text.tokenizer->Encode(answer, {.add_special = false});
  size_t masks = 0;
  for (auto _ : state) {
    const auto grammar = *Grammar::Compile(one.spec);
    GrammarMatcher matcher(grammar, text.vocabulary);
    std::vector<std::shared_ptr<const TokenMask>> made;
    for (size_t i = 0; i < kTokens; ++i) {
      made.push_back(*matcher.Mask());
      if (!matcher.Accept(tokens[i])) return state.SkipWithError("the text was refused");
    }
    std::sort(made.begin(), made.end());
    masks = static_cast<size_t>(std::unique(made.begin(), made.end()) - made.begin());
  }
  state.counters["masks"] = static_cast<double>(masks);
}
BENCHMARK(BM_FarCounts)->DenseRange(0, 3)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace millrace
