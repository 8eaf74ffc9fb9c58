#include "loadtest/driver.h"

#include <algorithm>
#include <utility>

#include "base/strings.h"

namespace millrace {
namespace {

// How often a thread looks whether the user wants an end.
constexpr double kLongestWait = 0.1;  // seconds

// How long a client of the closed loop rests after a failure, so that a server that refuses all is
// not asked as fast as the machine can.
constexpr double kRest = 0.01;  // seconds

// How many requests keep their text, so that the report can show what was answered.
constexpr uint64_t kSamples = 3;

// Returns a thread's part of `whole`: parts differ by one at most.
int64_t Share(int64_t whole, int threads, uint64_t thread) {
  return whole / threads + (static_cast<int64_t>(thread) < whole % threads ? 1 : 0);
}

ArrivalOptions ArrivalsOf(const RunShared& shared) {
  const Options& options = shared.options;
  return {.kind = options.arrival.value_or(ArrivalKind::kPoisson),
          .rate = options.rate.value_or(1),
          .burstiness = options.burstiness,
          .burst_size = options.burst_size,
          .ramp_start = options.ramp_start,
          .ramp_time = options.duration,
          .trace = shared.trace};
}

}  // namespace

Driver::Driver(RunShared& shared, int thread, ThreadProgress& progress)
    : shared_(shared), thread_(static_cast<uint64_t>(thread)), progress_(progress) {
  const Options& options = shared.options;
  const bool is_bounded = options.concurrency > 0 || !options.open_loop();
  capacity_ = is_bounded ? Share(std::max<int64_t>(options.concurrency, 1), shared.threads, thread_)
                         : std::numeric_limits<int64_t>::max();
  if (!options.open_loop()) return;
  arrivals_.emplace(ArrivalsOf(shared), options.seed);
  Advance();
}

bool Driver::TimeIsOver(double now) const {
  return shared_.stop.load(std::memory_order_relaxed) ||
         (shared_.options.duration > 0 && now >= shared_.options.duration);
}

double Driver::Tick(double now) {
  if (!started_) {
    started_ = true;
    if (!arrivals_) StartClosedLoop();
  }
  if (TimeIsOver(now)) {
    // Requests that were due before the end are still sent: to leave them out would hide how late
    // the server made them.
    if (next_arrival_) TakeArrivals(std::min(now, shared_.options.duration));
    next_arrival_.reset();
    thinking_.clear();
    resting_.clear();
    const bool is_late = shared_.stop.load(std::memory_order_relaxed) ||
                         now >= shared_.options.duration + shared_.options.grace;
    if (is_late && !gave_up_) GiveUp(now);
  } else {
    TakeArrivals(now);
  }
  Resume(now);
  // A thread whose share of the concurrency is 0 has nothing to send.
  if (capacity_ == 0) next_arrival_.reset();
  finished_ =
      running_ == 0 && !next_arrival_ && waiting_.empty() && thinking_.empty() && resting_.empty();
  double wake = now + kLongestWait;
  if (next_arrival_) wake = std::min(wake, *next_arrival_);
  if (!thinking_.empty()) wake = std::min(wake, thinking_.begin()->first);
  if (!resting_.empty()) wake = std::min(wake, resting_.front());
  return wake;
}

void Driver::StartClosedLoop() {
  for (int64_t i = 0; i < capacity_; ++i) BeginNextSession();
}

// Begins the next session of the closed loop, if there is one.
void Driver::BeginNextSession() {
  if (arrivals_ || TimeIsOver(Now())) return;
  const uint64_t index = shared_.next_session.fetch_add(1, std::memory_order_relaxed);
  const int64_t most = shared_.options.num_prompts;
  if (most > 0 && index >= static_cast<uint64_t>(most)) return;
  const double now = Now();
  Send(now, now, Begin(index));
}

Session Driver::Begin(uint64_t index) {
  ++measurements_.sessions.begun;
  return shared_.workload.Begin(index);
}

// Moves to this thread's next arrival.
void Driver::Advance() {
  const auto most = static_cast<uint64_t>(shared_.options.num_prompts);
  while (true) {
    next_arrival_ = arrivals_->Next();
    const uint64_t index = arrival_index_++;
    const bool is_over =
        (most > 0 && index >= most) || (shared_.options.duration > 0 && next_arrival_ &&
                                        *next_arrival_ >= shared_.options.duration);
    if (is_over) next_arrival_.reset();
    if (!next_arrival_ || index % static_cast<uint64_t>(shared_.threads) == thread_) return;
  }
}

void Driver::TakeArrivals(double now) {
  while (next_arrival_ && *next_arrival_ <= now) {
    Session session = Begin(arrival_index_ - 1);
    const double intended = *next_arrival_;
    Advance();
    if (!HasCapacity() || !waiting_.empty()) {
      waiting_.push_back({intended, std::move(session)});
      continue;
    }
    lag_.Add(now - intended);
    Send(intended, now, std::move(session));
  }
}

// Sends what waited for capacity, then the next turns of sessions.
void Driver::Resume(double now) {
  while (!waiting_.empty() && HasCapacity()) {
    Due due = std::move(waiting_.front());
    waiting_.pop_front();
    Send(due.time, now, std::move(due.session));
  }
  while (!resting_.empty() && resting_.front() <= now) {
    resting_.pop_front();
    BeginNextSession();
  }
  while (!thinking_.empty() && thinking_.begin()->first <= now) {
    auto next = thinking_.extract(thinking_.begin());
    Due due{next.key(), std::move(next.mapped())};
    if (!arrivals_ || HasCapacity()) {
      Send(due.time, now, std::move(due.session));
    } else {
      waiting_.push_back(std::move(due));
    }
  }
}

void Driver::Send(double intended, double now, Session session) {
  const uint32_t turn = session.turn();
  Request request = shared_.workload.Next(session);
  auto exchange = std::make_unique<Exchange>(std::move(session), std::move(request));
  RequestRecord& record = exchange->record;
  record.session = exchange->session.index();
  record.turn = turn;
  record.slow = exchange->request.slow;
  record.prompt_before = exchange->session.prompt_tokens();
  record.beginning = exchange->request.beginning;
  record.own_share = exchange->request.own_share;
  record.intended = intended;
  record.sent = now;
  exchange->keep_text =
      exchange->session.has_next() || shared_.options.save_detailed || record.session < kSamples;
  ++running_;
  ++measurements_.Second(now).sent;
  ThreadProgress::Add(progress_.sent, 1);
  ThreadProgress::Add(progress_.running, 1);
  client_->Send(std::move(exchange));
}

void Driver::Done(std::unique_ptr<Exchange> exchange) {
  RequestRecord& record = exchange->record;
  exchange->meter.Finish(exchange->counted_tokens, shared_.options.save_detailed, record,
                         measurements_);
  record.counted = exchange->counted_tokens > 0 || shared_.options.protocol == Protocol::kGrpc;
  const bool is_completed = record.outcome == Outcome::kCompleted;
  const bool is_failed = record.outcome == Outcome::kFailed;
  TimelineSecond& second = measurements_.Second(record.end);
  second.completed += is_completed ? 1 : 0;
  second.failed += is_failed ? 1 : 0;
  --running_;
  ThreadProgress::Add(progress_.running, -1);
  ThreadProgress::Add(is_failed ? progress_.failed : progress_.completed, 1);
  const bool has_next = exchange->session.has_next();
  const std::shared_ptr<SessionProgress> progress = exchange->session.progress();
  std::vector<Continuation> next;
  if (is_completed && has_next && !TimeIsOver(record.end)) {
    next =
        shared_.workload.GoOn(std::move(exchange->session),
                              {record.text, std::move(exchange->reasoning)}, record.prompt_tokens);
  }
  if (!shared_.options.save_detailed && record.session >= kSamples) record.text.clear();
  progress->has_failed |= is_failed || record.outcome == Outcome::kDeadline;
  progress->was_cut |= !is_completed || (has_next && next.empty());
  progress->open += static_cast<int64_t>(next.size()) - 1;
  for (Continuation& branch : next) {
    thinking_.emplace(record.end + branch.delay, std::move(branch.session));
  }
  measurements_.records.push_back(std::move(record));
  if (progress->open > 0) return;
  measurements_.sessions.failed += progress->has_failed ? 1 : 0;
  measurements_.sessions.completed += progress->was_cut ? 0 : 1;
  if (is_failed && !arrivals_) {
    resting_.push_back(Now() + kRest);
  } else {
    BeginNextSession();
  }
}

// Ends what runs, and records what was never sent.
void Driver::GiveUp(double now) {
  gave_up_ = true;
  for (const Due& due : waiting_) {
    RequestRecord record{.session = due.session.index(), .turn = due.session.turn()};
    record.outcome = Outcome::kUnfinished;
    record.intended = due.time;
    record.sent = record.end = now;
    measurements_.records.push_back(std::move(record));
  }
  waiting_.clear();
  client_->AbortAll();
}

}  // namespace millrace
