// Whatever steps cost: cutting prompts costs little, and is learned within 50 mixed steps.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <optional>
#include <ostream>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/step_budget.h"

namespace millrace {
namespace {

// What a step takes, in milliseconds. A step with prompts takes `fixed` more than one without, and
// `tile` for each token_tile tokens that it has begun.
struct Shape {
  double plain = 2.3;
  double row = 0.02;
  double fixed = 0;
  double tile = 1.9;
  int token_tile = 128;
  double noise = 0.01;
  double outliers = 0;  // the share of steps that take ten times as long
  double experts = 0;   // to read all experts of a layer of 128, of which a token reads 8

  double Exact(const StepWork& work) const {
    double ms = plain + row * work.decode_rows;
    const int tokens = work.decode_rows + work.prompt_tokens;
    const int tiles = (tokens + token_tile - 1) / token_tile;
    if (work.prompt_tokens > 0) ms += fixed + tile * tiles;
    return ms + experts * (1 - std::pow(1 - 8.0 / 128, tokens));
  }
};

std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << "plain " << s.plain << " row " << s.row << " fixed " << s.fixed << " tile "
             << s.tile << " of " << s.token_tile << " noise " << s.noise << " outliers "
             << s.outliers << " experts " << s.experts;
}

struct Load {
  int clients = 16;
  int input = 512;
  int output = 128;  // half to one and a half times as much
};

std::ostream& operator<<(std::ostream& out, const Load& load) {
  return out << load.clients << " clients, " << load.input << " + " << load.output << " tokens";
}

struct Figures {
  double tokens_a_second = 0;
  double first_token_ms = 0;  // on average
  double longest_ms = 0;      // of mixed steps
  double mean_chunk = 0;
};

// A closed loop of clients on a device whose shape may change. Figures are of the expected times of
// steps, what the budget observes has noise and outliers. Both are functions of the seed.
class ClosedLoop {
 public:
  ClosedLoop(StepBudget& budget, const Load& load, const Shape& shape, uint64_t seed)
      : budget_(budget), load_(load), shape_(shape), random_(seed), clients_(load.clients) {
    for (Client& client : clients_) client = Fresh();
  }

  void Become(const Shape& shape) { shape_ = shape; }

  void RunMixed(int64_t steps) {
    for (const int64_t end = num_mixed_ + steps; num_mixed_ < end;) Step();
  }

  Figures Measure(int64_t answers) {
    const double begin = now_;
    tokens_ = answers_ = 0;
    first_ms_ = longest_ = 0;
    const int64_t mixed = num_mixed_;
    prompt_tokens_ = 0;
    while (answers_ < answers) Step();
    return {.tokens_a_second = static_cast<double>(tokens_) / (now_ - begin) * 1e3,
            .first_token_ms = first_ms_ / static_cast<double>(answers_),
            .longest_ms = longest_,
            .mean_chunk = static_cast<double>(prompt_tokens_) /
                          static_cast<double>(std::max<int64_t>(num_mixed_ - mixed, 1))};
  }

 private:
  struct Client {
    int missing = 0;  // prompt tokens
    int context = 0;
    int left = 0;  // tokens of the answer
    double begun = 0;
    int taken = 0;  // by the step at hand
  };

  Client Fresh() {
    return {.missing = load_.input,
            .left = load_.output / 2 + static_cast<int>(random_() % load_.output) + 1,
            .begun = now_};
  }

  double Observed(double exact) {
    const double up = static_cast<double>(random_() % 1000) / 1000;
    const bool is_outlier = static_cast<double>(random_() % 10'000) < 1e4 * shape_.outliers;
    return exact * (1 + shape_.noise * up) * (is_outlier ? 10 : 1);
  }

  void Step() {
    StepWork work;
    int waiting = 0;
    for (const Client& client : clients_) {
      waiting += client.missing;
      if (client.missing > 0) continue;
      ++work.decode_rows;
      work.decode_context += client.context;
    }
    int room = 8192 - work.decode_rows;
    budget_.Begin(work.decode_rows, work.decode_context, std::min(waiting, room));
    for (Client& client : clients_) {
      client.taken = 0;
      if (client.missing == 0 || room == 0) continue;
      client.taken = budget_.Allow(std::min(client.missing, room), client.context);
      budget_.Take(client.taken, client.context);
      if (client.taken > 0) work.AddPrompt(client.taken, client.context);
      room -= client.taken;
    }
    const double exact = shape_.Exact(work);
    now_ += exact;
    const double ms = Observed(exact);
    budget_.Observe(
        work, std::chrono::duration_cast<Duration>(std::chrono::duration<double, std::milli>(ms)));
    if (work.decode_rows > 0 && work.prompt_tokens > 0) {
      ++num_mixed_;
      prompt_tokens_ += work.prompt_tokens;
      longest_ = std::max(longest_, exact);
    }
    for (Client& client : clients_) Advance(client);
  }

  void Advance(Client& client) {
    const bool in_prompt = client.missing > 0;
    client.missing -= client.taken;
    client.context += client.taken;
    if (client.missing > 0) return;
    if (in_prompt) {
      first_ms_ += now_ - client.begun;
      ++answers_;
    }
    ++tokens_;
    ++client.context;
    if (--client.left == 0) client = Fresh();
  }

  StepBudget& budget_;
  const Load load_;
  Shape shape_;
  std::mt19937_64 random_;
  std::vector<Client> clients_;
  double now_ = 0;
  double first_ms_ = 0;
  double longest_ = 0;
  int64_t num_mixed_ = 0;
  int64_t tokens_ = 0;
  int64_t answers_ = 0;
  int64_t prompt_tokens_ = 0;
};

constexpr int kSettled = 50;  // mixed steps

// Runs on `before` until the budget believes in it, then measures on `shape`, 50 mixed steps later.
Figures FiguresOf(std::optional<Duration> target, const Load& load, const Shape& before,
                  const Shape& shape, uint64_t seed) {
  StepBudget budget(target, {.token_tile = shape.token_tile,
                             .num_experts = shape.experts > 0 ? 128 : 0,
                             .experts_a_token = shape.experts > 0 ? 8 : 0});
  ClosedLoop loop(budget, load, before, seed);
  loop.RunMixed(60);
  loop.Become(shape);
  loop.RunMixed(kSettled);
  return loop.Measure(std::max(100, 4 * load.clients));
}

void ExpectCheapCuts(const Load& load, const Shape& before, const Shape& shape, uint64_t seed) {
  const Figures uncut = FiguresOf(std::nullopt, load, before, shape, seed);
  const Figures cut = FiguresOf(Duration::zero(), load, before, shape, seed);
  EXPECT_GE(cut.tokens_a_second, 0.9 * uncut.tokens_a_second)
      << load << "; " << shape << "; before " << before << "; seed " << seed;
  EXPECT_LE(cut.first_token_ms, 2 * uncut.first_token_ms)
      << load << "; " << shape << "; before " << before << "; seed " << seed;
}

// Random numbers that are the same with every library.
class Random {
 public:
  explicit Random(uint64_t seed) : random_(seed) {}
  double Between(double least, double most) {
    return least + (most - least) * static_cast<double>(random_() >> 11) * 0x1p-53;
  }
  double ByRatio(double least, double most) {
    return least * std::pow(most / least, Between(0, 1));
  }
  template <typename T, size_t n>
  T OneOf(const T (&values)[n]) {
    return values[random_() % n];
  }

 private:
  std::mt19937_64 random_;
};

Shape RandomShape(Random& random, int token_tile) {
  Shape shape{.plain = random.ByRatio(0.5, 30)};
  shape.row = shape.plain * random.Between(0, 0.1);
  shape.fixed = random.OneOf({0, 1}) * shape.plain * random.ByRatio(0.1, 5);
  shape.token_tile = token_tile;
  shape.tile = shape.plain * random.ByRatio(0.1, 8) * token_tile / 512;
  shape.noise = random.Between(0, 0.1);
  shape.outliers = random.OneOf({0, 1}) * random.Between(0, 0.05);
  shape.experts = random.OneOf({0, 0, 0, 1}) * shape.plain;
  return shape;
}

TEST(StepBudgetShapesTest, CuttingIsCheapOnTwoHundredRandomDevicesAfterAnother) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Random random(seed);
    const int token_tile = random.OneOf({1, 16, 64, 128, 256});
    const Shape shape = RandomShape(random, token_tile);
    Shape before = RandomShape(random, token_tile);
    before.experts = shape.experts > 0 ? before.plain : 0;
    const Load load{.clients = random.OneOf({2, 4, 8, 16, 32, 64}),
                    .input = static_cast<int>(random.ByRatio(64, 4000)),
                    .output = static_cast<int>(random.ByRatio(32, 300))};
    ExpectCheapCuts(load, before, shape, seed);
  }
}

// The cost of a step without prompts, with one and with tiles of it, of which the fixed ones have
// lured budgets into ever smaller chunks.
struct Crawl {
  int clients;
  double fixed;
  double tile;
};
constexpr Crawl kCrawls[] = {{4, 1, 1.9},    {8, 2.5, 1.9}, {16, 0, 1.9}, {16, 1, 1.9},
                             {16, 2.5, 1.9}, {16, 4, 1.9},  {16, 6, 1.9}, {32, 6, 1.9},
                             {64, 6, 1.9},   {2, 6, 0.1},   {16, 30, 0},  {16, 0.5, 0.2},
                             {64, 0.2, 12},  {12, 6, 1.9},  {24, 6, 1.9}};

TEST(StepBudgetShapesTest, AFixedCostMakesNoChunksCrawl) {
  // Believed before: tokens are dear and steps free, nothing costs anything, and a slow device.
  const Shape befores[] = {{.plain = 0.05, .fixed = 0, .tile = 60},
                           {.plain = 0.5, .row = 0, .fixed = 0, .tile = 0},
                           {.plain = 40, .fixed = 80, .tile = 1}};
  for (const Crawl& crawl : kCrawls) {
    for (const Shape& before : befores) {
      const Shape shape{.fixed = crawl.fixed, .tile = crawl.tile};
      ExpectCheapCuts({.clients = crawl.clients}, before, shape, 7);
    }
  }
}

TEST(StepBudgetShapesTest, OneStepInThreeMayBeTenTimesAsSlow) {
  for (const Crawl& crawl : kCrawls) {
    const Shape shape{.fixed = crawl.fixed, .tile = crawl.tile, .outliers = 0.33};
    ExpectCheapCuts({.clients = crawl.clients}, shape, shape, 7);
  }
}

// The clocks of a device fall and rise while it is idle.
TEST(StepBudgetShapesTest, OtherClocksAreKnownSoon) {
  for (const Crawl& crawl : kCrawls) {
    for (const double factor : {0.3, 0.7, 1.4, 3.0}) {
      const Shape shape{.fixed = crawl.fixed, .tile = crawl.tile};
      const Shape other{.plain = factor * shape.plain,
                        .row = factor * shape.row,
                        .fixed = factor * shape.fixed,
                        .tile = factor * shape.tile};
      ExpectCheapCuts({.clients = crawl.clients}, other, shape, 7);
    }
  }
}

// Fixed costs and long prompts: whole prompts would stop the streams for 40 steps.
TEST(StepBudgetShapesTest, LongPromptsAreCutWhereThatIsCheap) {
  const Load load{.clients = 4, .input = 8000, .output = 400};
  for (const double fixed : {0.0, 0.5}) {
    const Shape shape{.plain = 1, .fixed = fixed, .tile = 1.9};
    const Figures uncut = FiguresOf(std::nullopt, load, shape, shape, 3);
    const Figures cut = FiguresOf(Duration::zero(), load, shape, shape, 3);
    EXPECT_LE(cut.longest_ms, 0.3 * uncut.longest_ms);
    EXPECT_GE(cut.tokens_a_second, 0.95 * uncut.tokens_a_second);
    EXPECT_LE(cut.first_token_ms, 1.3 * uncut.first_token_ms);
  }
}

// A target that no step with a prompt can hold costs no more than twice the time.
TEST(StepBudgetShapesTest, ATargetInVainDoesNotCrawl) {
  const Load load{.clients = 8, .input = 2000};
  const Shape shape{.fixed = 6};
  const Figures uncut = FiguresOf(std::nullopt, load, shape, shape, 3);
  const Figures cut = FiguresOf(std::chrono::milliseconds(8), load, shape, shape, 3);
  EXPECT_LE(cut.first_token_ms, 2.5 * uncut.first_token_ms);
  EXPECT_LE(cut.longest_ms, 0.8 * uncut.longest_ms);
}

// What a target costs: each of its steps has the fixed costs, of which decoding rows get something
// for the plain part.
TEST(StepBudgetShapesTest, TellsWhatCuttingCosts) {
  const Shape shape{.plain = 2, .row = 0, .fixed = 4, .tile = 0.16, .token_tile = 16, .noise = 0};
  StepBudget budget(std::chrono::milliseconds(12), /*token_tile=*/16);
  const auto observe = [&](const StepWork& work) {
    budget.Observe(work, std::chrono::duration_cast<Duration>(
                             std::chrono::duration<double, std::milli>(shape.Exact(work))));
  };
  for (int i = 0; i < 60; ++i) {
    StepWork work{.decode_rows = 8, .decode_context = 800};
    observe(work);
    work.AddPrompt(40 + 10 * i, 0);
    observe(work);
  }
  StepWork uncut{.decode_rows = 8, .decode_context = 800};
  uncut.AddPrompt(3000, 0);
  double took = 0;
  int steps = 0;
  for (int left = 3000; left > 0; ++steps) {
    budget.Begin(8, 800, left);
    const int tokens = budget.Allow(left, 3000 - left);
    budget.Take(tokens, 3000 - left);
    StepWork work{.decode_rows = 8, .decode_context = 800};
    work.AddPrompt(tokens, 3000 - left);
    took += shape.Exact(work);
    EXPECT_LE(shape.Exact(work), 12);
    left -= tokens;
  }
  budget.Begin(8, 800, 0);  // ends the last one
  ASSERT_GT(steps, 5);
  EXPECT_NEAR(ToSeconds(budget.prompt_cost()) * 1e3, took - shape.Exact(uncut), 3);
  EXPECT_NEAR(ToSeconds(budget.throughput_cost()) * 1e3, (steps - 1) * shape.fixed, 3);
}

}  // namespace
}  // namespace millrace
