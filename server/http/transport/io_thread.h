// A thread that serves connections, each of which lives on one such thread for good: nothing of a
// connection takes a lock.
#ifndef MILLRACE_SERVER_HTTP_TRANSPORT_IO_THREAD_H_
#define MILLRACE_SERVER_HTTP_TRANSPORT_IO_THREAD_H_

#include <array>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <vector>

namespace millrace {

class Connection;

enum class WhichConnections {
  kUsedIdle,  // idle after a response, and no byte of another request has come
  kIdle,
  kAll,
};

// Where to find a connection that an answer wakes; it may be gone by then.
struct WakeSlot {
  std::weak_ptr<Connection> connection;
  std::atomic<bool> queued{false};
};

// Connections to poll, handed over from any thread. A whole step's worth of tokens comes as one
// batch: the thread is woken once for all of them.
class WakeList : public std::enable_shared_from_this<WakeList> {
 public:
  explicit WakeList(boost::asio::io_context& context) : context_(&context) {}

  // Queues a slot to be woken. Does nothing after Close.
  void Push(std::shared_ptr<WakeSlot> slot);
  // Stops accepting slots. Call before the context is destroyed.
  void Close();

 private:
  void Drain();

  std::mutex mutex_;
  boost::asio::io_context* context_;              // guarded by mutex_; nullptr: closed
  std::vector<std::shared_ptr<WakeSlot>> slots_;  // guarded by mutex_
  std::vector<std::shared_ptr<WakeSlot>> batch_;  // the thread's own
};

class IoThread {
 public:
  // The most that a client may send ahead; a header must fit.
  static constexpr size_t kInputBytes = 64 << 10;

  IoThread();
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;
  ~IoThread();

  void Start();
  // Joins the thread. Call once every connection is closed; the thread ends with the handlers it
  // has.
  void Join();

  boost::asio::io_context& context() { return context_; }
  const std::shared_ptr<WakeList>& wakes() const { return wakes_; }
  // Space for the bytes of one read, which the connections share. Used on this thread only.
  std::array<char, kInputBytes>& input() { return input_; }

  // Adds and removes a connection. Called on this thread only.
  void Add(Connection* connection);
  void Remove(Connection* connection);
  // Closes the connection that has waited longest for a request to begin or, if there is none, for
  // a header to end. Returns whether there was one.
  bool CloseLongestWaiting();
  void CloseConnections(WhichConnections which);

 private:
  void Tick();

  boost::asio::io_context context_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  boost::asio::steady_timer timer_;  // runs while there are connections
  bool ticking_ = false;
  std::unordered_set<Connection*> connections_;
  std::shared_ptr<WakeList> wakes_;
  std::array<char, kInputBytes> input_;
  std::thread thread_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVER_HTTP_TRANSPORT_IO_THREAD_H_
