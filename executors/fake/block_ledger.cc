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
    : block_size_(limits.block_size), blocks_(limits.num_blocks), slots_(limits.max_num_seqs) {}

absl::Status BlockLedger::CheckReads(size_t row, int32_t start, const Slot& slot) const {
  for (int32_t begin = 0, i = 0; begin < start; begin += block_size_, ++i) {
    const Held& held = slot.table[i];
    const Block& block = blocks_[held.block];
    if (block.life != held.life) {
      return Broken(row, "block ", held.block, ", which holds its tokens from ", begin,
                    ", was given to another sequence");
    }
    if (block.written < std::min(block_size_, start - begin)) {
      return Broken(row, "block ", held.block, " holds ", block.written,
                    " tokens, but the row reads ", std::min(block_size_, start - begin));
    }
  }
  return absl::OkStatus();
}

absl::Status BlockLedger::Write(size_t row, int32_t start, int32_t end, Slot& slot) {
  for (int32_t at = start; at < end;) {
    Held& held = slot.table[at / block_size_];
    Block& block = blocks_[held.block];
    const int32_t offset = at % block_size_;
    if (offset == 0) {
      held.life = ++block.life;
      block.writer = slot.sequence;
    } else if (block.writer == 0) {
      block.writer = slot.sequence;
    } else if (block.writer != slot.sequence) {
      return Broken(row, "writes into block ", held.block, ", which another sequence writes");
    }
    const int32_t count = std::min(end - at, block_size_ - offset);
    block.written = offset + count;
    at += count;
  }
  return absl::OkStatus();
}

absl::Status BlockLedger::Apply(const StepPlan& plan) {
  for (const BlockCopy& copy : plan.copies) {
    Block& to = blocks_[copy.dst];
    to = {.life = to.life + 1, .written = blocks_[copy.src].written};
  }
  for (const SlotStart& start : plan.starts) slots_[start.slot] = {.sequence = ++sequences_};
  // A row reads tokens from before the step, and its own.
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    Slot& slot = slots_[row.slot];
    for (int32_t at = row.blocks.begin; at < row.blocks.end; ++at) {
      const BlockId id = plan.blocks[at];
      const bool twice = std::any_of(slot.table.begin(), slot.table.end(),
                                     [id](const Held& held) { return held.block == id; });
      if (twice) return Broken(i, "appends block ", id, ", which its table holds already");
      slot.table.push_back({id, blocks_[id].life});
    }
    MILLRACE_RETURN_IF_ERROR(CheckReads(i, row.start, slot));
  }
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const StepRow& row = plan.rows[i];
    MILLRACE_RETURN_IF_ERROR(Write(i, row.start, row.start + row.num_tokens, slots_[row.slot]));
  }
  return absl::OkStatus();
}

}  // namespace millrace
