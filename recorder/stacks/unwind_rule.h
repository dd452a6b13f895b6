// How to get from a frame to its caller's, for one address: what the call frame information of that address
// says, reduced to the few forms that compilers emit, in 64 bits.
//
// On x86-64 a frame is known by its program counter, stack pointer and frame pointer (rbp): CFI computes the
// canonical frame address (CFA, the caller's stack pointer) from one of the two registers, the return
// address lies just below the CFA, and rbp is the only other register that a caller's rule may need.
#pragma once

#include <cstdint>

namespace gpumemtrace::recorder::stacks {

enum class RuleKind : uint8_t {
  kEmpty = 0,
  // CFA = base + offset.
  kPlain = 1,
  // CFA = *(base + offset) + addend: realigned stacks, hand-written assembly.
  kIndirect = 2,
  // The outermost frame: its return address is declared undefined.
  kEnd = 3,
  // The frame that the kernel made for a signal handler; the registers are in the ucontext at rsp.
  kSignal = 4,
  // CFI in another form.
  kUnknown = 5,
  // No CFI: code that was made at run time, or assembly. It may keep a chain of frame pointers.
  kNone = 6,
};

// Where the caller's rbp is.
enum class SavedBase : uint8_t {
  kUnchanged = 0,
  kAtCfa = 1,   // at CFA + base_offset
  kAtBase = 2,  // at rbp + base_offset
};

class UnwindRule {
 public:
  constexpr UnwindRule() = default;
  explicit constexpr UnwindRule(uint64_t bits) : bits_(bits) {}
  explicit constexpr UnwindRule(RuleKind kind) : bits_(static_cast<uint64_t>(kind)) {}

  // Rules whose numbers do not fit become kUnknown.
  static constexpr UnwindRule Make(RuleKind kind, bool from_rbp, int64_t offset, int64_t addend,
                                   SavedBase saved, int64_t base_offset) {
    if (!Fits(offset, kOffsetBits) || !Fits(addend, kAddendBits) || !Fits(base_offset, kBaseBits)) {
      return UnwindRule(RuleKind::kUnknown);
    }
    return UnwindRule(static_cast<uint64_t>(kind) | (from_rbp ? uint64_t{1} << kFromRbpBit : 0) |
                      static_cast<uint64_t>(saved) << kSavedBit | Cut(addend, kAddendBits) << kAddendBit |
                      Cut(base_offset, kBaseBits) << kBaseBit | Cut(offset, kOffsetBits) << kOffsetBit);
  }

  constexpr uint64_t bits() const { return bits_; }
  constexpr RuleKind kind() const { return static_cast<RuleKind>(bits_ & 7); }
  constexpr bool from_rbp() const { return (bits_ >> kFromRbpBit & 1) != 0; }
  constexpr SavedBase saved() const { return static_cast<SavedBase>(bits_ >> kSavedBit & 3); }
  constexpr int64_t addend() const { return Signed(kAddendBit, kAddendBits); }
  constexpr int64_t base_offset() const { return Signed(kBaseBit, kBaseBits); }
  constexpr int64_t offset() const { return Signed(kOffsetBit, kOffsetBits); }

 private:
  static constexpr int kFromRbpBit = 3;
  static constexpr int kSavedBit = 4;
  static constexpr int kAddendBit = 6;
  static constexpr int kAddendBits = 10;
  static constexpr int kBaseBit = 16;
  static constexpr int kBaseBits = 22;
  static constexpr int kOffsetBit = 38;
  static constexpr int kOffsetBits = 26;

  static constexpr bool Fits(int64_t value, int bits) {
    return value >= -(int64_t{1} << (bits - 1)) && value < int64_t{1} << (bits - 1);
  }
  static constexpr uint64_t Cut(int64_t value, int bits) {
    return static_cast<uint64_t>(value) & ((uint64_t{1} << bits) - 1);
  }
  constexpr int64_t Signed(int at, int bits) const {
    return static_cast<int64_t>(bits_ << (64 - at - bits)) >> (64 - bits);
  }

  uint64_t bits_ = 0;
};

}  // namespace gpumemtrace::recorder::stacks
