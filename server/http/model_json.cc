#include "server/http/model_json.h"

#include "absl/time/time.h"
#include "engine/engine.h"
#include "engine/infer_engine.h"
#include "server/http/json_writer.h"

namespace millrace {
namespace {

void AppendModel(std::string& out, const EngineInfo& info, std::string_view name) {
  out += R"({"id":)";
  AppendJsonString(out, name);
  out += R"(,"object":"model","created":)";
  AppendJsonNumber(out, absl::ToUnixSeconds(info.created));
  out += R"(,"owned_by":"millrace","root":)";
  AppendJsonString(out, info.model_name);
  out += R"(,"parent":null,"max_model_len":)";
  AppendJsonNumber(out, info.max_model_len);
  if (info.embedding_size == 0) {
    out += R"(,"kv_cache_tokens":)";
    AppendJsonNumber(out, int64_t{info.num_blocks} * info.block_size);
  }
  out += R"(,"architecture":)";
  AppendJsonString(out, info.architecture);
  out += R"(,"batch_invariant":)";
  out += info.batch_invariant ? "true" : "false";
  out += R"(,"tensor_parallel_size":)";
  AppendJsonNumber(out, info.tensor_parallel_size);
  out += R"(,"expert_parallel":)";
  out += info.expert_parallel ? "true" : "false";
  out += R"(,"default_sampling_params":{)";
  for (const auto& [name, value] : NamedDefaults(info.sampling)) {
    if (out.back() != '{') out += ',';
    AppendJsonString(out, name);
    out += ':';
    out += value;
  }
  out += "}}";
}

void AppendModel(std::string& out, const InferEngine& engine, std::string_view name) {
  out += R"({"id":)";
  AppendJsonString(out, name);
  out += R"(,"object":"model","created":)";
  AppendJsonNumber(out, absl::ToUnixSeconds(engine.created()));
  out += R"(,"owned_by":"millrace","root":)";
  AppendJsonString(out, engine.model_name());
  out += R"(,"parent":null,"architecture":)";
  AppendJsonString(out, engine.info().platform);
  out += '}';
}

}  // namespace

void AppendModel(std::string& out, ServedModel& model, std::string_view name) {
  if (const Engine* language = model.language()) {
    AppendModel(out, language->info(), name);
  } else {
    AppendModel(out, *model.tensors(), name);
  }
}

}  // namespace millrace
