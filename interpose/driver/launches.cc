// See launches.h. This is the most frequent call of all: the usual path costs two loads and a look into a
// small table.
#include "interpose/driver/launches.h"

#include <time.h>

#include <atomic>
#include <cerrno>

#include "interpose/driver/wrappers.h"
#include "interpose/handle_map.h"
#include "interpose/torch/allocator.h"
#include "recorder/recorder.h"

namespace gpumemtrace::interpose::driver {
namespace {

// Per thread: so many launches in full, then at most one in this time.
constexpr uint32_t kFullLaunches = 4096;
constexpr uint64_t kPauseNs = 2'000'000;

struct Clock {
  uint32_t launches;
  uint64_t last_ns;
};
thread_local constinit Clock clock_of_thread __attribute__((tls_model("initial-exec"))) = {};

// Functions that were launched before. A first launch can make the driver load code and reserve local memory
// for every thread that fits on the device, without any allocation call. When the table is full, no further
// function is looked at.
constinit HandleMap<8192> launched;
std::atomic<uint32_t> launched_count{0};
constexpr uint32_t kMaxFunctions = 6000;

uint64_t NowNs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

bool IsFirst(const void* function) {
  if (launched_count.load(std::memory_order_relaxed) >= kMaxFunctions ||
      launched.Contains(reinterpret_cast<uint64_t>(function))) {
    return false;
  }
  launched_count.fetch_add(1, std::memory_order_relaxed);
  return launched.Put(reinterpret_cast<uint64_t>(function), 1);
}

template <typename CallOriginal>
Result Launch(HookId id, const void* function, void* stream, CallOriginal call_original) {
  if (function == nullptr || !Enabled() || !IsFirst(function)) [[likely]] {
    const Result result = call_original();
    if (result == 0) {
      NoticeLaunch(id, function, StreamNumber(stream, Row(id).variant));
    }
    return result;
  }
  const int saved_errno = errno;
  const int device = CurrentDevice();
  const uint64_t recorded_before = RecordedSegments();
  uint64_t free_before = 0;
  const bool readable = ReadFreeMemory(device, &free_before);
  errno = saved_errno;
  const Result result = call_original();
  const int errno_after = errno;
  uint64_t free_after = 0;
  // Whatever else was allocated meanwhile would be taken for the kernel's.
  if (result == 0 && readable && ReadFreeMemory(device, &free_after) && free_after < free_before &&
      RecordedSegments() == recorded_before) {
    const DriverScope scope(id);
    if (scope.outermost()) {
      Record(scope.proof(),
             {.kind = EventKind::kKernelLaunch,
              .device = device,
              .address = reinterpret_cast<uint64_t>(function),
              .argument = {free_before - free_after, 0},
              .stream = StreamNumber(stream, Row(id).variant)},
             result);
    }
  } else if (result == 0) {
    NoticeLaunch(id, function, StreamNumber(stream, Row(id).variant));
  }
  errno = errno_after;
  return result;
}

Result LaunchKernel(Call<Result, void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                         void*, void**, void**>
                        call,
                    void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                    unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream,
                    void** parameters, void** extra) {
  return Launch(call.id, function, stream, [&] {
    return call(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters,
                extra);
  });
}

// CUlaunchConfig (cuda.h 11.8): seven unsigned numbers, then the stream.
struct LaunchConfig {
  unsigned extents_and_shared_bytes[7];
  void* stream;
};

Result LaunchKernelEx(Call<Result, const LaunchConfig*, void*, void**, void**> call,
                      const LaunchConfig* config, void* function, void** parameters, void** extra) {
  return Launch(call.id, function, config != nullptr ? config->stream : nullptr,
                [&] { return call(config, function, parameters, extra); });
}

}  // namespace

void NoticeLaunch(HookId id, const void* function, uint64_t stream) {
  if (torch::blocks_seen.load(std::memory_order_relaxed) || !recorder::Active()) {
    return;
  }
  const int saved_errno = errno;
  Clock& own = clock_of_thread;
  const uint64_t now = NowNs();
  if (own.launches < kFullLaunches || now - own.last_ns >= kPauseNs) {
    ++own.launches;
    own.last_ns = now;
    const DriverScope scope(id);
    if (scope.outermost()) {
      Record(scope.proof(),
             {.kind = EventKind::kKernelLaunch,
              .device = CurrentDevice(),
              .address = reinterpret_cast<uint64_t>(function),
              .stream = stream},
             0);
    }
  }
  errno = saved_errno;
}

}  // namespace gpumemtrace::interpose::driver

namespace gpumemtrace::interpose {
GPUMEMTRACE_LAUNCH_HOOKS(GPUMEMTRACE_DEFINE_ENTRIES)
}  // namespace gpumemtrace::interpose
