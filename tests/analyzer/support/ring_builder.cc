#include "tests/analyzer/support/ring_builder.h"

#include <cstring>
#include <fstream>

namespace gpumemtrace::tests {
namespace {

namespace rf = gpumemtrace::ring_file;

template <typename T>
std::string BytesOf(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Completes a record: pads it and writes its length into its header.
std::string Sealed(std::string record) {
  record.resize((record.size() + 7) / 8 * 8, '\0');
  const uint32_t bytes = static_cast<uint32_t>(record.size());
  std::memcpy(record.data(), &bytes, sizeof(bytes));
  return record;
}

}  // namespace

RingBuilder::RingBuilder(uint32_t rings, uint64_t capacity, uint64_t key,
                         std::vector<std::string> api_names) {
  std::memcpy(header_.magic, rf::kMagic, sizeof(rf::kMagic));
  header_.version = rf::kVersion;
  header_.header_bytes = sizeof(header_);
  header_.ring_key = key;
  std::ifstream("/proc/sys/kernel/random/boot_id").getline(header_.boot_id, sizeof(header_.boot_id));
  header_.names_offset = sizeof(header_);
  header_.names_count = static_cast<uint32_t>(api_names.size());
  for (const std::string& name : api_names) names_.append(name.c_str(), name.size() + 1);
  header_.names_bytes = static_cast<uint32_t>(names_.size());
  header_.first_ring_offset = 8192;
  header_.ring_capacity = capacity;
  header_.ring_stride = rf::kRingDataOffset + capacity;
  header_.ring_count = rings;
  header_.ring_limit = rings;
  rings_.resize(rings);
  for (Ring& ring : rings_) ring.data.assign(capacity, '\0');
}

void RingBuilder::Append(uint32_t index, std::string record) {
  Ring& ring = rings_[index];
  record = Sealed(std::move(record));
  const uint64_t capacity = header_.ring_capacity;
  const uint64_t room = capacity - ring.head % capacity;
  if (room < record.size()) {
    // A record never wraps.
    rf::RecordHeader pad{static_cast<uint32_t>(room), rf::RecordKind::kPad, 0, 0};
    std::memcpy(&ring.data[ring.head % capacity], &pad, sizeof(pad));
    ring.head += room;
  }
  std::memcpy(&ring.data[ring.head % capacity], record.data(), record.size());
  ring.head += record.size();
}

void RingBuilder::Raw(uint32_t ring, std::string record) {
  Ring& target = rings_[ring];
  std::memcpy(&target.data[target.head % header_.ring_capacity], record.data(), record.size());
  target.head += record.size();
}

void RingBuilder::Thread(uint32_t ring, uint64_t tid, const std::string& name) {
  rf::ThreadRecord record{};
  record.header.kind = rf::RecordKind::kThread;
  record.tid = tid;
  std::strncpy(record.name, name.c_str(), sizeof(record.name) - 1);
  Append(ring, BytesOf(record));
}

void RingBuilder::Module(uint32_t ring, const std::string& path, uint64_t load_bias, uint64_t start,
                         uint64_t end) {
  rf::ModuleRecord record{};
  record.header.kind = rf::RecordKind::kModule;
  record.load_bias = load_bias;
  record.start = start;
  record.end = end;
  record.path_bytes = static_cast<uint32_t>(path.size());
  Append(ring, BytesOf(record) + path);
}

void RingBuilder::Code(uint32_t ring, uint64_t number, const std::string& file, const std::string& name,
                       int32_t first_line) {
  rf::CodeRecord record{};
  record.header.kind = rf::RecordKind::kCode;
  record.number = number;
  record.first_line = first_line;
  record.python_version = 0x030b;
  record.file_bytes = static_cast<uint32_t>(file.size());
  record.qualified_name_bytes = static_cast<uint32_t>(name.size());
  Append(ring, BytesOf(record) + file + name);
}

void RingBuilder::Stack(uint32_t ring, uint64_t number, const std::vector<uint64_t>& native,
                        const std::vector<rf::PythonFrame>& python) {
  rf::StackRecord record{};
  record.header.kind = rf::RecordKind::kStack;
  record.number = number;
  record.native_count = static_cast<uint32_t>(native.size());
  record.python_count = static_cast<uint32_t>(python.size());
  std::string bytes = BytesOf(record);
  for (const uint64_t address : native) bytes += BytesOf(address);
  for (const rf::PythonFrame& frame : python) bytes += BytesOf(frame);
  Append(ring, bytes);
}

void RingBuilder::Event(uint32_t ring, const BuiltEvent& event, uint16_t api, uint64_t stack,
                        uint64_t forward) {
  rf::EventRecord record{};
  record.header.kind = rf::RecordKind::kEvent;
  record.header.detail = static_cast<uint8_t>(event.kind);
  record.header.flags = static_cast<uint16_t>(event.flags);
  record.space = static_cast<uint8_t>(event.space);
  record.api = api;
  record.device = static_cast<int16_t>(event.device);
  record.sequence = event.sequence;
  record.time_ns = event.time_us * 1000;
  record.stack = stack;
  record.address = event.address;
  record.size = event.size;
  std::string optional;
  const auto add = [&](bool present, uint8_t bit, uint64_t value) {
    if (!present) return;
    record.present = static_cast<uint8_t>(record.present | bit);
    optional += BytesOf(value);
  };
  add(event.argument[0] != 0, rf::kHasArgument0, event.argument[0]);
  add(event.argument[1] != 0, rf::kHasArgument1, event.argument[1]);
  add(event.stream != 0, rf::kHasStream, event.stream);
  add(forward != 0, rf::kHasForwardStack, forward);
  add(event.result != 0, rf::kHasResult, static_cast<uint64_t>(event.result));
  Append(ring, BytesOf(record) + optional);
}

void RingBuilder::Mark(uint32_t ring, uint64_t sequence, const std::string& text) {
  rf::MarkRecord record{};
  record.header.kind = rf::RecordKind::kMark;
  record.header.detail = gpumemtrace::Mark::STEP;
  record.header.flags = gpumemtrace::Mark::API;
  record.sequence = sequence;
  record.time_ns = 5000;
  record.text_bytes = static_cast<uint32_t>(text.size());
  Append(ring, BytesOf(record) + text);
}

std::string RingBuilder::Bytes() const {
  std::string bytes(header_.first_ring_offset + rings_.size() * header_.ring_stride, '\0');
  std::memcpy(bytes.data(), &header_, sizeof(header_));
  std::memcpy(bytes.data() + header_.names_offset, names_.data(), names_.size());
  for (size_t i = 0; i < rings_.size(); ++i) {
    rf::RingHeader ring{};
    ring.index = static_cast<uint32_t>(i);
    ring.head = rings_[i].head;
    ring.tail = rings_[i].tail;
    char* at = bytes.data() + header_.first_ring_offset + i * header_.ring_stride;
    std::memcpy(at, &ring, sizeof(ring));
    std::memcpy(at + rf::kRingDataOffset, rings_[i].data.data(), rings_[i].data.size());
  }
  return bytes;
}

}  // namespace gpumemtrace::tests
