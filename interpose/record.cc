// See record.h.
#include "interpose/record.h"

#include <time.h>

#include <atomic>
#include <cerrno>

#include "interpose/driver_functions.h"
#include "interpose/loader.h"
#include "interpose/notes.h"
#include "interpose/torch/autograd.h"
#include "recorder/recorder.h"

namespace gpumemtrace::interpose {
namespace {

constexpr int kMaxDevices = 64;
constexpr uint64_t kOftenNs = 10'000'000;
constexpr uint64_t kSeldomNs = 1'000'000'000;
// A capture whose end went past us must not silence the samples for ever.
constexpr uint64_t kForgottenCaptureNs = 60'000'000'000;

std::atomic<uint64_t> last_sample_ns[kMaxDevices];
std::atomic<bool> described[kMaxDevices];
std::atomic<int> captures{0};
std::atomic<uint64_t> last_capture_ns{0};

std::atomic<uint64_t> recorded_segments{0};

uint64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

bool Capturing(uint64_t now) {
  if (captures.load(std::memory_order_relaxed) <= 0) {
    return false;
  }
  if (now - last_capture_ns.load(std::memory_order_relaxed) < kForgottenCaptureNs) {
    return true;
  }
  captures.store(0, std::memory_order_relaxed);
  return false;
}

void Describe(int device) {
  const DriverFunctions& driver = Driver();
  int handle = device;
  if (driver.device_get != nullptr && driver.device_get(&handle, device) != 0) {
    return;
  }
  char name[128] = "";
  unsigned char uuid[16] = {};
  size_t total = 0;
  int version = 0;
  if (driver.device_get_name != nullptr) {
    driver.device_get_name(name, sizeof(name), handle);
  }
  if (driver.device_get_uuid != nullptr) {
    driver.device_get_uuid(uuid, handle);
  }
  if (driver.device_total_mem != nullptr) {
    driver.device_total_mem(&total, handle);
  }
  if (driver.driver_get_version != nullptr) {
    driver.driver_get_version(&version);
  }
  name[sizeof(name) - 1] = '\0';
  recorder::RecordDevice(device, name, uuid, total, static_cast<uint32_t>(version), 0);
}

// A call that took a number and was left by longjmp or an exception never gives it back, and everything
// behind it would wait. A live ticket lies above `here` on the stack.
void DropEscapedTicket(uintptr_t here) {
  ThreadState& state = thread_state;
  if (state.ticket == 0 || state.ticket > here) [[likely]] {
    return;
  }
  recorder::CancelSequence(state.ticket_sequence);
  state.ticket = 0;
  state.handed_sequence = 0;
}

Event MakeEvent(const Proof& proof, const Facts& facts, Result result) {
  recorded_segments.fetch_add(1, std::memory_order_relaxed);
  Event event;
  event.kind = facts.kind;
  event.space = facts.space;
  event.flags = static_cast<uint16_t>(facts.flags | (result != 0 ? recorder::kFailed : recorder::kNoFlags));
  event.api = proof.api();
  event.device = static_cast<int16_t>(facts.device);
  event.result = result;
  event.address = facts.address;
  event.size = facts.size;
  event.argument[0] = facts.argument[0];
  event.argument[1] = facts.argument[1];
  event.stream = facts.stream;
  if (facts.kind == EventKind::kAllocate) {
    event.forward_stack = torch::ForwardStackOfRunningNode();
  }
  return event;
}

}  // namespace

void Record(const Proof& proof, const Facts& facts, Result result) {
  const int saved_errno = errno;
  NoticeLoads();
  DropEscapedTicket(reinterpret_cast<uintptr_t>(__builtin_frame_address(0)));
  recorder::Record(MakeEvent(proof, facts, result));
  TellPending();
  errno = saved_errno;
}

Ticket::Ticket(const Proof&) {
  const int saved_errno = errno;
  DropEscapedTicket(reinterpret_cast<uintptr_t>(this));
  ThreadState& state = thread_state;
  if (state.runtime_scope > reinterpret_cast<uintptr_t>(this) && state.handed_sequence != 0) {
    sequence_ = state.handed_sequence;
    state.handed_sequence = 0;
  } else {
    sequence_ = recorder::ReserveSequence();
  }
  Register();
  errno = saved_errno;
}

Ticket::Ticket(HandDown) : hands_down_(true) {
  const int saved_errno = errno;
  DropEscapedTicket(reinterpret_cast<uintptr_t>(this));
  sequence_ = recorder::ReserveSequence();
  thread_state.handed_sequence = sequence_;
  Register();
  sequence_ = 0;
  errno = saved_errno;
}

Ticket::~Ticket() {
  const int saved_errno = errno;
  Unregister();
  if (sequence_ != 0) {
    recorder::CancelSequence(sequence_);
  }
  errno = saved_errno;
}

void Ticket::Record(const Proof& proof, const Facts& facts, Result result) {
  const int saved_errno = errno;
  Unregister();
  Event event = MakeEvent(proof, facts, result);
  event.sequence = sequence_;
  sequence_ = 0;
  recorder::Record(event);
  TellPending();
  errno = saved_errno;
}

void Ticket::Register() {
  if (thread_state.ticket == 0) {
    thread_state.ticket = reinterpret_cast<uintptr_t>(this);
    thread_state.ticket_sequence = sequence_;
  }
}

// Also takes back a number that was handed down and that nobody below has used.
void Ticket::Unregister() {
  if (thread_state.ticket == reinterpret_cast<uintptr_t>(this)) {
    thread_state.ticket = 0;
  }
  if (hands_down_) {
    sequence_ = thread_state.handed_sequence;
    thread_state.handed_sequence = 0;
    hands_down_ = false;
  }
}

void SampleDevice(int device, bool often) {
  if (device < 0 || device >= kMaxDevices) {
    return;
  }
  const int saved_errno = errno;
  const uint64_t now = NowNs();
  std::atomic<uint64_t>& last = last_sample_ns[device];
  uint64_t previous = last.load(std::memory_order_relaxed);
  if (now - previous >= (often ? kOftenNs : kSeldomNs) && !Capturing(now) && CurrentDevice() == device &&
      last.compare_exchange_strong(previous, now, std::memory_order_relaxed)) {
    if (!described[device].exchange(true, std::memory_order_relaxed)) {
      Describe(device);
    }
    size_t free = 0;
    size_t total = 0;
    const DriverFunctions& driver = Driver();
    if (driver.mem_get_info != nullptr && driver.mem_get_info(&free, &total) == 0) {
      recorder::RecordDeviceMemory(device, free, total);
    }
  }
  errno = saved_errno;
}

bool ReadFreeMemory(int device, uint64_t* free_bytes) {
  const DriverFunctions& driver = Driver();
  size_t free = 0;
  size_t total = 0;
  if (device < 0 || driver.mem_get_info == nullptr || Capturing(NowNs()) ||
      driver.mem_get_info(&free, &total) != 0) {
    return false;
  }
  *free_bytes = free;
  return true;
}

uint64_t RecordedSegments() {
  return recorded_segments.load(std::memory_order_relaxed);
}

void CaptureBegan() {
  last_capture_ns.store(NowNs(), std::memory_order_relaxed);
  captures.fetch_add(1, std::memory_order_relaxed);
}

void CaptureEnded() {
  if (captures.fetch_sub(1, std::memory_order_relaxed) <= 0) {
    captures.store(0, std::memory_order_relaxed);
  }
}

}  // namespace gpumemtrace::interpose
