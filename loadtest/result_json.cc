#include <algorithm>
#include <cmath>

#include "base/status.h"
#include "base/strings.h"
#include "loadtest/histogram.h"
#include "loadtest/result.h"

namespace millrace {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr const char* kOwn = "millrace_loadtest";

// The metrics that vLLM has, by their names there.
template <typename R>
auto Metrics(R& result) {
  return std::vector<std::pair<std::string, decltype(&result.ttft)>>{
      {"ttft", &result.ttft},
      {"tpot", &result.tpot},
      {"itl", &result.itl},
      {"e2el", &result.e2el},
      {"client_queue_time", &result.queue},
      {"pause", &result.pause}};
}

std::string PercentileKey(double percent, const std::string& metric) {
  return StrCat("p", percent, "_", metric, "_ms");
}

OrderedJson Timeline(const Result& result) {
  OrderedJson points = OrderedJson::array();
  for (const TimelinePoint& point : result.timeline) {
    OrderedJson json = {{"time", point.time},
                        {"output_throughput", point.tokens_per_second},
                        {"request_throughput", point.requests_per_second}};
    if (point.has_ttft) {
      json["median_ttft_ms"] = point.ttft_median;
      json["p99_ttft_ms"] = point.ttft_p99;
    }
    if (point.has_itl) {
      json["median_itl_ms"] = point.itl_median;
      json["p99_itl_ms"] = point.itl_p99;
    }
    points.push_back(std::move(json));
  }
  return points;
}

OrderedJson ObjectOf(const Facts& facts) {
  OrderedJson object = OrderedJson::object();
  for (const auto& [name, value] : facts) object[name] = value;
  return object;
}

OrderedJson TurnJson(const TurnTable& table, const TurnSums& sums) {
  OrderedJson json = {{"requests", sums.requests},
                      {"completed", sums.completed},
                      {"failed", sums.failed},
                      {"median_ttft_ms", sums.ttft_median},
                      {"p99_ttft_ms", sums.ttft_p99},
                      {"median_e2el_ms", sums.latency_median},
                      {"p99_e2el_ms", sums.latency_p99},
                      {"prompt_tokens", sums.prompt_tokens},
                      {"cached_tokens", sums.cached_tokens}};
  for (size_t i = 0; i < table.tiers.size(); ++i) {
    json["cached_tokens_by_tier"][table.tiers[i]] = sums.cached_by_tier[i];
  }
  json["computed_tokens"] = sums.computed_tokens();
  if (table.has_new) json["new_tokens"] = sums.new_tokens;
  json["output_tokens"] = sums.output_tokens;
  return json;
}

// Adds what only runs of sessions have.
void AddSessions(const Result& result, OrderedJson& own) {
  const TurnTable& table = result.turns;
  if (table.rows.empty()) return;
  own["sessions"] = {{"begun", result.sessions.begun},
                     {"completed", result.sessions.completed},
                     {"failed", result.sessions.failed}};
  for (size_t row = 0; row < table.rows.size(); ++row) {
    OrderedJson json = {{"turn", table.NameOf(row)}};
    json.update(TurnJson(table, table.rows[row]));
    own["turns"].push_back(std::move(json));
  }
  own["all_turns"] = TurnJson(table, table.all);
  if (!result.prompt_sources.empty()) own["prompt_tokens_by_source"] = result.prompt_sources;
}

OrderedJson OwnPart(const Result& result) {
  OrderedJson own = {{"version", 1},
                     {"url", result.url},
                     {"time", result.time},
                     {"load", result.load},
                     {"cancelled", result.cancelled},
                     {"past_deadline", result.past_deadline},
                     {"unfinished", result.unfinished},
                     {"total_cached_tokens", result.cached_tokens},
                     {"goodput_goals", result.goals}};
  if (result.attainment) own["slo_attainment"] = *result.attainment;
  own["generator"] = {{"threads", result.threads},
                      {"cpu_seconds", result.cpu_seconds},
                      {"events", result.events},
                      {"lag_p99_ms", result.lag_p99}};
  own["setup"] = {{"load_generator", ObjectOf(result.generator_facts)},
                  {"server", ObjectOf(result.server_facts)}};
  own["warnings"] = result.warnings;
  own["error_counts"] = OrderedJson::array();
  for (const auto& [message, count] : result.errors) {
    own["error_counts"].push_back({{"error", message}, {"count", count}});
  }
  own["samples"] = result.samples;
  own["curve_shares"] = PlotShares();
  for (const auto& [name, distribution] : Metrics(result)) {
    own["curves_ms"][name] = distribution->curve;
  }
  own["timeline"] = Timeline(result);
  AddSessions(result, own);
  return own;
}

// Reads members of a JSON object, and keeps the first that is of another kind than expected.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {}

  template <typename Number>
  void Read(const std::string& name, Number& to) {
    const Json* const member = Find(name);
    if (member == nullptr) return;
    if (!member->is_number()) return Wrong(name, "a number");
    to = member->get<Number>();
  }
  template <typename Number>
  void Read(const std::string& name, std::optional<Number>& to) {
    const Json* const member = Find(name);
    if (member != nullptr && member->is_number()) to = member->get<Number>();
  }
  void Read(const std::string& name, std::string& to) {
    const Json* const member = Find(name);
    if (member == nullptr) return;
    if (!member->is_string()) return Wrong(name, "a text");
    to = member->get<std::string>();
  }
  // Reads an object of texts.
  void Read(const std::string& name, Facts& to) {
    const Json* const member = Find(name);
    if (member == nullptr) return;
    if (!member->is_object()) return Wrong(name, "an object of texts");
    for (const auto& [key, value] : member->items()) {
      if (!value.is_string()) return Wrong(name, "an object of texts");
      to.emplace_back(key, value.get<std::string>());
    }
  }
  // Reads an array of numbers, or of arrays of numbers, in their order.
  void Read(const std::string& name, std::vector<double>& to) {
    const Json* const member = Find(name);
    if (member == nullptr) return;
    if (!member->is_array()) return Wrong(name, "an array");
    for (const Json& element : *member) {
      if (element.is_number()) to.push_back(element.get<double>());
      if (!element.is_array()) continue;
      for (const Json& inner : element) {
        if (inner.is_number()) to.push_back(inner.get<double>());
      }
    }
  }
  // Returns a member that is an array of objects, or an empty one.
  Json Objects(const std::string& name) {
    const Json* const member = Find(name);
    if (member == nullptr) return Json::array();
    const bool is_array =
        member->is_array() &&
        std::all_of(member->begin(), member->end(), [](const Json& e) { return e.is_object(); });
    if (!is_array) Wrong(name, "an array of objects");
    return is_array ? *member : Json::array();
  }
  const Json* Find(const std::string& name) const {
    const auto member = object_.find(name);
    return member == object_.end() || member->is_null() ? nullptr : &*member;
  }
  const absl::Status& status() const { return status_; }

 private:
  void Wrong(const std::string& name, std::string_view expected) {
    status_.Update(absl::InvalidArgumentError(StrCat(name, ": expected ", expected)));
  }

  const Json& object_;
  absl::Status status_;
};

void ReadDistribution(Fields& fields, const Json& object, const std::string& metric,
                      Distribution& to) {
  fields.Read("mean_" + metric + "_ms", to.mean);
  fields.Read("median_" + metric + "_ms", to.median);
  fields.Read("std_" + metric + "_ms", to.deviation);
  const std::string end = "_" + metric + "_ms";
  for (const auto& [key, value] : object.items()) {
    if (!key.starts_with('p') || !key.ends_with(end) || !value.is_number()) continue;
    const std::string number = key.substr(1, key.size() - 1 - end.size());
    char* rest = nullptr;
    const double percent = std::strtod(number.c_str(), &rest);
    const bool is_percent = !number.empty() && *rest == '\0' && percent >= 0 && percent <= 100;
    if (is_percent) to.percentiles.emplace_back(percent, value.get<double>());
  }
  std::sort(to.percentiles.begin(), to.percentiles.end());
}

// Draws a curve from the values that vLLM saves with --save-detailed, in seconds.
void CurveFromDetails(Fields& fields, const std::string& name, Distribution& to) {
  std::vector<double> seconds;
  fields.Read(name, seconds);
  if (seconds.empty() || !to.curve.empty()) return;
  std::sort(seconds.begin(), seconds.end());
  for (const double share : PlotShares()) to.curve.push_back(SortedQuantile(seconds, share) * 1e3);
}

absl::Status ReadOwn(const Json& own, Result& result) {
  if (!own.is_object()) return absl::InvalidArgumentError(StrCat(kOwn, ": expected an object"));
  Fields fields(own);
  fields.Read("url", result.url);
  fields.Read("time", result.time);
  if (const Json* const setup = fields.Find("setup"); setup != nullptr && setup->is_object()) {
    Fields sides(*setup);
    sides.Read("load_generator", result.generator_facts);
    sides.Read("server", result.server_facts);
    MILLRACE_RETURN_IF_ERROR(sides.status());
  }
  fields.Read("load", result.load);
  fields.Read("cancelled", result.cancelled);
  fields.Read("past_deadline", result.past_deadline);
  fields.Read("unfinished", result.unfinished);
  fields.Read("total_cached_tokens", result.cached_tokens);
  fields.Read("goodput_goals", result.goals);
  fields.Read("slo_attainment", result.attainment);
  if (const Json* const curves = fields.Find("curves_ms");
      curves != nullptr && curves->is_object()) {
    Fields of(*curves);
    for (const auto& [name, distribution] : Metrics(result)) of.Read(name, distribution->curve);
    for (const auto& [name, distribution] : Metrics(result)) {
      if (distribution->curve.size() != PlotShares().size()) distribution->curve.clear();
    }
    MILLRACE_RETURN_IF_ERROR(of.status());
  }
  for (const Json& point : fields.Objects("timeline")) {
    Fields of(point);
    TimelinePoint& to = result.timeline.emplace_back();
    of.Read("time", to.time);
    of.Read("output_throughput", to.tokens_per_second);
    of.Read("request_throughput", to.requests_per_second);
    of.Read("median_ttft_ms", to.ttft_median);
    of.Read("p99_ttft_ms", to.ttft_p99);
    of.Read("median_itl_ms", to.itl_median);
    of.Read("p99_itl_ms", to.itl_p99);
    to.has_ttft = of.Find("median_ttft_ms") != nullptr;
    to.has_itl = of.Find("median_itl_ms") != nullptr;
    MILLRACE_RETURN_IF_ERROR(of.status());
  }
  for (const Json& error : fields.Objects("error_counts")) {
    Fields of(error);
    auto& [message, count] = result.errors.emplace_back();
    of.Read("error", message);
    of.Read("count", count);
    MILLRACE_RETURN_IF_ERROR(of.status());
  }
  return fields.status();
}

}  // namespace

OrderedJson ToJson(const Result& result) {
  OrderedJson json = {
      {"date", result.date},
      {"endpoint_type", result.protocol == "grpc" ? "millrace-grpc" : "openai"},
      {"backend", result.protocol == "grpc" ? "millrace-grpc" : "openai"},
      {"label", result.label.empty() ? OrderedJson() : OrderedJson(result.label)},
      {"model_id", result.model},
      {"tokenizer_id", nullptr},
      {"num_prompts", result.completed + result.failed + result.cancelled + result.past_deadline +
                          result.unfinished},
      {"request_rate", result.rate ? OrderedJson(*result.rate) : OrderedJson("inf")},
      {"max_concurrency", result.concurrency ? OrderedJson(*result.concurrency) : OrderedJson()},
      {"duration", result.duration},
      {"completed", result.completed},
      {"failed", result.failed},
      {"total_input_tokens", result.input_tokens},
      {"total_output_tokens", result.output_tokens},
      {"request_throughput", result.request_throughput},
      {"request_goodput", result.goodput ? OrderedJson(*result.goodput) : OrderedJson()},
      {"output_throughput", result.output_throughput},
      {"total_token_throughput", result.total_throughput},
      {"max_output_tokens_per_s", result.peak_output_throughput},
      {"max_concurrent_requests", result.peak_concurrency}};
  for (const auto& [name, distribution] : Metrics(result)) {
    json["mean_" + name + "_ms"] = distribution->mean;
    json["median_" + name + "_ms"] = distribution->median;
    json["std_" + name + "_ms"] = distribution->deviation;
    for (const auto& [percent, value] : distribution->percentiles) {
      json[PercentileKey(percent, name)] = value;
    }
  }
  json[kOwn] = OwnPart(result);
  return json;
}

void AddDetails(const RunResult& run, OrderedJson& json) {
  for (const char* name :
       {"input_lens", "output_lens", "start_times", "ttfts", "itls", "latencies", "queue_times",
        "generated_texts", "errors", "cached_lens", "sessions", "turns"}) {
    json[name] = OrderedJson::array();
  }
  for (const RequestRecord& record : run.measurements.records) {
    json["input_lens"].push_back(record.prompt_tokens);
    json["output_lens"].push_back(record.output_tokens);
    json["start_times"].push_back(record.sent);
    json["ttfts"].push_back(record.first == 0 ? 0 : record.ttft());
    json["itls"].push_back(record.token_gaps);
    json["latencies"].push_back(record.latency());
    json["queue_times"].push_back(record.sent - record.intended);
    json["generated_texts"].push_back(record.text);
    json["errors"].push_back(record.error);
    json["cached_lens"].push_back(record.cached_tokens);
    json["sessions"].push_back(record.session);
    json["turns"].push_back(record.turn);
  }
}

std::string Dump(const OrderedJson& json) {
  return json.dump(1, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

absl::StatusOr<Result> FromJson(const Json& json) {
  if (!json.is_object()) return absl::InvalidArgumentError("expected a JSON object");
  Result result;
  Fields fields(json);
  if (fields.Find("duration") == nullptr || fields.Find("completed") == nullptr) {
    return absl::InvalidArgumentError(
        "expected a result of millrace-loadtest or vllm bench serve: it has no duration or "
        "completed");
  }
  fields.Read("date", result.date);
  fields.Read("label", result.label);
  fields.Read("model_id", result.model);
  fields.Read("backend", result.protocol);
  fields.Read("request_rate", result.rate);
  fields.Read("max_concurrency", result.concurrency);
  fields.Read("duration", result.duration);
  fields.Read("completed", result.completed);
  fields.Read("failed", result.failed);
  fields.Read("total_input_tokens", result.input_tokens);
  fields.Read("total_output_tokens", result.output_tokens);
  fields.Read("request_throughput", result.request_throughput);
  fields.Read("request_goodput", result.goodput);
  fields.Read("output_throughput", result.output_throughput);
  fields.Read("total_token_throughput", result.total_throughput);
  fields.Read("max_output_tokens_per_s", result.peak_output_throughput);
  fields.Read("max_concurrent_requests", result.peak_concurrency);
  for (const auto& [name, distribution] : Metrics(result)) {
    ReadDistribution(fields, json, name, *distribution);
  }
  if (const Json* const own = fields.Find(kOwn); own != nullptr) {
    MILLRACE_RETURN_IF_ERROR(ReadOwn(*own, result));
  }
  CurveFromDetails(fields, "ttfts", result.ttft);
  CurveFromDetails(fields, "itls", result.itl);
  CurveFromDetails(fields, "latencies", result.e2el);
  MILLRACE_RETURN_IF_ERROR(fields.status());
  return result;
}

}  // namespace millrace
