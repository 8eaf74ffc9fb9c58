#include "formats/families/hf_rope.h"

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/strings.h"
#include "formats/model/model_config.h"

namespace millrace {
namespace {

constexpr double kMaxFactor = 1e6;
constexpr char kTrained[] = "original_max_position_embeddings";
constexpr char kPartial[] = "partial_rotary_factor";

absl::StatusOr<double> FloatOr(const JsonFields& fields, std::string_view name, double otherwise,
                               double min, double max) {
  if (fields.Find(name) == nullptr) return otherwise;
  return fields.Float(name, min, max);
}

// Reads one object of rotations, or the config itself where there is none.
class RopeReader {
 public:
  // `all` is what all of the config's objects have in common.
  RopeReader(const JsonFields& config, const JsonFields& rope, const HfRopeDefaults& defaults,
             const RopeConfig& all, int* context_length)
      : config_(config),
        rope_(rope),
        longrope_aliases_(defaults.longrope_aliases),
        context_length_(context_length),
        read_(all) {}

  absl::StatusOr<RopeConfig> Read(double theta) {
    MILLRACE_ASSIGN_OR_RETURN(read_.theta, FloatOr(rope_, "rope_theta", theta, 1, 1e12));
    const char* const key = rope_.Find("rope_type") != nullptr ? "rope_type" : "type";
    // transformers' own default, where there is nothing but a base.
    if (rope_.Find(key) == nullptr && rope_.Find("factor") == nullptr) return read_;
    MILLRACE_ASSIGN_OR_RETURN(const std::string_view type, rope_.String(key));
    if (type == "default") return read_;
    if (type == "linear") return ReadLinear();
    if (type == "dynamic") return ReadDynamic();
    if (type == "llama3") return ReadLlama3();
    if (type == "longrope" || (longrope_aliases_ && (type == "su" || type == "yarn"))) {
      return ReadLongRope();
    }
    if (type == "yarn") return ReadYarn();
    return rope_.Unsupported(key, StrCat("\"", Printable(type), "\" is not supported (supported: ",
                                         "default, linear, dynamic, llama3, yarn, longrope)"));
  }

 private:
  int dimensions() const { return read_.dimensions; }

  absl::StatusOr<double> Factor() const { return rope_.Float("factor", 1, kMaxFactor); }

  // The positions of the first training, where the config or else its object of rotations says so.
  absl::StatusOr<int> Trained() const {
    for (const JsonFields* fields : {&config_, &rope_}) {
      if (fields->Find(kTrained) == nullptr) continue;
      MILLRACE_ASSIGN_OR_RETURN(const int64_t trained, fields->Int(kTrained, 2, kMaxContext));
      return static_cast<int>(trained);
    }
    return std::max(*context_length_, 2);
  }

  void StretchContext(double positions) {
    const double stretched = std::min<double>(positions, kMaxContext);
    *context_length_ = std::max(*context_length_, static_cast<int>(stretched));
  }

  absl::StatusOr<RopeConfig> ReadLinear() {
    MILLRACE_ASSIGN_OR_RETURN(const double factor, Factor());
    read_.factors = LinearFactors(factor, dimensions());
    return read_;
  }

  absl::StatusOr<RopeConfig> ReadDynamic() {
    MILLRACE_ASSIGN_OR_RETURN(read_.dynamic_factor, Factor());
    if (dimensions() < 4) {
      return rope_.Unsupported(
          "rope_type", StrCat("dynamic of ", dimensions(), " dimensions, supported: from 4 on"));
    }
    read_.trained = *context_length_;
    StretchContext(read_.dynamic_factor * read_.trained);
    return read_;
  }

  absl::StatusOr<RopeConfig> ReadLlama3() {
    Llama3Stretch stretch;
    MILLRACE_ASSIGN_OR_RETURN(stretch.factor, Factor());
    MILLRACE_ASSIGN_OR_RETURN(stretch.low, rope_.Float("low_freq_factor", 1e-3, kMaxFactor));
    MILLRACE_ASSIGN_OR_RETURN(stretch.high, rope_.Float("high_freq_factor", 1e-3, kMaxFactor));
    MILLRACE_ASSIGN_OR_RETURN(stretch.trained, Trained());
    if (!(stretch.low < stretch.high)) {
      return rope_.Bad("high_freq_factor",
                       StrCat(stretch.high, ", must be above low_freq_factor ", stretch.low));
    }
    read_.factors = Llama3Factors(stretch, read_.theta, dimensions());
    return read_;
  }

  absl::StatusOr<RopeConfig> ReadYarn() {
    YarnStretch stretch;
    MILLRACE_ASSIGN_OR_RETURN(stretch.factor, Factor());
    MILLRACE_ASSIGN_OR_RETURN(stretch.trained, Trained());
    MILLRACE_ASSIGN_OR_RETURN(stretch.fast, FloatOr(rope_, "beta_fast", 32, 1e-3, kMaxFactor));
    MILLRACE_ASSIGN_OR_RETURN(stretch.slow, FloatOr(rope_, "beta_slow", 1, 1e-3, kMaxFactor));
    MILLRACE_ASSIGN_OR_RETURN(stretch.truncate, rope_.BoolOr("truncate", true));
    if (!(read_.theta > 1)) return rope_.Bad("rope_theta", "must be above 1 with yarn");
    read_.factors = YarnFactors(stretch, read_.theta, dimensions());
    MILLRACE_ASSIGN_OR_RETURN(const double mscale, FloatOr(rope_, "mscale", 0, 0, kMaxFactor));
    MILLRACE_ASSIGN_OR_RETURN(const double all, FloatOr(rope_, "mscale_all_dim", 0, 0, kMaxFactor));
    const double magnitude = mscale != 0 && all != 0 ? YarnMagnitude(stretch.factor, mscale) /
                                                           YarnMagnitude(stretch.factor, all)
                                                     : YarnMagnitude(stretch.factor);
    MILLRACE_RETURN_IF_ERROR(ReadMagnitude(magnitude));
    StretchContext(stretch.factor * stretch.trained);
    return read_;
  }

  absl::StatusOr<RopeConfig> ReadLongRope() {
    MILLRACE_ASSIGN_OR_RETURN(read_.factors, Factors("short_factor"));
    MILLRACE_ASSIGN_OR_RETURN(read_.long_factors, Factors("long_factor"));
    MILLRACE_ASSIGN_OR_RETURN(read_.trained, Trained());
    const double ratio = static_cast<double>(*context_length_) / read_.trained;
    MILLRACE_ASSIGN_OR_RETURN(const double factor,
                              FloatOr(rope_, "factor", ratio, 1e-3, kMaxFactor));
    MILLRACE_RETURN_IF_ERROR(ReadMagnitude(LongRopeMagnitude(factor, read_.trained)));
    return read_;
  }

  absl::Status ReadMagnitude(double otherwise) {
    MILLRACE_ASSIGN_OR_RETURN(read_.magnitude,
                              FloatOr(rope_, "attention_factor", otherwise, 1e-3, 1e3));
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<float>> Factors(std::string_view name) const {
    const Json* list = rope_.Find(name);
    const size_t count = dimensions() / 2;
    std::vector<float> factors;
    if (list != nullptr && list->is_array() && list->size() == count) {
      for (const Json& item : *list) {
        if (!item.is_number()) break;
        const double factor = item.get<double>();
        if (!(factor >= 1e-3 && factor <= kMaxFactor)) break;
        factors.push_back(static_cast<float>(factor));
      }
    }
    if (factors.size() != count) {
      return rope_.Bad(name, StrCat("must be a list of ", count, " numbers from 0.001 to 1e6"));
    }
    return factors;
  }

  const JsonFields& config_;
  const JsonFields& rope_;
  const bool longrope_aliases_;
  int* const context_length_;
  RopeConfig read_;
};

// Reads how many of a head's dimensions are rotated: all, or where the family reads it a part.
absl::StatusOr<int> ReadDimensions(const JsonFields& config, const JsonFields& rope,
                                   std::optional<double> partial, int head_size) {
  const JsonFields* said = &config;
  for (const JsonFields* fields : {&config, &rope}) {
    if (fields->Find(kPartial) == nullptr) continue;
    if (!partial.has_value()) {
      MILLRACE_RETURN_IF_ERROR(fields->Refuse(kPartial, Json::array({1.0})));
      continue;
    }
    MILLRACE_ASSIGN_OR_RETURN(partial, fields->Float(kPartial, 0, 1));
    said = fields;
  }
  const int dimensions = static_cast<int>(head_size * partial.value_or(1));
  if (dimensions < 2 || dimensions % 2 != 0) {
    return said->Bad(kPartial, StrCat("gives ", dimensions, " of a head's ", head_size,
                                      " dimensions, must be an even number"));
  }
  return dimensions;
}

constexpr char kFull[] = "full_attention";
constexpr char kWindow[] = "sliding_attention";

// The first of these objects that has fields, or one without: an empty one says nothing.
absl::StatusOr<JsonFields> FirstObject(const JsonFields& fields,
                                       std::initializer_list<const char*> names) {
  static const Json* const kNothing = new Json(Json::object());
  for (const char* name : names) {
    const Json* field = fields.Find(name);
    if (field != nullptr && *field != Json::object()) return fields.Object(name);
  }
  return JsonFields(*kNothing, "");
}

}  // namespace

absl::StatusOr<HfRopes> ReadHfRopes(const JsonFields& config, const HfRopeDefaults& defaults,
                                    int head_size, int* context_length) {
  MILLRACE_ASSIGN_OR_RETURN(const double theta,
                            FloatOr(config, "rope_theta", defaults.theta, 1, 1e12));
  MILLRACE_ASSIGN_OR_RETURN(const JsonFields rope,
                            FirstObject(config, {"rope_scaling", "rope_parameters"}));
  RopeConfig all;
  all.interleaved = defaults.interleaved;
  MILLRACE_ASSIGN_OR_RETURN(all.dimensions,
                            ReadDimensions(config, rope, defaults.partial, head_size));
  HfRopes ropes;
  const auto read = [&](const JsonFields& fields, double base) {
    return RopeReader(config, fields, defaults, all, context_length).Read(base);
  };
  const bool nested = rope.Find(kFull) != nullptr || rope.Find(kWindow) != nullptr;
  if (defaults.window_theta == 0) {
    for (const char* name : {kFull, kWindow}) {
      MILLRACE_RETURN_IF_ERROR(rope.Refuse(name, Json::array()));
    }
  } else {
    // An older config's one object is that of the layers without a window.
    MILLRACE_ASSIGN_OR_RETURN(const double window_theta, FloatOr(config, "rope_local_base_freq",
                                                                 defaults.window_theta, 1, 1e12));
    MILLRACE_ASSIGN_OR_RETURN(const JsonFields window, FirstObject(rope, {kWindow}));
    MILLRACE_ASSIGN_OR_RETURN(ropes.window_rope, read(window, window_theta));
  }
  MILLRACE_ASSIGN_OR_RETURN(const JsonFields full, FirstObject(rope, {kFull}));
  MILLRACE_ASSIGN_OR_RETURN(ropes.rope, read(nested ? full : rope, theta));
  return ropes;
}

}  // namespace millrace
