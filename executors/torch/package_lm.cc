#include "executors/torch/package_lm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/control_group.h"
#include "base/sha256.h"
#include "base/status.h"
#include "base/strings.h"
#include "executors/phase_timer.h"
#include "executors/step_limits.h"
#include "executors/torch/exceptions.h"
#include "executors/torch/length_groups.h"
#include "executors/torch/package_file.h"
#include "executors/torch/torch_kv.h"
#include "executors/torch/torch_sampler.h"
#include "formats/files/mapped_file.h"

namespace millrace::aten {
namespace {

using Row = CpuStepInput::Row;

at::Tensor Indexes(std::initializer_list<int64_t> shape) { return at::empty(shape, at::kLong); }

class PackageLm : public HostModel {
 public:
  PackageLm(std::unique_ptr<PackageCode> code, TorchKv kv, ModelInfo info,
            std::unique_ptr<ThreadPool> pool)
      : code_(std::move(code)),
        kv_(std::move(kv)),
        info_(std::move(info)),
        pool_(std::move(pool)),
        sampler_(*pool_),
        no_place_(int64_t{info_.limits.num_blocks[0]} * info_.limits.block_size()) {}

  const ModelInfo& info() const override { return info_; }
  absl::Status Move(absl::Span<const StateMove> moves) override {
    kv_.Move(moves);
    return absl::OkStatus();
  }

  absl::StatusOr<absl::Span<const Sampled>> Run(const CpuStepInput& input) override {
    try {
      const c10::InferenceMode inference;
      sampler_.Begin(input.samples.size());
      std::vector<const Row*> decode;
      for (const Row& row : input.rows) {
        if (row.num_tokens == 1) {
          decode.push_back(&row);
        } else {
          RunRows(input, {&row});
        }
      }
      RunDecode(input, std::move(decode));
      return sampler_.sampled();
    } catch (const std::exception& error) {
      return FromException(absl::StatusCode::kUnavailable, error);
    }
  }

 private:
  // Rows of one token each.
  void RunDecode(const CpuStepInput& input, std::vector<const Row*> rows) {
    const auto length = [&](const Row* row) { return Length(input, *row); };
    std::ranges::sort(rows, {}, length);
    std::vector<int64_t> lengths;
    std::ranges::transform(rows, std::back_inserter(lengths), length);
    size_t begin = 0;
    for (const size_t end : CutByLength(lengths)) {
      RunRows(input, absl::MakeConstSpan(rows).subspan(begin, end - begin));
      begin = end;
    }
  }

  // Rows of as many tokens each.
  void RunRows(const CpuStepInput& input, absl::Span<const Row* const> rows) {
    const auto count = static_cast<int64_t>(rows.size());
    const int64_t length = rows[0]->num_tokens;
    int64_t past = 0;
    for (const Row* row : rows) past = std::max(past, Length(input, *row));
    at::Tensor tokens = Indexes({count, length});
    at::Tensor positions = Indexes({count, length});
    at::Tensor context = Indexes({count, past});
    std::vector<int64_t> wanted;   // of the rows' tokens
    std::vector<size_t> requests;  // what of them, of the input's samples
    for (int64_t r = 0; r < count; ++r) {
      const Row& row = *rows[r];
      const int first = row.first_token;
      std::copy_n(input.tokens.data() + first, length,
                  tokens.mutable_data_ptr<int64_t>() + r * length);
      std::copy_n(input.positions.data() + first, length,
                  positions.mutable_data_ptr<int64_t>() + r * length);
      FillContext(row, Length(input, row), past, context.mutable_data_ptr<int64_t>() + r * past);
      const auto begin = std::ranges::lower_bound(input.wanted, first);
      const auto end = std::ranges::lower_bound(input.wanted, first + row.num_tokens);
      for (auto it = begin; it != end; ++it) {
        wanted.push_back(r * length + *it - first);
        requests.push_back(it - input.wanted.begin());
      }
    }
    // The code was not made for none.
    if (wanted.empty()) wanted.push_back(0);
    at::Tensor outputs = Indexes({static_cast<int64_t>(wanted.size())});
    std::ranges::copy(wanted, outputs.mutable_data_ptr<int64_t>());

    std::vector<at::Tensor> inputs = {tokens, positions, context, outputs};
    inputs.insert(inputs.end(), kv_.keys.begin(), kv_.keys.end());
    inputs.insert(inputs.end(), kv_.values.begin(), kv_.values.end());
    at::Tensor logits = code_->boxed_run(std::move(inputs)).at(0).contiguous();
    sampler_.Sample(logits, input.samples, requests);
  }

  // Tokens of the row's sequence, with this step's.
  static int64_t Length(const CpuStepInput& input, const Row& row) {
    return input.positions[row.first_token] + int64_t{row.num_tokens};
  }

  void FillContext(const Row& row, int64_t length, int64_t past, int64_t* places) const {
    const int64_t block_size = kv_.block_size;
    const std::vector<BlockId>& table = row.block_tables[0];
    for (int64_t i = 0; i < length; ++i) {
      places[i] = table[i / block_size] * block_size + i % block_size;
    }
    std::fill(places + length, places + past, no_place_);
  }

  const std::unique_ptr<PackageCode> code_;
  TorchKv kv_;
  const ModelInfo info_;
  const std::unique_ptr<ThreadPool> pool_;
  TorchSampler sampler_;
  const int64_t no_place_;  // the one behind all blocks, which holds zeros
};

std::string Digest(std::string_view file) {
  Sha256 hasher;
  hasher.Update(file);
  const Sha256Digest digest = hasher.Finish();
  return std::string(digest.begin(), digest.end());
}

absl::StatusOr<std::unique_ptr<HostModel>> Load(const std::string& path, const TorchSpec& device) {
  PhaseTimer phases;
  MILLRACE_ASSIGN_OR_RETURN(const PackageSpec spec, CheckPackage(path));
  if (!spec.causal_lm.has_value()) {
    return absl::InvalidArgumentError(
        "takes tensors, not tokens: it is served for Infer, without --tokenizer");
  }
  if (device.bfloat16) {
    return absl::InvalidArgumentError("dtype is bfloat16; allowed with a package: float32");
  }
  const ModelConfig& config = *spec.causal_lm;
  MILLRACE_ASSIGN_OR_RETURN(StepLimits limits, MakeStepLimits(config, device));
  MILLRACE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  std::string digest = Digest(file.text());
  phases.End("read the package");

  const int threads = device.threads > 0 ? device.threads : UsableCores();
  at::set_num_threads(threads);
  auto code = LoadPackageCode(path);
  phases.End("load its code and weights");

  MILLRACE_ASSIGN_OR_RETURN(TorchKv kv,
                            MakeKv(config, device, at::kFloat, /*more_places=*/1, &limits));
  for (const std::vector<at::Tensor>* layers : {&kv.keys, &kv.values}) {
    for (const at::Tensor& layer : *layers) layer[-1].zero_();
  }
  ModelInfo info = {.architecture = "pytorch_aotinductor",
                    .digest = std::move(digest),
                    .weight_bytes = static_cast<int64_t>(file.text().size()),
                    .end_tokens = config.end_tokens,
                    .batch_invariant = false,  // its matrix products depend on their shape
                    .limits = limits,
                    .kv_type = "float32"};
  phases.End("take memory");
  info.load_phases = phases.Take();
  return std::make_unique<PackageLm>(std::move(code), std::move(kv), std::move(info),
                                     std::make_unique<ThreadPool>(threads));
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostModel>> LoadPackageLm(const ModelSpec& model,
                                                         const TorchSpec& device) {
  return OpenNamed(model.path, [&] { return Load(model.path, device); });
}

}  // namespace millrace::aten
