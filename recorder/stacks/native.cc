#include "recorder/stacks/native.h"

#include <algorithm>

#include "recorder/stacks/hash.h"
#include "recorder/stacks/libunwind_api.h"
#include "recorder/stacks/own_code.h"

namespace gpumemtrace::recorder::stacks {
namespace {

// Frames of interpose and recorder between the host and us, more than there ever are.
constexpr size_t kOwnFrames = 24;
// A guess that misses costs a second, full walk; some slack makes it rare.
constexpr size_t kHintSlack = 4;

bool InEvaluation(const PythonInterpreter& interpreter, uint64_t address) {
  return address - interpreter.evaluation_start < interpreter.evaluation_end - interpreter.evaluation_start;
}

}  // namespace

NativeWalk WalkNative(ThreadStacks& thread, const PythonInterpreter* stop, size_t most) {
  NativeWalk walk;
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
    size_t kept = 0;
    for (size_t i = 0; i < end && kept < most; ++i) {
      if (!own.Contains(addresses[i])) addresses[kept++] = addresses[i];
    }
    walk.count = kept;
    break;
  }
  uint64_t hash = kSalt0;
  for (size_t i = walk.count; i-- > 0;) hash = Extend(hash, addresses[i]);
  walk.hash = walk.count != 0 ? hash : 0;
  return walk;
}

}  // namespace gpumemtrace::recorder::stacks
