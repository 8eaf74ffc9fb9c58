#include "server/kv_events/kv_event_encoder.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "formats/json/json.h"

namespace millrace {
namespace {

// The device's own memory, whatever the device: to routers "CPU" is a slower tier behind it.
constexpr std::string_view kMedium = "GPU";

using Run = absl::Span<const BlockEvent* const>;

// Returns whether `next` can stand in one event with `event`, which it follows.
bool Continues(const BlockEvent& event, const BlockEvent& next) {
  return event.group == next.group && event.stored == next.stored &&
         (!event.stored || next.parent == event.hash);
}

std::vector<Run> FindRuns(Run events) {
  std::vector<Run> runs;
  for (size_t begin = 0; begin < events.size();) {
    size_t end = begin + 1;
    while (end < events.size() && Continues(*events[end - 1], *events[end])) ++end;
    runs.push_back(events.subspan(begin, end - begin));
    begin = end;
  }
  return runs;
}

OrderedJson Hashes(Run run) {
  OrderedJson hashes = OrderedJson::array();
  for (const BlockEvent* const event : run) hashes.push_back(ShortHash(event->hash));
  return hashes;
}

OrderedJson Removed(Run run) {
  return {{"type", "BlockRemoved"},
          {"block_hashes", Hashes(run)},
          {"medium", kMedium},
          {"group_idx", run.front()->group}};
}

OrderedJson Stored(Run run, const StateLayout& state) {
  const BlockEvent& first = *run.front();
  OrderedJson tokens = OrderedJson::array();
  for (const BlockEvent* const event : run) {
    for (const Token token : event->tokens) tokens.push_back(token);
  }
  OrderedJson stored = {{"type", "BlockStored"},
                        {"block_hashes", Hashes(run)},
                        {"parent_block_hash", nullptr},
                        {"token_ids", std::move(tokens)},
                        {"block_size", state.block_size},
                        {"lora_id", nullptr},
                        {"medium", kMedium},
                        {"lora_name", nullptr}};
  if (first.place > 0) stored["parent_block_hash"] = ShortHash(first.parent);
  if (!first.salt.empty()) {
    OrderedJson keys(run.size(), nullptr);
    keys[0] = OrderedJson::array({first.salt});
    stored["extra_keys"] = std::move(keys);
  }
  stored["group_idx"] = first.group;
  const std::optional<int32_t> window = state.Paged(first.group)->window;
  stored["kv_cache_spec_kind"] = window.has_value() ? "sliding_window" : "full_attention";
  if (window.has_value()) stored["kv_cache_spec_sliding_window"] = *window;
  return stored;
}

}  // namespace

uint64_t ShortHash(const BlockHash& hash) {
  uint64_t value = 0;
  for (size_t i = hash.size() - sizeof(value); i < hash.size(); ++i) value = value << 8 | hash[i];
  return value;
}

void KvEventEncoder::SortByGroup(std::vector<const BlockEvent*>& events) const {
  const auto rank = [this](const BlockEvent* event) {
    return std::pair(state_.Paged(event->group)->window.has_value(), event->group);
  };
  std::stable_sort(events.begin(), events.end(),
                   [&](const BlockEvent* a, const BlockEvent* b) { return rank(a) < rank(b); });
}

std::string KvEventEncoder::Encode(absl::Span<const BlockEvent* const> events, double time,
                                   bool cleared) const {
  OrderedJson list = OrderedJson::array();
  if (cleared) list.push_back(OrderedJson::object({{"type", "AllBlocksCleared"}}));
  for (const Run run : FindRuns(events)) {
    list.push_back(run.front()->stored ? Stored(run, state_) : Removed(run));
  }
  constexpr int kDataParallelRank = 0;
  const OrderedJson batch = OrderedJson::array({time, std::move(list), kDataParallelRank});
  std::string bytes;
  OrderedJson::to_msgpack(batch, bytes);
  return bytes;
}

}  // namespace millrace
