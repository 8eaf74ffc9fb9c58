// Decides what one thread sends, and when.
#ifndef MILLRACE_LOADTEST_DRIVER_H_
#define MILLRACE_LOADTEST_DRIVER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "loadtest/arrivals.h"
#include "loadtest/meter.h"
#include "loadtest/options.h"
#include "loadtest/workload.h"

namespace millrace {

// One request on its way, owned by the client while it is.
struct Exchange {
  Exchange(Session of, Request what) : session(std::move(of)), request(std::move(what)) {}

  Session session;
  Request request;
  RequestRecord record;
  StreamMeter meter;
  int64_t counted_tokens = 0;  // by the server
  bool keep_text = false;      // record.text is wanted
  std::string reasoning;       // of replays, which keep thoughts apart from the text

  // Returns where the stream's thoughts go, null if nowhere.
  std::string* Thoughts() {
    if (!keep_text) return nullptr;
    return request.history.empty() ? &record.text : &reasoning;
  }
};

// A thread's progress while it runs. Only that thread writes.
struct ThreadProgress {
  std::atomic<int64_t> sent = 0;
  std::atomic<int64_t> completed = 0;
  std::atomic<int64_t> failed = 0;
  std::atomic<int64_t> running = 0;
  std::atomic<int64_t> events = 0;
  std::atomic<int64_t> tokens = 0;
  std::atomic<int64_t> first_tokens = 0;
  std::atomic<int64_t> ttft_us = 0;  // sum over first_tokens

  static void Add(std::atomic<int64_t>& to, int64_t value) {
    to.store(to.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
  }
};

// The state that the threads of a run share.
struct RunShared {
  const Options& options;
  const Workload& workload;
  std::shared_ptr<const std::vector<TraceEntry>> trace;
  const std::atomic<bool>& stop;  // the user wants an end
  int threads = 1;
  SteadyTime start;
  std::atomic<uint64_t> next_session = 0;  // of the closed loop
};

// Sends requests, and returns each to the driver when it has ended. Belongs to one thread.
class Client {
 public:
  virtual ~Client() = default;

  // Never calls the driver back before it returns.
  virtual void Send(std::unique_ptr<Exchange> exchange) = 0;
  // Ends all that runs, as kUnfinished.
  virtual void AbortAll() = 0;
};

// One thread's share of a run: a closed loop's clients, or each threads-th arrival of an open loop.
class Driver {
 public:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  Driver(RunShared& shared, int thread, ThreadProgress& progress);

  // The client must live until the run's end.
  void set_client(Client& client) { client_ = &client; }

  double Now() const { return ToSeconds(Clock::Real().Now() - shared_.start); }
  // Sends what is due, and returns when to be called again at the latest. Call it before anything
  // else, and after each Done.
  double Tick(double now);
  // Takes an exchange whose record's outcome, end and error are set.
  void Done(std::unique_ptr<Exchange> exchange);
  bool finished() const { return finished_; }

  Measurements& measurements() { return measurements_; }
  const Histogram& lag() const { return lag_; }
  ThreadProgress& progress() { return progress_; }
  const Options& options() const { return shared_.options; }

 private:
  struct Due {
    double time;
    Session session;
  };

  void StartClosedLoop();
  void TakeArrivals(double now);
  void Advance();
  void Resume(double now);
  Session Begin(uint64_t index);
  void Send(double intended, double now, Session session);
  void BeginNextSession();
  bool TimeIsOver(double now) const;
  void GiveUp(double now);
  bool HasCapacity() const { return running_ < capacity_; }

  RunShared& shared_;
  const uint64_t thread_;
  ThreadProgress& progress_;
  Client* client_ = nullptr;
  Measurements measurements_;
  Histogram lag_;  // how late requests were sent that nothing but this program held up

  int64_t capacity_;
  int64_t running_ = 0;
  bool started_ = false;
  bool finished_ = false;
  bool gave_up_ = false;

  std::optional<Arrivals> arrivals_;  // of the open loop
  std::optional<double> next_arrival_;
  uint64_t arrival_index_ = 0;
  std::deque<Due> waiting_;     // due, and held up by the bound on requests at once
  std::deque<double> resting_;  // when clients of the closed loop go on after a failure
  std::multimap<double, Session> thinking_;  // between turns, by when they go on
};

}  // namespace millrace

#endif  // MILLRACE_LOADTEST_DRIVER_H_
