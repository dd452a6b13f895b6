// Everything that a trace sends once: strings, modules, code objects, frames, stack nodes, threads. Turns
// what the rings define into ids of the trace and collects the definitions for the next packet.
#pragma once

#include <cstdint>
#include <span>

#include "proto/gpumemtrace/ring_file.h"
#include "recorder/memory/array.h"
#include "recorder/memory/hash_index.h"
#include "recorder/writer/byte_buffer.h"

namespace gpumemtrace::recorder {

// Node ids of a pair of stacks; 0 = no such stack.
struct StackIds {
  uint32_t native = 0;
  uint32_t python = 0;
};

// Ids of the modules that a ring has defined, in that order: a later one hides an earlier one.
using ModuleView = Array<uint32_t>;

class Dictionary {
 public:
  // Each returns an id, or 0 (false) when memory ran out. The text "" has id 0: it says nothing.
  uint32_t String(std::span<const char> text);
  uint32_t Thread(uint64_t tid, const char* name);
  bool DefineModule(const ring_file::ModuleRecord& record, ModuleView& view);
  bool DefineCode(const ring_file::CodeRecord& record);
  bool DefineStack(const ring_file::StackRecord& record, const ModuleView& view);

  // The nodes of a stack that a ring has defined.
  StackIds FindStack(uint64_t number) const;

  // Definitions that no packet holds yet: serialized fields of Content, but for the stack nodes and names,
  // which AppendPending adds.
  size_t PendingBytes() const;
  // Appends them all to `definitions` and to `names` (Content.stack_name).
  void AppendPending(ByteBuffer& definitions, ByteBuffer& names);
  // They are in the file now (or in a buffer that is sure to be written).
  void ClearPending();

  // Where definitions of sites go: serialized fields of Content. They refer to stacks, so they come last.
  ByteBuffer& pending_sites() { return pending_sites_; }

 private:
  struct StringEntry {
    uint64_t hash;
    uint64_t offset;
    uint32_t length;
  };
  struct ModuleEntry {
    uint64_t load_bias;
    uint64_t start;
    uint64_t end;
    uint32_t path;
    uint32_t build_id;
  };
  struct FrameEntry {
    // Native: address in the module, or raw. Python: the code object's id and the instruction.
    uint64_t where;
    // Native: module id. Python: 1 << 31, and the entry bit 1 << 30.
    uint32_t owner;

    bool operator==(const FrameEntry&) const = default;
  };
  struct NodeEntry {
    uint32_t parent;
    uint32_t frame;
  };
  struct StackEntry {
    uint64_t number;
    StackIds ids;
  };

  uint32_t Frame(const FrameEntry& frame);
  // In one word; 0: it does not fit.
  static uint64_t Pack(const FrameEntry& frame);
  FrameEntry Unpack(uint64_t packed) const;
  uint32_t Node(uint32_t parent, uint32_t frame);
  void AddMessage(uint32_t field, const ByteBuffer& message);

  Array<char> text_;
  Array<StringEntry> strings_;
  HashIndex string_index_;
  Array<ModuleEntry> modules_;
  Array<uint64_t> codes_;
  HashIndex code_index_;
  // Packed; or kWide, and their place in wide_frames_.
  Array<uint64_t> frames_;
  Array<FrameEntry> wide_frames_;
  HashIndex frame_index_;
  Array<NodeEntry> nodes_;
  HashIndex node_index_;
  Array<StackEntry> stacks_;
  HashIndex stack_index_;
  uint32_t threads_ = 0;

  ByteBuffer pending_;
  ByteBuffer pending_sites_;
  ByteBuffer message_;
  // Nodes and stacks from here on are pending.
  size_t first_pending_node_ = 0;
  size_t first_pending_stack_ = 0;
};

}  // namespace gpumemtrace::recorder
