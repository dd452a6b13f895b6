// See notes.h.
#include "interpose/notes.h"

#include <atomic>
#include <cstdio>

#include "recorder/recorder.h"

namespace gpumemtrace::interpose {
namespace {

constexpr int kMaxPending = 16;
char pending[kMaxPending][256];
std::atomic<int> claimed{0};
std::atomic<bool> written[kMaxPending];
std::atomic<bool> any_pending{false};

}  // namespace

void Tell(const char* text) {
  if (recorder::Active()) {
    recorder::RecordNote(recorder::NoteSeverity::kWarning, text);
    return;
  }
  const int slot = claimed.fetch_add(1, std::memory_order_relaxed);
  if (slot >= kMaxPending) {
    claimed.store(kMaxPending, std::memory_order_relaxed);
    return;
  }
  snprintf(pending[slot], sizeof(pending[slot]), "%s", text);
  written[slot].store(true, std::memory_order_release);
  any_pending.store(true, std::memory_order_release);
}

void TellPending() {
  if (!any_pending.load(std::memory_order_acquire) || !recorder::Active() ||
      !any_pending.exchange(false, std::memory_order_acq_rel)) [[likely]] {
    return;
  }
  for (int slot = 0; slot < kMaxPending; ++slot) {
    if (written[slot].exchange(false, std::memory_order_acq_rel)) {
      recorder::RecordNote(recorder::NoteSeverity::kWarning, pending[slot]);
    }
  }
}

}  // namespace gpumemtrace::interpose
