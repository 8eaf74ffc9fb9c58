// Prints what exactness costs the linears of the models that we care for, and writes the table of
// known plans (gemm_table.inc):
//
//   kernels_gemm_bench [--models llama-3-8b,phi-4] [--types bf16,fp8,static] [--table FILE]
//
// For each linear it makes two plans as the server does for an unknown model (gemm_tuner.h), exact
// and not, and times both in a replayed graph, on weights that are not in the L2 cache. "fp8" has a
// scale a channel and token, "static" one a tensor. Where both plans have the same config the ratio
// is 1 and one time is measured.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/bench_util.h"
#include "kernels/gemm/gemm_tuner.h"
#include "kernels/gemm/linear_plan.h"
#include "kernels/test_util.h"

namespace millrace::kernels {
namespace {

struct Model {
  const char* name;
  int64_t hidden, qkv, heads, ffn;  // `heads`: elements of all query heads
  int64_t vocab;
  bool in_table;
};

const Model kModels[] = {
    {"llama-3-8b", 4096, 6144, 4096, 14336, 128256, true},
    {"qwen3-8b", 4096, 6144, 4096, 12288, 151936, true},
    {"llama-3-70b", 8192, 10240, 8192, 28672, 128256, true},
    {"qwen2.5-7b", 3584, 4608, 3584, 18944, 152064, false},
    {"qwen2.5-14b", 5120, 7168, 5120, 13824, 152064, false},
    {"phi-4", 5120, 7680, 5120, 17920, 100352, false},
    {"llama-3.2-3b", 3072, 5120, 3072, 8192, 128256, false},
    {"qwen3-4b", 2560, 6144, 4096, 9728, 151936, false},
    {"qwen3-32b", 5120, 10240, 8192, 25600, 151936, false},
    {"mistral-small", 5120, 6144, 4096, 32768, 131072, false},
};

constexpr int64_t kTokens[] = {1, 8, 17, 33, 64, 96, 160, 200, 256, 400, 512, 1024, 4096};
constexpr int64_t kMostTokens = 4096, kMostHeadTokens = 512;
constexpr int64_t kManyTokens = 512;  // from here on a run is long, and few inputs are enough
constexpr double kBar = 1.05;

enum class Form : uint8_t { kBf16, kFp8, kStatic };
constexpr const char* kFormNames[] = {"bf16", "fp8", "static"};

struct Linear {
  const char* name;
  GemmDesc desc;
};

std::vector<Linear> LinearsOf(const Model& model, Form form) {
  const bool fp8 = form != Form::kBf16;
  const Type type = fp8 ? Type::kFp8 : Type::kBf16;
  const auto linear = [&](const char* name, int64_t rows, int64_t stride, bool gate) {
    return Linear{name,
                  {.rows = rows,
                   .stride = stride,
                   .weight = type,
                   .weight_scaling = form == Form::kFp8      ? WeightScaling::kChannel
                                     : form == Form::kStatic ? WeightScaling::kTensor
                                                             : WeightScaling::kNone,
                   .input = type,
                   .input_scaling = form == Form::kFp8      ? Scaling::kToken
                                    : form == Form::kStatic ? Scaling::kTensor
                                                            : Scaling::kNone,
                   .output = Type::kBf16,
                   .epilogue = gate && form != Form::kFp8 ? Epilogue::kGate : Epilogue::kStore}};
  };
  std::vector<Linear> linears = {linear("qkv", model.qkv, model.hidden, false),
                                 linear("o", model.hidden, model.heads, false),
                                 linear("gate-up", 2 * model.ffn, model.hidden, true),
                                 linear("down", model.hidden, model.ffn, false)};
  if (!fp8) {
    Linear head = linear("head", model.vocab, model.hidden, false);
    head.desc.output = Type::kF32;
    linears.push_back(head);
  }
  return linears;
}

// The memory of one product, and its launches.
class Subject {
 public:
  explicit Subject(const GemmDesc& desc)
      : desc_(desc),
        weight_bytes_(desc.rows * desc.stride * ElementBytes()),
        inputs_(std::min(RotatedInputs(static_cast<double>(weight_bytes_)), 64)),
        most_tokens_(desc.output == Type::kF32 ? kMostHeadTokens : kMostTokens),
        weights_(weight_bytes_ * inputs_),
        x_(most_tokens_ * desc.stride * ElementBytes()),
        y_(most_tokens_ * desc.rows * (desc.output == Type::kF32 ? 4 : 2)),
        ones_(std::vector<float>(std::max(desc.rows, most_tokens_), 1.0f)),
        workspace_(LinearOptions().workspace_bytes),
        counter_(std::vector<unsigned>{0}) {
    if (desc.weight == Type::kFp8) {
      FillUniform(weights_.get(), weights_.size(), 1, 8);
      FillUniform(x_.get(), x_.size(), 2, 8);
    } else {
      FillUniform(reinterpret_cast<Bf16*>(weights_.get()), weights_.size() / 2, 1);
      FillUniform(reinterpret_cast<Bf16*>(x_.get()), x_.size() / 2, 2);
    }
    CheckCuda(cudaDeviceSynchronize(), "fill");
  }

  std::vector<const void*> Weights() const {
    std::vector<const void*> weights;
    for (int i = 0; i < inputs_; ++i) weights.push_back(weights_.get() + i * weight_bytes_);
    return weights;
  }

  double Microseconds(Bench& bench, const LinearPlan* plan, int64_t tokens) {
    const int inputs = tokens > kManyTokens ? std::min(inputs_, 3) : inputs_;
    // Graphs of about half a millisecond, long against the start of one.
    const double guess = static_cast<double>(weight_bytes_) / bench.read_rate() * 1e6 +
                         1.4e-9 * static_cast<double>(tokens * weight_bytes_);
    const int repeats = std::clamp(static_cast<int>(500 / guess / inputs), 1, 16);
    return bench.Replay(inputs, repeats, 3, [&](int input, cudaStream_t stream) {
      const bool fp8 = desc_.weight == Type::kFp8;
      return LaunchLinear({.plan = plan,
                           .weight = {.data = weights_.get() + input * weight_bytes_,
                                      .type = desc_.weight,
                                      .scaling = desc_.weight_scaling,
                                      .rows = desc_.rows,
                                      .stride = desc_.stride,
                                      .scales = fp8 ? ones_.get() : nullptr},
                           .input = {.data = x_.get(),
                                     .type = desc_.input,
                                     .scaling = desc_.input_scaling,
                                     .stride = desc_.stride,
                                     .scales = fp8 ? ones_.get() : nullptr},
                           .tokens = tokens,
                           .output = y_.get(),
                           .output_stride = desc_.rows,
                           .workspace = workspace_.get(),
                           .tile_counter = counter_.get(),
                           .capacity = std::min(LinearCapacity(tokens), most_tokens_)},
                          stream);
    });
  }

  int64_t most_tokens() const { return most_tokens_; }
  size_t weight_bytes() const { return weight_bytes_; }

 private:
  size_t ElementBytes() const { return desc_.weight == Type::kFp8 ? 1 : 2; }

  const GemmDesc desc_;
  const size_t weight_bytes_;
  const int inputs_;
  const int64_t most_tokens_;
  DeviceBuffer<uint8_t> weights_, x_, y_;
  DeviceBuffer<float> ones_;
  DeviceBuffer<uint8_t> workspace_;
  DeviceBuffer<unsigned> counter_;
};

// Exact and not, by number of tokens.
struct Times {
  std::map<int64_t, double> exact, any;
};

struct Options {
  std::string_view models, types;
  FILE* table = nullptr;
};

class Comparison {
 public:
  Comparison(const CublasLt& lt, Bench& bench, FILE* table)
      : lt_(lt), bench_(bench), table_(table) {}

  void CompareModel(const Model& model, Form form) {
    const std::string name = std::string(model.name) + " " + kFormNames[static_cast<int>(form)];
    Times layer;
    double worst = 0, tune_ms = 0;
    std::string worst_at;
    for (const Linear& linear : LinearsOf(model, form)) {
      const Times times = Compare(name, linear, model.in_table, &tune_ms);
      for (const auto& [tokens, us] : times.exact) {
        const double ratio = us / times.any.at(tokens);
        if (ratio > worst) {
          worst = ratio;
          worst_at = std::string(linear.name) + " at " + std::to_string(tokens);
        }
        if (linear.desc.output == Type::kF32) continue;
        layer.exact[tokens] += us;
        layer.any[tokens] += times.any.at(tokens);
      }
    }
    Print(name + " layer", layer);
    char line[160];
    std::snprintf(line, sizeof(line), "%s: worst ratio %.3f (%s), exact plans tuned in %.0f ms%s",
                  name.c_str(), worst, worst_at.c_str(), tune_ms, worst > kBar ? "  OVER" : "");
    std::printf("%s\n", line);
    std::fflush(stdout);
    summary_.emplace_back(line);
  }

  void PrintSummary() const {
    std::printf("\n");
    for (const std::string& line : summary_) std::printf("%s\n", line.c_str());
  }

 private:
  Times Compare(const std::string& name, const Linear& linear, bool in_table, double* tune_ms) {
    Subject product(linear.desc);
    const LinearPlan* plans[2] = {};
    LinearPlanner exact(lt_, {}), any(lt_, {.exact = false});
    for (LinearPlanner* planner : {&exact, &any}) {
      const bool is_exact = planner == &exact;
      std::string error;
      const auto begin = std::chrono::steady_clock::now();
      const auto tuner =
          GemmTuner::Make(lt_, planner->options(), linear.desc, product.Weights(), &error);
      const auto ranges = tuner != nullptr ? tuner->Tune(&error) : std::nullopt;
      const double ms =
          std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
              .count();
      if (!ranges.has_value() || !planner->Learn(linear.desc, *ranges)) {
        std::printf("NOT TUNED: %s\n", error.c_str());
      } else {
        std::printf("tuned in %.0f ms: %s %s %s\n", ms, ToString(linear.desc).c_str(),
                    is_exact ? "exact" : "any", ToString(*ranges).c_str());
        std::printf("measured:");
        for (const TimedRange& one : tuner->times()) {
          std::printf(" %ld:%s:%.1f", one.range.tokens, ToString(one.range.config).c_str(),
                      one.time);
        }
        std::printf("\n");
        if (is_exact) {  // as a start that finds the ranges in its cache
          const auto check = std::chrono::steady_clock::now();
          std::string why;
          const auto checker =
              GemmTuner::Make(lt_, planner->options(), linear.desc, product.Weights(), &why);
          const bool proposed = AreProposed(lt_, linear.desc, planner->options(), *ranges);
          const auto middle = std::chrono::steady_clock::now();
          const bool same = checker != nullptr && checker->HasReferenceBits(*ranges);
          const auto ms_of = [](auto duration) {
            return std::chrono::duration<double, std::milli>(duration).count();
          };
          std::printf("checked: proposed %d, the reference's bits %d, in %.1f and %.1f ms\n",
                      proposed, same, ms_of(middle - check),
                      ms_of(std::chrono::steady_clock::now() - middle));
        }
        for (const std::string& one : tuner->rejected()) {
          std::printf("not exact: %s\n", one.c_str());
        }
        if (table_ != nullptr && in_table) {
          std::fprintf(table_, "{\"%s\", %s, \"%s\"},\n", ToString(linear.desc).c_str(),
                       is_exact ? "kExact" : "kAny", ToString(*ranges).c_str());
        }
      }
      if (is_exact) *tune_ms += ms;
      plans[is_exact ? 0 : 1] = planner->Plan(linear.desc, &error);
      if (plans[is_exact ? 0 : 1] == nullptr) {
        std::fprintf(stderr, "%s\n", error.c_str());
        std::exit(1);
      }
    }
    Times times;
    for (const int64_t tokens : kTokens) {
      if (tokens > product.most_tokens()) break;
      const bool same = plans[0]->RangeOf(tokens).config == plans[1]->RangeOf(tokens).config;
      double us[2];
      for (int round = 0; round < (same ? 1 : 3); ++round) {
        for (const int i : {0, 1}) {
          if (same && i == 1) continue;
          const double one = product.Microseconds(bench_, plans[i], tokens);
          us[i] = round == 0 ? one : std::min(us[i], one);
        }
      }
      times.exact[tokens] = us[0];
      times.any[tokens] = same ? us[0] : us[1];
    }
    char bytes[64];
    std::snprintf(bytes, sizeof(bytes), " %ldx%ld, bytes %.1f us", linear.desc.rows,
                  linear.desc.stride,
                  static_cast<double>(product.weight_bytes()) / bench_.read_rate() * 1e6);
    Print(name + " " + linear.name + bytes, times);
    return times;
  }

  // µs exact / not = ratio, by number of tokens; an exact one slower than with more tokens is
  // marked.
  static void Print(const std::string& name, const Times& times) {
    std::printf("| %s |", name.c_str());
    for (auto at = times.exact.begin(); at != times.exact.end(); ++at) {
      const double other = times.any.at(at->first);
      const bool slower = std::any_of(std::next(at), times.exact.end(), [&](const auto& more) {
        return at->second > 1.01 * more.second;
      });
      std::printf(" %ld: %.1f/%.1f=%.3f%s%s |", at->first, at->second, other, at->second / other,
                  at->second > kBar * other ? " OVER" : "", slower ? " SLOWER THAN MORE" : "");
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  const CublasLt& lt_;
  Bench& bench_;
  FILE* const table_;
  std::vector<std::string> summary_;
};

// Returns whether a list with commas names it, or is empty.
bool Lists(std::string_view list, std::string_view name) {
  if (list.empty()) return true;
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == name) return true;
    list.remove_prefix(std::min(comma + 1, list.size()));
  }
  return false;
}

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (i + 1 < argc && flag == "--models") {
      options.models = argv[++i];
    } else if (i + 1 < argc && flag == "--types") {
      options.types = argv[++i];
    } else if (i + 1 < argc && flag == "--table") {
      options.table = std::fopen(argv[++i], "w");
    } else {
      std::fprintf(stderr, "%s; allowed: --models LIST, --types LIST, --table FILE\n", argv[i]);
      return 2;
    }
  }
  std::string error;
  const auto lt = CublasLt::Open(&error);
  if (lt == nullptr) {
    std::fprintf(stderr, "%s\n", error.c_str());
    return 1;
  }
  Bench bench("linears, cuBLASLt " + std::to_string(lt->version()));
  Comparison comparison(*lt, bench, options.table);
  for (const Model& model : kModels) {
    if (!Lists(options.models, model.name)) continue;
    for (const Form form : {Form::kBf16, Form::kFp8, Form::kStatic}) {
      if (!Lists(options.types, kFormNames[static_cast<int>(form)])) continue;
      comparison.CompareModel(model, form);
    }
  }
  comparison.PrintSummary();
  if (options.table != nullptr) std::fclose(options.table);
  return 0;
}

}  // namespace
}  // namespace millrace::kernels

int main(int argc, char** argv) { return millrace::kernels::Main(argc, argv); }
