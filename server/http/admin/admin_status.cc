#include "server/http/admin/admin_status.h"

#include <array>
#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/log.h"
#include "base/strings.h"
#include "config/help.h"
#include "engine/engine.h"
#include "server/console/console_files.h"
#include "server/http/admin/model_json.h"
#include "server/http/api/deferred_answer.h"
#include "server/http/json/json_writer.h"

namespace millrace {
namespace {

// The page runs its own files alone, talks to its own server alone, and makes no element of text.
constexpr char kContentPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for "
    "'script'; trusted-types 'none'";

void Append(std::string& out, std::string_view name, int64_t number) {
  if (out.back() != '{') out += ',';
  AppendJsonString(out, name);
  out += ':';
  AppendJsonNumber(out, number);
}

void Append(std::string& out, std::string_view name, std::string_view text) {
  if (out.back() != '{') out += ',';
  AppendJsonString(out, name);
  out += ':';
  AppendJsonString(out, text);
}

void AppendBool(std::string& out, std::string_view name, bool value) {
  if (out.back() != '{') out += ',';
  AppendJsonString(out, name);
  out += value ? ":true" : ":false";
}

int64_t Microseconds(Duration duration) {
  return std::chrono::duration_cast<std::chrono::microseconds>(duration).count();
}

void AppendRequest(std::string& out, const RequestStatus& request, SteadyTime now) {
  const SequenceStatus& sequence = request.sequence;
  out += '{';
  Append(out, "id", request.id);
  Append(out, "choice", int64_t{request.choice});
  AppendBool(out, "running", sequence.running);
  Append(out, "priority", int64_t{sequence.priority});
  Append(out, "prompt_tokens", int64_t{sequence.prompt_tokens});
  Append(out, "cached_tokens", int64_t{sequence.cached_tokens});
  Append(out, "computed_tokens", int64_t{sequence.computed_tokens});
  Append(out, "generated_tokens", int64_t{sequence.generated_tokens});
  Append(out, "max_tokens", int64_t{sequence.max_tokens});
  Append(out, "blocks", int64_t{sequence.blocks});
  Append(out, "age_us", Microseconds(now - sequence.arrival));
  out += '}';
}

void AppendStats(std::string& out, const EngineStatus& status) {
  const SchedulerStats& stats = status.stats;
  Append(out, "num_running", int64_t{stats.num_running});
  Append(out, "num_waiting", int64_t{stats.num_waiting} + status.arriving);
  Append(out, "blocks_held", int64_t{stats.blocks_held});
  Append(out, "blocks_cached", int64_t{stats.blocks_cached});
  Append(out, "blocks_free", int64_t{stats.blocks_free});
  Append(out, "prefill_tokens", stats.prefill_tokens);
  Append(out, "decode_tokens", stats.decode_tokens);
  Append(out, "prefix_queries", stats.prefix_queries);
  Append(out, "prefix_hits", stats.prefix_hits);
  Append(out, "preemptions", stats.preemptions);
  Append(out, "draft_tokens", stats.draft_tokens);
  Append(out, "accepted_tokens",
         std::accumulate(stats.accepted_tokens.begin(), stats.accepted_tokens.end(), int64_t{0}));
}

// Returns the engine's part: `"engine":{…}`.
std::string EngineJson(const EngineInfo& info, const EngineStatus& status) {
  std::string out = "\"engine\":{";
  Append(out, "architecture", info.architecture);
  Append(out, "max_model_len", int64_t{info.max_model_len});
  Append(out, "num_blocks", int64_t{info.num_blocks});
  Append(out, "block_size", int64_t{info.block_size});
  out += ",\"state\":";
  AppendState(out, info);
  AppendBool(out, "chat", info.has_chat_template && info.embedding_size == 0);
  AppendStats(out, status);
  out += ",\"sequences\":[";
  for (const RequestStatus& request : status.requests) {
    if (out.back() != '[') out += ',';
    AppendRequest(out, request, status.now);
  }
  out += "],\"kv_cells\":[";  // [blocks, held, cached]
  for (const KvCell& cell : status.cells) {
    if (out.back() != '[') out += ',';
    AppendJsonNumbers(out, std::array{cell.blocks, cell.held, cell.cached});
  }
  out += "],\"steps\":[";  // [microseconds ago, microseconds, tokens, sequences]
  for (const StepRecord& step : status.steps) {
    if (out.back() != '[') out += ',';
    out += StrCat("[", Microseconds(status.now - step.ended), ",", Microseconds(step.took), ",",
                  step.tokens, ",", step.sequences, "]");
  }
  return out + "]}";
}

std::string ServerJson(const Frontend& frontend, std::string_view model) {
  std::string out = "{";
  Append(out, "version", Version());
  Append(out, "model", model);
  AppendBool(out, "ready", frontend.ready());
  AppendBool(out, "live", frontend.live());
  AppendBool(out, "draining", frontend.draining());
  Append(out, "log", LogLevels());
  return out;
}

}  // namespace

Handled AdminStatus(const Frontend& frontend, const Wake& wake) {
  const std::vector<ServedModel*> models = frontend.models();
  const std::string server = ServerJson(frontend, models.empty() ? "" : models[0]->model_name());
  Engine* const engine = models.empty() ? nullptr : models[0]->language();
  if (engine == nullptr) return HttpResponse{.body = server + ",\"engine\":null}"};
  auto answer = std::make_unique<DeferredAnswer>(wake);
  const bool asked =
      engine->Report([complete = answer->Completer(), engine, server](const EngineStatus& status) {
        complete({.body = StrCat(server, ",", EngineJson(engine->info(), status), "}")});
      });
  if (!asked) {
    ApiError busy = HttpError(503, "service_unavailable", "the engine does not answer");
    busy.retry_after = absl::Seconds(1);
    return ErrorResponse(busy);
  }
  return answer;
}

HttpResponse ConsoleFileResponse(std::string_view path) {
  const ConsoleFile* file = FindConsoleFile(path);
  if (file == nullptr) {
    return ErrorResponse(HttpError(
        404, "unknown_url", StrCat("there is no path ", Printable(path), " on this server")));
  }
  return {.content_type = std::string(file->content_type),
          .headers = {{"Content-Security-Policy", kContentPolicy},
                      {"X-Content-Type-Options", "nosniff"},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cross-Origin-Opener-Policy", "same-origin"},
                      {"Cross-Origin-Resource-Policy", "same-origin"},
                      {"Cache-Control", "no-cache"}},
          .body = std::string(file->body)};
}

}  // namespace millrace
