#include "analyzer/trace/definitions.h"

#include <algorithm>

namespace gpumemtrace::analyzer {
namespace {

// The entry of `id`, made if need be; null when the id cannot be right.
template <typename T>
T* Entry(std::vector<T>& table, uint64_t id, uint64_t limit) {
  if (id == 0 || id > limit || id >= UINT32_MAX) return nullptr;
  if (id >= table.size()) table.resize(id + 1);
  return &table[id];
}

uint64_t ApplyStackNodes(const StackNodes& nodes, uint64_t limit, TraceModel& model) {
  const int count = std::min(nodes.parent_distance_size(), nodes.frame_size());
  uint64_t refused = nodes.parent_distance_size() != nodes.frame_size() ? 1 : 0;
  for (int i = 0; i < count; ++i) {
    const uint64_t id = uint64_t{nodes.first_id()} + static_cast<uint64_t>(i);
    StackNode* node = Entry(model.stack_nodes, id, limit);
    const uint32_t distance = nodes.parent_distance(i);
    if (node == nullptr || distance > id) {
      ++refused;
      continue;
    }
    // Distance 0 means no parent; distance = id would name node 0, which is the same.
    node->parent = distance == 0 ? 0 : static_cast<StackId>(id - distance);
    node->frame = nodes.frame(i);
  }
  return refused;
}

}  // namespace

uint64_t ApplyDefinitions(const Content& content, uint64_t bytes_read, TraceModel& model, RingNames& names) {
  uint64_t refused = 0;
  if (content.has_header() && !model.has_header) {
    model.has_header = true;
    model.header = content.header();
  }
  for (const InternedString& string : content.string()) {
    if (std::string* entry = Entry(model.strings, string.id(), bytes_read)) {
      *entry = string.value();
    } else {
      ++refused;
    }
  }
  for (const gpumemtrace::Module& module : content.module()) {
    ModuleInfo* entry = Entry(model.modules, module.id(), bytes_read);
    if (entry == nullptr) {
      ++refused;
      continue;
    }
    entry->path = module.path();
    entry->build_id = module.build_id();
    entry->load_bias = module.load_bias();
    entry->start = module.start();
    entry->end = module.end();
  }
  for (const gpumemtrace::CodeObject& code : content.code_object()) {
    CodeObjectInfo* entry = Entry(model.code_objects, code.id(), bytes_read);
    if (entry == nullptr) {
      ++refused;
      continue;
    }
    entry->file = code.file();
    entry->qualified_name = code.qualified_name();
    entry->first_line = code.first_line();
    entry->python_version = code.python_version();
    entry->line_table = code.line_table();
    if (code.number() != 0) names.code[code.number()] = code.id();
  }
  for (const gpumemtrace::Frame& frame : content.frame()) {
    FrameInfo* entry = Entry(model.frames, frame.id(), bytes_read);
    if (entry == nullptr) {
      ++refused;
      continue;
    }
    entry->module = frame.module();
    entry->offset = frame.offset();
    entry->code_object = frame.code_object();
    entry->instruction = frame.instruction();
    entry->entry = frame.entry();
  }
  for (const StackNodes& nodes : content.stack_nodes()) refused += ApplyStackNodes(nodes, bytes_read, model);
  for (const gpumemtrace::Thread& thread : content.thread()) {
    ThreadInfo* entry = Entry(model.threads, thread.id(), bytes_read);
    if (entry == nullptr) {
      ++refused;
      continue;
    }
    entry->tid = thread.tid();
    entry->name = thread.name();
  }
  for (const gpumemtrace::Site& site : content.site()) {
    SiteInfo* entry = Entry(model.sites, site.id(), bytes_read);
    if (entry == nullptr) {
      ++refused;
      continue;
    }
    const int kind = site.kind();
    const int space = site.space();
    entry->kind = kind > 0 && kind < 256 ? static_cast<EventKind>(kind) : EventKind::kUnspecified;
    entry->space = space >= 0 && space < kSpaceCount ? static_cast<Space>(space) : Space::kUnspecified;
    entry->address_shift = static_cast<uint8_t>(site.address_shift() & 63);
    entry->size_varies = site.size_varies();
    entry->flags = site.flags();
    entry->device = site.device();
    entry->result = site.result();
    entry->api = site.api();
    entry->thread = site.thread();
    entry->native_stack = site.native_stack();
    entry->python_stack = site.python_stack();
    entry->forward_stack = site.forward_stack();
    entry->stream = site.stream();
    entry->size = site.size();
  }
  for (const gpumemtrace::Device& device : content.device()) {
    if (model.devices.size() < 1024) model.devices.push_back(device);
  }
  for (const gpumemtrace::Interpreter& interpreter : content.interpreter()) {
    if (model.interpreters.size() < 1024) model.interpreters.push_back(interpreter);
  }
  for (const gpumemtrace::Note& note : content.note()) {
    if (model.notes.size() < 4096) model.notes.push_back(note);
  }
  if (content.has_statistics()) {
    model.has_statistics = true;
    model.statistics = content.statistics();
  }
  if (content.has_end()) {
    model.has_end = true;
    model.end = content.end();
  }
  const StackNames& stacks = content.stack_name();
  const int named = std::min({stacks.number_size(), stacks.native_stack_size(), stacks.python_stack_size()});
  for (int i = 0; i < named; ++i) {
    names.stacks[stacks.number(i)] = {stacks.native_stack(i), stacks.python_stack(i)};
  }
  for (const gpumemtrace::RingPosition& position : content.ring_position()) {
    names.positions[position.ring()] = {position.position(), position.thread()};
  }
  return refused;
}

}  // namespace gpumemtrace::analyzer
