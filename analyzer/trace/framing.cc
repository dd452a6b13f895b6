#include "analyzer/trace/framing.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "analyzer/strings.h"
#include "analyzer/trace/crc32c.h"

namespace gpumemtrace::analyzer {
namespace {

// Tags of trace.proto: field number · 8 + wire type.
constexpr unsigned char kTagPacket = 0x0a;   // Trace.packet
constexpr unsigned char kTagCrc = 0x0d;      // Packet.crc32c
constexpr unsigned char kTagContent = 0x12;  // Packet.content

// Reads a varint of at most ten bytes; false when it is cut or too long.
bool ReadVarint(std::span<const char>& bytes, uint64_t& value) {
  value = 0;
  for (size_t i = 0; i < bytes.size() && i < 10; ++i) {
    const uint64_t byte = static_cast<unsigned char>(bytes[i]);
    value |= (byte & 0x7f) << (7 * i);
    if ((byte & 0x80) == 0) {
      bytes = bytes.subspan(i + 1);
      return true;
    }
  }
  return false;
}

// The fields of one Packet. False when `body` is not a well-formed message or lacks a field.
bool ParsePacket(std::span<const char> body, bool strict, uint32_t& crc, std::span<const char>& content) {
  bool has_crc = false;
  bool has_content = false;
  while (!body.empty()) {
    uint64_t tag = 0;
    if (!ReadVarint(body, tag)) return false;
    if (strict && tag != (has_crc ? kTagContent : kTagCrc)) return false;
    switch (tag & 7) {
      case 0: {
        uint64_t ignored = 0;
        if (!ReadVarint(body, ignored)) return false;
        break;
      }
      case 1:
        if (body.size() < 8) return false;
        body = body.subspan(8);
        break;
      case 5:
        if (body.size() < 4) return false;
        if (tag == kTagCrc) {
          std::memcpy(&crc, body.data(), 4);
          has_crc = true;
        }
        body = body.subspan(4);
        break;
      case 2: {
        uint64_t length = 0;
        if (!ReadVarint(body, length) || length > body.size()) return false;
        if (tag == kTagContent) {
          content = body.first(length);
          has_content = true;
        }
        body = body.subspan(length);
        break;
      }
      default:
        return false;
    }
  }
  return has_crc && has_content;
}

}  // namespace

PacketFramer::PacketFramer(ByteSource source, DamageReport& damage)
    : source_(std::move(source)), damage_(damage), buffer_(4 * kMaxPacketBytes) {}

void PacketFramer::NoteDamage(DamageReport& damage, uint64_t offset, std::string_view fault) {
  if (damage.first_fault.empty()) {
    damage.first_damage_at = offset;
    damage.first_fault = absl::StrCat(Part(fault), " at byte ", offset);
  }
}

void PacketFramer::Fill(uint64_t wanted) {
  if (filled_ - position_ >= wanted || ended_) return;
  std::memmove(buffer_.data(), buffer_.data() + position_, filled_ - position_);
  base_ += position_;
  filled_ -= position_;
  position_ = 0;
  while (filled_ < buffer_.size() && !ended_) {
    const int64_t got = source_({buffer_.data() + filled_, buffer_.size() - filled_});
    if (got <= 0) {
      ended_ = true;
      read_error_ = static_cast<int>(-got);
    } else {
      filled_ += static_cast<size_t>(got);
      search_budget_ += 16 * static_cast<uint64_t>(got);
    }
  }
}

PacketFramer::Candidate PacketFramer::Examine(uint64_t at, bool strict) {
  Candidate candidate;
  const std::span<const char> rest = Rest().subspan(at);
  if (rest.empty() || static_cast<unsigned char>(rest[0]) != kTagPacket) return candidate;
  std::span<const char> body = rest.subspan(1);
  uint64_t length = 0;
  if (!ReadVarint(body, length)) {
    // A length that the end of the bytes cuts off.
    if (body.size() < 10) candidate.verdict = Verdict::kIncomplete;
    return candidate;
  }
  if (length == 0 || length > kMaxPacketBytes) return candidate;
  if (length > body.size()) {
    candidate.verdict = Verdict::kIncomplete;
    return candidate;
  }
  const uint64_t header = rest.size() - body.size();
  body = body.first(length);
  uint32_t crc = 0;
  if (!ParsePacket(body, strict, crc, candidate.content)) return candidate;
  candidate.bytes = header + length;
  candidate.verdict = Crc32c(candidate.content) == crc ? Verdict::kGood : Verdict::kBadChecksum;
  return candidate;
}

// Moves position_ to the next good packet after it, or to the end of the bytes.
bool PacketFramer::Resynchronize() {
  const uint64_t from = offset();
  ++position_;
  for (;;) {
    Fill(2 * kMaxPacketBytes);
    const std::span<const char> rest = Rest();
    if (rest.empty()) break;
    const void* found = std::memchr(rest.data(), kTagPacket, rest.size());
    if (found == nullptr) {
      position_ = filled_;
      continue;
    }
    position_ += static_cast<size_t>(static_cast<const char*>(found) - rest.data());
    Fill(2 * kMaxPacketBytes);
    const Candidate candidate = Examine(0, /*strict=*/true);
    if (candidate.verdict == Verdict::kGood) {
      damage_.bytes_skipped += offset() - from;
      return true;
    }
    if (candidate.verdict == Verdict::kBadChecksum) {
      if (search_budget_ < candidate.bytes) {
        // Nothing that the recorder wrote looks like this; give up rather than search for hours.
        while (!ended_) {
          position_ = filled_;
          Fill(1);
        }
        position_ = filled_;
        break;
      }
      search_budget_ -= candidate.bytes;
    }
    ++position_;
  }
  damage_.bytes_skipped += offset() - from;
  return false;
}

bool PacketFramer::Next(Frame& frame) {
  for (;;) {
    Fill(2 * kMaxPacketBytes);
    if (Rest().empty()) return false;
    const uint64_t at = offset();
    const Candidate candidate = Examine(0, /*strict=*/false);
    switch (candidate.verdict) {
      case Verdict::kGood:
        frame.content = candidate.content;
        frame.offset = at;
        frame.after_damage = after_damage_;
        after_damage_ = false;
        position_ += candidate.bytes;
        return true;
      case Verdict::kBadChecksum: {
        // Trust the length when a good packet, or the end, follows where it says.
        const bool at_end = candidate.bytes == Rest().size();
        if (at_end || Examine(candidate.bytes, false).verdict == Verdict::kGood) {
          NoteDamage(damage_, at, "a packet does not match its checksum");
          ++damage_.packets_lost;
          after_damage_ = true;
          position_ += candidate.bytes;
          continue;
        }
        NoteDamage(damage_, at, "a packet does not match its checksum");
        ++damage_.packets_lost;
        after_damage_ = true;
        if (!Resynchronize()) return false;
        continue;
      }
      case Verdict::kIncomplete: {
        // Cut, unless good packets follow: then it is the length that was damaged.
        const uint64_t skipped = damage_.bytes_skipped;
        if (!Resynchronize()) {
          damage_.bytes_skipped = skipped;
          damage_.cut = true;
          damage_.cut_at = at;
          return false;
        }
        NoteDamage(damage_, at, "a packet has a damaged length");
        ++damage_.packets_lost;
        after_damage_ = true;
        continue;
      }
      case Verdict::kMalformed:
        NoteDamage(damage_, at, "these bytes are no packet");
        ++damage_.packets_lost;
        after_damage_ = true;
        if (!Resynchronize()) return false;
        continue;
    }
  }
}

}  // namespace gpumemtrace::analyzer
