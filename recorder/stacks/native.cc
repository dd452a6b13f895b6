#include "recorder/stacks/native.h"

#include <algorithm>
#include <atomic>

#include "recorder/stacks/eh_frame.h"
#include "recorder/stacks/hash.h"
#include "recorder/stacks/keep_errno.h"
#include "recorder/stacks/libunwind_api.h"
#include "recorder/stacks/memory.h"
#include "recorder/stacks/own_code.h"
#include "recorder/stacks/rule_cache.h"
#include "recorder/stacks/stack_bounds.h"

namespace gpumemtrace::recorder::stacks {
namespace {

constinit RuleCache g_rules;
constinit std::atomic<uint64_t> g_libunwind_walks{0};

// Frames of interpose and recorder between the host and us, more than there ever are.
constexpr size_t kOwnFrames = 24;
// A guess that misses costs libunwind a second walk; some slack makes it rare.
constexpr size_t kHintSlack = 4;
// Distinguishes the rule of an interrupted instruction from that of the call before it: no code lies there.
constexpr uint64_t kExactBit = uint64_t{1} << 63;

// How far a frame pointer may be from the stack pointer in code without CFI.
constexpr uint64_t kGuessReach = 0x4000;

// Registers of a signal handler's caller in the kernel's struct ucontext at rsp (uc_mcontext.gregs).
constexpr uint64_t kContextRbp = 120;
constexpr uint64_t kContextRsp = 160;
constexpr uint64_t kContextRip = 168;

bool InEvaluation(const PythonInterpreter& interpreter, uint64_t address) {
  return address - interpreter.evaluation_start < interpreter.evaluation_end - interpreter.evaluation_start;
}

uint64_t ThreadPointer() {
  uint64_t pointer;
  __asm__("movq %%fs:0, %0" : "=r"(pointer));
  return pointer;
}

__attribute__((noinline, cold)) UnwindRule DeriveRule(uint64_t pc, bool exact, uint64_t generation) {
  const KeepErrno keep_errno;
  const UnwindRule rule = FindUnwindRule(pc, exact);
  g_rules.Insert(exact ? pc | kExactBit : pc, generation, rule);
  return rule;
}

// False when the stack that `sp` lies on is not the thread's own.
__attribute__((noinline, cold)) bool LearnBounds(ThreadStacks& thread, uint64_t owner, uint64_t sp) {
  if (thread.owner != owner) {
    const KeepErrno keep_errno;
    const StackBounds bounds = FindStackBounds(sp);
    // On a signal stack or a coroutine's nothing is known, and the next capture asks again.
    thread.owner = bounds.high != 0 ? owner : 0;
    thread.stack_low = bounds.low;
    thread.stack_high = bounds.high;
    thread.remembered_count = 0;
  }
  return sp - thread.stack_low < thread.stack_high - thread.stack_low;
}

// The registers of a frame, and the limits within which its words may be read.
struct Registers {
  uint64_t pc;
  uint64_t sp;
  uint64_t bp;
  uint64_t low;
  uint64_t high;
  bool exact;

  bool Readable(uint64_t address) const { return address >= low && address <= high - sizeof(uint64_t); }
};

enum class Step : uint8_t { kCaller, kOutermost, kLost };

// Goes to the caller; says in `frame` what was read.
GPUMEMTRACE_READS_HOST_MEMORY inline Step StepOut(Registers& registers, const ThreadStacks& thread,
                                                  uint64_t generation, UnwoundFrame& frame) {
  const uint64_t key = registers.exact ? registers.pc | kExactBit : registers.pc;
  UnwindRule rule = g_rules.Find(key, generation);
  if (rule.kind() == RuleKind::kEmpty) [[unlikely]] {
    rule = DeriveRule(registers.pc, registers.exact, generation);
  }
  uint64_t cfa = (rule.from_rbp() ? registers.bp : registers.sp) + static_cast<uint64_t>(rule.offset());
  if (rule.kind() != RuleKind::kPlain) [[unlikely]] {
    switch (rule.kind()) {
      case RuleKind::kIndirect:
        if (!registers.Readable(cfa)) return Step::kLost;
        cfa = GPUMEMTRACE_READ(uint64_t, cfa) + static_cast<uint64_t>(rule.addend());
        frame.unusual = true;
        break;
      case RuleKind::kEnd:
        return Step::kOutermost;
      case RuleKind::kSignal: {
        const uint64_t context = registers.sp;
        if (!registers.Readable(context) || !registers.Readable(context + kContextRip)) return Step::kLost;
        frame.unusual = true;
        const uint64_t sp = GPUMEMTRACE_READ(uint64_t, context + kContextRsp);
        registers.bp = GPUMEMTRACE_READ(uint64_t, context + kContextRbp);
        registers.pc = GPUMEMTRACE_READ(uint64_t, context + kContextRip);
        registers.exact = true;
        const bool same_stack = sp > registers.sp && sp < registers.high;
        if (!same_stack) {
          // From a signal stack to the one that was interrupted.
          if (sp - thread.stack_low >= thread.stack_high - thread.stack_low) return Step::kLost;
          registers.high = thread.stack_high;
        }
        registers.low = sp;
        registers.sp = sp;
        return registers.pc != 0 ? Step::kCaller : Step::kOutermost;
      }
      case RuleKind::kNone: {
        // A guess that libunwind makes, too: the frame pointer points to the last one, with the return
        // address behind it, not far from here.
        const uint64_t base = registers.bp;
        if (base < registers.sp || base - registers.sp > kGuessReach || !registers.Readable(base) ||
            !registers.Readable(base + 8) || registers.exact) {
          return Step::kLost;
        }
        frame.saved_bp_at = base;
        frame.through_bp = true;
        registers.bp = GPUMEMTRACE_READ(uint64_t, base);
        registers.pc = GPUMEMTRACE_READ(uint64_t, base + 8);
        registers.sp = base + 16;
        return registers.pc != 0 ? Step::kCaller : Step::kOutermost;
      }
      default:
        return Step::kLost;
    }
  }
  // Callers lie strictly further out; this also ends every loop.
  if (cfa <= registers.sp || cfa > registers.high) return Step::kLost;
  uint64_t bp = registers.bp;
  frame.through_bp = rule.from_rbp() || rule.saved() == SavedBase::kAtBase;
  if (rule.saved() != SavedBase::kUnchanged) {
    const uint64_t base = rule.saved() == SavedBase::kAtCfa ? cfa : bp;
    const uint64_t at = base + static_cast<uint64_t>(rule.base_offset());
    if (!registers.Readable(at)) return Step::kLost;
    bp = GPUMEMTRACE_READ(uint64_t, at);
    frame.saved_bp_at = at;
  }
  registers.pc = GPUMEMTRACE_READ(uint64_t, cfa - 8);
  registers.sp = cfa;
  registers.bp = bp;
  registers.exact = false;
  return registers.pc != 0 ? Step::kCaller : Step::kOutermost;
}

// Writes down by which words a stack can be known again.
class PathWriter {
 public:
  PathWriter(KnownPath& path, uint64_t frame) : path_(path), frame_(frame) {
    path_.count = 0;
    path_.last = 0;
  }
  // A return address, innermost first.
  void Return(uint64_t address) {
    last_return_ = address;
    Add(address, 0);
  }
  // A saved frame pointer through which a frame is found: most often it lies below a return address.
  void Base(uint64_t address) {
    if (address == base_) return;
    base_ = address;
    if (address + sizeof(uint64_t) == last_return_) {
      path_.places[path_.count - 1] |= kWithBase;
    } else {
      Add(address, kRelativePlace);
      last_return_ = 0;
    }
  }
  void GiveUp() { possible_ = false; }
  void Finish() {
    if (!possible_) path_.count = 0;
  }

 private:
  void Add(uint64_t address, uint16_t mark) {
    const uint64_t place = (address - frame_) / sizeof(uint64_t);
    if (!possible_ || path_.count == KnownPath::kMost || place > kPlaceMask ||
        address % sizeof(uint64_t) != 0) {
      possible_ = false;
      last_return_ = 0;
      return;
    }
    path_.places[path_.count++] = static_cast<uint16_t>(place) | mark;
    if (place > path_.last) path_.last = static_cast<uint16_t>(place);
  }

  KnownPath& path_;
  const uint64_t frame_;
  uint64_t base_ = 0;
  // Of the last place, 0 = that is another word.
  uint64_t last_return_ = 0;
  bool possible_ = true;
};

// The outermost index down to which the frames from `index` on are still what they were.
GPUMEMTRACE_READS_HOST_MEMORY inline uint32_t Unchanged(const ThreadStacks& thread, uint32_t index) {
  while (index > 0) {
    const RememberedFrame& frame = thread.remembered[index];
    const RememberedFrame& caller = thread.remembered[index - 1];
    if (frame.unusual || GPUMEMTRACE_READ(uint64_t, caller.sp - 8) != caller.pc) break;
    if (frame.saved_bp_at != 0 && GPUMEMTRACE_READ(uint64_t, frame.saved_bp_at) != caller.bp) break;
    --index;
  }
  return index;
}

}  // namespace

__attribute__((noinline)) NativeWalk WalkNative(ThreadStacks& thread, const PythonInterpreter* stop,
                                                size_t most) {
  return WalkNativeFrom(reinterpret_cast<uint64_t>(__builtin_frame_address(0)), thread, stop, most);
}

uint64_t PathSalt(const ThreadStacks& thread, const PythonInterpreter* stop, size_t most) {
  return Extend(thread.generation * kSalt2 + most, stop != nullptr ? stop->evaluation_start : 0);
}

bool PathIsInside(const KnownPath& path, uint64_t frame, const ThreadStacks& thread) {
  return thread.owner == ThreadPointer() && frame > thread.stack_low && frame < thread.stack_high &&
         thread.stack_high - frame > (uint64_t{path.last} + 1) * sizeof(uint64_t);
}

[[gnu::hot]] GPUMEMTRACE_READS_HOST_MEMORY uint64_t PathCheck(const KnownPath& path, uint64_t frame,
                                                              uint64_t salt) {
  // Each word is multiplied by itself, under a key of its place in the sequence, and the products are added:
  // none waits for the one before.
  uint64_t sum = path.count;
  uint64_t key = kSalt1;
  for (size_t i = 0; i < path.count; ++i) {
    const uint64_t place = path.places[i];
    const uint64_t at = frame + (place & kPlaceMask) * sizeof(uint64_t);
    const uint64_t word = GPUMEMTRACE_READ(uint64_t, at) - (frame & -(place >> 15));
    const uint64_t has_base = -(place >> 14 & 1);
    const uint64_t base =
        (GPUMEMTRACE_READ(uint64_t, at - sizeof(uint64_t) * (has_base & 1)) - frame) & has_base;
    sum += Mix(word ^ key, base ^ kSalt0 ^ key);
    key += kSalt2;
  }
  return Mix(sum ^ kSalt2, salt ^ kSalt0);
}

GPUMEMTRACE_READS_HOST_MEMORY __attribute__((noinline)) NativeWalk WalkNativeFrom(
    uint64_t frame_address, ThreadStacks& thread, const PythonInterpreter* stop, size_t most) {
  const uint64_t owner = ThreadPointer();
  PathWriter path(thread.path, frame_address);
  Registers registers;
  registers.bp = GPUMEMTRACE_READ(uint64_t, frame_address);
  registers.pc = GPUMEMTRACE_READ(uint64_t, frame_address + 8);
  registers.sp = frame_address + 16;
  registers.low = registers.sp;
  registers.high = thread.stack_high;
  registers.exact = false;
  const uint64_t first = registers.pc;
  path.Return(frame_address + 8);
  uint64_t bp_at = frame_address;
  if (thread.owner != owner || registers.sp - thread.stack_low >= thread.stack_high - thread.stack_low)
      [[unlikely]] {
    const bool on_own_stack = LearnBounds(thread, owner, registers.sp);
    registers.high = thread.stack_high;
    if (!on_own_stack) {
      const KeepErrno keep_errno;
      const StackBounds other = FindSignalStack(registers.sp);
      if (other.high == 0) return WalkByLibunwind(thread, stop, most, first);
      registers.high = other.high;
      // What was read there before may not be there any more.
      thread.remembered_count = 0;
    }
  }
  const uint64_t generation = thread.generation;
  const uint64_t stop_key = stop != nullptr ? stop->evaluation_start : 0;
  if (thread.stop != stop_key) [[unlikely]] {
    thread.stop = stop_key;
    thread.remembered_count = 0;
  }
  const uint64_t stop_start = stop_key;
  const uint64_t stop_size = stop != nullptr ? stop->evaluation_end - stop->evaluation_start : 0;
  const CodeRange own = OwnCode();
  // Candidates for the rest of the stack are remembered[0 … candidates).
  uint32_t candidates = thread.cut ? 0 : thread.remembered_count;
  uint32_t reused = 0;
  size_t fresh = 0;
  size_t kept = 0;
  bool cut = false;
  for (;;) {
    while (candidates > 0 && thread.remembered[candidates - 1].sp < registers.sp) --candidates;
    if (candidates > 0) {
      const RememberedFrame& candidate = thread.remembered[candidates - 1];
      if (candidate.sp == registers.sp && candidate.pc == registers.pc && candidate.bp == registers.bp &&
          candidate.exact == registers.exact) {
        const uint32_t unchanged = Unchanged(thread, candidates - 1);
        if (unchanged == 0 && kept + candidate.kept <= most) {
          reused = candidates;
          break;
        }
        // Every frame from here to that one leads to the same difference.
        candidates = unchanged;
      }
    }
    const bool is_own = own.Contains(registers.pc);
    if (!is_own) {
      if (kept == most) {
        cut = true;
        break;
      }
      ++kept;
    }
    if (fresh == kMaxFrames) return WalkByLibunwind(thread, stop, most, first);
    UnwoundFrame& frame = thread.fresh[fresh++];
    frame = {.pc = registers.pc,
             .sp = registers.sp,
             .bp = registers.bp,
             .saved_bp_at = 0,
             .exact = registers.exact,
             .unusual = false,
             .through_bp = false,
             .own = is_own};
    if (registers.pc - stop_start < stop_size) break;
    const Step step = StepOut(registers, thread, generation, frame);
    if (frame.unusual) path.GiveUp();
    if (frame.through_bp) path.Base(bp_at);
    if (frame.saved_bp_at != 0) bp_at = frame.saved_bp_at;
    // Also of the outermost frame, where it is 0 or the one before once more.
    path.Return(registers.sp - 8);
    if (step == Step::kOutermost) break;
    if (step == Step::kLost) [[unlikely]] {
      path.GiveUp();
      if (HaveLibunwind()) return WalkByLibunwind(thread, stop, most, first);
      // What was found is better than nothing.
      cut = true;
      break;
    }
  }
  if (reused + fresh > kMaxFrames) return WalkByLibunwind(thread, stop, most, first);
  for (uint32_t i = reused; i-- > 0;) {
    const RememberedFrame& frame = thread.remembered[i];
    if (frame.unusual || frame.exact) path.GiveUp();
    if (frame.through_bp) path.Base(bp_at);
    if (frame.saved_bp_at != 0) bp_at = frame.saved_bp_at;
    if (i > 0) path.Return(thread.remembered[i - 1].sp - 8);
  }
  if (cut) path.GiveUp();
  path.Finish();
  uint32_t count = reused;
  uint64_t hash = count != 0 ? thread.remembered[count - 1].hash : kSalt0;
  uint32_t total = count != 0 ? thread.remembered[count - 1].kept : 0;
  while (fresh > 0) {
    const UnwoundFrame& frame = thread.fresh[--fresh];
    RememberedFrame& remembered = thread.remembered[count++];
    static_cast<UnwoundFrame&>(remembered) = frame;
    if (!frame.own) {
      hash = Extend(hash, frame.pc);
      ++total;
    }
    remembered.hash = hash;
    remembered.kept = total;
  }
  thread.remembered_count = count;
  thread.native_filled = false;
  thread.cut = cut;
  return {total, total != 0 ? hash : 0};
}

std::span<const uint64_t> NativeAddresses(ThreadStacks& thread, const NativeWalk& walk) {
  if (!thread.native_filled) {
    size_t filled = 0;
    for (uint32_t i = thread.remembered_count; i-- > 0 && filled < kMaxFrames;) {
      if (!thread.remembered[i].own) thread.native[filled++] = thread.remembered[i].pc;
    }
    thread.native_filled = true;
  }
  return {thread.native, walk.count};
}

NativeWalk WalkByLibunwind(ThreadStacks& thread, const PythonInterpreter* stop, size_t most, uint64_t first) {
  g_libunwind_walks.fetch_add(1, std::memory_order_relaxed);
  const KeepErrno keep_errno;
  NativeWalk walk;
  thread.remembered_count = 0;
  thread.path.count = 0;
  thread.native_filled = true;
  uint64_t* addresses = thread.native;
  const size_t full = std::min<size_t>(most + kOwnFrames, kMaxFrames);
  size_t wanted = full;
  if (stop != nullptr && thread.native_hint != 0) wanted = std::min<size_t>(thread.native_hint, full);
  for (;;) {
    const int found = LibunwindBacktrace({reinterpret_cast<void**>(addresses), wanted});
    if (found <= 0) return walk;
    const auto count = static_cast<size_t>(found);
    size_t end = count;
    bool at_evaluation = false;
    if (stop != nullptr) {
      for (size_t i = 0; i < count && !at_evaluation; ++i) {
        if (!InEvaluation(*stop, addresses[i])) continue;
        end = i + 1;
        at_evaluation = true;
      }
    }
    if (!at_evaluation && count == wanted && wanted < full) {
      wanted = full;
      continue;
    }
    if (stop != nullptr) thread.native_hint = static_cast<uint32_t>(end + kHintSlack);
    const CodeRange own = OwnCode();
    size_t start = 0;
    while (start < end && addresses[start] != first) ++start;
    if (start == end) start = 0;
    for (size_t i = start; i < end && walk.count < most; ++i) {
      if (!own.Contains(addresses[i])) addresses[walk.count++] = addresses[i];
    }
    break;
  }
  uint64_t hash = kSalt0;
  for (size_t i = walk.count; i-- > 0;) hash = Extend(hash, addresses[i]);
  walk.hash = walk.count != 0 ? hash : 0;
  return walk;
}

uint64_t LibunwindWalks() {
  return g_libunwind_walks.load(std::memory_order_relaxed);
}

}  // namespace gpumemtrace::recorder::stacks
