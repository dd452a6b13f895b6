// See recorded_events.h.
#include "recorded_events.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "recorder/census/census.h"
#include "recorder/recorder.h"

#define TEST_API extern "C" __attribute__((visibility("default")))

namespace gpumemtrace::recorder {
namespace {

constexpr int kMax = 1 << 16;
Event events[kMax];
std::atomic<int> event_count{0};
char marks[1024][128];
std::atomic<int> mark_count{0};
char notes[1024][256];
std::atomic<int> note_count{0};
std::atomic<uint64_t> next_sequence{1};
std::atomic<int> open_reservations{0};
const char* const* api_names = nullptr;
uint16_t api_count = 0;
thread_local uint64_t python_stack = 0;

bool Off() {
  const char* option = getenv("GPUMEMTRACE");
  return option != nullptr && option[0] == '0';
}

}  // namespace

void Initialize(const Host& host) {
  api_names = host.api_names;
  api_count = host.api_count;
}
bool Active() {
  return !Off();
}
bool Activate() {
  return !Off();
}

void Record(const Event& event) {
  const int index = event_count.fetch_add(1);
  if (index >= kMax) {
    abort();
  }
  events[index] = event;
  if (event.sequence == 0) {
    events[index].sequence = next_sequence.fetch_add(1);
  } else {
    open_reservations.fetch_sub(1);
  }
  errno = 77;  // A recorder that spoils errno: the hooks must keep the program's.
}

uint64_t ReserveSequence() {
  open_reservations.fetch_add(1);
  errno = 78;
  return next_sequence.fetch_add(1);
}
void CancelSequence(uint64_t) {
  open_reservations.fetch_sub(1);
}

uint64_t CaptureForwardStack() {
  return python_stack;
}

void RecordMark(MarkKind kind, MarkSource source, const char* text, const char* domain, uint64_t number) {
  const int index = mark_count.fetch_add(1);
  snprintf(marks[index], sizeof(marks[index]), "%d %d %s|%s|%llu", static_cast<int>(kind),
           static_cast<int>(source), domain != nullptr ? domain : "", text,
           static_cast<unsigned long long>(number));
}
void RecordDeviceMemory(int, uint64_t, uint64_t) {}
void RecordDevice(int, const char*, const unsigned char*, uint64_t, uint32_t, uint32_t) {}
void RecordNote(NoteSeverity, const char* text) {
  const int index = note_count.fetch_add(1);
  snprintf(notes[index], sizeof(notes[index]), "%s", text);
}
bool RecordContent(std::span<const unsigned char>) {
  return true;
}
void ModulesChanged() {}
void Finish() {}

namespace census {
bool Request() {
  return true;
}
}  // namespace census

}  // namespace gpumemtrace::recorder

using namespace gpumemtrace::recorder;

TEST_API int gpumemtrace_test_count() {
  return event_count;
}
TEST_API Event gpumemtrace_test_event(int index) {
  return events[index];
}
TEST_API const char* gpumemtrace_test_api(int index) {
  return events[index].api < api_count ? api_names[events[index].api] : "?";
}
TEST_API void gpumemtrace_test_clear() {
  event_count = 0;
  mark_count = 0;
  note_count = 0;
}
TEST_API int gpumemtrace_test_open_reservations() {
  return open_reservations;
}
TEST_API int gpumemtrace_test_mark_count() {
  return mark_count;
}
TEST_API const char* gpumemtrace_test_mark(int index) {
  return marks[index];
}
TEST_API int gpumemtrace_test_note_count() {
  return note_count;
}
TEST_API const char* gpumemtrace_test_note(int index) {
  return notes[index];
}
TEST_API void gpumemtrace_test_set_python_stack(uint64_t stack) {
  python_stack = stack;
}
