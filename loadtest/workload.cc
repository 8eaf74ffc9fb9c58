#include "loadtest/workload.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "loadtest/files.h"

namespace millrace {
namespace {

constexpr uint64_t kSessionStream = uint64_t{1} << 32;
constexpr uint64_t kPrefixStream = uint64_t{1} << 48;

constexpr auto kWords = std::to_array<std::string_view>(
    {"the",   "of",    "and",   "to",     "in",    "is",    "you",   "that",   "it",    "he",
     "was",   "for",   "on",    "are",    "as",    "with",  "his",   "they",   "at",    "be",
     "this",  "have",  "from",  "or",     "one",   "had",   "by",    "word",   "but",   "not",
     "what",  "all",   "were",  "we",     "when",  "your",  "can",   "said",   "there", "use",
     "an",    "each",  "which", "she",    "do",    "how",   "their", "if",     "will",  "up",
     "other", "about", "out",   "many",   "then",  "them",  "these", "so",     "some",  "her",
     "would", "make",  "like",  "him",    "into",  "time",  "has",   "look",   "two",   "more",
     "write", "go",    "see",   "number", "no",    "way",   "could", "people", "my",    "than",
     "first", "water", "been",  "call",   "who",   "oil",   "its",   "now",    "find",  "long",
     "down",  "day",   "did",   "get",    "come",  "made",  "may",   "part",   "over",  "new",
     "sound", "take",  "only",  "little", "work",  "know",  "place", "year",   "live",  "me",
     "back",  "give",  "most",  "very",   "after", "thing", "our",   "just",   "name",  "good",
     "man",   "think", "say",   "great",  "where", "help",  "line",  "right"});

static_assert(kWords.size() == kRandomWords);

}  // namespace

std::string RandomWords(int64_t count, Random& random) {
  // Each of the words comes once before any comes again, so that texts of as many words are about
  // as long, also for a tokenizer that splits words.
  auto order = kWords;
  std::string text;
  for (int64_t i = 0; i < count; ++i) {
    const size_t at = static_cast<size_t>(i) % order.size();
    std::swap(order[at], order[at + random.Next() % (order.size() - at)]);
    if (i > 0) text += ' ';
    text += order[at];
  }
  return text;
}

absl::StatusOr<Workload> Workload::Make(const Options& options,
                                        const std::vector<TraceEntry>& trace) {
  Workload workload(options);
  workload.trace_ = trace;
  if (!options.dataset.empty()) {
    MILLRACE_ASSIGN_OR_RETURN(const std::string text, ReadFile(options.dataset));
    absl::StatusOr<std::vector<DataEntry>> data = ParseDataset(text);
    if (!data.ok()) return Annotate(data.status(), options.dataset);
    workload.data_ = *std::move(data);
  }
  return workload;
}

Session Workload::Begin(uint64_t index) const {
  Session session(index, Random(options_.seed, kSessionStream + index));
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
  const auto words = [&](int64_t tokens) {
    return std::max<int64_t>(1, std::llround(static_cast<double>(tokens) / scale_.per_word));
  };
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

Request Workload::Next(Session& session) const {
  Request request;
  const DataEntry* const entry = Entry(session);
  if (options_.vocab_size > 0) {
    request.ids = NewIds(session);
  } else {
    session.said_.push_back(
        {"user", entry != nullptr ? entry->users[session.turn_] : NewText(session)});
  }
  request.max_tokens = OutputLength(session, entry);
  Random& random = session.random_;
  if (random.Uniform() < options_.cancel_ratio) {
    request.cancel_after = random.Between(1, std::max<int64_t>(1, request.max_tokens - 1));
  }
  request.slow = random.Uniform() < options_.slow_ratio;
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

void Workload::Hear(Session& session, std::string answer) const {
  session.said_.push_back({"assistant", std::move(answer)});
}

}  // namespace millrace
