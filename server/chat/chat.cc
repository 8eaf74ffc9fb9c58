#include "server/chat/chat.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/status.h"
#include "base/strings.h"
#include "server/chat/chat_client.h"
#include "server/chat/conversation.h"
#include "server/server.h"

namespace millrace {
namespace {

constexpr int kInterrupted = 128 + SIGINT;
constexpr size_t kMostLineBytes = 4 << 20;

// The signal handler's state, which can be nowhere else.
std::atomic<bool> interrupted = false;
std::atomic<bool> chatting = false;  // else Ctrl-C ends the process
pthread_t chatter;                   // the thread that reads and asks

void OnInterrupt(int) {
  if (!chatting) _exit(kInterrupted);
  interrupted = true;
  // Its read() or poll() ends with EINTR.
  if (!pthread_equal(pthread_self(), chatter)) pthread_kill(chatter, SIGINT);
}

void CatchInterrupts() {
  chatter = pthread_self();
  struct sigaction action = {};
  action.sa_handler = OnInterrupt;  // without SA_RESTART
  sigaction(SIGINT, &action, nullptr);
}

// Lines of stdin. Not std::getline: it would go on after a signal.
class Input {
 public:
  // Returns a line; nothing at the end of the input, or where Ctrl-C broke it off.
  std::optional<std::string> Line() {
    while (true) {
      if (const size_t end = buffer_.find('\n'); end != buffer_.npos) {
        std::string line = buffer_.substr(0, end);
        buffer_.erase(0, end + 1);
        return line;
      }
      char bytes[4096];
      const ssize_t got = interrupted ? -1 : read(STDIN_FILENO, bytes, sizeof(bytes));
      if (got < 0 && !interrupted && errno == EINTR) continue;
      if (interrupted) {
        buffer_.clear();
        return std::nullopt;
      }
      if (got <= 0 || buffer_.size() > kMostLineBytes) {
        if (buffer_.empty()) return std::nullopt;
        return std::exchange(buffer_, "");
      }
      buffer_.append(bytes, static_cast<size_t>(got));
    }
  }

 private:
  std::string buffer_;
};

class Terminal {
 public:
  Terminal(ChatClient& client, Conversation& conversation)
      : client_(client), conversation_(conversation) {}

  // Asks the one message and prints its answer.
  absl::Status RunOnce(std::string_view prompt) {
    std::string reply;
    const Conversation::Next next = conversation_.Take(prompt, reply);
    Print(reply);
    return next == Conversation::Next::kAsk ? Answer() : absl::OkStatus();
  }

  absl::Status Run() {
    while (true) {
      interrupted = false;
      const std::optional<std::string> line = Message();
      if (!line.has_value()) {
        if (!interrupted || !on_terminal_) break;
        Print("\nCtrl-D or /exit ends the chat.\n");
        continue;
      }
      std::string reply;
      const Conversation::Next next = conversation_.Take(*line, reply);
      Print(reply);
      if (next == Conversation::Next::kEnd) return absl::OkStatus();
      if (next == Conversation::Next::kRead) continue;
      if (absl::Status status = Answer(); !status.ok()) {
        if (!on_terminal_) return status;
        std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
      }
    }
    if (on_terminal_) Print("\n");
    return absl::OkStatus();
  }

 private:
  static void Print(std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  void Prompt(std::string_view text) const {
    if (on_terminal_) Print(text);
  }

  // Reads a message: a line, or several between """.
  std::optional<std::string> Message() {
    constexpr std::string_view kQuotes = "\"\"\"";
    Prompt(">>> ");
    std::optional<std::string> line = input_.Line();
    if (!line.has_value() || !line->starts_with(kQuotes)) return line;
    std::string text = line->substr(kQuotes.size());
    while (!text.ends_with(kQuotes)) {
      Prompt("... ");
      line = input_.Line();
      if (!line.has_value()) return interrupted ? std::nullopt : std::optional(text);
      text += "\n" + *line;
    }
    return text.substr(0, text.size() - kQuotes.size());
  }

  // Asks for an answer and prints it as it comes. Ctrl-C ends it; what came stays in the chat.
  absl::Status Answer() {
    std::string text;
    std::string finish;
    bool thinks = false;
    absl::Status status = client_.Ask(conversation_.Request(), [&](const ChatDelta& delta) {
      // A thought is shown, dimmed, to people alone.
      if (on_terminal_ && !delta.reasoning.empty()) {
        if (!std::exchange(thinks, true)) Print("\033[2m");
        Print(ForTerminal(delta.reasoning));
      }
      if (!delta.text.empty() && std::exchange(thinks, false)) Print("\033[0m\n\n");
      text += delta.text;
      Print(ForTerminal(delta.text));
      if (!delta.finish_reason.empty()) finish = delta.finish_reason;
    });
    if (thinks) Print("\033[0m");
    if (!text.empty() || on_terminal_) Print("\n");
    if (on_terminal_ && finish == "length")
      Print("(broken off: max_tokens or the context's end)\n");
    conversation_.Answer(std::move(text));
    if (!interrupted) return status;
    if (!on_terminal_) return absl::CancelledError("interrupted");
    Print("(ended)\n");
    return absl::OkStatus();
  }

  const bool on_terminal_ = isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0;
  ChatClient& client_;
  Conversation& conversation_;
  Input input_;
};

// Returns the settings of a server that only this process reaches.
Settings OwnServer(const Startup& startup, const std::string& key) {
  Settings settings = startup.settings;
  settings.host = "127.0.0.1";
  settings.http_port = settings.grpc_port = settings.admin_port = 0;
  settings.api_keys = {key};
  settings.keys.clear();
  settings.metrics_host.clear();
  settings.ready_file.clear();
  settings.ssl_certfile.clear();
  settings.ssl_keyfile.clear();
  settings.ssl_ca_certs.clear();
  settings.trusted_proxies.clear();
  return settings;
}

// Takes the sampling flags for a server that does not have them.
void SetFields(const Settings& settings, Conversation& conversation) {
  const auto set = [&](const char* name, const auto& value) {
    if (value.has_value()) conversation.SetField(name, *value);
  };
  set("temperature", settings.temperature);
  set("top_p", settings.top_p);
  set("top_k", settings.top_k);
  set("min_p", settings.min_p);
  set("typical_p", settings.typical_p);
  set("repetition_penalty", settings.repetition_penalty);
  set("frequency_penalty", settings.frequency_penalty);
  set("presence_penalty", settings.presence_penalty);
  set("max_tokens", settings.max_tokens);
}

absl::Status Talk(ChatClient& client, std::string model, const Settings& settings) {
  if (model.empty()) {
    MILLRACE_ASSIGN_OR_RETURN(model, client.FirstModel());
  }
  Conversation conversation(model, settings.chat_system);
  if (!settings.chat_url.empty()) SetFields(settings, conversation);
  chatting = settings.chat_prompt.empty();
  if (!chatting) return Terminal(client, conversation).RunOnce(settings.chat_prompt);
  if (isatty(STDIN_FILENO) != 0 && isatty(STDOUT_FILENO) != 0) {
    std::printf("Talking to %s. /help lists commands, /exit ends.\n",
                Printable(model, 256).c_str());
  }
  return Terminal(client, conversation).Run();
}

}  // namespace

absl::Status RunChat(const Startup& startup) {
  CatchInterrupts();
  const Settings& settings = startup.settings;
  if (!settings.chat_url.empty()) {
    const std::string key = settings.api_keys.empty() ? "" : settings.api_keys.front();
    ChatClient client(settings.chat_url, key, &interrupted);
    return Talk(client, settings.model, settings);
  }
  if (isatty(STDERR_FILENO) != 0) std::fputs("loading the model ...\n", stderr);
  std::random_device random;
  const std::string key = StrCat(random(), ".", random(), ".", random(), ".", random());
  // Both outlive this function: what serves goes on until the process ends.
  static std::atomic<bool> stop = false;
  static std::atomic<bool> failed = false;
  NodeEvents events;
  events.on_failure = [] { failed = true; };
  MILLRACE_ASSIGN_OR_RETURN(std::unique_ptr<Server> server,
                            Server::Start(OwnServer(startup, key), std::move(events), stop));
  ChatClient client(StrCat("http://127.0.0.1:", server->ports().http), key, &interrupted);
  const absl::Status status = Talk(client, "", settings);
  (void)server.release();
  return failed ? absl::UnavailableError("the device has failed") : status;
}

}  // namespace millrace
