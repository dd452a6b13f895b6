#include "tests/synthetic/trace_builder.h"

#include <zstd.h>

#include <array>
#include <stdexcept>

namespace gpumemtrace::synthetic {
namespace {

// Bitwise CRC32C tables, made at start: written for the tests and independent of the analyzer's.
struct CrcTable {
  std::array<uint32_t, 256> entry{};
  CrcTable() {
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82f63b78u : 0u);
      entry[i] = value;
    }
  }
};

uint32_t Crc32c(const std::string& bytes) {
  static const CrcTable kTable;
  uint32_t crc = ~0u;
  for (unsigned char byte : bytes) crc = (crc >> 8) ^ kTable.entry[(crc ^ byte) & 0xff];
  return ~crc;
}

uint64_t ZigZag(int64_t value) {
  return (static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63);
}

void AppendVarint(std::string& out, uint64_t value) {
  while (value >= 0x80) {
    out.push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
}

// 3.9: pairs of (bytecode increment, line increment). Line first + k begins at byte 2k.
constexpr uint32_t kPythonVersion = 0x0309;
constexpr uint32_t kLines = 500;

constexpr uint32_t kEventsPerPacket = 20000;
constexpr uint32_t kPacketsPerRestart = 64;

}  // namespace

TraceBuilder::TraceBuilder(const std::string& path) {
  if (!path.empty()) {
    file_ = std::fopen(path.c_str(), "wb");
    if (file_ == nullptr) throw std::runtime_error(path + ": cannot be written");
  }
  Header& header = *content_.mutable_header();
  header.set_format_version(1);
  header.set_producer("synthetic");
  header.mutable_clock()->set_monotonic_ns(time_ * 1000);
  header.mutable_clock()->set_realtime_ns(1'700'000'000'000'000'000);
  header.set_host_name("synthetic");
  header.set_process_id(1);
  header.set_executable("/home/user/program");
  Thread("main");
}

TraceBuilder::~TraceBuilder() {
  if (file_ != nullptr) std::fclose(file_);
}

uint32_t TraceBuilder::String(const std::string& text) {
  const auto [it, added] = strings_.try_emplace(text, static_cast<uint32_t>(strings_.size()) + 1);
  if (added) {
    InternedString& out = *content_.add_string();
    out.set_id(it->second);
    out.set_value(text);
  }
  return it->second;
}

uint32_t TraceBuilder::Code(const std::string& file, const std::string& function, uint32_t first_line) {
  const std::string key = file + "\n" + function;
  for (size_t i = 0; i < codes_.size(); ++i) {
    if (codes_[i].first == key) return static_cast<uint32_t>(i) + 1;
  }
  codes_.emplace_back(key, first_line);
  const uint32_t id = static_cast<uint32_t>(codes_.size());
  const uint32_t file_id = String(file);
  const uint32_t name_id = String(function);
  CodeObject& code = *content_.add_code_object();
  code.set_id(id);
  code.set_file(file_id);
  code.set_qualified_name(name_id);
  code.set_first_line(first_line);
  code.set_python_version(kPythonVersion);
  std::string table;
  for (uint32_t i = 0; i < kLines; ++i) table += std::string("\x02\x01", 2);
  code.set_line_table(table);
  return id;
}

uint32_t TraceBuilder::Module(const std::string& path) {
  const auto [it, added] = modules_.try_emplace(path, static_cast<uint32_t>(modules_.size()) + 1);
  if (added) {
    const uint32_t path_id = String(path);
    gpumemtrace::Module& module = *content_.add_module();
    module.set_id(it->second);
    module.set_path(path_id);
    module.set_load_bias(uint64_t{it->second} << 32);
    module.set_start(uint64_t{it->second} << 32);
    module.set_end((uint64_t{it->second} << 32) + (1 << 30));
  }
  return it->second;
}

uint32_t TraceBuilder::Frame(const std::string& key, const gpumemtrace::Frame& frame) {
  const auto [it, added] = frames_.try_emplace(key, static_cast<uint32_t>(frames_.size()) + 1);
  if (added) {
    gpumemtrace::Frame& out = *content_.add_frame();
    out = frame;
    out.set_id(it->second);
  }
  return it->second;
}

uint32_t TraceBuilder::Node(uint32_t parent, uint32_t frame) {
  const auto [it, added] = nodes_.try_emplace({parent, frame}, static_cast<uint32_t>(nodes_.size()) + 1);
  if (added) {
    StackNodes& block = *content_.add_stack_nodes();
    block.set_first_id(it->second);
    block.add_parent_distance(parent == 0 ? 0 : it->second - parent);
    block.add_frame(frame);
  }
  return it->second;
}

Stack TraceBuilder::Python(const std::vector<Call>& calls) {
  uint32_t node = 0;
  for (const Call& call : calls) {
    gpumemtrace::Frame frame;
    frame.set_code_object(call.code);
    const int32_t instruction = static_cast<int32_t>(2 * (call.line - codes_[call.code - 1].second));
    frame.set_instruction(instruction);
    node = Node(node, Frame("p" + std::to_string(call.code) + "," + std::to_string(instruction), frame));
  }
  return node;
}

Stack TraceBuilder::Native(const std::vector<std::pair<uint32_t, uint64_t>>& frames) {
  uint32_t node = 0;
  for (const auto& [module, offset] : frames) {
    gpumemtrace::Frame frame;
    frame.set_module(module);
    frame.set_offset(offset);
    node = Node(node, Frame("n" + std::to_string(module) + "," + std::to_string(offset), frame));
  }
  return node;
}

uint32_t TraceBuilder::Thread(const std::string& name) {
  const auto [it, added] = threads_.try_emplace(name, static_cast<uint32_t>(threads_.size()) + 1);
  if (added) {
    gpumemtrace::Thread& thread = *content_.add_thread();
    thread.set_id(it->second);
    thread.set_tid(1000 + it->second);
    thread.set_name(name);
  }
  return it->second;
}

void TraceBuilder::Device(int32_t ordinal, uint64_t total) {
  gpumemtrace::Device& device = *content_.add_device();
  device.set_ordinal(ordinal);
  device.set_name("Synthetic GPU");
  device.set_total_memory(total);
}

TraceBuilder::SiteState& TraceBuilder::Site(const SiteSpec& spec) {
  const auto [it, added] = sites_.try_emplace(spec);
  SiteState& state = it->second;
  if (added) {
    state.id = static_cast<uint32_t>(sites_.size());
    gpumemtrace::Site& site = *content_.add_site();
    site.set_id(state.id);
    site.set_kind(spec.kind);
    site.set_space(spec.space);
    site.set_api(spec.api);
    site.set_device(spec.device);
    site.set_thread(spec.thread);
    site.set_stream(spec.stream);
    site.set_size(spec.size);
    site.set_native_stack(spec.native);
    site.set_python_stack(spec.python);
    site.set_forward_stack(spec.forward);
    site.set_result(spec.result);
    site.set_flags(spec.flags);
  }
  if (state.epoch != epoch_) {
    state.epoch = epoch_;
    state.last_address = 0;
    state.last_argument[0] = state.last_argument[1] = 0;
  }
  return state;
}

void TraceBuilder::Put(size_t column, uint64_t value) {
  AppendVarint(columns_[column], value);
}

void TraceBuilder::PutDifference(size_t column, uint64_t value, uint64_t last) {
  Put(column, ZigZag(static_cast<int64_t>(value - last)));
}

void TraceBuilder::Common(SiteState& site) {
  if (count_ == 0) {
    first_time_ = time_;
    last_time_ = time_;
    first_index_ = next_index_;
    first_sequence_ = sequence_;
  }
  Put(SITE, site.id);
  PutDifference(TIME, time_, last_time_);
  Put(SEQUENCE, 0);
  last_time_ = time_;
  ++sequence_;
  ++count_;
  ++next_index_;
}

void TraceBuilder::AddTotals(const SiteSpec& site, uint64_t size, bool birth, uint64_t allocated,
                             uint64_t reserved) {
  Totals& totals = totals_[site.device];
  if (totals.epoch != epoch_) totals = {0, 0, epoch_};
  const uint64_t predicted = birth ? totals.allocated + size : totals.allocated - size;
  PutDifference(ALLOCATED, allocated, predicted);
  PutDifference(RESERVED, reserved, totals.reserved);
  totals.allocated = allocated;
  totals.reserved = reserved;
}

uint64_t TraceBuilder::Begin(const SiteSpec& spec, uint64_t address, uint64_t argument0, uint64_t argument1) {
  SiteState& site = Site(spec);
  Common(site);
  if (spec.kind != BLOCK_OUT_OF_MEMORY && spec.kind != GRAPH_TRIM) {
    PutDifference(ADDRESS, address, site.last_address);
    site.last_address = address;
  }
  if (spec.kind >= BLOCK_ALLOCATE) {
    if (spec.kind == BLOCK_ALLOCATE) {
      AddTotals(spec, spec.size, true, argument0, argument1);
    } else {
      AddTotals(spec, 0, true, argument0, argument1);
    }
  } else {
    PutDifference(ARGUMENT_0, argument0, site.last_argument[0]);
    PutDifference(ARGUMENT_1, argument1, site.last_argument[1]);
    site.last_argument[0] = argument0;
    site.last_argument[1] = argument1;
  }
  const uint64_t index = next_index_ - 1;
  FlushIfFull();
  return index;
}

uint64_t TraceBuilder::End(const SiteSpec& spec, uint64_t birth, uint64_t address, uint64_t size,
                           uint64_t argument0, uint64_t argument1) {
  SiteState& site = Site(spec);
  Common(site);
  const uint64_t index = next_index_ - 1;
  if (birth == kNone) {
    Put(LIVE, 0);
    PutDifference(ADDRESS, address, site.last_address);
    site.last_address = address;
    if (spec.kind == BLOCK_FREE) PutDifference(SIZE, size, 0);
  } else {
    Put(LIVE, index - birth);
  }
  if (spec.kind >= BLOCK_ALLOCATE) {
    AddTotals(spec, size, false, argument0, argument1);
  } else {
    PutDifference(ARGUMENT_0, argument0, site.last_argument[0]);
    PutDifference(ARGUMENT_1, argument1, site.last_argument[1]);
    site.last_argument[0] = argument0;
    site.last_argument[1] = argument1;
  }
  FlushIfFull();
  return index;
}

void TraceBuilder::Mark(Mark::Kind kind, const std::string& text, uint64_t number, uint32_t thread) {
  // What came before it stands in an earlier packet, so that the events of a packet are numbered without
  // gaps.
  if (count_ != 0) Flush();
  const uint32_t text_id = text.empty() ? 0 : String(text);
  gpumemtrace::Mark& mark = *content_.add_mark();
  mark.set_kind(kind);
  mark.set_source(kind == Mark::STEP ? Mark::API : Mark::NVTX);
  mark.set_sequence(sequence_++);
  mark.set_time_us(time_);
  mark.set_thread(thread);
  mark.set_text(text_id);
  mark.set_number(number);
}

void TraceBuilder::DeviceMemory(int32_t device, uint64_t free, uint64_t total) {
  if (count_ != 0) Flush();
  gpumemtrace::DeviceMemory& memory = *content_.add_device_memory();
  memory.set_sequence(sequence_++);
  memory.set_time_us(time_);
  memory.set_device(device);
  memory.set_free(free);
  memory.set_total(total);
}

void TraceBuilder::FlushIfFull() {
  if (count_ >= kEventsPerPacket) Flush();
}

void TraceBuilder::Flush() {
  content_.set_packet_index(packet_index_);
  if (count_ != 0) {
    Events& events = *content_.mutable_events();
    events.set_count(count_);
    events.set_first_index(first_index_);
    events.set_first_time_us(first_time_);
    events.set_first_sequence(first_sequence_);
    events.set_restart(packet_index_ % kPacketsPerRestart == 0);
    for (size_t id = 1; id < kColumns; ++id) {
      std::string& raw = columns_[id];
      bool zero = true;
      for (char c : raw) zero = zero && c == 0;
      if (!zero) {
        Column& column = *events.add_column();
        column.set_id(static_cast<ColumnId>(id));
        column.set_raw_size(static_cast<uint32_t>(raw.size()));
        std::string packed(ZSTD_compressBound(raw.size()), '\0');
        const size_t size = ZSTD_compress(packed.data(), packed.size(), raw.data(), raw.size(), 1);
        if (ZSTD_isError(size) == 0 && size < raw.size()) {
          packed.resize(size);
          column.set_codec(Column::ZSTD);
          column.set_data(std::move(packed));
        } else {
          column.set_codec(Column::RAW);
          column.set_data(raw);
        }
      }
      raw.clear();
    }
  }
  const std::string body = content_.SerializeAsString();
  std::string packet;
  packet.push_back(static_cast<char>((1 << 3) | 5));
  const uint32_t crc = Crc32c(body);
  for (int i = 0; i < 4; ++i) packet.push_back(static_cast<char>(crc >> (8 * i)));
  packet.push_back(static_cast<char>((2 << 3) | 2));
  AppendVarint(packet, body.size());
  packet += body;
  std::string out;
  out.push_back(static_cast<char>((1 << 3) | 2));
  AppendVarint(out, packet.size());
  out += packet;
  if (file_ != nullptr) {
    if (std::fwrite(out.data(), 1, out.size(), file_) != out.size()) throw std::runtime_error("cannot write");
  } else {
    bytes_ += out;
  }
  ++packet_index_;
  // Predictors begin anew in a packet with `restart`.
  if (packet_index_ % kPacketsPerRestart == 0) ++epoch_;
  content_.Clear();
  count_ = 0;
}

void TraceBuilder::Finish() {
  gpumemtrace::End& end = *content_.mutable_end();
  end.set_reason(gpumemtrace::End::EXIT);
  end.set_time_us(time_);
  Flush();
  if (file_ != nullptr) {
    std::fclose(file_);
    file_ = nullptr;
  }
}

}  // namespace gpumemtrace::synthetic
