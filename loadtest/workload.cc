#include "loadtest/workload.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "loadtest/files.h"

namespace millrace {
namespace {

constexpr uint64_t kSessionStream = uint64_t{1} << 32;
constexpr uint64_t kPrefixStream = uint64_t{1} << 48;
constexpr uint64_t kSeeds = uint64_t{1} << 31;  // seeds of sampling that any server takes

bool IsSystem(const std::string& message) {
  const nlohmann::json json = nlohmann::json::parse(message, nullptr, false);
  return json.is_object() &&
         (json.value("role", "") == "system" || json.value("role", "") == "developer");
}

// Finds out what a session's first request may have in common with those of others.
void SetBeginning(Request& request) {
  std::string shared = request.tools ? *request.tools : "";
  size_t bytes = shared.size();
  bool is_beginning = true;
  for (const SharedJson& message : request.history) {
    bytes += message->size();
    is_beginning = is_beginning && IsSystem(*message);
    if (is_beginning) shared += *message;
  }
  if (shared.empty()) return;
  request.beginning = StringHash()(shared) | 1;
  request.own_share = 1 - static_cast<double>(shared.size()) / static_cast<double>(bytes);
}

// Leaves out of a branch's share the answer before its `own` messages.
void SetShareOfBranch(size_t own, Request& request) {
  const auto begin = request.history.end() - static_cast<std::ptrdiff_t>(own);
  const auto add = [](size_t bytes, const SharedJson& message) { return bytes + message->size(); };
  const auto bytes =
      static_cast<double>(std::accumulate(begin, request.history.end(), size_t{0}, add));
  request.own_share = bytes / (bytes + static_cast<double>((*std::prev(begin))->size()));
}

}  // namespace

absl::StatusOr<Workload> Workload::Make(const Options& options,
                                        const std::vector<TraceEntry>& trace,
                                        std::shared_ptr<const SessionTrace> sessions) {
  Workload workload(options);
  workload.trace_ = trace;
  workload.sessions_ = std::move(sessions);
  if (options.replays() && !workload.sessions_) workload.generator_.emplace(options);
  if (!options.dataset.empty()) {
    MILLRACE_ASSIGN_OR_RETURN(const std::string text, ReadFile(options.dataset));
    absl::StatusOr<std::vector<DataEntry>> data = ParseDataset(text);
    if (!data.ok()) return Annotate(data.status(), options.dataset);
    workload.data_ = *std::move(data);
  }
  return workload;
}

void Workload::set_scale(PromptScale scale) {
  scale_ = scale;
  if (generator_) generator_->set_scale(scale);
}

Session Workload::Begin(uint64_t index) const {
  Session session(index, Random(options_.seed, kSessionStream + index));
  if (sessions_) {
    session.path_.emplace(sessions_, sessions_->roots[index]);
    return session;
  }
  if (generator_) {
    session.path_.emplace(std::make_shared<const SessionTrace>(generator_->Make(index)), 0);
    return session;
  }
  session.turns_ = static_cast<uint32_t>(options_.turns.Draw(session.random_));
  if (const DataEntry* entry = Entry(session); entry != nullptr) {
    session.said_ = entry->before;
    session.turns_ = std::min<uint32_t>(session.turns_, static_cast<uint32_t>(entry->users.size()));
  }
  return session;
}

const DataEntry* Workload::Entry(const Session& session) const {
  if (data_.empty()) return nullptr;
  // The file's order, begun anew at its end.
  return &data_[session.index_ % data_.size()];
}

int64_t Workload::InputLength(Session& session) const {
  const int64_t drawn = options_.input_len.Draw(session.random_);
  if (session.index_ >= trace_.size()) return drawn;
  return trace_[session.index_].input_len.value_or(drawn);
}

int64_t Workload::OutputLength(Session& session, const DataEntry* entry) const {
  const int64_t drawn = options_.output_len.value_or(Lengths(128)).Draw(session.random_);
  if (options_.output_len) return drawn;
  if (session.index_ < trace_.size()) {
    return trace_[session.index_].output_len.value_or(drawn);
  }
  const int64_t known = entry == nullptr ? 0 : entry->output_len[session.turn_];
  return known > 0 ? known : drawn;
}

std::string Workload::NewText(Session& session) const {
  const double overhead = session.turn_ == 0 ? scale_.base : 0;
  const auto words = [&](int64_t tokens) { return scale_.Words(static_cast<double>(tokens)); };
  std::string text;
  if (options_.prefix_len > 0 && session.turn_ == 0) {
    const auto which = session.random_.Next() % static_cast<uint64_t>(options_.num_prefixes);
    Random random(options_.seed, kPrefixStream + which);
    text = RandomWords(words(options_.prefix_len), random) + " ";
  }
  const auto own = static_cast<int64_t>(
      std::llround(std::max(1.0, static_cast<double>(InputLength(session)) - overhead)));
  return text + RandomWords(words(own), session.random_);
}

std::vector<int32_t> Workload::NewIds(Session& session) const {
  std::vector<int32_t> ids;
  if (options_.prefix_len > 0) {
    const auto which = session.random_.Next() % static_cast<uint64_t>(options_.num_prefixes);
    Random random(options_.seed, kPrefixStream + which);
    for (int64_t i = 0; i < options_.prefix_len; ++i) {
      ids.push_back(static_cast<int32_t>(random.Between(0, options_.vocab_size - 1)));
    }
  }
  for (int64_t left = InputLength(session); left > 0; --left) {
    ids.push_back(static_cast<int32_t>(session.random_.Between(0, options_.vocab_size - 1)));
  }
  return ids;
}

// Draws what the client does to a request.
void Workload::DrawClient(Session& session, Request& request) const {
  Random& random = session.random_;
  if (random.Uniform() < options_.cancel_ratio) {
    request.cancel_after = random.Between(1, std::max<int64_t>(1, request.max_tokens - 1));
  }
  request.slow = random.Uniform() < options_.slow_ratio;
}

Request Workload::NextOfReplay(Session& session) const {
  const TraceTurn& turn = session.path_->Next();
  if (turn.restarts) session.prompt_tokens_ = 0;
  Request request;
  request.history = session.path_->history();
  request.tools = session.path_->tools();
  request.extra = turn.extra;
  const bool takes_own = turn.max_tokens > 0 && (generator_ || !options_.output_len);
  request.max_tokens = takes_own ? turn.max_tokens : OutputLength(session, nullptr);
  if (options_.temperature > 0) {
    request.seed = static_cast<int64_t>((options_.seed + session.index_) % kSeeds);
  }
  if (session.prompt_tokens_ == 0) {
    SetBeginning(request);
  } else if (session.repeats_answer_) {
    SetShareOfBranch(turn.messages.size(), request);
  }
  session.repeats_answer_ = false;
  DrawClient(session, request);
  ++session.turn_;
  return request;
}

Request Workload::Next(Session& session) const {
  if (session.path_) return NextOfReplay(session);
  Request request;
  const DataEntry* const entry = Entry(session);
  if (options_.vocab_size > 0) {
    request.ids = NewIds(session);
  } else {
    session.said_.push_back(
        {"user", entry != nullptr ? entry->users[session.turn_] : NewText(session)});
  }
  request.max_tokens = OutputLength(session, entry);
  DrawClient(session, request);
  ++session.turn_;
  if (options_.chat()) {
    request.messages = session.said_;
    return request;
  }
  for (const ChatTurn& said : session.said_) {
    if (!request.prompt.empty()) request.prompt += ' ';
    request.prompt += said.text;
  }
  return request;
}

std::vector<Continuation> Workload::GoOn(Session session, ReplayAnswer answer,
                                         int64_t prompt_tokens) const {
  std::vector<Continuation> next;
  if (!session.has_next()) return next;
  session.prompt_tokens_ = prompt_tokens;
  if (!session.path_) {
    session.said_.push_back({"assistant", std::move(answer.text)});
    next.push_back({options_.think_time, std::move(session)});
    return next;
  }
  const ReplayRules rules{.recorded_answers = options_.recorded_answers,
                          .keep_reasoning = options_.keep_reasoning,
                          .delay_ratio = options_.delay_ratio};
  const uint64_t draws = session.random_.Next();  // each branch has draws of its own
  for (ReplayPath::Continuation& path : session.path_->GoOn(answer, rules)) {
    Continuation& branch = next.emplace_back(Continuation{path.delay, session});
    branch.session.path_ = std::move(path.path);
    branch.session.random_ = Random(draws, next.size());
    branch.session.repeats_answer_ = next.size() > 1;
  }
  return next;
}

std::string Workload::GeneratedTrace(uint64_t index) const {
  return SessionTraceText(generator_->Make(index));
}

}  // namespace millrace
