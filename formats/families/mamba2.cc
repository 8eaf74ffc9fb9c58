#include "formats/families/mamba2.h"

#include <limits>
#include <optional>
#include <string>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

std::optional<double> NumberOrInfinity(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (value == Json({{"__float__", "Infinity"}})) return std::numeric_limits<double>::infinity();
  return std::nullopt;
}

}  // namespace

absl::Status ReadStepLimits(const JsonFields& fields, Mamba2* mixer) {
  constexpr char kName[] = "time_step_limit";
  const Json* const limits = fields.Find(kName);
  if (limits == nullptr) return absl::OkStatus();
  if (limits->is_array() && limits->size() == 2) {
    const std::optional<double> least = NumberOrInfinity((*limits)[0]);
    const std::optional<double> largest = NumberOrInfinity((*limits)[1]);
    if (least.has_value() && largest.has_value() && *least >= 0 && *least <= *largest) {
      mixer->least_step = *least;
      mixer->largest_step = *largest;
      return absl::OkStatus();
    }
  }
  std::string said = Describe(*limits);
  if (limits->is_array() && limits->size() == 2) {
    said = StrCat("[", Describe((*limits)[0]), ", ", Describe((*limits)[1]), "]");
  }
  return fields.Bad(kName, StrCat("is ", said,
                                  ", must be a list of the least step, 0 or above, and the largest "
                                  "one"));
}

absl::StatusOr<Mamba2> ReadGgufMamba2(const GgufReader& file, int example) {
  constexpr char kHeads[] = "ssm.time_step_rank";
  Mamba2 mixer{.converted = true};
  MILLRACE_ASSIGN_OR_RETURN(mixer.heads, file.Int(kHeads, kMaxHeads));
  MILLRACE_ASSIGN_OR_RETURN(mixer.groups, file.IntOr("ssm.group_count", kMaxHeads, 1));
  MILLRACE_ASSIGN_OR_RETURN(mixer.state_size, file.Int("ssm.state_size", kMaxHeadSize));
  MILLRACE_ASSIGN_OR_RETURN(mixer.width, file.Int("ssm.conv_kernel", kMaxConvolutionWidth, 2));
  MILLRACE_ASSIGN_OR_RETURN(const int inner, file.Int("ssm.inner_size", kMaxWidth));
  mixer.head_size = inner / mixer.heads;
  if (mixer.heads % mixer.groups != 0 || mixer.head_size < 1 || mixer.head_size > kMaxHeadSize ||
      mixer.head_size * mixer.heads != inner) {
    return file.Lies(
        StrCat("key ", file.Key(kHeads)),
        StrCat(mixer.heads, " must divide ssm.inner_size, ", inner, ", into heads of at most ",
               kMaxHeadSize, ", and be a multiple of ssm.group_count, ", mixer.groups));
  }
  const auto has = [&](const char* name) {
    return file.file().FindTensor(StrCat("blk.", example, ".", name)) != nullptr;
  };
  mixer.convolution_bias = has("ssm_conv1d.bias");
  mixer.projection_bias = has("ssm_in.bias") || has("ssm_out.bias");
  return mixer;
}

}  // namespace millrace
