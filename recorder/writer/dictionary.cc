#include "recorder/writer/dictionary.h"

#include <string.h>

#include "recorder/writer/fields.h"

namespace gpumemtrace::recorder {
namespace {

constexpr uint32_t kPythonFrame = 1u << 31;
constexpr uint32_t kEntryFrame = 1u << 30;
// Packed frames: the highest bits tell what they are. Then a native one has 14 bits of module and 48 of
// address; a Python one its entry bit, 29 bits of code and 32 of instruction.
constexpr uint64_t kWide = uint64_t{1} << 63;
constexpr uint64_t kPackedPython = uint64_t{1} << 62;
constexpr uint64_t kPackedEntry = uint64_t{1} << 61;
constexpr unsigned kAddressBits = 48;

uint64_t HashBytes(const void* data, size_t bytes) {
  const auto* p = static_cast<const unsigned char*>(data);
  uint64_t hash = bytes;
  for (; bytes >= 8; bytes -= 8, p += 8) {
    uint64_t word;
    memcpy(&word, p, sizeof word);
    hash = Combine(hash, word);
  }
  uint64_t rest = 0;
  memcpy(&rest, p, bytes);
  return Combine(hash, rest);
}

uint64_t HashFrame(uint64_t where, uint32_t owner) {
  return Combine(Mix(where), owner);
}
uint64_t HashNode(uint32_t parent, uint32_t frame) {
  return Mix(uint64_t{parent} << 32 | frame);
}

}  // namespace

void Dictionary::AddMessage(uint32_t field, const ByteBuffer& message) {
  ProtoWriter(pending_).add_message(field, reinterpret_cast<const char*>(message.data()), message.size());
}

uint32_t Dictionary::String(std::span<const char> text) {
  if (text.empty()) return 0;
  const uint64_t hash = HashBytes(text.data(), text.size());
  uint32_t id = string_index_.Find(hash, [&](uint32_t candidate) {
    const StringEntry& entry = strings_[candidate - 1];
    return entry.hash == hash && entry.length == text.size() &&
           memcmp(text_.data() + entry.offset, text.data(), text.size()) == 0;
  });
  if (id != 0) return id;
  const StringEntry entry{hash, text_.size(), static_cast<uint32_t>(text.size())};
  if (!text_.Append(text.data(), text.size()) || !strings_.Push(entry)) return 0;
  id = static_cast<uint32_t>(strings_.size());
  string_index_.Insert(hash, id, [&](uint32_t old) { return strings_[old - 1].hash; });

  message_.Clear();
  ProtoWriter message(message_);
  message.add_uint32(fields::kStringId, id);
  message.add_bytes(fields::kStringValue, text.data(), text.size());
  AddMessage(fields::kContentString, message_);
  return id;
}

uint32_t Dictionary::Thread(uint64_t tid, const char* name) {
  const uint32_t id = ++threads_;
  message_.Clear();
  ProtoWriter message(message_);
  message.add_uint32(fields::kThreadId, id);
  message.add_uint64(fields::kThreadTid, tid);
  if (name[0] != '\0') message.add_bytes(fields::kThreadName, name, strlen(name));
  AddMessage(fields::kContentThread, message_);
  return id;
}

bool Dictionary::DefineModule(const ring_file::ModuleRecord& record, ModuleView& view) {
  const auto* path_text = reinterpret_cast<const char*>(&record + 1);
  const uint32_t path = String({path_text, record.path_bytes});
  const char* build_id_text = path_text + record.path_bytes;
  // Interned only to compare; a build id is no text of the trace's own.
  const uint32_t build_id = record.build_id_bytes == 0
                                ? 0
                                : static_cast<uint32_t>(HashBytes(build_id_text, record.build_id_bytes)) | 1u;
  uint32_t id = 0;
  for (size_t i = modules_.size(); i > 0 && id == 0; --i) {
    const ModuleEntry& module = modules_[i - 1];
    if (module.load_bias == record.load_bias && module.start == record.start && module.end == record.end &&
        module.path == path && module.build_id == build_id) {
      id = static_cast<uint32_t>(i);
    }
  }
  if (id == 0) {
    if (!modules_.Push({record.load_bias, record.start, record.end, path, build_id})) return false;
    id = static_cast<uint32_t>(modules_.size());
    message_.Clear();
    ProtoWriter message(message_);
    message.add_uint32(fields::kModuleId, id);
    message.add_uint32(fields::kModulePath, path);
    if (record.build_id_bytes != 0) {
      message.add_bytes(fields::kModuleBuildId, build_id_text, record.build_id_bytes);
    }
    message.add_uint64(fields::kModuleLoadBias, record.load_bias);
    message.add_uint64(fields::kModuleStart, record.start);
    message.add_uint64(fields::kModuleEnd, record.end);
    AddMessage(fields::kContentModule, message_);
  }
  // A repeated definition moves to the end: it is the last one that covers its addresses.
  for (size_t i = 0; i < view.size(); ++i) {
    if (view[i] != id) continue;
    memmove(&view[i], &view[i] + 1, (view.size() - i - 1) * sizeof view[0]);
    view.back() = id;
    return true;
  }
  return view.Push(id);
}

bool Dictionary::DefineCode(const ring_file::CodeRecord& record) {
  const auto is_this = [&](uint32_t id) { return codes_[id - 1] == record.number; };
  if (code_index_.Find(record.number, is_this) != 0) return true;
  const auto* file = reinterpret_cast<const char*>(&record + 1);
  const char* name = file + record.file_bytes;
  const char* table = name + record.qualified_name_bytes;
  const uint32_t file_id = String({file, record.file_bytes});
  const uint32_t name_id = String({name, record.qualified_name_bytes});
  if (!codes_.Push(record.number)) return false;
  const auto id = static_cast<uint32_t>(codes_.size());
  code_index_.Insert(record.number, id, [&](uint32_t old) { return codes_[old - 1]; });

  message_.Clear();
  ProtoWriter message(message_);
  message.add_uint32(fields::kCodeId, id);
  message.add_uint32(fields::kCodeFile, file_id);
  message.add_uint32(fields::kCodeQualifiedName, name_id);
  message.add_uint32(fields::kCodeFirstLine, static_cast<uint32_t>(record.first_line));
  if (record.line_table_bytes != 0) message.add_bytes(fields::kCodeLineTable, table, record.line_table_bytes);
  message.add_uint32(fields::kCodePythonVersion, record.python_version);
  message.add_fixed64(fields::kCodeNumber, record.number);
  AddMessage(fields::kContentCode, message_);
  return true;
}

uint64_t Dictionary::Pack(const FrameEntry& frame) {
  if ((frame.owner & kPythonFrame) != 0) {
    if (frame.where >= kPackedEntry) return 0;
    return frame.where | kPackedPython | ((frame.owner & kEntryFrame) != 0 ? kPackedEntry : 0);
  }
  if (frame.where >> kAddressBits != 0 || frame.owner >> (62 - kAddressBits) != 0) return 0;
  return uint64_t{frame.owner} << kAddressBits | frame.where;
}

Dictionary::FrameEntry Dictionary::Unpack(uint64_t packed) const {
  if ((packed & kWide) != 0) return wide_frames_[packed - kWide];
  if ((packed & kPackedPython) != 0) {
    return {packed & (kPackedEntry - 1), kPythonFrame | ((packed & kPackedEntry) != 0 ? kEntryFrame : 0)};
  }
  return {packed & ((uint64_t{1} << kAddressBits) - 1), static_cast<uint32_t>(packed >> kAddressBits)};
}

uint32_t Dictionary::Frame(const FrameEntry& frame) {
  const uint64_t hash = HashFrame(frame.where, frame.owner);
  uint64_t packed = Pack(frame);
  uint32_t id = frame_index_.Find(hash, [&](uint32_t candidate) {
    const uint64_t other = frames_[candidate - 1];
    return packed != 0 ? other == packed : Unpack(other) == frame;
  });
  if (id != 0) return id;
  if (packed == 0) {
    packed = kWide + wide_frames_.size();
    if (!wide_frames_.Push(frame)) return 0;
  }
  if (!frames_.Push(packed)) return 0;
  id = static_cast<uint32_t>(frames_.size());
  frame_index_.Insert(hash, id, [&](uint32_t old) {
    const FrameEntry other = Unpack(frames_[old - 1]);
    return HashFrame(other.where, other.owner);
  });

  message_.Clear();
  ProtoWriter message(message_);
  message.add_uint32(fields::kFrameId, id);
  if ((frame.owner & kPythonFrame) != 0) {
    message.add_uint32(fields::kFrameCode, static_cast<uint32_t>(frame.where >> 32));
    message.add_sint32(fields::kFrameInstruction, static_cast<int32_t>(frame.where));
    if ((frame.owner & kEntryFrame) != 0) message.add_bool(fields::kFrameEntry, true);
  } else {
    if (frame.owner != 0) message.add_uint32(fields::kFrameModule, frame.owner);
    message.add_uint64(fields::kFrameOffset, frame.where);
  }
  AddMessage(fields::kContentFrame, message_);
  return id;
}

uint32_t Dictionary::Node(uint32_t parent, uint32_t frame) {
  const uint64_t hash = HashNode(parent, frame);
  uint32_t id = node_index_.Find(hash, [&](uint32_t candidate) {
    return nodes_[candidate - 1].parent == parent && nodes_[candidate - 1].frame == frame;
  });
  if (id != 0) return id;
  if (!nodes_.Push({parent, frame})) return 0;
  id = static_cast<uint32_t>(nodes_.size());
  node_index_.Insert(hash, id,
                     [&](uint32_t old) { return HashNode(nodes_[old - 1].parent, nodes_[old - 1].frame); });
  return id;
}

bool Dictionary::DefineStack(const ring_file::StackRecord& record, const ModuleView& view) {
  const auto is_this = [&](uint32_t id) { return stacks_[id - 1].number == record.number; };
  if (stack_index_.Find(record.number, is_this) != 0) return true;

  const auto* native = reinterpret_cast<const uint64_t*>(&record + 1);
  const auto* python = reinterpret_cast<const ring_file::PythonFrame*>(native + record.native_count);
  StackIds ids;
  // Most frames lie in the module of the frame before.
  const ModuleEntry* module = nullptr;
  uint32_t module_id = 0;
  for (uint32_t i = record.native_count; i > 0; --i) {
    const uint64_t address = native[i - 1];
    if (module == nullptr || address < module->start || address >= module->end) {
      module = nullptr;
      module_id = 0;
      for (size_t m = view.size(); m > 0 && module == nullptr; --m) {
        const ModuleEntry& candidate = modules_[view[m - 1] - 1];
        if (address < candidate.start || address >= candidate.end) continue;
        module = &candidate;
        module_id = view[m - 1];
      }
    }
    const uint32_t frame = Frame({module == nullptr ? address : address - module->load_bias, module_id});
    ids.native = frame == 0 ? 0 : Node(ids.native, frame);
    if (ids.native == 0) return false;
  }
  for (uint32_t i = record.python_count; i > 0; --i) {
    const ring_file::PythonFrame& from = python[i - 1];
    const uint32_t code =
        code_index_.Find(from.code, [&](uint32_t id) { return codes_[id - 1] == from.code; });
    const uint32_t owner = kPythonFrame | (from.entry != 0 ? kEntryFrame : 0);
    const uint32_t frame = Frame({uint64_t{code} << 32 | static_cast<uint32_t>(from.instruction), owner});
    ids.python = frame == 0 ? 0 : Node(ids.python, frame);
    if (ids.python == 0) return false;
  }
  if (!stacks_.Push({record.number, ids})) return false;
  stack_index_.Insert(record.number, static_cast<uint32_t>(stacks_.size()),
                      [&](uint32_t old) { return stacks_[old - 1].number; });
  return true;
}

StackIds Dictionary::FindStack(uint64_t number) const {
  if (number == 0) return {};
  const uint32_t id =
      stack_index_.Find(number, [&](uint32_t candidate) { return stacks_[candidate - 1].number == number; });
  return id == 0 ? StackIds{} : stacks_[id - 1].ids;
}

size_t Dictionary::PendingBytes() const {
  // Two short varints a node; a number and two ids a stack.
  return pending_.size() + pending_sites_.size() + (nodes_.size() - first_pending_node_) * 5 +
         (stacks_.size() - first_pending_stack_) * 14;
}

void Dictionary::AppendPending(ByteBuffer& definitions, ByteBuffer& names) {
  definitions.Append(pending_.data(), pending_.size());
  ByteBuffer list;
  if (first_pending_node_ < nodes_.size()) {
    message_.Clear();
    ProtoWriter message(message_);
    message.add_uint32(fields::kNodesFirstId, static_cast<uint32_t>(first_pending_node_ + 1));
    for (size_t i = first_pending_node_; i < nodes_.size(); ++i) {
      const uint32_t parent = nodes_[i].parent;
      list.Varint(parent == 0 ? 0 : i + 1 - parent);
    }
    message.add_bytes(fields::kNodesParentDistance, reinterpret_cast<const char*>(list.data()), list.size());
    list.Clear();
    for (size_t i = first_pending_node_; i < nodes_.size(); ++i) list.Varint(nodes_[i].frame);
    message.add_bytes(fields::kNodesFrame, reinterpret_cast<const char*>(list.data()), list.size());
    ProtoWriter(definitions)
        .add_message(fields::kContentNodes, reinterpret_cast<const char*>(message_.data()), message_.size());
  }
  definitions.Append(pending_sites_.data(), pending_sites_.size());
  if (first_pending_stack_ < stacks_.size()) {
    message_.Clear();
    ProtoWriter message(message_);
    list.Clear();
    for (size_t i = first_pending_stack_; i < stacks_.size(); ++i) {
      list.Append(&stacks_[i].number, sizeof stacks_[i].number);
    }
    message.add_bytes(fields::kNamesNumber, reinterpret_cast<const char*>(list.data()), list.size());
    list.Clear();
    for (size_t i = first_pending_stack_; i < stacks_.size(); ++i) list.Varint(stacks_[i].ids.native);
    message.add_bytes(fields::kNamesNative, reinterpret_cast<const char*>(list.data()), list.size());
    list.Clear();
    for (size_t i = first_pending_stack_; i < stacks_.size(); ++i) list.Varint(stacks_[i].ids.python);
    message.add_bytes(fields::kNamesPython, reinterpret_cast<const char*>(list.data()), list.size());
    ProtoWriter(names).add_message(fields::kContentStackNames, reinterpret_cast<const char*>(message_.data()),
                                   message_.size());
  }
}

void Dictionary::ClearPending() {
  // Most definitions come early, and many at once.
  constexpr size_t kLittle = size_t{64} << 10;
  for (ByteBuffer* buffer : {&pending_, &pending_sites_, &message_}) {
    buffer->Clear();
    buffer->Trim(kLittle);
  }
  first_pending_node_ = nodes_.size();
  first_pending_stack_ = stacks_.size();
}

}  // namespace gpumemtrace::recorder
