#include "executors/models/model_state.h"

#include <algorithm>
#include <map>
#include <optional>
#include <variant>

#include "base/strings.h"
#include "executors/models/overloaded.h"
#include "executors/weights/shares.h"

namespace millrace {
namespace {

// Positions of a long sequence as most models are used: a quarter of what it may have, and at most
// this.
constexpr int32_t kTypicalLength = 8192;
// A chunk for which a window has room in the least memory: the scheduler cuts chunks to what there
// is, and smaller ones would make a prompt of many steps.
constexpr int32_t kSmallChunk = 256;
constexpr int64_t kMostBlocks = int64_t{1} << 30;

using Blocks = std::vector<int64_t>;  // by group

// One division of a memory.
class Division {
 public:
  Division(const StateLayout& layout, int64_t bytes, const StateUse& use)
      : layout_(layout),
        bytes_(bytes),
        use_(use),
        rest_(layout.num_groups()),
        whole_(layout.num_groups()) {
    std::optional<int> longest;
    for (int group = 0; group < layout.num_groups(); ++group) {
      const PagedState* const pages = layout.Paged(group);
      if (pages == nullptr) {
        bytes_ -= std::get<SlotState>(layout.groups[group]).bytes * use.max_num_seqs;
        continue;
      }
      paged_.push_back(group);
      whole_[group] = rest_[group] = !pages->window.has_value();
      if (pages->window.has_value() &&
          (!longest.has_value() || *pages->window > *layout.Paged(*longest)->window)) {
        longest = group;
      }
    }
    if (std::none_of(paged_.begin(), paged_.end(), [&](int group) { return rest_[group]; })) {
      rest_[*longest] = true;
    }
    first_rest_ = rest_;
  }

  std::vector<int32_t> Divide() {
    std::vector<int32_t> counts(layout_.num_groups());
    if (bytes_ < BytesOfABlockEach(layout_)) return counts;
    for (int group = 0; group < layout_.num_groups(); ++group) {
      if (layout_.Paged(group) != nullptr) continue;
      const int64_t each = std::get<SlotState>(layout_.groups[group]).bytes;
      counts[group] = static_cast<int32_t>(std::min(use_.checkpoint_bytes / each, kMostBlocks));
    }
    Blocks blocks = Balance();
    // A window never needs more than the whole contexts do.
    for (std::optional<int> over; (over = NeedsMoreThanRest(blocks)).has_value();) {
      rest_[*over] = whole_[*over] = true;
      blocks = Balance();
    }
    HoldOneSequence(blocks);
    for (const int group : paged_) {
      counts[group] = static_cast<int32_t>(std::clamp<int64_t>(blocks[group], 1, kMostBlocks));
    }
    return counts;
  }

 private:
  int64_t BlockBytes(int group) const { return layout_.Paged(group)->block_bytes; }

  // Returns the blocks that the chunks of two steps fill in a group before they are released.
  int64_t Passing(int group) const {
    return whole_[group] ? 0 : layout_.BlocksFor(2 * use_.max_num_batched_tokens);
  }

  // Returns the blocks that a running sequence holds besides.
  int64_t Held(int group, int32_t length) const {
    const int64_t all = layout_.BlocksFor(length);
    // A block in part on each side of the window.
    return whole_[group] ? all : std::min<int64_t>(all, layout_.BlocksFor(*Window(group)) + 2);
  }

  std::optional<int32_t> Window(int group) const { return layout_.Paged(group)->window; }

  // Returns the blocks of a group that one sequence of so many blocks of context needs, if it is
  // computed in chunks that fill `chunk` blocks; 0: one position after the other.
  int64_t OfOne(int group, int64_t context, int64_t chunk) const {
    if (!Window(group).has_value()) return context;
    return std::min(context, layout_.BlocksAtOnce(group, use_.max_model_len) + chunk);
  }

  // Gives groups with a window what they are to have, and the others the rest.
  Blocks Balance() const {
    double available = static_cast<double>(bytes_);
    for (const int group : paged_) {
      available -= static_cast<double>(Passing(group) * BlockBytes(group));
    }
    available = std::max(available, 0.0);
    std::vector<double> wanted(layout_.num_groups());
    for (const int32_t length :
         {std::clamp(use_.max_model_len / 4, 1, kTypicalLength), use_.max_model_len}) {
      double each = 0;
      for (const int group : paged_) {
        each += static_cast<double>(Held(group, length) * BlockBytes(group));
      }
      const double sequences = std::min<double>(use_.max_num_seqs, available / each);
      for (const int group : paged_) {
        wanted[group] =
            std::max(wanted[group], sequences * static_cast<double>(Held(group, length)));
      }
    }
    double all = 0;
    for (const int group : paged_) all += wanted[group] * static_cast<double>(BlockBytes(group));
    const double part = all > available ? available / all : 1;
    Blocks blocks(layout_.num_groups());
    for (const int group : paged_) {
      blocks[group] = Passing(group) + static_cast<int64_t>(part * wanted[group]);
    }
    GiveRest(rest_, blocks);
    return blocks;
  }

  // Sets the blocks of these groups: as many each as are left beside the others'.
  void GiveRest(const std::vector<bool>& rest, Blocks& blocks) const {
    int64_t left = bytes_;
    int64_t each = 0;
    for (const int group : paged_) {
      if (rest[group]) each += BlockBytes(group);
      if (!rest[group]) left -= blocks[group] * BlockBytes(group);
    }
    for (const int group : paged_) {
      if (rest[group]) blocks[group] = std::max<int64_t>(left, 0) / each;
    }
  }

  std::optional<int> NeedsMoreThanRest(const Blocks& blocks) const {
    int64_t of_rest = 0;
    for (const int group : paged_) {
      if (rest_[group]) of_rest = blocks[group];
    }
    for (const int group : paged_) {
      if (!rest_[group] && blocks[group] > of_rest) return group;
    }
    return std::nullopt;
  }

  int64_t BytesOfOne(int64_t context, int64_t chunk) const {
    int64_t bytes = 0;
    for (const int group : paged_) bytes += OfOne(group, context, chunk) * BlockBytes(group);
    return bytes;
  }

  // The chunk that one sequence is to have: less than a small one only if it would be too much for
  // one of max_model_len.
  int64_t ChunkOfOne() const {
    const int64_t context = layout_.BlocksFor(use_.max_model_len);
    const int64_t small = layout_.BlocksFor(std::min(kSmallChunk, use_.max_num_batched_tokens));
    for (int64_t chunk = small; chunk >= 0; --chunk) {
      if (BytesOfOne(context, chunk) <= bytes_) return chunk;
    }
    return small;
  }

  // Takes from groups that have more than one sequence needs, where another has less: one of
  // max_model_len, or of as many positions as there is memory for.
  void HoldOneSequence(Blocks& blocks) const {
    const int64_t chunk = ChunkOfOne();
    int64_t least = 1;  // fits; as many blocks of context as `most` perhaps do not
    int64_t most = layout_.BlocksFor(use_.max_model_len);
    while (least < most) {
      const int64_t middle = (least + most + 1) / 2;
      if (BytesOfOne(middle, chunk) <= bytes_) {
        least = middle;
      } else {
        most = middle - 1;
      }
    }
    Blocks needed(layout_.num_groups());
    for (const int group : paged_) needed[group] = OfOne(group, least, chunk);
    const bool holds = std::all_of(paged_.begin(), paged_.end(),
                                   [&](int group) { return blocks[group] >= needed[group]; });
    if (holds) return;
    const int64_t spare = bytes_ - BytesOfOne(least, chunk);
    double extra = 0;  // that groups have beyond that
    for (const int group : paged_) {
      const int64_t more = blocks[group] - needed[group];
      if (!first_rest_[group] && more > 0) extra += static_cast<double>(more * BlockBytes(group));
    }
    const double part = extra > 0 ? std::min(1.0, static_cast<double>(spare) / extra) : 0;
    for (const int group : paged_) {
      const int64_t more = std::max<int64_t>(blocks[group] - needed[group], 0);
      blocks[group] = needed[group] + static_cast<int64_t>(part * static_cast<double>(more));
    }
    GiveRest(first_rest_, blocks);
  }

  const StateLayout& layout_;
  int64_t bytes_;  // without the slots'
  const StateUse& use_;
  std::vector<int> paged_;
  // By group: gets what the others leave; and is counted like one without a window.
  std::vector<bool> rest_;
  std::vector<bool> whole_;
  std::vector<bool> first_rest_;  // before any window was found to need as much
};

// Returns the part of a layer that a rank with so many of its value heads has: key heads with all
// value heads that read them, or one of them with a part of these (DivideHeads).
GatedDelta OfRank(GatedDelta delta, int32_t value_heads) {
  const int group = delta.value_heads / delta.key_heads;
  delta.key_heads = (value_heads + group - 1) / group;
  delta.value_heads = value_heads;
  return delta;
}

// The same for heads, and the groups that they read.
Mamba2 OfRank(Mamba2 mixer, int32_t heads) {
  const int group = mixer.heads / mixer.groups;
  mixer.groups = (heads + group - 1) / group;
  mixer.heads = heads;
  return mixer;
}

}  // namespace

ModelState StateOf(const ModelConfig& config, absl::Span<const int32_t> heads,
                   const PageSpec& pages) {
  const bool stays = !config.encoder.has_value() && !config.pooler.has_value();
  const auto window = [&](const SoftmaxAttention& attention) -> std::optional<int32_t> {
    const int32_t length = attention.window;
    if (!stays || length == 0 || length >= pages.release_below) return std::nullopt;
    return length;
  };
  std::map<std::optional<int32_t>, PagedState> groups;  // nothing is before all lengths
  for (const LayerConfig& layer : config.layers) {
    const SoftmaxAttention* const softmax = layer.FindSoftmax();
    if (softmax != nullptr) groups[window(*softmax)].window = window(*softmax);
  }

  ModelState state{.layout = {.block_size = pages.block_size, .groups = {}}, .placements = {}};
  std::map<std::optional<int32_t>, int32_t> layers;
  SlotState slots;
  int32_t layers_at_slots = 0;
  const auto place_pages = [&](const SoftmaxAttention& attention, int32_t kv_heads) {
    const auto group = groups.find(window(attention));
    state.placements.push_back({.group = static_cast<int32_t>(std::distance(groups.begin(), group)),
                                .index = layers[group->first]++,
                                .offset = group->second.block_bytes});
    group->second.block_bytes += kv_heads * pages.HeadBytes(attention.head_size);
  };
  const auto place_slots = [&](int64_t bytes) {
    state.placements.push_back({.group = static_cast<int32_t>(groups.size()),
                                .index = layers_at_slots++,
                                .offset = slots.bytes});
    slots.bytes += bytes;
  };
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const int32_t count = heads[i];
    std::visit(
        Overloaded{
            [&](const SoftmaxAttention& softmax) { place_pages(softmax, count); },
            [&](const GatedDelta& delta) {
              place_slots(GatedDeltaState(OfRank(delta, count), pages.delta_tokens).bytes());
            },
            [&](const ShortConvolution& convolution) {
              place_slots(ShortConvolutionBytes(convolution.width, count));
            },
            [&](const Mamba2& mixer) { place_slots(Mamba2State(OfRank(mixer, count)).bytes()); },
            [&](const Absent&) { state.placements.push_back({.group = kNoGroup}); }},
        config.layers[i].attention);
  }
  for (const auto& [length, pages_of_group] : groups) state.layout.groups.push_back(pages_of_group);
  if (layers_at_slots > 0) state.layout.groups.push_back(slots);
  return state;
}

ModelState StateOf(const ModelConfig& config, RankSpec rank, const PageSpec& pages) {
  const Overloaded heads_of = {
      [&](const SoftmaxAttention& softmax) {
        return DivideHeads(softmax.heads, softmax.kv_heads, 1, 1, rank).kv.size;
      },
      [&](const GatedDelta& delta) {
        return DivideHeads(delta.value_heads, delta.key_heads, 1, 1, rank).q.size;
      },
      [&](const ShortConvolution& convolution) {
        return DivideUnits(convolution.channels, kShareMultiple, rank).size;
      },
      [&](const Mamba2& mixer) {
        return DivideHeads(mixer.heads, mixer.groups, 1, 1, rank).q.size;
      },
      [](const Absent&) { return int64_t{0}; }};
  std::vector<int32_t> heads;
  for (const LayerConfig& layer : config.layers) {
    heads.push_back(static_cast<int32_t>(std::visit(heads_of, layer.attention)));
  }
  return StateOf(config, heads, pages);
}

std::vector<int32_t> DivideState(const StateLayout& layout, int64_t bytes, const StateUse& use) {
  return Division(layout, bytes, use).Divide();
}

StateLayout Together(const StateLayout& of_rank, int ranks) {
  StateLayout all = of_rank;
  for (StateGroup& group : all.groups) {
    if (auto* const pages = std::get_if<PagedState>(&group)) {
      pages->block_bytes *= ranks;
    } else {
      std::get<SlotState>(group).bytes *= ranks;
    }
  }
  return all;
}

int64_t BytesOfBlocks(const StateLayout& layout, absl::Span<const int32_t> num_blocks) {
  int64_t bytes = 0;
  for (int group = 0; group < layout.num_groups(); ++group) {
    const PagedState* const pages = layout.Paged(group);
    if (pages != nullptr) bytes += pages->block_bytes * num_blocks[group];
  }
  return bytes;
}

int64_t BytesOfABlockEach(const StateLayout& layout) {
  int64_t bytes = 0;
  for (int group = 0; group < layout.num_groups(); ++group) {
    if (layout.Paged(group) != nullptr) bytes += layout.Paged(group)->block_bytes;
  }
  return bytes;
}

absl::Status TooLittleStateMemory(const StateLayout& layout, int64_t bytes, int32_t max_num_seqs) {
  const int64_t states = layout.SlotBytes() * max_num_seqs;
  const std::string beside =
      states == 0 ? ""
                  : StrCat(" and the ", states, " of the states of max_num_seqs = ", max_num_seqs,
                           " sequences");
  return absl::InvalidArgumentError(StrCat("kv_cache_memory is ", bytes,
                                           " bytes, allowed: at least one block's ",
                                           BytesOfABlockEach(layout), beside));
}

int64_t MostStateBytes(const StateLayout& layout, const StateUse& use) {
  const int64_t length = layout.BlocksFor(use.max_model_len) + 1;
  int64_t bytes = 0;
  for (int group = 0; group < layout.num_groups(); ++group) {
    const PagedState* const pages = layout.Paged(group);
    if (pages == nullptr) {
      bytes += std::get<SlotState>(layout.groups[group]).bytes * use.max_num_seqs;
      continue;
    }
    int64_t blocks = length * use.max_num_seqs;
    if (pages->window.has_value()) {
      const int64_t held = std::min<int64_t>(length, layout.BlocksFor(*pages->window) + 2);
      blocks = std::min(blocks,
                        held * use.max_num_seqs + layout.BlocksFor(2 * use.max_num_batched_tokens));
    }
    bytes += blocks * pages->block_bytes;
  }
  return bytes;
}

std::string DivisionText(const StateLayout& layout, absl::Span<const int32_t> num_blocks) {
  std::string text;
  bool first_pages = true;
  for (int group = 0; group < layout.num_groups(); ++group) {
    if (!text.empty()) text += ", and ";
    const PagedState* const pages = layout.Paged(group);
    if (pages == nullptr) {
      text += StrCat(std::get<SlotState>(layout.groups[group]).bytes,
                     " bytes for each sequence and each of ", num_blocks[group], " checkpoints");
      continue;
    }
    text += first_pages ? StrCat(num_blocks[group], " KV blocks of ", layout.block_size, " tokens")
                        : StrCat(num_blocks[group]);
    first_pages = false;
    if (pages->window.has_value()) text += StrCat(" for windows of ", *pages->window);
  }
  return text;
}

}  // namespace millrace
