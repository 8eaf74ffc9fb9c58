// The gRPC stream between node 0 and each other node, without what the messages do.
#ifndef MILLRACE_NODES_CONTROL_H_
#define MILLRACE_NODES_CONTROL_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_reading.h"
#include "millrace/nodes/v1/nodes.pb.h"

namespace millrace::nodes {

// PEM files. A node shows its certificate, and takes those that the authority has signed.
struct TlsFiles {
  std::string certificate;
  std::string key;
  std::string authority;
};

// Messages on their way to a node: any thread adds them, the stream's own thread sends them.
class Outbox {
 public:
  void Add(v1::Message message);
  // No more are added; the stream ends once those here are sent.
  void Close();
  // Waits for the next message. Nothing: closed.
  std::optional<v1::Message> Next();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<v1::Message> messages_;
  bool closed_ = false;
};

// Who takes what comes over the streams. All functions are called from the streams' threads.
class ControlListener {
 public:
  virtual ~ControlListener() = default;

  // On node 0: a node with the right key wants to join. Returns its outbox, the Welcome in it, or
  // why it is refused.
  virtual absl::StatusOr<Outbox*> Admit(const v1::Hello& hello, const std::string& peer) = 0;
  virtual void Receive(int node, v1::Message message) = 0;
  // The stream of a node that was admitted has ended.
  virtual void Closed(int node) = 0;
};

// Node 0's end.
class ControlServer {
 public:
  virtual ~ControlServer() = default;  // ends all streams

  // `address`: a numeric one. An error names the setting: Unavailable: it cannot be listened on.
  // `listener` outlives this. Clients reach it through the guard of the gRPC endpoint.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(const std::string& address, int port,
                                                              const std::string& key,
                                                              const std::optional<TlsFiles>& tls,
                                                              ControlListener& listener);

  // Returns the state of the later readings of its TLS files; null without TLS.
  virtual FileReading* reading() = 0;
};

// Another node's end.
class ControlClient {
 public:
  virtual ~ControlClient() = default;  // ends the stream

  struct Where {
    std::string address;  // a numeric one
    std::string name;     // as node 0's certificate has it
    int port;
  };
  // Joins node 0. The stream sends what is added to `outbox`, and `listener` gets what comes, both
  // of which outlive this. Unavailable: node 0 does not answer, or not before `give_up` returned
  // true, and another try may help. Other errors say why node 0 refuses this node.
  static absl::StatusOr<std::unique_ptr<ControlClient>> Join(const Where& where,
                                                             const std::string& key,
                                                             const std::optional<TlsFiles>& tls,
                                                             const v1::Hello& hello, Outbox& outbox,
                                                             ControlListener& listener,
                                                             const std::function<bool()>& give_up);

  virtual const v1::Welcome& welcome() const = 0;
};

}  // namespace millrace::nodes

#endif  // MILLRACE_NODES_CONTROL_H_
