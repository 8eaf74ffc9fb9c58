#include "server/bench/peer_figures.h"

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/regular_file.h"
#include "base/strings.h"

namespace millrace {
namespace {

using Json = nlohmann::json;

std::optional<double> Number(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

std::optional<int32_t> Count(const Json& object, const char* key) {
  const std::optional<double> number = Number(object, key);
  if (!number || *number < 0 || *number > INT32_MAX) return std::nullopt;
  return static_cast<int32_t>(*number);
}

std::optional<PeerPoint> OfMillrace(const Json& point) {
  const auto batch = Count(point, "batch");
  const auto input = Count(point, "input");
  if (!batch || !input) return std::nullopt;
  return PeerPoint{*batch, *input, Number(point, "output_tokens_per_s"),
                   Number(point, "prompt_tokens_per_s")};
}

std::optional<PeerPoint> OfLlamaBench(const Json& line) {
  const auto prompt = Count(line, "n_prompt");
  const auto generated = Count(line, "n_gen");
  const auto rate = Number(line, "avg_ts");
  if (!prompt || !generated || !rate) return std::nullopt;
  if (*generated == 0) return PeerPoint{1, *prompt, std::nullopt, rate};
  if (*prompt == 0) return PeerPoint{1, Count(line, "n_depth").value_or(0), rate, std::nullopt};
  return std::nullopt;  // of both at once, which we have no figure for
}

}  // namespace

absl::StatusOr<PeerFigures> PeerFigures::Read(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadRegularFile(path, size_t{64} << 20);
  if (text.ok()) return Parse(*text);
  return absl::Status(text.status().code(), StrCat("peer: cannot read ", path, ": ",
                                                   std::string(text.status().message())));
}

absl::StatusOr<PeerFigures> PeerFigures::Parse(std::string_view text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  PeerFigures figures;
  const auto points = json.is_object() ? json.find("points") : json.end();
  const bool ours = points != json.end() && points->is_array();
  if (ours || json.is_array()) {
    for (const Json& one : ours ? *points : json) {
      if (!one.is_object()) continue;
      const auto point = ours ? OfMillrace(one) : OfLlamaBench(one);
      if (point) figures.points_.push_back(*point);
    }
  }
  if (figures.points_.empty()) {
    return absl::InvalidArgumentError(
        "peer: the file has no figures; allowed: what `millraced bench --json` or `llama-bench -o "
        "json` wrote");
  }
  return figures;
}

std::optional<double> PeerFigures::Find(const BenchPoint& point, bool generates) const {
  for (const PeerPoint& peer : points_) {
    if (peer.batch != point.batch || peer.input != point.input) continue;
    const auto& rate = generates ? peer.output_tokens_per_s : peer.prompt_tokens_per_s;
    if (rate) return rate;
  }
  return std::nullopt;
}

}  // namespace millrace
