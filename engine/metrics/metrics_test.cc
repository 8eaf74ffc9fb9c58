#include "engine/metrics/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <thread>

#include "base/strings.h"
#include "scheduler/scheduler.h"

namespace millrace {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

const StepLimits kLimits = {.max_num_seqs = 8,
                            .max_num_batched_tokens = 512,
                            .max_model_len = 2048,
                            .num_blocks = {100},
                            .state = StateLayout::OnePool(16),
                            .vocab_size = 1000};

class MetricsTest : public testing::Test {
 protected:
  // The value of the series that is written so, its labels in the order of Render.
  std::string Value(const std::string& series) {
    for (const std::string_view line : SplitList(text_ = metrics_.Render(), '\n')) {
      if (line.starts_with(series + " ")) return std::string(line.substr(series.size() + 1));
    }
    return "(none)";
  }
  std::string Vllm(const std::string& name) {
    return Value("vllm:" + name + "{engine=\"0\",model_name=\"m\"}");
  }
  std::string Labelled(const std::string& name, const std::string& label,
                       const std::string& value) {
    // Render orders labels by name.
    std::map<std::string, std::string> labels = {
        {"engine", "0"}, {"model_name", "m"}, {label, value}};
    std::string text;
    for (const auto& [key, v] : labels)
      text += StrCat(text.empty() ? "" : ",", key, "=\"", v, "\"");
    return Value(name + "{" + text + "}");
  }

  static SequenceEnd MakeEnd() {
    const SteadyTime arrival = SteadyTime(std::chrono::hours(1));
    return {.reason = EndReason::kLength,
            .prompt_tokens = 40,
            .cached_tokens = 16,
            .generated_tokens = 5,
            .arrival = arrival,
            .first_scheduled = arrival + milliseconds(100),
            .first_token = arrival + milliseconds(300),
            .ended = arrival + milliseconds(700)};
  }

  Metrics metrics_;
  EngineMetrics& engine_ = metrics_.AddEngine("m", kLimits);
  std::string text_;
};

TEST_F(MetricsTest, EverySeriesIsThereFromTheStart) {
  for (const char* name :
       {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc",
        "prefix_cache_queries_total", "prefix_cache_hits_total", "prompt_tokens_total",
        "generation_tokens_total", "num_preemptions_total"}) {
    EXPECT_EQ(Vllm(name), "0") << name;
  }
  for (const char* name :
       {"time_to_first_token_seconds", "inter_token_latency_seconds",
        "request_time_per_output_token_seconds", "e2e_request_latency_seconds",
        "request_queue_time_seconds", "request_inference_time_seconds",
        "request_prefill_time_seconds", "request_decode_time_seconds", "request_prompt_tokens",
        "request_generation_tokens", "iteration_tokens_total"}) {
    EXPECT_EQ(Vllm(StrCat(name, "_count")), "0") << name;
  }
  for (const char* reason : {"stop", "length", "abort", "error"}) {
    EXPECT_EQ(Labelled("vllm:request_success_total", "finished_reason", reason), "0");
  }
  for (const char* reason : {"invalid", "queue_full", "unavailable", "deadline"}) {
    EXPECT_EQ(Labelled("vllm:admission_rejections_total", "reason", reason), "0");
  }
  for (const char* reason :
       {"client_gone", "too_slow", "deadline", "drain", "evicted", "batch_failed"}) {
    EXPECT_EQ(Labelled("millrace_requests_cancelled_total", "reason", reason), "0");
  }
  EXPECT_EQ(Labelled("vllm:engine_sleep_state", "sleep_state", "awake"), "1");
  EXPECT_EQ(Labelled("vllm:engine_sleep_state", "sleep_state", "weights_offloaded"), "0");
  EXPECT_EQ(Labelled("vllm:engine_sleep_state", "sleep_state", "discard_all"), "0");
  EXPECT_EQ(Value("vllm:cache_config_info{block_size=\"16\",engine=\"0\",model_name=\"m\",num_gpu_"
                  "blocks=\"100\"}"),
            "1");
  EXPECT_THAT(text_, HasSubstr("\nvllm:lora_requests_info{engine=\"0\",max_lora=\"0\",model_name="
                               "\"m\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"} "));
}

TEST_F(MetricsTest, Load) {
  engine_.SetLoad({.num_running = 3,
                   .num_waiting = 4,
                   .blocks_held = 25,
                   .blocks_cached = 60,
                   .blocks_free = 15,
                   .usage = 0.75,
                   .checkpoints_held = 5,
                   .checkpoints_free = 3,
                   .prefix_queries = 100,
                   .prefix_hits = 32,
                   .checkpoint_hits = 2,
                   .checkpoints_taken = 6,
                   .checkpoints_evicted = 1,
                   .replayed_tokens = 48,
                   .preemptions = 1,
                   .forced_tokens = 2,
                   .drafts = 3,
                   .draft_tokens = 9,
                   .accepted_tokens = {3, 2},
                   .prompt_cut_time = std::chrono::milliseconds(250)},
                  /*waiting=*/6);
  EXPECT_EQ(Vllm("num_requests_running"), "3");
  EXPECT_EQ(Vllm("num_requests_waiting"), "6");
  EXPECT_EQ(Labelled("vllm:num_requests_waiting_by_reason", "reason", "capacity"), "6");
  EXPECT_EQ(Labelled("vllm:num_requests_waiting_by_reason", "reason", "deferred"), "0");
  EXPECT_EQ(Vllm("kv_cache_usage_perc"), "0.75");
  EXPECT_EQ(Labelled("millrace_kv_cache_blocks", "state", "held"), "25");
  EXPECT_EQ(Labelled("millrace_kv_cache_blocks", "state", "cached"), "60");
  EXPECT_EQ(Labelled("millrace_kv_cache_blocks", "state", "free"), "15");
  EXPECT_EQ(Labelled("millrace_state_checkpoints", "state", "held"), "5");
  EXPECT_EQ(Labelled("millrace_state_checkpoints", "state", "free"), "3");

  // The scheduler's counters are totals: what is counted here is what they grew by.
  engine_.SetLoad({.prefix_queries = 150,
                   .prefix_hits = 32,
                   .checkpoint_hits = 7,
                   .checkpoints_taken = 9,
                   .checkpoints_evicted = 4,
                   .replayed_tokens = 96,
                   .preemptions = 3,
                   .forced_tokens = 9,
                   .drafts = 4,
                   .draft_tokens = 13,
                   .accepted_tokens = {4, 2, 1},
                   .prompt_cut_time = std::chrono::milliseconds(1500),
                   .prompt_cut_loss = std::chrono::milliseconds(500)},
                  0);
  EXPECT_EQ(Vllm("num_requests_running"), "0");
  EXPECT_EQ(Vllm("prefix_cache_queries_total"), "150");
  EXPECT_EQ(Vllm("prefix_cache_hits_total"), "32");
  EXPECT_EQ(Labelled("millrace_state_checkpoint_hits_total", "model_name", "m"), "7");
  EXPECT_EQ(Labelled("millrace_state_checkpoints_taken_total", "model_name", "m"), "9");
  EXPECT_EQ(Labelled("millrace_state_checkpoints_evicted_total", "model_name", "m"), "4");
  EXPECT_EQ(Labelled("millrace_state_replayed_tokens_total", "model_name", "m"), "96");
  EXPECT_EQ(Vllm("num_preemptions_total"), "3");
  EXPECT_EQ(Labelled("millrace_forced_tokens_total", "model_name", "m"), "9");
  EXPECT_EQ(Vllm("spec_decode_num_drafts_total"), "4");
  EXPECT_EQ(Vllm("spec_decode_num_draft_tokens_total"), "13");
  EXPECT_EQ(Vllm("spec_decode_num_accepted_tokens_total"), "7");
  const std::pair<const char*, const char*> kAccepted[] = {
      {"0", "4"}, {"1", "2"}, {"2", "1"}, {"3", "0"}};
  for (const auto& [position, accepted] : kAccepted) {
    EXPECT_EQ(Labelled("vllm:spec_decode_num_accepted_tokens_per_pos_total", "position", position),
              accepted);
  }
  EXPECT_EQ(Labelled("millrace_prompt_cut_seconds_total", "model_name", "m"), "1.5");
  EXPECT_EQ(Labelled("millrace_prompt_cut_lost_seconds_total", "model_name", "m"), "0.5");
}

// A window may be short of blocks while there are many for the context, and the other way round.
TEST_F(MetricsTest, UsageIsThatOfTheShortestBlocks) {
  const auto usage = [&](std::vector<int32_t> blocks) {
    StepLimits limits = kLimits;
    limits.state.groups = {PagedState{}, PagedState{.window = 20}};
    limits.num_blocks = std::move(blocks);
    const auto scheduler = *Scheduler::Create({.limits = limits, .prefix_caching = false});
    EXPECT_EQ(scheduler->stats().usage, 0);
    EXPECT_TRUE(scheduler
                    ->Add({.id = 1,
                           .prompt = std::vector<Token>(40),
                           .prompt_hashes = {},
                           .sampling = std::make_shared<SamplingParams>(),
                           .stop = {.max_tokens = 1},
                           .first_mask = nullptr,
                           .arrival = SteadyTime(std::chrono::hours(1))})
                    .ok());
    EXPECT_TRUE(scheduler->Plan(SteadyTime(std::chrono::hours(1))).has_value());
    engine_.SetLoad(scheduler->stats(), 0);
    return Vllm("kv_cache_usage_perc");
  };
  EXPECT_EQ(usage({12, 4}), "0.75");
  EXPECT_EQ(usage({4, 12}), "0.75");
}

TEST_F(MetricsTest, Tokens) {
  engine_.OnStep({.tokens = 40, .sequences = 3, .took = milliseconds(20)});
  EXPECT_EQ(Labelled("millrace_cuda_graph_steps_total", "model_name", "m"), "0");
  engine_.OnStep({.as_graph = true});
  EXPECT_EQ(Labelled("millrace_cuda_graph_steps_total", "model_name", "m"), "1");
  engine_.OnPrompt(40, 16);
  engine_.OnFirstToken(milliseconds(300));
  engine_.OnNextToken(std::chrono::microseconds(400));
  engine_.OnNextToken(milliseconds(1));
  EXPECT_EQ(Vllm("prompt_tokens_total"), "40");
  EXPECT_EQ(Vllm("prompt_tokens_cached_total"), "16");
  const auto source = [&](const char* name) {
    return Labelled("vllm:prompt_tokens_by_source_total", "source", name);
  };
  EXPECT_EQ(source("local_compute"), "24");
  EXPECT_EQ(source("local_cache_hit"), "16");
  EXPECT_EQ(source("external_kv_transfer"), "0");
  EXPECT_EQ(Labelled("vllm:prompt_tokens_cached_by_source_total", "source", "device"), "16");
  EXPECT_EQ(Value("millrace_step_batch_size_sum{engine=\"0\",model_name=\"m\"}"), "3");
  EXPECT_EQ(Value("millrace_step_duration_seconds_sum{engine=\"0\",model_name=\"m\"}"), "0.02");
  EXPECT_EQ(Vllm("generation_tokens_total"), "3");
  EXPECT_EQ(Vllm("time_to_first_token_seconds_sum"), "0.3");
  EXPECT_EQ(Vllm("inter_token_latency_seconds_count"), "2");
  EXPECT_EQ(Vllm("iteration_tokens_total_sum"), "40");
  // The lowest bucket is 0.5 ms, and a bucket holds its own bound.
  EXPECT_EQ(
      Value("vllm:inter_token_latency_seconds_bucket{engine=\"0\",model_name=\"m\",le=\"0.0005\"}"),
      "1");
  EXPECT_EQ(
      Value("vllm:inter_token_latency_seconds_bucket{engine=\"0\",model_name=\"m\",le=\"0.001\"}"),
      "2");
  EXPECT_EQ(
      Value("vllm:time_to_first_token_seconds_bucket{engine=\"0\",model_name=\"m\",le=\"0.0005\"}"),
      "0");
}

TEST_F(MetricsTest, ARequestThatEndedOnItsOwn) {
  engine_.OnFinish(FinishReason::kLength, MakeEnd());
  EXPECT_EQ(Labelled("vllm:request_success_total", "finished_reason", "length"), "1");
  EXPECT_EQ(Vllm("e2e_request_latency_seconds_sum"), "0.7");
  EXPECT_EQ(Vllm("request_queue_time_seconds_sum"), "0.1");
  EXPECT_EQ(Vllm("request_inference_time_seconds_sum"), "0.6");
  EXPECT_EQ(Vllm("request_prefill_time_seconds_sum"), "0.2");
  EXPECT_EQ(Vllm("request_decode_time_seconds_sum"), "0.4");
  EXPECT_EQ(Vllm("request_time_per_output_token_seconds_sum"), "0.1");
  EXPECT_EQ(Vllm("request_prompt_tokens_sum"), "40");
  EXPECT_EQ(Vllm("request_generation_tokens_sum"), "5");
  EXPECT_EQ(Vllm("request_max_num_generation_tokens_sum"), "5");
  EXPECT_EQ(Vllm("request_prefill_kv_computed_tokens_sum"), "24");
}

TEST_F(MetricsTest, ARequestWithoutASecondTokenHasNoTimeBetweenThem) {
  SequenceEnd end = MakeEnd();
  end.generated_tokens = 1;
  engine_.OnFinish(FinishReason::kStop, end);
  EXPECT_EQ(Vllm("request_time_per_output_token_seconds_count"), "0");
  EXPECT_EQ(Vllm("request_decode_time_seconds_count"), "1");
  end.first_token.reset();
  end.generated_tokens = 0;
  engine_.OnFinish(FinishReason::kLength, end);
  EXPECT_EQ(Vllm("request_decode_time_seconds_count"), "1");
  EXPECT_EQ(Vllm("e2e_request_latency_seconds_count"), "2");
}

TEST_F(MetricsTest, ARequestThatWasEndedIsOnlyCounted) {
  engine_.OnFinish(FinishReason::kCancelled, MakeEnd());
  engine_.OnFinish(FinishReason::kError, MakeEnd());
  engine_.OnCancel(CancelReason::kTooSlow);
  engine_.OnReject(Rejection::kQueueFull);
  engine_.OnStall();
  EXPECT_EQ(Labelled("vllm:request_success_total", "finished_reason", "abort"), "1");
  EXPECT_EQ(Labelled("vllm:request_success_total", "finished_reason", "error"), "1");
  EXPECT_EQ(Labelled("millrace_requests_cancelled_total", "reason", "too_slow"), "1");
  EXPECT_EQ(Labelled("vllm:admission_rejections_total", "reason", "queue_full"), "1");
  EXPECT_EQ(Value("millrace_engine_stalls_total{engine=\"0\",model_name=\"m\"}"), "1");
  EXPECT_EQ(Vllm("e2e_request_latency_seconds_count"), "0");
}

TEST_F(MetricsTest, TheServer) {
  metrics_.SetReady(true);
  metrics_.OnHttpConnectionOpened();
  metrics_.OnHttpConnectionOpened();
  metrics_.OnHttpConnectionClosed();
  EXPECT_EQ(Value("millrace_ready"), "1");
  EXPECT_EQ(Value("millrace_http_connections"), "1");
  EXPECT_EQ(Value("millrace_http_connections_opened_total"), "2");
  metrics_.SetReady(false);
  EXPECT_EQ(Value("millrace_ready"), "0");
}

TEST_F(MetricsTest, GraphsThatCouldNotBeCaptured) {
  EXPECT_EQ(Labelled("millrace_cuda_graphs", "state", "failed"), "0");
  engine_.SetGraphs(33, 2);
  EXPECT_EQ(Labelled("millrace_cuda_graphs", "state", "captured"), "33");
  EXPECT_EQ(Labelled("millrace_cuda_graphs", "state", "failed"), "2");
}

TEST_F(MetricsTest, EnginesAreToldApartByModel) {
  metrics_.AddEngine("other \"model\"\n", kLimits).OnStep({.tokens = 1});
  EXPECT_EQ(
      Value(
          "vllm:iteration_tokens_total_count{engine=\"0\",model_name=\"other \\\"model\\\"\\n\"}"),
      "1");
  EXPECT_EQ(Vllm("iteration_tokens_total_count"), "0");
}

TEST_F(MetricsTest, EachFamilyIsDescribedOnce) {
  metrics_.AddEngine("other", kLimits);
  std::set<std::string> types;
  const std::string text = metrics_.Render();
  for (const std::string_view line : SplitList(text, '\n')) {
    if (line.starts_with("# TYPE ")) {
      EXPECT_TRUE(types.insert(std::string(line)).second) << line;
    }
  }
  EXPECT_TRUE(types.contains("# TYPE vllm:num_requests_running gauge"));
  EXPECT_TRUE(types.contains("# TYPE vllm:prompt_tokens_total counter"));
  EXPECT_TRUE(types.contains("# TYPE vllm:iteration_tokens_total histogram"));
}

TEST_F(MetricsTest, CountsFromManyThreads) {
  std::array<std::thread, 4> threads;
  for (std::thread& thread : threads) {
    thread = std::thread([&] {
      for (int n = 0; n < 1000; ++n) {
        engine_.OnNextToken(milliseconds(1));
        if (n % 250 == 0) metrics_.Render();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Vllm("generation_tokens_total"), "4000");
  EXPECT_EQ(Vllm("inter_token_latency_seconds_count"), "4000");
}

// Prometheus' own linter minds two things that vLLM's names make it mind, and nothing else.
TEST_F(MetricsTest, PromtoolMindsOnlyWhatVllmNamed) {
  const std::string path = testing::TempDir() + StrCat("metrics_test_", getpid());
  std::ofstream(path) << metrics_.Render();
  FILE* promtool = popen(StrCat("promtool check metrics < ", path, " 2>&1").c_str(), "r");
  ASSERT_NE(promtool, nullptr);
  std::string output;
  char chunk[4096];
  while (const size_t size = fread(chunk, 1, sizeof(chunk), promtool)) output.append(chunk, size);
  const int status = pclose(promtool);
  std::filesystem::remove(path);

  // 0: nothing to say. 3: it has read everything and has complaints.
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << output;
  for (const std::string_view line : SplitList(output, '\n')) {
    const bool colon =
        line.starts_with("vllm:") && line.ends_with("metric names should not contain ':'");
    const bool suffix =
        line.starts_with("vllm:iteration_tokens_total ") && line.find("_total") != line.npos;
    EXPECT_TRUE(colon || suffix) << line;
  }
}

}  // namespace
}  // namespace millrace
