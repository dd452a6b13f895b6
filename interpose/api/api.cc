// The functions of gpumemtrace.h.
#include <cerrno>
#include <cstdint>

#include "interpose/activation.h"
#include "recorder/census/census.h"
#include "recorder/recorder.h"

namespace {

using gpumemtrace::recorder::MarkKind;
using gpumemtrace::recorder::MarkSource;

void Mark(MarkKind kind, const char* text, uint64_t number) {
  if (!gpumemtrace::interpose::Enabled()) {
    return;
  }
  const int saved_errno = errno;
  gpumemtrace::recorder::RecordMark(kind, MarkSource::kApi, text != nullptr ? text : "", nullptr, number);
  errno = saved_errno;
}

}  // namespace

#define GPUMEMTRACE_EXPORTED extern "C" __attribute__((visibility("default")))

GPUMEMTRACE_EXPORTED void gpumemtrace_mark(const char* text) {
  Mark(MarkKind::kInstant, text, 0);
}
GPUMEMTRACE_EXPORTED void gpumemtrace_step(uint64_t number) {
  Mark(MarkKind::kStep, nullptr, number);
}
GPUMEMTRACE_EXPORTED void gpumemtrace_push(const char* text) {
  Mark(MarkKind::kPush, text, 0);
}
GPUMEMTRACE_EXPORTED void gpumemtrace_pop() {
  Mark(MarkKind::kPop, nullptr, 0);
}
GPUMEMTRACE_EXPORTED int gpumemtrace_census() {
  if (!gpumemtrace::interpose::Enabled() || !gpumemtrace::recorder::Active()) {
    return 0;
  }
  return gpumemtrace::recorder::census::Request() ? 1 : 0;
}
