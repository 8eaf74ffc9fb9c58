// Measures the HTTP endpoint without its sockets: a token of a stream, the reading of a request.
#include <benchmark/benchmark.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "server/http/openai/generation.h"
#include "server/http/openai/openai_request.h"
#include "server/http/scripted_engine_test_util.h"

namespace millrace {
namespace {

constexpr int kTokens = 1000;

// A chat stream's chunks, one a token, with as many alternatives as the argument says (-1: no
// log-probabilities). The engine's part, a locked queue, is in it.
void BM_StreamToken(benchmark::State& state) {
  const auto top = static_cast<int>(state.range(0));
  OutputEvent event = TextEvent(" token", {42});
  if (top >= 0) {
    event.details = {{.token = 42, .bytes = " token", .logprob = -0.123456f}};
    for (int i = 0; i < top; ++i) event.details[0].top.push_back({i, " other", -1.23456f});
  }
  for (auto _ : state) {
    state.PauseTiming();
    ScriptedEngine engine;
    ApiRequest request{.kind = ApiKind::kChat, .stream = true};
    request.prompts.emplace_back("p");
    Generation generation(std::move(request), "chatcmpl-0123456789abcdef", engine, [] {});
    const auto stream = engine.WaitStream();
    HttpResponse response;
    std::string body;
    state.ResumeTiming();
    for (int i = 0; i < kTokens; ++i) {
      stream->Push(event);
      body.clear();
      benchmark::DoNotOptimize(generation.Poll(response, body));
    }
  }
  state.SetItemsProcessed(state.iterations() * kTokens);
}
BENCHMARK(BM_StreamToken)->Arg(-1)->Arg(0)->Arg(5)->Arg(20);

// A chat request with this many bytes of text, without (0) or with (1) a tool and a schema.
void BM_ParseChat(benchmark::State& state) {
  const char* constraints =
      state.range(1) == 0
          ? ""
          : R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
               "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},)";
  const std::string body =
      absl::StrCat(R"({"messages": [{"role": "user", "content": ")",
                   std::string(static_cast<size_t>(state.range(0)), 'x'), "\"}],", constraints,
                   R"("model": "m", "stream": true, "temperature": 0.7})");
  for (auto _ : state) benchmark::DoNotOptimize(ParseApiRequest(ApiKind::kChat, body));
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(body.size()));
}
BENCHMARK(BM_ParseChat)->ArgsProduct({{500, 160 << 10, 8 << 20}, {0, 1}});

// A completion request with this many token ids.
void BM_ParseTokenIds(benchmark::State& state) {
  std::string body = R"({"prompt": [1)";
  for (int64_t i = 1; i < state.range(0); ++i) absl::StrAppend(&body, ",", i % 50'000);
  body += "]}";
  for (auto _ : state) benchmark::DoNotOptimize(ParseApiRequest(ApiKind::kCompletion, body));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_ParseTokenIds)->Arg(40'000);

}  // namespace
}  // namespace millrace
