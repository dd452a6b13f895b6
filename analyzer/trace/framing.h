// Finds packets in the bytes of a trace: splits `Trace { repeated Packet packet = 1; }` by hand so that one
// damaged packet does not cost the others, checks checksums, and finds the next good packet after damage.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "analyzer/trace/reader.h"

namespace gpumemtrace::analyzer {

// Fills the buffer; returns the number of bytes, 0 at the end, −errno on failure.
using ByteSource = std::function<int64_t(std::span<char>)>;

// Packets are smaller than 512 KiB; what claims to be larger than this is damage.
constexpr uint64_t kMaxPacketBytes = 1u << 20;

class PacketFramer {
 public:
  PacketFramer(ByteSource source, DamageReport& damage);

  struct Frame {
    // Bytes of Packet.content; valid until the next call.
    std::span<const char> content;
    uint64_t offset = 0;  // of the packet's tag in the file
    // Damage lies between this packet and the one before it.
    bool after_damage = false;
  };
  // False at the end of the bytes.
  bool Next(Frame& frame);

  // errno of the read that failed, 0 when none did. The bytes before it were handed out.
  int read_error() const { return read_error_; }
  // Bytes consumed so far.
  uint64_t offset() const { return base_ + position_; }

  // Counts damage at `offset`; the first one keeps its description.
  static void NoteDamage(DamageReport& damage, uint64_t offset, std::string_view fault);

 private:
  enum class Verdict : uint8_t {
    kGood,
    kBadChecksum,  // a well-formed packet whose content is not what was written
    kMalformed,    // not a packet
    kIncomplete,   // would be a packet, but the bytes end before it does
  };
  struct Candidate {
    Verdict verdict = Verdict::kMalformed;
    uint64_t bytes = 0;  // from the tag to the end of the packet
    std::span<const char> content;
  };

  // Makes at least `wanted` bytes available after position_ unless the source ends before.
  void Fill(uint64_t wanted);
  std::span<const char> Rest() const { return {buffer_.data() + position_, filled_ - position_}; }
  // `strict`: only the very shape that the recorder writes, as used while searching.
  Candidate Examine(uint64_t at, bool strict);
  bool Resynchronize();

  ByteSource source_;
  DamageReport& damage_;
  std::vector<char> buffer_;
  uint64_t base_ = 0;    // file offset of buffer_[0]
  size_t position_ = 0;  // next byte to look at
  size_t filled_ = 0;
  bool ended_ = false;
  bool after_damage_ = false;
  int read_error_ = 0;
  // Bytes of checksums that searching may still compute: keeps hostile input from taking quadratic time.
  uint64_t search_budget_ = 64u << 20;
};

}  // namespace gpumemtrace::analyzer
