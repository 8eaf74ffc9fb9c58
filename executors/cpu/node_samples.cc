#include "executors/cpu/node_samples.h"

#include <cstdint>

#include "executors/byte_stream.h"

namespace millrace::cpu {
namespace {

struct SampleHead {
  bool ok;
  bool has_logprob;
  Token token;
  float logprob;
  int32_t rank;
  uint32_t num_top;
};

bool ReadSample(ByteReader& reader, Sampled& sample) {
  SampleHead head;
  if (!reader.Read(head) || head.num_top > reader.left() / sizeof(TokenLogprob)) return false;
  sample.ok = head.ok;
  sample.token = head.token;
  sample.logprob = head.has_logprob ? std::optional(head.logprob) : std::nullopt;
  sample.rank = head.rank;
  sample.top.resize(head.num_top);
  for (TokenLogprob& top : sample.top) {
    if (!reader.Read(top)) return false;
  }
  return true;
}

}  // namespace

void AppendSample(const Sampled& sample, std::vector<char>& bytes) {
  SampleHead head{};
  head.ok = sample.ok;
  head.has_logprob = sample.logprob.has_value();
  head.token = sample.token;
  head.logprob = sample.logprob.value_or(0);
  head.rank = sample.rank;
  head.num_top = static_cast<uint32_t>(sample.top.size());
  AppendValue(head, bytes);
  for (const TokenLogprob& top : sample.top) AppendValue(top, bytes);
}

void AppendUses(absl::Span<const MixtureUse> uses, std::vector<char>& bytes) {
  for (const MixtureUse& use : uses) AppendValue(use, bytes);
}

absl::Status ReadSamples(absl::Span<const char> bytes, int first_rank, int num_local, int num_ranks,
                         absl::Span<Sampled> samples, absl::Span<MixtureUse> uses) {
  ByteReader reader(bytes);
  bool ok = true;
  for (size_t i = 0; i < samples.size(); ++i) {
    const int rank = static_cast<int>(i % num_ranks);
    if (rank < first_rank || rank >= first_rank + num_local) continue;
    ok = ok && ReadSample(reader, samples[i]);
  }
  for (MixtureUse& use : uses) ok = ok && reader.Read(use);
  if (ok && reader.left() == 0) return absl::OkStatus();
  return absl::InternalError("a node sent another number of samples than its ranks have");
}

void AddUses(absl::Span<const MixtureUse> others, bool expert_parallel,
             absl::Span<MixtureUse> uses) {
  for (size_t i = 0; i < uses.size(); ++i) {
    if (expert_parallel) {
      uses[i].experts += others[i].experts;
      uses[i].touched += others[i].touched;
    } else {
      uses[i].expert_bytes += others[i].expert_bytes;
    }
  }
}

}  // namespace millrace::cpu
