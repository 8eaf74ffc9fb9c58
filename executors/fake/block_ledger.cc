#include "executors/fake/block_ledger.h"

#include <algorithm>

#include "base/status.h"
#include "base/strings.h"

namespace millrace {
namespace {

template <typename... Pieces>
absl::Status Broken(size_t row, const Pieces&... pieces) {
  return absl::InvalidArgumentError(StrCat("step plan: rows[", row, "]: ", pieces...));
}

}  // namespace

BlockLedger::BlockLedger(const StepLimits& limits)
    : state_(limits.state), slots_(limits.max_num_seqs) {
  for (int group = 0; group < state_.num_groups(); ++group) {
    if (state_.Paged(group) != nullptr) paged_.push_back(group);
    blocks_.emplace_back(limits.num_blocks[group]);
  }
}

absl::Status BlockLedger::Append(const StepPlan& plan, size_t i, Slot& slot) const {
  const StepRow& row = plan.rows[i];
  for (const int group : paged_) {
    Table& table = slot.tables[group];
    const auto behind = static_cast<size_t>(state_.BlocksBehindWindow(group, row.start));
    for (; table.behind < std::min(behind, table.blocks.size()); ++table.behind) {
      table.live.erase(table.blocks[table.behind].block);
    }
    for (const BlockId id : NewBlocks(plan, row, state_, group)) {
      if (id != kNoBlock && !table.live.insert(id).second) {
        return Broken(i, "appends block ", id, ", which its table holds already");
      }
      table.blocks.push_back({id, id == kNoBlock ? 0 : blocks_[group][id].life});
    }
  }
  return absl::OkStatus();
}

absl::Status BlockLedger::CheckReads(size_t row, int group, int32_t start, Slot& slot) const {
  Table& table = slot.tables[group];
  const int32_t first = state_.BlocksBehindWindow(group, start);
  const int32_t end = (start + state_.block_size - 1) / state_.block_size;
  if (end <= first) return absl::OkStatus();
  const int32_t most = std::min(end - first, kMostReads);
  for (int32_t n = 0; n < most; ++n) {
    if (table.next_read >= end - first) table.next_read = 0;
    const int32_t i = first + table.next_read++;
    MILLRACE_RETURN_IF_ERROR(CheckRead(row, group, i, start, table.blocks[i]));
  }
  return CheckRead(row, group, end - 1, start, table.blocks[end - 1]);
}

absl::Status BlockLedger::CheckRead(size_t row, int group, int32_t index, int32_t start,
                                    const Held& held) const {
  const int32_t begin = index * state_.block_size;
  if (held.block == kNoBlock) {
    return Broken(row, "the block of its tokens from ", begin, " is missing");
  }
  const Block& block = blocks_[group][held.block];
  if (block.life != held.life) {
    return Broken(row, "block ", held.block, ", which holds its tokens from ", begin,
                  ", was given to another sequence");
  }
  const int32_t read = std::min(state_.block_size, start - begin);
  if (block.written < read) {
    return Broken(row, "block ", held.block, " holds ", block.written,
                  " tokens, but the row reads ", read);
  }
  return absl::OkStatus();
}

absl::Status BlockLedger::Write(size_t row, int group, int32_t start, int32_t end, Slot& slot) {
  const int32_t size = state_.block_size;
  for (int32_t at = start; at < end;) {
    Held& held = slot.tables[group].blocks[at / size];
    if (held.block == kNoBlock) {
      return Broken(row, "the block of its tokens from ", at, " is missing");
    }
    Block& block = blocks_[group][held.block];
    const int32_t offset = at % size;
    if (offset == 0) {
      held.life = ++block.life;
      block.writer = slot.sequence;
    } else if (block.writer == 0) {
      block.writer = slot.sequence;
    } else if (block.writer != slot.sequence) {
      return Broken(row, "writes into block ", held.block, ", which another sequence writes");
    }
    const int32_t count = std::min(end - at, size - offset);
    block.written = offset + count;
    at += count;
  }
  return absl::OkStatus();
}

absl::Status BlockLedger::Apply(const StepPlan& plan) {
  for (const StateMove& move : plan.moves) {
    std::vector<Block>& blocks = blocks_[move.group];
    Block& to = blocks[move.to.block];
    to = {.life = to.life + 1, .written = blocks[move.from.block].written};
  }
  for (const SlotStart& start : plan.starts) {
    slots_[start.slot] = {.sequence = ++sequences_, .tables = {}};
    slots_[start.slot].tables.resize(state_.num_groups());
  }
  // A row reads tokens from before the step, and its own.
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    Slot& slot = slots_[row.slot];
    MILLRACE_RETURN_IF_ERROR(Append(plan, i, slot));
    for (const int group : paged_) {
      MILLRACE_RETURN_IF_ERROR(CheckReads(i, group, row.start, slot));
    }
  }
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    for (const int group : paged_) {
      MILLRACE_RETURN_IF_ERROR(
          Write(i, group, row.start, row.start + row.num_tokens, slots_[row.slot]));
    }
  }
  return absl::OkStatus();
}

}  // namespace millrace
