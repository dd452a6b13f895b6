#include "tests/recorder/support/trace_decoder.h"

#include <google/protobuf/io/coded_stream.h>
#include <zstd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>

#include "proto/gpumemtrace/address_prediction.h"
#include "proto/gpumemtrace/event_columns.h"
#include "proto/gpumemtrace/event_prediction.h"
#include "proto/gpumemtrace/ring_file.h"

namespace gpumemtrace::tests {
namespace {

namespace columns = event_columns;

int64_t UnZigZag(uint64_t value) {
  return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
}

class Failure {
 public:
  explicit Failure(std::string* error) : error_(error) {}
  bool operator()(const std::string& text) const {
    if (error_ != nullptr) *error_ = text;
    return false;
  }

 private:
  std::string* error_;
};

bool Decompress(Column::Codec codec, const std::string& data, uint32_t raw_size, std::string& raw) {
  if (codec == Column::RAW) {
    raw = data;
    return raw.size() == raw_size;
  }
  raw.resize(raw_size);
  return ZSTD_decompress(raw.data(), raw.size(), data.data(), data.size()) == raw_size;
}

// One column of a packet, read entry by entry; an absent one is all zeros.
class ColumnReader {
 public:
  bool Load(const Column& column) {
    present_ = true;
    return Decompress(column.codec(), column.data(), column.raw_size(), raw_);
  }
  uint64_t Next() {
    if (!present_) return 0;
    uint64_t value = 0;
    for (unsigned shift = 0;; shift += 7) {
      if (at_ >= raw_.size() || shift > 63) {
        failed_ = true;
        return 0;
      }
      const auto byte = static_cast<unsigned char>(raw_[at_++]);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
  }
  // Everything was read and nothing more was asked for.
  bool Exact() const { return !failed_ && (!present_ || at_ == raw_.size()); }
  size_t size() const { return raw_.size(); }

 private:
  std::string raw_;
  size_t at_ = 0;
  bool present_ = false;
  bool failed_ = false;
};

struct SiteState {
  gpumemtrace::Site site;
  uint64_t last_address = 0;
  uint64_t last_size = 0;
  uint64_t last_argument[2] = {0, 0};
  uint32_t restart = 0;
};
struct DeviceState {
  uint64_t allocated = 0;
  uint64_t reserved = 0;
};
struct RingStack {
  uint32_t native = 0;
  uint32_t python = 0;
};

}  // namespace

// What must be remembered between packets, and for the rings after the last one.
class TraceDecoder {
 public:
  TraceDecoder(DecodedTrace& trace, std::string* error) : trace_(trace), fail_(error) {
    predictor_.Use(predictions_.data());
    addresses_.Use(address_tables_.get());
  }

  bool Decode(const std::string& bytes) {
    size_t at = 0;
    while (at < bytes.size()) {
      // Trace.packet, length-delimited.
      google::protobuf::io::CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data() + at),
                                                static_cast<int>(bytes.size() - at));
      uint32_t length = 0;
      if (in.ReadTag() != 0x0a || !in.ReadVarint32(&length) ||
          length > static_cast<uint32_t>(in.BytesUntilTotalBytesLimit())) {
        if (bytes[at] != 0x0a) return fail_("no packet where one should begin");
        trace_.torn_bytes = bytes.size() - at;
        return true;
      }
      const size_t head = static_cast<size_t>(in.CurrentPosition());
      if (at + head + length > bytes.size()) {
        trace_.torn_bytes = bytes.size() - at;
        return true;
      }
      const std::string packet_bytes = bytes.substr(at + head, length);
      Packet packet;
      if (!packet.ParseFromString(packet_bytes)) return fail_("a packet does not parse");
      // The checksum is about the bytes as they stand in the file: 0d <4 bytes> 12 <length> <content>.
      if (packet_bytes.size() < 6 || packet_bytes[0] != 0x0d || packet_bytes[5] != 0x12) {
        return fail_("crc32c does not come first");
      }
      size_t content_at = 6;
      while ((packet_bytes[content_at] & 0x80) != 0) ++content_at;
      const std::string content_bytes = packet_bytes.substr(content_at + 1);
      if (SlowCrc32c(content_bytes) != packet.crc32c()) return fail_("wrong crc32c");
      trace_.largest_packet = std::max(trace_.largest_packet, head + length);
      if (packet.content().packet_index() != trace_.packets) return fail_("packet index is not the next one");
      ++trace_.packets;
      if (!Content(packet.content())) return false;
      at += head + length;
    }
    return true;
  }

  bool Rings(const std::string& bytes);

 private:
  bool Definitions(const gpumemtrace::Content& content) {
    for (const auto& string : content.string()) trace_.strings[string.id()] = string.value();
    for (const auto& module : content.module()) modules_[module.id()] = module;
    for (const auto& code : content.code_object()) {
      codes_[code.id()] = code;
      code_numbers_[code.number()] = code.id();
    }
    for (const auto& frame : content.frame()) {
      if (frame.module() != 0 && modules_.count(frame.module()) == 0) return fail_("frame of no module");
      if (frame.code_object() != 0 && codes_.count(frame.code_object()) == 0)
        return fail_("frame of no code");
      frames_[frame.id()] = frame;
    }
    for (const auto& nodes : content.stack_nodes()) {
      if (nodes.parent_distance_size() != nodes.frame_size()) return fail_("nodes of two lengths");
      for (int i = 0; i < nodes.frame_size(); ++i) {
        const uint32_t id = nodes.first_id() + static_cast<uint32_t>(i);
        const uint32_t distance = nodes.parent_distance(i);
        if (distance > id || frames_.count(nodes.frame(i)) == 0) return fail_("a bad stack node");
        const uint32_t parent = distance == 0 ? 0 : id - distance;
        if (parent != 0 && nodes_.count(parent) == 0) return fail_("a node without its parent");
        nodes_[id] = {parent, nodes.frame(i)};
      }
    }
    for (const auto& thread : content.thread()) threads_[thread.id()] = thread;
    for (const auto& site : content.site()) {
      if (site.thread() != 0 && threads_.count(site.thread()) == 0) return fail_("site of no thread");
      if (site.native_stack() != 0 && nodes_.count(site.native_stack()) == 0)
        return fail_("site of no stack");
      if (site.python_stack() != 0 && nodes_.count(site.python_stack()) == 0)
        return fail_("site of no stack");
      SiteState& state = sites_[site.id()];
      if (state.site.id() != 0 && state.site.SerializeAsString() != site.SerializeAsString()) {
        return fail_("a site changed its meaning");
      }
      state.site = site;
    }
    return true;
  }

  bool Content(const gpumemtrace::Content& content) {
    if (content.has_header()) trace_.header = content.header();
    if (content.has_compressed_definitions()) {
      std::string raw;
      gpumemtrace::Content definitions;
      const auto& compressed = content.compressed_definitions();
      if (!Decompress(compressed.codec(), compressed.data(), compressed.raw_size(), raw) ||
          !definitions.ParseFromString(raw)) {
        return fail_("compressed definitions do not decode");
      }
      if (!Definitions(definitions)) return false;
      trace_.marks.insert(trace_.marks.end(), definitions.mark().begin(), definitions.mark().end());
    }
    if (!Definitions(content)) return false;
    const auto& names = content.stack_name();
    if (names.number_size() != names.native_stack_size() ||
        names.number_size() != names.python_stack_size()) {
      return fail_("stack names of different lengths");
    }
    for (int i = 0; i < names.number_size(); ++i) {
      stacks_[names.number(i)] = {names.native_stack(i), names.python_stack(i)};
    }
    if (content.has_events() && !Events(content.events())) return false;
    trace_.marks.insert(trace_.marks.end(), content.mark().begin(), content.mark().end());
    trace_.device_memory.insert(trace_.device_memory.end(), content.device_memory().begin(),
                                content.device_memory().end());
    trace_.devices.insert(trace_.devices.end(), content.device().begin(), content.device().end());
    trace_.interpreters.insert(trace_.interpreters.end(), content.interpreter().begin(),
                               content.interpreter().end());
    for (const auto& note : content.note()) trace_.notes.push_back(note.text());
    for (const auto& position : content.ring_position()) trace_.ring_positions[position.ring()] = position;
    if (content.has_statistics()) {
      trace_.statistics = content.statistics();
      trace_.lost_in_statistics = 0;
      for (const auto& loss : content.statistics().loss()) trace_.lost_in_statistics += loss.events();
    }
    if (content.has_end()) trace_.ended = true;
    return true;
  }

  DecodedStack Stack(uint32_t node) const {
    DecodedStack stack;
    for (; node != 0; node = nodes_.at(node).first) {
      const Frame& frame = frames_.at(nodes_.at(node).second);
      DecodedFrame decoded;
      if (frame.code_object() != 0) {
        const CodeObject& code = codes_.at(frame.code_object());
        decoded.file = String(code.file());
        decoded.function = String(code.qualified_name());
        decoded.instruction = frame.instruction();
      } else {
        if (frame.module() != 0) decoded.module = String(modules_.at(frame.module()).path());
        decoded.offset = frame.offset();
      }
      stack.push_back(decoded);
    }
    return stack;
  }

  std::string String(uint32_t id) const {
    const auto found = trace_.strings.find(id);
    return found == trace_.strings.end() ? "" : found->second;
  }

  bool Events(const gpumemtrace::Events& events) {
    std::map<int, ColumnReader> readers;
    for (const auto& column : events.column()) {
      if (!readers[column.id()].Load(column)) return fail_("a column does not decompress");
      trace_.bytes_by_column[ColumnId_Name(column.id())] += column.data().size();
    }
    if (events.first_index() != trace_.events.size()) return fail_("first_index is not the next index");
    if (events.restart()) {
      ++trace_.restarts;
      devices_.clear();
      predictor_.Restart();
      addresses_.Restart(events.first_index());
    }
    trace_.first_indices.push_back(events.first_index());
    const uint64_t step_us = events.time_step_us() == 0 ? 1 : events.time_step_us();
    uint64_t time = events.first_time_us();
    uint64_t sequence = events.first_sequence() - 1;
    for (uint32_t i = 0; i < events.count(); ++i) {
      auto site_id = static_cast<uint32_t>(readers[SITE].Next());
      event_prediction::Entry expected{};
      if (events.predicted() && site_id == 0) {
        expected = predictor_.Predict();
        site_id = expected.site;
        ++trace_.predicted;
      }
      const auto found = sites_.find(site_id);
      if (found == sites_.end()) return fail_("an event of no site");
      SiteState& state = found->second;
      const gpumemtrace::Site& site = state.site;
      if (state.restart != trace_.restarts) {
        state.restart = trace_.restarts;
        state.last_address = state.last_size = state.last_argument[0] = state.last_argument[1] = 0;
      }
      DecodedEvent event;
      event.kind = site.kind();
      event.space = site.space();
      event.api = String(site.api());
      event.device = site.device();
      event.tid = site.thread() == 0 ? 0 : threads_.at(site.thread()).tid();
      event.stream = site.stream();
      event.size = site.size();
      event.result = site.result();
      event.flags = site.flags();
      event.native = Stack(site.native_stack());
      event.python = Stack(site.python_stack());
      event.forward = Stack(site.forward_stack());
      const int64_t step = UnZigZag(readers[TIME].Next()) + expected.step;
      time += static_cast<uint64_t>(step) * step_us;
      sequence += 1 + static_cast<uint64_t>(UnZigZag(readers[SEQUENCE].Next()));
      event.time_us = time;
      event.sequence = sequence;
      const auto kind = static_cast<uint32_t>(site.kind());
      const uint64_t index = trace_.events.size();
      bool has_address = columns::HasAddress(kind);
      bool has_size = site.size_varies();
      uint64_t distance = 0;
      if (columns::HasLive(kind)) {
        distance = readers[LIVE].Next();
        if (events.predicted()) distance = static_cast<uint64_t>(UnZigZag(distance)) + expected.distance;
        if (distance > index) return fail_("LIVE reaches before the first event");
        if (distance == 0) {
          has_address = true;
          has_size |= kind == columns::kBlockFree;
        } else {
          event.birth = index - distance;
          const DecodedEvent& birth = trace_.events[*event.birth];
          if (birth.kind != static_cast<EventKind>(columns::BirthOf(kind)))
            return fail_("a birth of another kind");
          event.address = birth.address;
          if (kind == columns::kBlockFree && !site.size_varies()) event.size = birth.size;
          if (events.addresses_predicted() && kind == columns::kBlockFree && addresses_.Knows(*event.birth) &&
              address_prediction::Follows(site.address_shift(), birth.address, birth.size)) {
            addresses_.Freed(site.device(), address_prediction::LaneOf(site.stream()),
                             birth.address >> address_prediction::kShift, birth.size);
          }
        }
      }
      if (events.predicted()) predictor_.Learn(site_id, step, distance);
      if (has_size) {
        state.last_size += static_cast<uint64_t>(UnZigZag(readers[SIZE].Next()));
        event.size = state.last_size;
      }
      const bool placed = events.addresses_predicted() && kind == columns::kBlockAllocate &&
                          address_prediction::Follows(site.address_shift(), 0, event.size);
      if (placed) {
        state.last_address = addresses_.Predict(site.device(), address_prediction::LaneOf(site.stream()),
                                                event.size, state.last_address);
      }
      if (has_address) {
        const int64_t difference = UnZigZag(readers[ADDRESS].Next());
        trace_.expected_addresses += placed && difference == 0 ? 1 : 0;
        state.last_address += static_cast<uint64_t>(difference);
        event.address = state.last_address << site.address_shift();
      }
      if (columns::HasTotals(kind)) {
        DeviceState& device = devices_[site.device()];
        if (kind == columns::kBlockAllocate) device.allocated += event.size;
        if (kind == columns::kBlockFree) device.allocated -= event.size;
        device.allocated += static_cast<uint64_t>(UnZigZag(readers[ALLOCATED].Next()));
        const uint64_t reserved = device.reserved + static_cast<uint64_t>(UnZigZag(readers[RESERVED].Next()));
        if (placed) {
          addresses_.Allocated(event.address >> address_prediction::kShift, event.size,
                               device.reserved != 0 ? reserved - device.reserved : 0);
        }
        device.reserved = reserved;
        event.argument[0] = device.allocated;
        event.argument[1] = device.reserved;
      }
      if (columns::HasArguments(kind)) {
        for (int a = 0; a < 2; ++a) {
          state.last_argument[a] +=
              static_cast<uint64_t>(UnZigZag(readers[a == 0 ? ARGUMENT_0 : ARGUMENT_1].Next()));
          event.argument[a] = state.last_argument[a];
        }
      }
      trace_.events.push_back(std::move(event));
    }
    for (const auto& [id, reader] : readers) {
      if (!reader.Exact())
        return fail_("column " + ColumnId_Name(static_cast<ColumnId>(id)) + " has another length");
    }
    return true;
  }

  DecodedTrace& trace_;
  const Failure fail_;
  std::map<uint32_t, Module> modules_;
  std::map<uint32_t, CodeObject> codes_;
  std::map<uint64_t, uint32_t> code_numbers_;
  std::map<uint32_t, Frame> frames_;
  std::map<uint32_t, std::pair<uint32_t, uint32_t>> nodes_;
  std::map<uint32_t, Thread> threads_;
  std::map<uint32_t, SiteState> sites_;
  std::map<int32_t, DeviceState> devices_;
  std::vector<event_prediction::Entry> predictions_{event_prediction::Predictor::kEntries};
  event_prediction::Predictor predictor_;
  std::unique_ptr<address_prediction::Tables> address_tables_ =
      std::make_unique<address_prediction::Tables>();
  address_prediction::Predictor addresses_;
  std::map<uint64_t, RingStack> stacks_;
};

bool TraceDecoder::Rings(const std::string& bytes) {
  namespace rf = ring_file;
  rf::FileHeader file;
  if (bytes.size() < sizeof file) return fail_("the ring file is too short");
  std::memcpy(&file, bytes.data(), sizeof file);
  if (std::memcmp(file.magic, rf::kMagic, sizeof file.magic) != 0) return fail_("not a ring file");
  if (file.ring_key != trace_.header.ring_key()) return fail_("a ring file of another trace");
  std::vector<std::string> names;
  for (size_t at = file.names_offset; names.size() < file.names_count;) {
    names.emplace_back(bytes.c_str() + at);
    at += names.back().size() + 1;
  }
  std::vector<DecodedEvent> found;
  for (uint32_t r = 0; r < file.ring_count; ++r) {
    const size_t base = file.first_ring_offset + r * file.ring_stride;
    if (base + file.ring_stride > bytes.size()) return fail_("the ring file ends inside a ring");
    rf::RingHeader ring;
    std::memcpy(&ring, bytes.data() + base, sizeof ring);
    uint64_t position = 0;
    uint64_t tid = 0;
    if (const auto known = trace_.ring_positions.find(r); known != trace_.ring_positions.end()) {
      position = known->second.position();
      if (known->second.thread() != 0) tid = threads_.at(known->second.thread()).tid();
    }
    if (position < ring.tail) return fail_("the trace lacks a packet that was written");
    std::map<uint64_t, std::pair<DecodedStack, DecodedStack>> defined;
    while (position < ring.head) {
      const size_t at = base + rf::kRingDataOffset + position % file.ring_capacity;
      rf::RecordHeader record;
      std::memcpy(&record, bytes.data() + at, sizeof record);
      if (record.bytes < 8 || record.bytes % 8 != 0 || position + record.bytes > ring.head ||
          at + record.bytes > base + file.ring_stride) {
        return fail_("a bad record in ring " + std::to_string(r));
      }
      if (record.kind == rf::RecordKind::kThread) {
        rf::ThreadRecord thread;
        std::memcpy(&thread, bytes.data() + at, sizeof thread);
        tid = thread.tid;
      } else if (record.kind == rf::RecordKind::kStack) {
        rf::StackRecord stack;
        std::memcpy(&stack, bytes.data() + at, sizeof stack);
        auto& [native, python] = defined[stack.number];
        native.resize(stack.native_count);
        python.resize(stack.python_count);
      } else if (record.kind == rf::RecordKind::kEvent) {
        rf::EventRecord raw;
        std::memcpy(&raw, bytes.data() + at, sizeof raw);
        uint64_t optional[5] = {};
        size_t word = at + sizeof raw;
        for (int i = 0; i < 5; ++i) {
          if ((raw.present >> i & 1) == 0) continue;
          std::memcpy(&optional[i], bytes.data() + word, 8);
          word += 8;
        }
        DecodedEvent event;
        event.kind = static_cast<EventKind>(raw.header.detail);
        event.space = static_cast<Space>(raw.space);
        event.api = raw.api < names.size() ? names[raw.api] : "";
        event.device = raw.device;
        event.tid = tid;
        event.stream = optional[2];
        event.size = raw.size;
        event.address = raw.address;
        event.argument[0] = optional[0];
        event.argument[1] = optional[1];
        event.result = static_cast<int64_t>(optional[4]);
        event.flags = raw.header.flags;
        event.sequence = raw.sequence;
        event.time_us = raw.time_ns / 1000;
        event.from_ring = true;
        if (raw.stack != 0) {
          if (const auto here = defined.find(raw.stack); here != defined.end()) {
            event.native = here->second.first;
            event.python = here->second.second;
          } else if (const auto named = stacks_.find(raw.stack); named != stacks_.end()) {
            event.native = Stack(named->second.native);
            event.python = Stack(named->second.python);
          } else {
            return fail_("an event in a ring names a stack that nothing defines");
          }
        }
        found.push_back(std::move(event));
      }
      position += record.bytes;
    }
    if (position != ring.head) return fail_("records do not end at the head");
  }
  std::sort(found.begin(), found.end(),
            [](const DecodedEvent& a, const DecodedEvent& b) { return a.sequence < b.sequence; });
  trace_.events.insert(trace_.events.end(), found.begin(), found.end());
  return true;
}

std::optional<DecodedTrace> DecodeTrace(const std::string& bytes, std::string* error) {
  DecodedTrace trace;
  TraceDecoder decoder(trace, error);
  if (!decoder.Decode(bytes)) return std::nullopt;
  return trace;
}

std::optional<DecodedTrace> DecodeTraceWithRings(const std::string& bytes, const std::string& ring_bytes,
                                                 std::string* error) {
  DecodedTrace trace;
  TraceDecoder decoder(trace, error);
  if (!decoder.Decode(bytes)) return std::nullopt;
  if (!ring_bytes.empty() && !decoder.Rings(ring_bytes)) return std::nullopt;
  return trace;
}

std::string ReadFileBytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

uint32_t SlowCrc32c(const std::string& bytes) {
  uint32_t crc = ~0u;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
  }
  return ~crc;
}

}  // namespace gpumemtrace::tests
