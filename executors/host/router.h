// The choice of experts for one token, on a host: what a mixture's router makes of its logits.
#ifndef MILLRACE_EXECUTORS_HOST_ROUTER_H_
#define MILLRACE_EXECUTORS_HOST_ROUTER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "formats/model/layer_config.h"

namespace millrace {

// One of the experts that a token goes through, and the factor of its output.
struct RoutedExpert {
  int32_t expert = 0;
  float score = 0;
};

class ExpertChooser {
 public:
  // Chooses router.chosen experts by the logits, [router.experts], the best first, as RouterConfig
  // says; `correction`: [router.experts], or empty. Logits that are no numbers count as the least.
  void Choose(const RouterConfig& router, absl::Span<const float> logits,
              absl::Span<const float> correction, absl::Span<RoutedExpert> chosen);

 private:
  void KeepBestGroups(const RouterConfig& router);

  std::vector<float> scores_;  // of each expert
  std::vector<float> ranks_;   // what experts are chosen by
  std::vector<int32_t> order_;
};

}  // namespace millrace

#endif  // MILLRACE_EXECUTORS_HOST_ROUTER_H_
