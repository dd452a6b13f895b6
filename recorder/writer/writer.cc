#include "recorder/writer/writer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <new>

#include "recorder/memory/pages.h"
#include "recorder/writer/fields.h"
#include "recorder/writer/frame_packet.h"

namespace gpumemtrace::recorder {
namespace {

using ring_file::RecordHeader;
using ring_file::RecordKind;

// A packet is complete when its columns (or its definitions) have so many bytes before compression; together
// with one largest record they stay below the 512 KiB that a packet may have.
constexpr size_t kFullColumns = size_t{192} << 10;
constexpr size_t kLeastFullColumns = size_t{16} << 10;
constexpr size_t kFullDefinitions = size_t{128} << 10;
constexpr size_t kFullOthers = size_t{32} << 10;
// When a later cut was not possible, because rings hold records out of order.
constexpr size_t kHardLimit = size_t{288} << 10;
constexpr uint32_t kMostEvents = 1u << 16;
// Definitions longer than this are compressed.
constexpr size_t kCompressDefinitions = 1024;
constexpr uint32_t kPacketsPerRestart = 128;
// Memory of a buffer that goes on from packet to packet.
constexpr size_t kLittleHeld = size_t{64} << 10;
constexpr uint64_t kStatisticsPeriodNs = 1'000'000'000;

const char* ErrorText(int error, char (&buffer)[64]) {
  return strerror_r(error, buffer, sizeof buffer);
}

const char* Chars(const ByteBuffer& buffer) {
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

Writer::Writer(const Context& context)
    : context_(context), encoder_(dictionary_, context.api_names), full_columns_(kFullColumns) {}

void Writer::SetBound(uint64_t bytes) {
  restart_bytes_ = bytes / 256;
  full_columns_ =
      bytes == 0 ? kFullColumns : std::clamp<uint64_t>(bytes / 64, kLeastFullColumns, kFullColumns);
}

void Writer::AddMessage(ByteBuffer& to, uint32_t field, const ByteBuffer& message) {
  ProtoWriter(to).add_message(field, Chars(message), message.size());
}

int Writer::Start(std::span<const uint8_t> header) {
  BeginPacket();
  ProtoWriter(others_).add_message(fields::kContentHeader, reinterpret_cast<const char*>(header.data()),
                                   header.size());
  return EndPacket(false);
}

// --- collecting ---

void Writer::BeginDrain() {
  // First the numbers given out, then whose rings they can be in (a thread may come at this moment), then
  // what each thread may still write below, then what it has written.
  watermark_ = context_.next_sequence.load(std::memory_order_seq_cst);
  const uint32_t rings = context_.rings.size();
  while (states_.size() < rings) {
    void* memory = MapPages(sizeof(RingState));
    if (memory == nullptr || !states_.Push(new (memory) RingState)) break;
  }
  for (uint32_t place = 0; place < states_.size(); ++place) {
    Ring& ring = context_.rings[place].ring;
    watermark_ = std::min(watermark_, ring.Pending().load(std::memory_order_seq_cst));
    State(place).goal = ring.HeadPosition();
  }
}

bool Writer::Collect(Order order, size_t most) {
  items_.Clear();
  size_t waiting = 0;
  for (uint32_t place = 0; place < states_.size(); ++place) {
    waiting += context_.rings[place].ring.TailPosition() != State(place).goal;
  }
  bool more = false;
  uint64_t least_left = ~uint64_t{0};
  for (uint32_t place = 0; place < states_.size(); ++place) {
    RingState& state = State(place);
    Parse(state, place, waiting == 0 ? most : most / waiting + 1);
    more |= state.head != state.goal;
    least_left = std::min(least_left, state.least_left);
  }
  if (order == Order::kExact) {
    WaitFrom(std::min(watermark_, least_left));
  } else if (more) {
    WaitFrom(least_left);
  }
  return more;
}

void Writer::WaitFrom(uint64_t watermark) {
  // Records of a ring leave it in their order. Where one must wait, those behind it wait too, and everything
  // with a greater number than theirs.
  for (bool changed = true; changed;) {
    changed = false;
    for (RingState* state : states_) {
      const Item* items = items_.data() + state->first;
      uint32_t cut = 0;
      while (cut < state->count && items[cut].sequence < watermark) ++cut;
      if (cut == state->count) continue;
      state->count = cut;
      for (uint32_t i = cut; i < state->total; ++i) {
        if (items[i].sequence >= watermark) continue;
        watermark = items[i].sequence;
        changed = true;
      }
    }
  }
}

void Writer::Parse(RingState& state, uint32_t place, size_t most) {
  Ring& ring = context_.rings[place].ring;
  state.first = items_.size();
  state.total = state.prefix = state.taken = 0;
  state.least_left = ~uint64_t{0};
  state.base = state.position = ring.TailPosition();
  state.head = state.goal;
  for (uint64_t position = state.base; position < state.goal;) {
    const RecordHeader& record = *ring.At(position);
    // Behind the batch only the numbers count, and definitions, which an event of another ring may need.
    const bool left = position >= state.head;
    const bool is_new = position >= state.parsed;
    switch (record.kind) {
      case RecordKind::kThread:
        if (is_new) {
          const auto& named = reinterpret_cast<const ring_file::ThreadRecord&>(record);
          state.threads.Push({position, dictionary_.Thread(named.tid, named.name), 0});
        }
        break;
      case RecordKind::kEvent:
      case RecordKind::kMark:
      case RecordKind::kDeviceMemory:
      case RecordKind::kContent: {
        // The last three have their sequence number in the same place.
        const uint64_t sequence = record.kind == RecordKind::kEvent
                                      ? reinterpret_cast<const ring_file::EventRecord&>(record).sequence
                                      : reinterpret_cast<const ring_file::MarkRecord&>(record).sequence;
        if (left) {
          state.least_left = std::min(state.least_left, sequence);
        } else if (items_.Push({sequence, static_cast<uint32_t>(position - state.base),
                                static_cast<uint16_t>(place), false})) {
          if (++state.total >= most) state.head = position + record.bytes;
        } else {
          context_.losses.Add(LossCause::kFormat, 1);
        }
        break;
      }
      default:
        if (is_new) Define(record, state);
    }
    position += record.bytes;
  }
  state.parsed = std::max(state.parsed, state.goal);
  state.count = state.total;
}

void Writer::Define(const RecordHeader& record, RingState& state) {
  bool defined = true;
  switch (record.kind) {
    case RecordKind::kModule:
      defined =
          dictionary_.DefineModule(reinterpret_cast<const ring_file::ModuleRecord&>(record), state.modules);
      break;
    case RecordKind::kCode:
      defined = dictionary_.DefineCode(reinterpret_cast<const ring_file::CodeRecord&>(record));
      break;
    case RecordKind::kStack:
      defined =
          dictionary_.DefineStack(reinterpret_cast<const ring_file::StackRecord&>(record), state.modules);
      break;
    case RecordKind::kDevice:
      EncodeDevice(reinterpret_cast<const ring_file::DeviceRecord&>(record));
      break;
    case RecordKind::kInterpreter: {
      const auto& from = reinterpret_cast<const ring_file::InterpreterRecord&>(record);
      AddInterpreter(from.version, (record.detail & 2) != 0, (record.detail & 1) != 0,
                     {reinterpret_cast<const char*>(&from + 1), from.reason_bytes});
      break;
    }
    case RecordKind::kNote: {
      const auto& note = reinterpret_cast<const ring_file::NoteRecord&>(record);
      AddNote(record.detail, note.time_ns, {reinterpret_cast<const char*>(&note + 1), note.text_bytes});
      break;
    }
    default:
      break;
  }
  if (!defined) context_.losses.Add(LossCause::kFormat, 1);
}

// --- what becomes messages of their own ---

void Writer::AddNote(uint8_t severity, uint64_t time_ns, std::span<const char> text) {
  message_.Clear();
  ProtoWriter message(message_);
  if (severity != 0) message.add_enum(fields::kNoteSeverity, severity);
  message.add_uint64(fields::kNoteTime, time_ns / 1000);
  message.add_string(fields::kNoteText, text.data(), text.size());
  AddMessage(others_, fields::kContentNote, message_);
}

void Writer::AddNote(uint8_t severity, const char* text) {
  AddNote(severity, context_.now_ns(), {text, strlen(text)});
}

void Writer::AddInterpreter(uint32_t version, bool free_threaded, bool supported,
                            std::span<const char> reason) {
  message_.Clear();
  ProtoWriter message(message_);
  message.add_uint32(fields::kInterpreterVersion, version);
  if (free_threaded) message.add_bool(fields::kInterpreterFreeThreaded, true);
  if (supported) message.add_bool(fields::kInterpreterSupported, true);
  if (!reason.empty()) message.add_string(fields::kInterpreterReason, reason.data(), reason.size());
  AddMessage(others_, fields::kContentInterpreter, message_);
}

void Writer::EncodeDevice(const ring_file::DeviceRecord& record) {
  message_.Clear();
  ProtoWriter message(message_);
  message.add_sint32(fields::kDeviceOrdinal, record.device);
  message.add_string(fields::kDeviceName, reinterpret_cast<const char*>(&record + 1), record.name_bytes);
  message.add_bytes(fields::kDeviceUuid, reinterpret_cast<const char*>(record.uuid), sizeof record.uuid);
  message.add_uint64(fields::kDeviceTotalMemory, record.total_bytes);
  message.add_uint32(fields::kDeviceDriverVersion, record.driver_version);
  if (record.runtime_version != 0) message.add_uint32(fields::kDeviceRuntimeVersion, record.runtime_version);
  AddMessage(others_, fields::kContentDevice, message_);
}

void Writer::EncodeMark(const ring_file::MarkRecord& record, uint32_t thread) {
  const auto* text = reinterpret_cast<const char*>(&record + 1);
  const uint32_t text_id = dictionary_.String({text, record.text_bytes});
  const uint32_t domain_id = dictionary_.String({text + record.text_bytes, record.domain_bytes});
  message_.Clear();
  ProtoWriter message(message_);
  message.add_enum(fields::kMarkKind, record.header.detail);
  message.add_enum(fields::kMarkSource, record.header.flags);
  message.add_uint64(fields::kMarkSequence, record.sequence);
  message.add_uint64(fields::kMarkTime, record.time_ns / 1000);
  if (thread != 0) message.add_uint32(fields::kMarkThread, thread);
  if (text_id != 0) message.add_uint32(fields::kMarkText, text_id);
  if (domain_id != 0) message.add_uint32(fields::kMarkDomain, domain_id);
  if (record.number != 0) message.add_uint64(fields::kMarkNumber, record.number);
  AddMessage(marks_, fields::kContentMark, message_);
}

void Writer::EncodeMemory(const ring_file::DeviceMemoryRecord& record) {
  message_.Clear();
  ProtoWriter message(message_);
  message.add_uint64(fields::kMemorySequence, record.sequence);
  message.add_uint64(fields::kMemoryTime, record.time_ns / 1000);
  if (record.device != 0) message.add_sint32(fields::kMemoryDevice, record.device);
  message.add_uint64(fields::kMemoryFree, record.free_bytes);
  message.add_uint64(fields::kMemoryTotal, record.total_bytes);
  AddMessage(others_, fields::kContentDeviceMemory, message_);
}

void Writer::AddStatistics(ByteBuffer& content) {
  uint64_t sums[6] = {};
  for (uint32_t place = 0; place < context_.rings.size(); ++place) {
    const RingCounters& counters = context_.rings[place].ring.counters;
    const std::atomic<uint64_t>* each[] = {&counters.events,       &counters.stack_hits,
                                           &counters.stack_misses, &counters.timed_events,
                                           &counters.timed_ns,     &counters.full};
    for (size_t i = 0; i < 6; ++i) sums[i] += each[i]->load(std::memory_order_relaxed);
  }
  message_.Clear();
  ProtoWriter message(message_);
  message.add_uint64(fields::kStatisticsEvents, sums[0]);
  for (uint32_t cause = 1; cause < ring_file::kLossCauses; ++cause) {
    const uint64_t lost = context_.losses.events[cause].load(std::memory_order_relaxed);
    if (lost == 0) continue;
    scratch_.Clear();
    ProtoWriter loss(scratch_);
    loss.add_enum(fields::kLossCause, static_cast<int32_t>(cause));
    loss.add_uint64(fields::kLossEvents, lost);
    AddMessage(message_, fields::kStatisticsLoss, scratch_);
  }
  message.add_uint64(fields::kStatisticsHookNs, sums[4]);
  message.add_uint64(fields::kStatisticsHookEvents, sums[3]);
  message.add_uint64(fields::kStatisticsStackHits, sums[1]);
  message.add_uint64(fields::kStatisticsStackMisses, sums[2]);
  message.add_uint64(fields::kStatisticsMemory, context_.memory_bytes());
  message.add_uint64(fields::kStatisticsRings, context_.rings.size());
  message.add_uint64(fields::kStatisticsBytesWritten, context_.file.size());
  message.add_uint64(fields::kStatisticsFullRings, sums[5]);
  AddMessage(content, fields::kContentStatistics, message_);
}

// --- packets ---

int Writer::Drain(Order order) {
  if (waiting_) {
    const int error = WritePacket();
    if (error < 0) {
      if (order != Order::kEverything) return error;
      GiveUpPacket();
    }
  }
  if (order == Order::kExact && context_.file.size() >= limit_) return 0;
  fullest_ = 0;
  for (uint32_t place = 0; place < context_.rings.size(); ++place) {
    Ring& ring = context_.rings[place].ring;
    const uint64_t waiting = (ring.HeadPosition() - ring.TailPosition()) * 256 / ring.capacity();
    fullest_ = std::max(fullest_, static_cast<uint32_t>(waiting));
  }
  const int old_error = WriteOldDefinitions();
  if (old_error < 0 && order == Order::kExact) return old_error;
  int error = EncodeBatches(order);
  if (error == 0) error = old_error;
  if (error == 0 || order != Order::kEverything) return error;
  // Nothing can be written now and the rings must be emptied.
  while (waiting_) {
    GiveUpPacket();
    EncodeBatches(order);
  }
  return error;
}

int Writer::EncodeBatches(Order order) {
  BeginDrain();
  size_t most = batch_;
  for (bool more = true; more;) {
    more = Collect(order, most);
    const int error = EncodeAll(order);
    if (error < 0) return error;
    if (order == Order::kExact && context_.file.size() >= limit_) break;
    // The least number of all may be far back in a ring, behind greater ones: then all must be looked at.
    most = order_.empty() ? ~size_t{0} >> 1 : batch_;
  }
  // A table for a moment when all rings were full would be kept for ever.
  items_.Clear();
  order_.Clear();
  items_.Trim(batch_ * 2 * sizeof(Item));
  order_.Trim(batch_ * 2 * sizeof(uint32_t));
  return 0;
}

int Writer::EncodeAll(Order order) {
  order_.Clear();
  bool sorted = true;
  for (const RingState* state : states_) {
    for (uint32_t i = 0; i < state->count; ++i) {
      const size_t place = state->first + i;
      sorted &= order_.empty() || items_[order_.back()].sequence <= items_[place].sequence;
      order_.Push(static_cast<uint32_t>(place));
    }
  }
  // Of one thread alone they mostly are.
  if (!sorted) {
    std::sort(order_.begin(), order_.end(), [this](uint32_t a, uint32_t b) {
      return items_[a].sequence != items_[b].sequence ? items_[a].sequence < items_[b].sequence : a < b;
    });
  }
  open_rings_ = 0;
  BeginPacket();
  for (const uint32_t place : order_) {
    Encode(items_[place]);
    const size_t columns = encoder_.bytes();
    const size_t definitions = dictionary_.PendingBytes();
    const bool full = columns >= full_columns_ || definitions >= kFullDefinitions ||
                      others_.size() >= kFullOthers || marks_.size() >= kFullOthers ||
                      encoder_.count() >= kMostEvents;
    if (full && (open_rings_ == 0 || columns + definitions + others_.size() + marks_.size() >= kHardLimit)) {
      const int error = EndPacket(false);
      if (error < 0) return error;
      // The rest stays in the rings.
      if (order == Order::kExact && context_.file.size() >= limit_) return 0;
      BeginPacket();
    }
  }
  return EndPacket(false);
}

void Writer::Encode(Item& item) {
  RingState& state = State(item.ring);
  const uint64_t begin = state.base + item.offset;
  const RecordHeader& record = *context_.rings[item.ring].ring.At(begin);
  switch (record.kind) {
    case RecordKind::kEvent:
      if (!encoder_.Add(reinterpret_cast<const ring_file::EventRecord&>(record), state.ThreadBefore(begin))) {
        context_.losses.Add(LossCause::kFormat, 1);
      }
      break;
    case RecordKind::kMark:
      EncodeMark(reinterpret_cast<const ring_file::MarkRecord&>(record), state.ThreadBefore(begin));
      break;
    case RecordKind::kDeviceMemory:
      EncodeMemory(reinterpret_cast<const ring_file::DeviceMemoryRecord&>(record));
      break;
    default: {
      const auto& content = reinterpret_cast<const ring_file::ContentRecord&>(record);
      others_.Append(&content + 1, content.content_bytes);
    }
  }
  item.encoded = true;
  const bool was_open = state.prefix != state.taken;
  ++state.taken;
  while (state.prefix < state.total && items_[state.first + state.prefix].encoded) ++state.prefix;
  const bool is_open = state.prefix != state.taken;
  open_rings_ += static_cast<uint32_t>(is_open) - static_cast<uint32_t>(was_open);
}

void Writer::BeginPacket() {
  TellOfStrayed();
  restart_ = restart_next_ || packets_since_restart_ >= kPacketsPerRestart ||
             (restart_bytes_ != 0 &&
              (context_.file.size() - restarted_at_ >= restart_bytes_ || encoder_.ManyToFold()));
  // Whatever the reason was: until a packet with events has told of it.
  restart_next_ = restart_;
  encoder_.Begin(restart_);
}

int Writer::EndPacket(bool last) {
  bool moved = false;
  for (RingState* state : states_) {
    state->position = state->prefix < state->total ? state->base + items_[state->first + state->prefix].offset
                                                   : state->head;
    moved |= state->position != state->settled;
  }
  if (!moved && !last && encoder_.count() == 0 && others_.empty() && marks_.empty() &&
      dictionary_.PendingBytes() == 0) {
    return 0;
  }

  content_.Clear();
  ProtoWriter content(content_);
  content.add_uint64(fields::kContentPacketIndex, packet_index_);

  // Sites are defined while events are added, so the definitions come after the events are known.
  scratch_.Clear();
  dictionary_.AppendPending(definitions_, names_);
  dictionary_.ClearPending();
  // Marks go with them for the time of this packet only: they do not survive it.
  const size_t kept = definitions_.size();
  definitions_.Append(marks_.data(), marks_.size());
  if (definitions_.size() >= kCompressDefinitions && compressor_.Compress(definitions_.span(), compressed_)) {
    message_.Clear();
    ProtoWriter message(message_);
    message.add_enum(fields::kCompressedCodec, fields::kCodecZstd);
    message.add_uint32(fields::kCompressedRawSize, static_cast<uint32_t>(definitions_.size()));
    message.add_bytes(fields::kCompressedData, Chars(compressed_), compressed_.size());
    AddMessage(content_, fields::kContentCompressedDefinitions, message_);
  } else {
    content_.Append(definitions_.data(), definitions_.size());
  }
  definitions_.Shrink(kept);
  content_.Append(names_.data(), names_.size());
  encoder_.Finish(compressor_, content_);
  content_.Append(others_.data(), others_.size());
  if (gap_events_ != 0) {
    char text[256];
    char reason[64];
    snprintf(text, sizeof text,
             "%llu events before this point are missing: the trace could not be written (%s)",
             static_cast<unsigned long long>(gap_events_), ErrorText(gap_error_, reason));
    message_.Clear();
    ProtoWriter message(message_);
    message.add_enum(fields::kNoteSeverity, 1);
    message.add_uint64(fields::kNoteTime, context_.now_ns() / 1000);
    message.add_string(fields::kNoteText, text, strlen(text));
    AddMessage(content_, fields::kContentNote, message_);
  }
  for (uint32_t place = 0; place < states_.size(); ++place) {
    const RingState& state = State(place);
    const Ring& ring = context_.rings[place].ring;
    if (state.position == state.written || !ring.in_file()) continue;
    message_.Clear();
    ProtoWriter message(message_);
    message.add_uint32(fields::kPositionRing, ring.index());
    message.add_uint64(fields::kPositionPosition, state.position);
    message.add_uint32(fields::kPositionThread, state.ThreadBefore(state.position));
    AddMessage(content_, fields::kContentRingPosition, message_);
  }
  const uint64_t now = context_.now_ns();
  if (last || gap_events_ != 0 || now - last_statistics_ns_ >= kStatisticsPeriodNs) {
    AddStatistics(content_);
    last_statistics_ns_ = now;
  }
  if (last) {
    message_.Clear();
    ProtoWriter message(message_);
    message.add_enum(fields::kEndReason, 1);
    message.add_uint64(fields::kEndTime, now / 1000);
    AddMessage(content_, fields::kContentEnd, message_);
  }

  waiting_ = true;
  const int error = FramePacket();
  return error < 0 ? error : WritePacket();
}

int Writer::FramePacket() {
  recorder::FramePacket(content_, scratch_, packet_);
  if (packet_.failed() || content_.failed() || others_.failed() || marks_.failed() || definitions_.failed() ||
      names_.failed()) {
    last_error_ = ENOMEM;
    packet_.Clear();
    return -ENOMEM;
  }
  return 0;
}

int Writer::AppendPacket() {
  const int error = context_.file.Append(packet_.span());
  if (error < 0) last_error_ = -error;
  return error;
}

void Writer::TellOfStrayed() {
  const uint64_t strayed = context_.file.strayed();
  if (strayed == strayed_told_) return;
  char text[256];
  snprintf(
      text, sizeof text,
      "The program took the descriptor of this trace for another file while %llu bytes were being written: "
      "they are in that file, and once more here",
      static_cast<unsigned long long>(strayed - strayed_told_));
  strayed_told_ = strayed;
  AddNote(1, text);
}

int Writer::WritePacket() {
  if (packet_.empty()) return -ENOMEM;
  const uint64_t offset = context_.file.size();
  const int error = AppendPacket();
  if (error < 0) return error;
  waiting_ = false;
  if (groups_.empty()) groups_.Push({offset, packet_index_, 0, 0, 0});
  if (encoder_.count() != 0 && restart_) {
    // Without memory the group before goes on.
    groups_.Push({offset, packet_index_, encoder_.first_index(), 0, 0});
    restarted_at_ = offset;
  }
  ++packet_index_;
  events_written_ += encoder_.count();
  if (encoder_.count() != 0) {
    // Without events the packet told nobody that predictors begin anew.
    packets_since_restart_ = restart_ ? 1 : packets_since_restart_ + 1;
    restart_next_ = false;
  }
  gap_events_ = 0;
  // Large packets are rare: what they took is not kept.
  for (ByteBuffer* buffer : {&definitions_, &names_, &marks_, &others_, &content_, &packet_, &compressed_}) {
    buffer->Clear();
    buffer->Trim(kLittleHeld);
  }
  for (RingState* state : states_) state->written = state->position;
  Settle();
  return 0;
}

bool Writer::Replaced(const Array<TraceGroup>& folded, size_t kept, uint64_t old_offset,
                      uint64_t new_offset) {
  Array<TraceGroup> groups;
  bool known = groups.Append(folded.data(), folded.size());
  for (size_t i = kept; i < groups_.size() && known; ++i) {
    TraceGroup group = groups_[i];
    group.offset = group.offset - old_offset + new_offset;
    known = groups.Push(group);
  }
  restarted_at_ = restarted_at_ - old_offset + new_offset;
  if (!known) groups.Clear();
  groups_.Swap(groups);
  return known;
}

void Writer::Settle() {
  for (uint32_t place = 0; place < states_.size(); ++place) {
    RingState& state = State(place);
    state.settled = state.position;
    // What is older than the thread that goes on is not needed any more.
    Array<ThreadChange>& threads = state.threads;
    size_t old = 0;
    while (old + 1 < threads.size() && threads[old + 1].position < state.settled) ++old;
    if (old > 0) {
      memmove(threads.data(), threads.data() + old, (threads.size() - old) * sizeof threads[0]);
      threads.Shrink(threads.size() - old);
    }
    context_.rings[place].ring.SetTail(state.position);
  }
}

void Writer::GiveUpPacket() {
  waiting_ = false;
  gap_events_ += encoder_.count();
  gap_error_ = last_error_;
  context_.losses.Add(LossCause::kStorage, encoder_.count());
  encoder_.Discard();
  restart_next_ = true;
  // Definitions are still needed; they stay in definitions_ and names_, if there is memory for them. Marks
  // and readings go with the events.
  if (definitions_.failed()) definitions_.Clear();
  if (names_.failed()) names_.Clear();
  marks_.Clear();
  others_.Clear();
  Settle();
}

int Writer::WriteOldDefinitions() {
  while (definitions_.size() + names_.size() > kFullDefinitions) {
    // Names refer to nodes: definitions first.
    ByteBuffer& from = definitions_.empty() ? names_ : definitions_;
    // Whole fields: a tag, a length, and so many bytes. All field numbers and types here have such tags.
    size_t end = 0;
    while (end < from.size()) {
      size_t next = end;
      while ((from.data()[next++] & 0x80) != 0) {
      }
      uint64_t length = 0;
      for (unsigned shift = 0;; shift += 7) {
        const uint8_t byte = from.data()[next++];
        length |= uint64_t{byte & 0x7fu} << shift;
        if (byte < 0x80) break;
      }
      next += length;
      if (end > 0 && next > kFullDefinitions) break;
      end = next;
    }
    content_.Clear();
    ProtoWriter(content_).add_uint64(fields::kContentPacketIndex, packet_index_);
    content_.Append(from.data(), end);
    int error = FramePacket();
    if (error < 0) return error;
    error = AppendPacket();
    if (error < 0) return error;
    ++packet_index_;
    from.EraseRange(0, end);
  }
  return 0;
}

int Writer::Finish() {
  Drain(Order::kEverything);
  BeginPacket();
  const int error = EndPacket(true);
  if (error < 0) GiveUpPacket();
  return error;
}

}  // namespace gpumemtrace::recorder
