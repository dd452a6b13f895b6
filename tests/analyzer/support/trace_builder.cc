#include "tests/analyzer/support/trace_builder.h"

#include <zstd.h>

#include <stdexcept>

#include "gpumemtrace/event_columns.h"

namespace gpumemtrace::tests {
namespace {

void AppendVarint(std::string& out, uint64_t value) {
  while (value >= 0x80) {
    out += static_cast<char>((value & 0x7f) | 0x80);
    value >>= 7;
  }
  out += static_cast<char>(value);
}

std::string Compressed(const std::string& raw) {
  std::string out(ZSTD_compressBound(raw.size()), '\0');
  out.resize(ZSTD_compress(out.data(), out.size(), raw.data(), raw.size(), 3));
  return out;
}

}  // namespace

uint32_t SlowCrc32c(const std::string& bytes) {
  uint32_t crc = 0xffffffffu;
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
  }
  return ~crc;
}

std::string Frame(const std::string& content) {
  std::string packet = "\x0d";
  const uint32_t crc = SlowCrc32c(content);
  for (int i = 0; i < 4; ++i) packet += static_cast<char>((crc >> (8 * i)) & 0xff);
  packet += '\x12';
  AppendVarint(packet, content.size());
  packet += content;
  std::string out = "\x0a";
  AppendVarint(out, packet.size());
  return out + packet;
}

TraceBuilder::TraceBuilder(Options options)
    : options_(options), predictions_(options.predict ? event_prediction::Predictor::kEntries : 0) {
  predictor_.Use(predictions_.data());
  Header& header = *content_.mutable_header();
  header.set_format_version(3);
  header.set_producer("test");
  header.mutable_clock()->set_monotonic_ns(1'000'000);
  header.mutable_clock()->set_realtime_ns(1'700'000'000'000'000'000);
  header.set_host_name("host");
  header.set_process_id(1234);
  header.add_argument("python");
  header.add_argument("train.py");
  header.set_ring_key(77);
  Thread(1234, "main");
}

uint32_t TraceBuilder::String(const std::string& text) {
  const auto [it, added] = strings_.try_emplace(text, static_cast<uint32_t>(strings_.size() + 1));
  if (added) {
    InternedString& string = *content_.add_string();
    string.set_id(it->second);
    string.set_value(text);
  }
  return it->second;
}

uint32_t TraceBuilder::Module(const std::string& path, const std::string& build_id, uint64_t load_bias,
                              uint64_t start, uint64_t end) {
  const uint32_t path_id = String(path);
  gpumemtrace::Module& module = *content_.add_module();
  module.set_id(next_module_);
  module.set_path(path_id);
  module.set_build_id(build_id);
  module.set_load_bias(load_bias);
  module.set_start(start);
  module.set_end(end);
  return next_module_++;
}

uint32_t TraceBuilder::Code(const std::string& file, const std::string& name, uint32_t first_line,
                            const std::string& line_table, uint32_t version) {
  const uint32_t file_id = String(file);
  const uint32_t name_id = String(name);
  gpumemtrace::CodeObject& code = *content_.add_code_object();
  code.set_id(next_code_);
  code.set_file(file_id);
  code.set_qualified_name(name_id);
  code.set_first_line(first_line);
  code.set_line_table(line_table);
  code.set_python_version(version);
  code.set_number(1000 + next_code_);
  return next_code_++;
}

uint32_t TraceBuilder::NativeFrame(uint32_t module, uint64_t offset) {
  gpumemtrace::Frame& frame = *content_.add_frame();
  frame.set_id(next_frame_);
  frame.set_module(module);
  frame.set_offset(offset);
  return next_frame_++;
}

uint32_t TraceBuilder::PythonFrame(uint32_t code, int32_t instruction, bool entry) {
  gpumemtrace::Frame& frame = *content_.add_frame();
  frame.set_id(next_frame_);
  frame.set_code_object(code);
  frame.set_instruction(instruction);
  frame.set_entry(entry);
  return next_frame_++;
}

uint32_t TraceBuilder::Stack(const std::vector<uint32_t>& frames) {
  uint32_t parent = 0;
  for (size_t i = frames.size(); i-- > 0;) {
    const uint32_t id = static_cast<uint32_t>(nodes_.size() + 1);
    const auto [it, added] = nodes_.try_emplace({parent, frames[i]}, id);
    if (added) {
      StackNodes& nodes = *content_.add_stack_nodes();
      nodes.set_first_id(id);
      nodes.add_parent_distance(parent == 0 ? 0 : id - parent);
      nodes.add_frame(frames[i]);
    }
    parent = it->second;
  }
  return parent;
}

uint32_t TraceBuilder::Thread(uint64_t tid, const std::string& name) {
  gpumemtrace::Thread& thread = *content_.add_thread();
  thread.set_id(next_thread_);
  thread.set_tid(tid);
  thread.set_name(name);
  return next_thread_++;
}

uint32_t TraceBuilder::SiteOf(const BuiltEvent& event) {
  gpumemtrace::Site site;
  site.set_kind(static_cast<gpumemtrace::EventKind>(event.kind));
  site.set_space(static_cast<gpumemtrace::Space>(event.space));
  site.set_api(String(event.api));
  site.set_device(event.device);
  site.set_thread(event.thread);
  site.set_stream(event.stream);
  if (!event.size_varies && !event_columns::HasLive(static_cast<uint32_t>(event.kind))) {
    site.set_size(event.size);
  }
  site.set_size_varies(event.size_varies);
  site.set_native_stack(event.native_stack);
  site.set_python_stack(event.python_stack);
  site.set_forward_stack(event.forward_stack);
  site.set_result(event.result);
  site.set_flags(event.flags);
  site.set_address_shift(event.address % 512 == 0 ? 9 : 0);
  const auto [it, added] =
      sites_.try_emplace(site.SerializeAsString(), static_cast<uint32_t>(sites_.size() + 1));
  const uint32_t id = it->second;
  if (added) {
    site.set_id(id);
    site_messages_[id] = site;
  }
  if (added || (options_.repeat_sites && site_defined_in_[id] != restart_)) {
    *content_.add_site() = site_messages_[id];
    site_defined_in_[id] = restart_;
  }
  return id;
}

void TraceBuilder::Put(int column, uint64_t value) {
  AppendVarint(columns_[column], value);
}

void TraceBuilder::PutZigzag(int column, uint64_t difference) {
  const uint64_t sign = (difference >> 63) != 0 ? ~uint64_t{0} : 0;
  Put(column, (difference << 1) ^ sign);
}

void TraceBuilder::Add(BuiltEvent event) {
  if (event.sequence == 0) event.sequence = sequence_ + 1;
  sequence_ = std::max(sequence_, event.sequence);
  if (event.time_us == 0) event.time_us = time_us_ + 1;
  time_us_ = event.time_us;

  if (count_ == 0) {
    Events& events = *content_.mutable_events();
    events.set_first_index(index_);
    events.set_first_time_us(event.time_us);
    events.set_first_sequence(event.sequence);
    last_time_us_ = event.time_us;
    last_sequence_ = event.sequence - 1;
    if (packets_ % options_.restart_every == 0) {
      events.set_restart(true);
      predictors_.clear();
      totals_.clear();
      ++restart_;
      predictor_.Restart();
    }
    events.set_predicted(options_.predict);
  }
  const uint32_t kind = static_cast<uint32_t>(event.kind);
  const uint32_t site = SiteOf(event);
  SiteState& state = predictors_[site];
  const bool failed = event.result != 0 || (event.flags & analyzer::kSiteFailed) != 0;
  const uint64_t step = event.time_us - last_time_us_;
  uint64_t distance = 0;
  if (event_columns::HasLive(kind)) {
    const auto birth = live_.find({static_cast<EventKind>(event_columns::BirthOf(kind)), event.address});
    if (birth != live_.end()) distance = index_ - birth->second.first;
  }
  event_prediction::Entry expected{};
  if (options_.predict) {
    expected = predictor_.Predict();
    if (expected.site != site) expected = {};
    predictor_.Learn(site, static_cast<int64_t>(step), distance);
  }
  Put(SITE, expected.site == site ? 0 : site);
  PutZigzag(TIME, step - static_cast<uint64_t>(int64_t{expected.step}));
  PutZigzag(SEQUENCE, event.sequence - last_sequence_ - 1);
  last_time_us_ = event.time_us;
  last_sequence_ = event.sequence;

  bool by_address = event_columns::HasAddress(kind);
  bool has_size = event.size_varies;
  if (event_columns::HasLive(kind)) {
    const std::pair<EventKind, uint64_t> key{static_cast<EventKind>(event_columns::BirthOf(kind)),
                                             event.address};
    const auto birth = live_.find(key);
    if (options_.predict) {
      PutZigzag(LIVE, distance - expected.distance);
    } else {
      Put(LIVE, distance);
    }
    if (birth == live_.end()) {
      by_address = true;
      has_size = has_size || event.kind == EventKind::kBlockFree;
    } else {
      event.size = birth->second.second;
      if (!failed) live_.erase(birth);
    }
  }
  if (by_address) {
    const unsigned shift = event.address % 512 == 0 ? 9 : 0;
    PutZigzag(ADDRESS, (event.address >> shift) - state.address);
    state.address = event.address >> shift;
  }
  if (has_size) {
    PutZigzag(gpumemtrace::SIZE, event.size - state.size);
    state.size = event.size;
  }
  if (event_columns::HasTotals(kind)) {
    auto& [allocated, reserved] = totals_[event.device];
    const uint64_t change = event.kind == EventKind::kBlockAllocate ? event.size
                            : event.kind == EventKind::kBlockFree   ? 0 - event.size
                                                                    : 0;
    PutZigzag(ALLOCATED, event.argument[0] - (allocated + change));
    PutZigzag(RESERVED, event.argument[1] - reserved);
    allocated = event.argument[0];
    reserved = event.argument[1];
  } else {
    PutZigzag(ARGUMENT_0, event.argument[0] - state.argument[0]);
    PutZigzag(ARGUMENT_1, event.argument[1] - state.argument[1]);
    state.argument[0] = event.argument[0];
    state.argument[1] = event.argument[1];
  }
  if (event_columns::BeginsObject(kind) && !failed) live_[{event.kind, event.address}] = {index_, event.size};
  ++index_;
  if (++count_ == options_.events_per_packet) Flush();
}

void TraceBuilder::AddMark(Mark::Kind kind, const std::string& text, uint64_t number) {
  Mark& mark = *content_.add_mark();
  mark.set_text(String(text));
  mark.set_kind(kind);
  mark.set_source(Mark::API);
  mark.set_sequence(++sequence_);
  mark.set_time_us(++time_us_);
  mark.set_thread(1);
  mark.set_number(number);
}

void TraceBuilder::AddDeviceMemory(int32_t device, uint64_t free, uint64_t total) {
  DeviceMemory& memory = *content_.add_device_memory();
  memory.set_device(device);
  memory.set_sequence(++sequence_);
  memory.set_time_us(++time_us_);
  memory.set_free(free);
  memory.set_total(total);
}

void TraceBuilder::AddFolded(uint64_t events, const std::vector<FoldedPlace>& places) {
  Flush();
  FoldedStacks stacks;
  uint64_t most_bytes = 0;
  for (const FoldedPlace& place : places) {
    const uint64_t size = place.birth.size;
    stacks.add_site(SiteOf(place.birth));
    stacks.add_births(place.births);
    stacks.add_born_bytes(place.births * size);
    stacks.add_least_count(0);
    stacks.add_most_count(place.most_count);
    stacks.add_least_bytes(0);
    stacks.add_most_bytes(place.most_count * size);
    stacks.add_count(place.count);
    stacks.add_bytes(place.count * size);
    stacks.add_last_birth(place.births == 0 ? 0 : 1);
    most_bytes += place.most_count * size;
  }
  Folded& folded = *content_.mutable_folded();
  folded.set_begin(true);
  folded.set_end(true);
  folded.set_first_index(index_);
  folded.set_last_index(index_ + events - 1);
  folded.set_first_time_us(time_us_ + 1);
  folded.set_last_time_us(time_us_ + events);
  folded.set_first_sequence(sequence_ + 1);
  folded.set_last_sequence(sequence_ + events);
  folded.set_windows(1);
  folded.set_events(events);
  folded.set_events_dropped(events);
  // The next packet begins its predictors anew.
  const uint32_t packets = options_.restart_every - packets_ % options_.restart_every;
  folded.set_packets(packets);
  if (!places.empty()) {
    gpumemtrace::FoldedPeak& peak = *folded.add_peak();
    peak.set_device(places.front().birth.device);
    peak.set_blocks(places.front().birth.kind == EventKind::kBlockAllocate);
    peak.set_bytes(most_bytes);
    peak.set_index(index_);
    peak.set_time_us(time_us_ + 1);
  }
  const std::string raw = stacks.SerializeAsString();
  folded.mutable_stacks()->set_codec(Column::RAW);
  folded.mutable_stacks()->set_raw_size(static_cast<uint32_t>(raw.size()));
  folded.mutable_stacks()->set_data(raw);
  index_ += events;
  sequence_ += events;
  time_us_ += events;
  Flush();
  packets_ += packets - 1;
}

void TraceBuilder::Flush() {
  if (content_.ByteSizeLong() == 0) return;
  packet_first_event_.push_back(index_ - count_);
  if (count_ != 0) {
    Events& events = *content_.mutable_events();
    events.set_count(count_);
    for (int id = 1; id < 11; ++id) {
      std::string& raw = columns_[id];
      // A column of zeros is left out.
      if (raw.find_first_not_of('\0') == std::string::npos && id != SITE) {
        raw.clear();
        continue;
      }
      Column& column = *events.add_column();
      column.set_id(static_cast<ColumnId>(id));
      column.set_raw_size(static_cast<uint32_t>(raw.size()));
      column.set_codec(options_.compress ? Column::ZSTD : Column::RAW);
      column.set_data(options_.compress ? Compressed(raw) : raw);
      raw.clear();
    }
  }
  count_ = 0;
  content_.set_packet_index(packets_++);
  if (options_.compress_definitions) {
    Content definitions;
    definitions.mutable_string()->Swap(content_.mutable_string());
    definitions.mutable_module()->Swap(content_.mutable_module());
    definitions.mutable_code_object()->Swap(content_.mutable_code_object());
    definitions.mutable_frame()->Swap(content_.mutable_frame());
    definitions.mutable_stack_nodes()->Swap(content_.mutable_stack_nodes());
    definitions.mutable_thread()->Swap(content_.mutable_thread());
    definitions.mutable_site()->Swap(content_.mutable_site());
    definitions.mutable_mark()->Swap(content_.mutable_mark());
    const std::string raw = definitions.SerializeAsString();
    if (!raw.empty()) {
      gpumemtrace::Compressed& compressed = *content_.mutable_compressed_definitions();
      compressed.set_codec(Column::ZSTD);
      compressed.set_raw_size(static_cast<uint32_t>(raw.size()));
      compressed.set_data(Compressed(raw));
    }
  }
  packet_offsets_.push_back(bytes_.size());
  bytes_ += Frame(content_.SerializeAsString());
  content_.Clear();
}

void TraceBuilder::Finish() {
  End& end = *content_.mutable_end();
  end.set_reason(End::EXIT);
  end.set_time_us(time_us_);
  content_.mutable_statistics()->set_events(index_);
  Flush();
}

}  // namespace gpumemtrace::tests
