#include "engine/engine_test_util.h"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

#include "base/strings.h"

namespace millrace {
namespace {

constexpr auto kHang = std::chrono::seconds(60);

// A test that cannot go on.
[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::abort();
}

Metrics& AllMetrics() {
  static Metrics& metrics = *new Metrics;
  return metrics;
}

}  // namespace

Reader::Reader(Engine* engine, GenerateRequest request) {
  auto streams = engine->Generate(std::move(request), [signal = signal_] {
    std::lock_guard lock(signal->mutex);
    signal->ready = true;
    signal->changed.notify_all();
  });
  stream_ = std::move(streams.front());
}

Reader::Reader(std::shared_ptr<ResponseStream> stream, std::shared_ptr<Signal> signal)
    : signal_(std::move(signal)), stream_(std::move(stream)) {}

std::vector<Reader> Reader::OfChoices(Engine* engine, GenerateRequest request) {
  std::vector<std::shared_ptr<Signal>> signals;
  for (int32_t i = 0; i < request.n; ++i) signals.push_back(std::make_shared<Signal>());
  auto streams = engine->Generate(std::move(request), [signals] {
    for (const auto& signal : signals) {
      std::lock_guard lock(signal->mutex);
      signal->ready = true;
      signal->changed.notify_all();
    }
  });
  std::vector<Reader> readers;
  for (size_t i = 0; i < streams.size(); ++i) {
    readers.push_back(Reader(std::move(streams[i]), signals[i]));
  }
  return readers;
}

void Reader::Drain() {
  {
    std::lock_guard lock(signal_->mutex);
    signal_->ready = false;
  }
  while (std::optional<OutputEvent> event = stream_->Next()) events_.push_back(*std::move(event));
}

void Reader::WaitFor(const std::function<bool()>& done) {
  for (;;) {
    Drain();
    if (done()) return;
    WaitReady();
  }
}

void Reader::WaitReady() {
  std::unique_lock lock(signal_->mutex);
  const auto give_up = std::chrono::steady_clock::now() + kHang;
  if (!signal_->changed.wait_until(lock, give_up, [this] { return signal_->ready; })) {
    Die("a reader waited for an event in vain");
  }
}

const Finish& Reader::ReadAll() {
  WaitFor([this] { return !events_.empty() && events_.back().finish.has_value(); });
  return finish();
}

void Reader::ReadTokens(size_t count) {
  WaitFor([this, count] { return tokens().size() >= count; });
}

std::string Reader::text() const {
  std::string text;
  for (const OutputEvent& event : events_) {
    if (!event.echo) text += event.text;
  }
  return text;
}

std::vector<Token> Reader::tokens() const {
  std::vector<Token> tokens;
  for (const OutputEvent& event : events_) {
    if (!event.echo) tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
  }
  return tokens;
}

GenerateRequest TextRequest(std::string prompt) {
  GenerateRequest request;
  request.id = "cmpl-test";
  request.prompt.emplace<std::string>(std::move(prompt));
  return request;
}

std::unique_ptr<EngineImpl> MakeEngine(std::shared_ptr<Script> script, EngineOptions options,
                                       const StepLimits& limits) {
  static std::atomic<int> count = 0;
  options.model_name = "scripted" + std::to_string(++count);
  auto text = TextSet::Bytes();
  if (!text.ok()) Die(text.status().ToString());
  auto engine = EngineImpl::Create(std::move(options),
                                   std::make_unique<ScriptedExecutor>(limits, std::move(script)),
                                   *std::move(text), AllMetrics());
  if (!engine.ok()) Die(engine.status().ToString());
  return *std::move(engine);
}

double Metric(const Engine& engine, const std::string& name, const std::string& label) {
  const std::string series = StrCat(name, "{engine=\"0\",model_name=\"", engine.info().model_name,
                                    "\"", label.empty() ? "" : ",", label, "} ");
  const std::string text = AllMetrics().Render();
  const size_t at = text.find("\n" + series);
  if (at == text.npos) Die("there is no series " + series);
  return std::stod(text.substr(at + 1 + series.size()));
}

bool Eventually(const std::function<bool()>& done) {
  const auto give_up = std::chrono::steady_clock::now() + kHang;
  while (!done()) {
    if (std::chrono::steady_clock::now() > give_up) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace millrace
