#include "recorder/fold/folder.h"

#include <errno.h>

#include <algorithm>

#include "recorder/file/crc32c.h"
#include "recorder/writer/fields.h"
#include "recorder/writer/frame_packet.h"

namespace gpumemtrace::recorder {
namespace {

// A packet has less than 512 KiB (trace.proto).
constexpr size_t kMostPacket = size_t{512} << 10;
constexpr size_t kReadAhead = size_t{64} << 10;
// What a part of a window may hold, before compression.
constexpr size_t kMostPart = size_t{256} << 10;
constexpr size_t kMostEventColumns = size_t{160} << 10;
constexpr size_t kMostStacks = 4096;
// A window ends at the next group when it holds so much, and is copied when it holds so much before that.
constexpr size_t kManyKept = size_t{1} << 13;
constexpr size_t kMostKept = size_t{3} << 14;
constexpr size_t kManyHeld = size_t{1} << 20;
constexpr size_t kMostHeld = size_t{4} << 20;
// Memory that goes on from window to window.
constexpr size_t kLittleHeld = size_t{256} << 10;
// Definitions longer than this are compressed.
constexpr size_t kCompressDefinitions = 1024;
// Traces with folded windows.
constexpr uint32_t kFoldedFormat = 4;

const char* Chars(const ByteBuffer& buffer) {
  return reinterpret_cast<const char*>(buffer.data());
}

}  // namespace

int Folder::Begin(const TraceFile& from, const char* path, const Plan& plan) {
  from_ = &from;
  cut_ = plan.groups[plan.keep_from].offset;
  if (!old_groups_.Append(plan.groups.data(), plan.keep_from + 1) || !MakeSteps(plan)) return -ENOMEM;
  return to_.Create(path);
}

bool Folder::MakeSteps(const Plan& plan) {
  uint32_t windows = 0;
  for (size_t i = 0; i < plan.keep_from; ++i) windows += plan.groups[i].windows != 0;
  const bool merge = windows > plan.most_windows;
  uint64_t detail = 0;
  uint32_t merged = 0;
  for (size_t i = 0; i < plan.keep_from; ++i) {
    const TraceGroup& group = plan.groups[i];
    const TraceGroup& next = plan.groups[i + 1];
    bool has_peak = false;
    for (const uint64_t peak : plan.peaks) has_peak |= peak >= group.first_index && peak < next.first_index;
    const Action action = i == 0                           ? Action::kHeader
                          : has_peak && group.windows == 0 ? Action::kCopy
                                                           : Action::kFold;
    // Whether it joins the step before it.
    bool joins = false;
    if (!steps_.empty() && action == Action::kFold && steps_.back().action == Action::kFold) {
      const Step& last = steps_.back();
      if (group.windows != 0 && last.windows != 0) {
        joins = merge && merged < 2;
      } else if (group.windows == 0 && last.windows == 0) {
        joins = detail < plan.window_bytes;
      }
    }
    if (!joins) {
      if (!steps_.Push({group.offset, 0, group.first_index, group.packet_index, 0, i, 0, action}))
        return false;
      detail = 0;
      merged = 0;
    }
    Step& step = steps_.back();
    step.end = next.offset;
    step.packets += next.packet_index - group.packet_index;
    step.windows += group.windows;
    detail += next.offset - group.offset;
    merged += group.windows != 0;
  }
  return true;
}

int Folder::ReadPacket(std::span<const uint8_t>* packet, std::span<const uint8_t>* content) {
  for (;;) {
    const std::span<const uint8_t> rest = input_.span().subspan(input_used_);
    // Trace.packet: a tag, a length, and Packet { fixed32 crc32c, content }.
    if (rest.size() > 8 && rest[0] == (fields::kTracePacket << 3 | 2)) {
      Varints varints(rest.subspan(1));
      const uint64_t length = varints.Next();
      const auto head = static_cast<size_t>(varints.at() - rest.data());
      if (varints.exhausted() || length >= kMostPacket) return -EBADMSG;
      if (length <= rest.size() - head) {
        *packet = rest.first(head + length);
        FieldReader reader(rest.subspan(head, length));
        Field field;
        uint64_t crc = 0;
        *content = {};
        while (reader.Next(&field)) {
          if (field.number == fields::kPacketCrc32c) crc = field.value;
          if (field.number == fields::kPacketContent) *content = field.bytes;
        }
        if (reader.failed() || Crc32c(0, content->data(), content->size()) != crc) return -EBADMSG;
        return 0;
      }
    } else if (rest.size() > 8) {
      return -EBADMSG;
    }
    input_.EraseRange(0, input_used_);
    input_used_ = 0;
    const size_t before = input_.size();
    input_.Resize(before + kReadAhead);
    if (input_.failed()) return -ENOMEM;
    const int64_t got = from_->ReadAt(position_ + before, {input_.data() + before, kReadAhead});
    input_.Shrink(before + static_cast<size_t>(std::max<int64_t>(got, 0)));
    if (got <= 0) return got == 0 ? -EBADMSG : static_cast<int>(got);
  }
}

int Folder::Turn(size_t bytes) {
  const uint64_t until = position_ + bytes;
  while (step_ < steps_.size() && position_ < until) {
    Step& step = steps_[step_];
    std::span<const uint8_t> packet;
    std::span<const uint8_t> content;
    int error = step_begun_ ? 0 : BeginStep(step);
    if (error == 0) error = ReadPacket(&packet, &content);
    if (error < 0) return error;
    error = AddPacket(content, step);
    if (error < 0) return error;
    if (step.action == Action::kCopy) {
      error = to_.Append(packet);
    } else if (step.action == Action::kHeader) {
      error = CopyHeader(content);
    }
    if (error < 0) return error;
    position_ += packet.size();
    input_used_ += packet.size();
    if (step.action == Action::kFold && !heavy_ && (window_.kept() > kMostKept || HeldBytes() > kMostHeld)) {
      heavy_ = true;
      window_.GiveUp();
      ClearWindow();
    }
    if (position_ < old_groups_[group_ + 1].offset) continue;
    if (position_ != old_groups_[group_ + 1].offset) return -EBADMSG;
    ++group_;
    if (position_ == step.end) {
      if ((error = EndStep(step, group_)) < 0) return error;
      ++step_;
    } else if (heavy_ || window_.kept() > kManyKept || HeldBytes() > kManyHeld) {
      // The rest becomes a window of its own.
      const TraceGroup& next = old_groups_[group_];
      Step part = step;
      part.end = position_;
      part.packets = next.packet_index - step.packet_index;
      part.windows = 0;
      for (size_t i = step.group; i < group_; ++i) part.windows += old_groups_[i].windows;
      if ((error = EndStep(part, group_)) < 0) return error;
      step.begin = position_;
      step.first_index = next.first_index;
      step.packet_index = next.packet_index;
      step.packets -= part.packets;
      step.group = group_;
      step.windows -= part.windows;
    }
  }
  if (step_ < steps_.size()) return 0;
  if (folded_size_ == 0) {
    folded_size_ = to_.size();
    input_.Clear();
    input_.Trim(0);
    input_used_ = 0;
  }
  return 1;
}

int Folder::BeginStep(const Step& step) {
  step_begun_ = true;
  heavy_ = false;
  step_offset_ = to_.size();
  step_groups_ = new_groups_.size();
  // The first part may begin with the header: it has no events before it.
  const bool pushed = new_groups_.Push({to_.size(), step.packet_index, step.first_index,
                                        step.action == Action::kFold ? std::max(step.windows, 1u) : 0, 0});
  return pushed ? 0 : -ENOMEM;
}

int Folder::EndStep(const Step& step, size_t group) {
  int error = 0;
  if (step.action == Action::kFold) {
    error = heavy_ ? -EOVERFLOW : EndWindow(step);
    if (error == -EOVERFLOW || (error == 0 && to_.size() - step_offset_ > step.end - step.begin)) {
      error = CopyStretch(step, group);
    }
    ClearWindow();
  }
  window_.Next();
  step_begun_ = false;
  return error;
}

int Folder::CopyStretch(const Step& step, size_t group) {
  ++copied_stretches_;
  new_groups_.Shrink(step_groups_);
  int error = to_.CutTo(step_offset_);
  if (error < 0) return error;
  for (size_t i = step.group; i < group; ++i) {
    TraceGroup copy = old_groups_[i];
    copy.offset = copy.offset - step.begin + step_offset_;
    if (!new_groups_.Push(copy)) return -ENOMEM;
  }
  for (uint64_t at = step.begin; at < step.end;) {
    const auto want = static_cast<size_t>(std::min<uint64_t>(step.end - at, kReadAhead));
    packet_.Resize(want);
    if (packet_.failed()) return -ENOMEM;
    const int64_t got = from_->ReadAt(at, {packet_.data(), want});
    if (got <= 0) return got == 0 ? -EBADMSG : static_cast<int>(got);
    if ((error = to_.Append({packet_.data(), static_cast<size_t>(got)})) < 0) return error;
    at += static_cast<uint64_t>(got);
  }
  return 0;
}

void Folder::ClearWindow() {
  statistics_.Clear();
  positions_.Clear();
  timed_.Clear();
  timed_.Trim(kLittleHeld);
  // One window with much in it shall not make all that follow take as much memory.
  for (ByteBuffer* buffer : {&definitions_, &others_, &timed_bytes_}) {
    buffer->Clear();
    buffer->Trim(kLittleHeld);
  }
}

int Folder::CopyTail(uint64_t size, size_t bytes) {
  const uint64_t until = std::min(size, position_ + bytes);
  while (position_ < until) {
    const auto want = static_cast<size_t>(std::min<uint64_t>(until - position_, kReadAhead));
    input_.Resize(want);
    if (input_.failed()) return -ENOMEM;
    const int64_t got = from_->ReadAt(position_, {input_.data(), want});
    if (got <= 0) return got == 0 ? -EBADMSG : static_cast<int>(got);
    const int error = to_.Append({input_.data(), static_cast<size_t>(got)});
    if (error < 0) return error;
    position_ += static_cast<uint64_t>(got);
  }
  return position_ == size ? 1 : 0;
}

void Folder::Abandon() {
  to_.Remove();
}

// --- the old packets ---

bool Folder::AddDefinition(uint32_t number, std::span<const uint8_t> raw, std::span<const uint8_t> bytes,
                           const Step& step) {
  bool wanted = step.action == Action::kFold && !heavy_;
  if (number == fields::kContentSite) {
    bool is_new = false;
    if (!window_.DefineSite(bytes, &is_new)) return false;
    wanted &= is_new;
  }
  if (wanted) definitions_.Append(raw.data(), raw.size());
  return true;
}

int Folder::AddFields(std::span<const uint8_t> content, const Step& step, bool* folded) {
  const bool fold = step.action == Action::kFold && !heavy_;
  FieldReader reader(content);
  Field field;
  while (reader.Next(&field)) {
    switch (field.number) {
      case fields::kContentPacketIndex:
        break;
      case fields::kContentString:
      case fields::kContentModule:
      case fields::kContentCode:
      case fields::kContentFrame:
      case fields::kContentNodes:
      case fields::kContentThread:
      case fields::kContentSite:
        if (!AddDefinition(field.number, field.raw, field.bytes, step)) return -EBADMSG;
        break;
      case fields::kContentCompressedDefinitions: {
        uint64_t codec = 0;
        uint64_t raw_size = 0;
        std::span<const uint8_t> data;
        FieldReader compressed(field.bytes);
        Field part;
        while (compressed.Next(&part)) {
          if (part.number == fields::kCompressedCodec) codec = part.value;
          if (part.number == fields::kCompressedRawSize) raw_size = part.value;
          if (part.number == fields::kCompressedData) data = part.bytes;
        }
        if (codec != fields::kCodecZstd || !decompressor_.Decompress(data, raw_size, scratch_))
          return -EBADMSG;
        const int error = AddFields(scratch_.span(), step, folded);
        if (error < 0) return error;
        break;
      }
      case fields::kContentMark:
      case fields::kContentDeviceMemory: {
        if (!fold) break;
        const bool mark = field.number == fields::kContentMark;
        Timed timed{0, timed_bytes_.size(), timed_bytes_.size() + field.raw.size(), mark};
        FieldReader message(field.bytes);
        Field part;
        while (message.Next(&part)) {
          if (part.number == (mark ? fields::kMarkSequence : fields::kMemorySequence))
            timed.sequence = part.value;
        }
        timed_bytes_.Append(field.raw.data(), field.raw.size());
        if (!timed_.Push(timed)) return -ENOMEM;
        break;
      }
      case fields::kContentRingPosition: {
        if (!fold) break;
        Position position{};
        FieldReader message(field.bytes);
        Field part;
        while (message.Next(&part)) {
          if (part.number == fields::kPositionRing) position.ring = part.value;
          if (part.number == fields::kPositionPosition) position.position = part.value;
          if (part.number == fields::kPositionThread) position.thread = part.value;
        }
        Position* known = nullptr;
        for (Position& other : positions_) {
          if (other.ring == position.ring) known = &other;
        }
        if (known != nullptr) {
          *known = position;
        } else if (!positions_.Push(position)) {
          return -ENOMEM;
        }
        break;
      }
      case fields::kContentStatistics:
        if (!fold) break;
        // They are running totals: the last ones tell all.
        statistics_.Clear();
        statistics_.Append(field.raw.data(), field.raw.size());
        break;
      case fields::kContentFolded: {
        if (step.action != Action::kFold) return -EBADMSG;
        *folded = true;
        if (!window_.AddFolded(field.bytes)) return -EBADMSG;
        FieldReader message(field.bytes);
        Field part;
        while (message.Next(&part)) {
          if (part.number != fields::kFoldedStacks) continue;
          uint64_t raw_size = 0;
          std::span<const uint8_t> data;
          bool zstd = false;
          FieldReader compressed(part.bytes);
          Field one;
          while (compressed.Next(&one)) {
            if (one.number == fields::kCompressedCodec) zstd = one.value == fields::kCodecZstd;
            if (one.number == fields::kCompressedRawSize) raw_size = one.value;
            if (one.number == fields::kCompressedData) data = one.bytes;
          }
          if (zstd) {
            if (!decompressor_.Decompress(data, raw_size, folded_)) return -EBADMSG;
            data = folded_.span();
          }
          if (!window_.AddStacks(data)) return -EBADMSG;
        }
        break;
      }
      case fields::kContentEvents:
        break;
      default:
        if (fold) others_.Append(field.raw.data(), field.raw.size());
        break;
    }
  }
  return reader.failed() ? -EBADMSG : 0;
}

int Folder::AddPacket(std::span<const uint8_t> content, const Step& step) {
  // Definitions come before the events that use them, wherever they stand; and of a folded window the events
  // before its figures.
  std::span<const uint8_t> events;
  bool folded = false;
  bool has_folded = false;
  FieldReader reader(content);
  Field field;
  while (reader.Next(&field)) {
    if (field.number == fields::kContentEvents) events = field.bytes;
    has_folded |= field.number == fields::kContentFolded;
  }
  if (reader.failed()) return -EBADMSG;
  const int error = AddFields(content, step, &folded);
  if (error < 0) return error;
  if (!events.empty()) {
    if (!events_.Load(events, decompressor_)) return -EBADMSG;
    const bool copy = step.action != Action::kFold || heavy_;
    if (!window_.AddEvents(events_, has_folded, copy)) return -EBADMSG;
  }
  return 0;
}

int Folder::CopyHeader(std::span<const uint8_t> content) {
  content_.Clear();
  FieldReader reader(content);
  Field field;
  while (reader.Next(&field)) {
    if (field.number != fields::kContentHeader) {
      content_.Append(field.raw.data(), field.raw.size());
      continue;
    }
    small_.Clear();
    ProtoWriter(small_).add_uint32(fields::kHeaderFormatVersion, kFoldedFormat);
    FieldReader header(field.bytes);
    Field part;
    while (header.Next(&part)) {
      if (part.number != fields::kHeaderFormatVersion) small_.Append(part.raw.data(), part.raw.size());
    }
    ProtoWriter(content_).add_message(fields::kContentHeader, Chars(small_), small_.size());
  }
  return WriteContent();
}

// --- the new ones ---

int Folder::WriteContent() {
  FramePacket(content_, small_, packet_);
  if (content_.failed() || packet_.failed()) return -ENOMEM;
  if (packet_.size() >= kMostPacket) return -EMSGSIZE;
  return to_.Append(packet_.span());
}

size_t Folder::WholeFields(const ByteBuffer& from, size_t begin, size_t most) {
  FieldReader reader(from.span().subspan(begin));
  Field field;
  size_t end = begin;
  while (reader.Next(&field) && (end == begin || end - begin + field.raw.size() <= most))
    end += field.raw.size();
  return end;
}

int Folder::EndWindow(const Step& step) {
  window_.Compact();
  if (definitions_.failed() || others_.failed() || timed_bytes_.failed() || statistics_.failed())
    return -ENOMEM;
  size_t definition = 0;
  size_t other = 0;
  size_t timed = 0;
  size_t event = 0;
  size_t stack = 0;
  bool end = false;
  for (uint64_t part = 0; !end; ++part) {
    if (part == step.packets) return -EOVERFLOW;  // it would not become smaller
    content_.Clear();
    ProtoWriter content(content_);
    content.add_uint64(fields::kContentPacketIndex, step.packet_index + part);
    size_t room = kMostPart;
    const auto take = [&](size_t bytes) { room -= std::min(room, bytes); };

    definitions_part_.Clear();
    if (definition < definitions_.size()) {
      const size_t until = WholeFields(definitions_, definition, room);
      definitions_part_.Append(definitions_.data() + definition, until - definition);
      take(until - definition);
      definition = until;
    }
    const bool defined = definition == definitions_.size();
    scratch_.Clear();
    if (defined && room != 0 && other < others_.size()) {
      const size_t until = WholeFields(others_, other, room);
      scratch_.Append(others_.data() + other, until - other);
      take(until - other);
      other = until;
    }
    // Marks and readings go with the events that they lie between.
    bool events = false;
    if (defined && room >= kMostPart / 2) {
      scratch_events_.Clear();
      events = window_.AppendEvents(&event, std::min(room, kMostEventColumns), compressor_, scratch_events_);
      take(kMostEventColumns / 2);
    }
    const bool all_events = event >= window_.kept();
    const uint64_t until_sequence = all_events ? ~uint64_t{0} : window_.SequenceBefore(event);
    while (defined && timed < timed_.size() && timed_[timed].sequence <= until_sequence) {
      const Timed& one = timed_[timed];
      const size_t size = one.end - one.begin;
      if (size > room) break;
      (one.mark ? definitions_part_ : scratch_).Append(timed_bytes_.data() + one.begin, size);
      take(size);
      ++timed;
    }
    folded_.Clear();
    ProtoWriter folded(folded_);
    if (part == 0) folded.add_bool(fields::kFoldedBegin, true);
    if (defined && all_events && timed == timed_.size() && other == others_.size() && room >= kMostPart / 4) {
      packet_.Clear();
      if (window_.AppendStacks(&stack, kMostStacks, packet_)) {
        const bool smaller = compressor_.Compress(packet_.span(), compressed_);
        const ByteBuffer& data = smaller ? compressed_ : packet_;
        small_.Clear();
        ProtoWriter stacks(small_);
        if (smaller) stacks.add_enum(fields::kCompressedCodec, fields::kCodecZstd);
        stacks.add_uint32(fields::kCompressedRawSize, static_cast<uint32_t>(packet_.size()));
        stacks.add_bytes(fields::kCompressedData, Chars(data), data.size());
        folded.add_message(fields::kFoldedStacks, Chars(small_), small_.size());
      }
      end = stack >= window_.places();
    }
    if (end) folded.add_bool(fields::kFoldedEnd, true);
    window_.AppendFolded(folded_);
    if (end) {
      window_.AppendEnd(folded_);
      folded.add_uint64(fields::kFoldedPackets, step.packets - part);
    }

    if (definitions_part_.size() >= kCompressDefinitions &&
        compressor_.Compress(definitions_part_.span(), compressed_)) {
      small_.Clear();
      ProtoWriter message(small_);
      message.add_enum(fields::kCompressedCodec, fields::kCodecZstd);
      message.add_uint32(fields::kCompressedRawSize, static_cast<uint32_t>(definitions_part_.size()));
      message.add_bytes(fields::kCompressedData, Chars(compressed_), compressed_.size());
      content.add_message(fields::kContentCompressedDefinitions, Chars(small_), small_.size());
    } else {
      content_.Append(definitions_part_.data(), definitions_part_.size());
    }
    if (events) content.add_message(fields::kContentEvents, Chars(scratch_events_), scratch_events_.size());
    content_.Append(scratch_.data(), scratch_.size());
    if (end) {
      content_.Append(statistics_.data(), statistics_.size());
      for (const Position& position : positions_) {
        small_.Clear();
        ProtoWriter message(small_);
        message.add_uint32(fields::kPositionRing, static_cast<uint32_t>(position.ring));
        message.add_uint64(fields::kPositionPosition, position.position);
        message.add_uint32(fields::kPositionThread, static_cast<uint32_t>(position.thread));
        content.add_message(fields::kContentRingPosition, Chars(small_), small_.size());
      }
    }
    content.add_message(fields::kContentFolded, Chars(folded_), folded_.size());
    const int error = WriteContent();
    if (error < 0) return error;
  }
  return 0;
}

}  // namespace gpumemtrace::recorder
