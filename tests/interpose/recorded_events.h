// A recorder for tests: keeps what the interposition tells in memory, where the test program reads it. It is
// linked with the shim's own objects into libgpumemtrace_test.so, which is preloaded into the test program.
#pragma once

#include <cstdint>

#include "recorder/event.h"

// Weak: null when the twin is not preloaded.
extern "C" {
__attribute__((weak)) int gpumemtrace_test_count();
__attribute__((weak)) gpumemtrace::recorder::Event gpumemtrace_test_event(int index);
__attribute__((weak)) const char* gpumemtrace_test_api(int index);
__attribute__((weak)) void gpumemtrace_test_clear();
// Reservations that were neither recorded nor canceled.
__attribute__((weak)) int gpumemtrace_test_open_reservations();
__attribute__((weak)) int gpumemtrace_test_mark_count();
__attribute__((weak)) const char* gpumemtrace_test_mark(int index);
__attribute__((weak)) int gpumemtrace_test_note_count();
__attribute__((weak)) const char* gpumemtrace_test_note(int index);
// What CaptureForwardStack answers on the calling thread.
__attribute__((weak)) void gpumemtrace_test_set_python_stack(uint64_t stack);
}
