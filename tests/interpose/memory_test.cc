// What each family of functions records: the semantics of section a.8 of the interception notes.
#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "recorded_events.h"

namespace {

using gpumemtrace::recorder::Event;
using gpumemtrace::recorder::EventKind;
using gpumemtrace::recorder::Space;

class Memory : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(gpumemtrace_test_count, nullptr) << "libgpumemtrace_test.so is not preloaded";
    driver_ = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(driver_, nullptr) << dlerror();
    Call<int (*)(unsigned)>("cuInit")(0);
    Call<int (*)(void**, int)>("cuDevicePrimaryCtxRetain")(&context_, 0);
    ASSERT_EQ(Call<int (*)(void*)>("cuCtxSetCurrent")(context_), 0);
    gpumemtrace_test_clear();
  }
  void TearDown() override { EXPECT_EQ(gpumemtrace_test_open_reservations(), 0); }

  template <typename Function>
  Function Call(const char* name) {
    auto function = reinterpret_cast<Function>(dlsym(driver_, name));
    EXPECT_NE(function, nullptr) << name;
    return function;
  }
  // Events of one kind, in order.
  static std::vector<Event> Of(EventKind kind) {
    std::vector<Event> found;
    for (int i = 0; i < gpumemtrace_test_count(); ++i) {
      if (gpumemtrace_test_event(i).kind == kind) {
        found.push_back(gpumemtrace_test_event(i));
      }
    }
    return found;
  }

  void* driver_ = nullptr;
  void* context_ = nullptr;
};

TEST_F(Memory, PitchedMemoryIsPitchTimesHeight) {
  uint64_t pointer = 0;
  size_t pitch = 0;
  ASSERT_EQ((Call<int (*)(uint64_t*, size_t*, size_t, size_t, unsigned)>("cuMemAllocPitch_v2")(
                &pointer, &pitch, 100, 10, 4)),
            0);
  ASSERT_GT(pitch, 100u);
  ASSERT_EQ(Of(EventKind::kAllocate).size(), 1u);
  EXPECT_EQ(Of(EventKind::kAllocate)[0].size, pitch * 10);
}

TEST_F(Memory, FreeingNothingIsNoEvent) {
  Call<int (*)(uint64_t)>("cuMemFree_v2")(0);
  EXPECT_EQ(gpumemtrace_test_count(), 0);
}

TEST_F(Memory, FailuresAreRecordedWithTheirResult) {
  uint64_t pointer = 0x1234;
  const int result = Call<int (*)(uint64_t*, size_t)>("cuMemAlloc_v2")(&pointer, size_t{1} << 50);
  ASSERT_EQ(result, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(pointer, 0x1234u);
  ASSERT_EQ(gpumemtrace_test_count(), 1);
  const Event event = gpumemtrace_test_event(0);
  EXPECT_EQ(event.result, CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(event.flags & gpumemtrace::recorder::kFailed, 0);
  EXPECT_EQ(event.size, size_t{1} << 50);
  EXPECT_EQ(event.address, 0u);
  // A free that fails ends nothing.
  EXPECT_NE(Call<int (*)(uint64_t)>("cuMemFree_v2")(0x1234), 0);
  EXPECT_NE(gpumemtrace_test_event(1).flags & gpumemtrace::recorder::kFailed, 0);
}

TEST_F(Memory, HostMemoryHasItsOwnSpaces) {
  void* pinned = nullptr;
  ASSERT_EQ((Call<int (*)(void**, size_t, unsigned)>("cuMemHostAlloc")(&pinned, 8192, 0)), 0);
  ASSERT_EQ(Call<int (*)(void*)>("cuMemFreeHost")(pinned), 0);
  static char own[4096];
  ASSERT_EQ((Call<int (*)(void*, size_t, unsigned)>("cuMemHostRegister_v2")(own, sizeof(own), 0)), 0);
  ASSERT_EQ(Call<int (*)(void*)>("cuMemHostUnregister")(own), 0);
  ASSERT_EQ(gpumemtrace_test_count(), 4);
  EXPECT_EQ(gpumemtrace_test_event(0).space, Space::kPinnedHost);
  EXPECT_EQ(gpumemtrace_test_event(0).device, -1);
  EXPECT_EQ(gpumemtrace_test_event(2).space, Space::kRegisteredHost);
  EXPECT_EQ(gpumemtrace_test_event(2).address, reinterpret_cast<uint64_t>(own));
}

TEST_F(Memory, VirtualMemoryIsRecordedStepByStep) {
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop.location.id = 0;
  const size_t size = 2u << 20;
  uint64_t range = 0;
  uint64_t handle = 0;
  uint64_t again = 0;
  ASSERT_EQ((Call<int (*)(uint64_t*, size_t, size_t, uint64_t, uint64_t)>("cuMemAddressReserve")(&range, size,
                                                                                                 0, 0, 0)),
            0);
  ASSERT_EQ((Call<int (*)(uint64_t*, size_t, const CUmemAllocationProp*, uint64_t)>("cuMemCreate")(
                &handle, size, &prop, 0)),
            0);
  ASSERT_EQ(
      (Call<int (*)(uint64_t, size_t, size_t, uint64_t, uint64_t)>("cuMemMap")(range, size, 0, handle, 0)),
      0);
  ASSERT_EQ((Call<int (*)(uint64_t*, void*)>("cuMemRetainAllocationHandle")(&again,
                                                                            reinterpret_cast<void*>(range))),
            0);
  EXPECT_EQ(Call<int (*)(uint64_t)>("cuMemRelease")(handle), 0);
  EXPECT_EQ(Call<int (*)(uint64_t)>("cuMemRelease")(again), 0);
  ASSERT_EQ((Call<int (*)(uint64_t, size_t)>("cuMemUnmap")(range, size)), 0);
  ASSERT_EQ((Call<int (*)(uint64_t, size_t)>("cuMemAddressFree")(range, size)), 0);
  const EventKind expected[] = {
      EventKind::kAddressReserve,  EventKind::kPhysicalCreate,  EventKind::kMap,   EventKind::kPhysicalRetain,
      EventKind::kPhysicalRelease, EventKind::kPhysicalRelease, EventKind::kUnmap, EventKind::kAddressFree};
  ASSERT_EQ(gpumemtrace_test_count(), 8);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(gpumemtrace_test_event(i).kind, expected[i]) << i;
  }
  EXPECT_EQ(gpumemtrace_test_event(1).address, handle);
  EXPECT_EQ(gpumemtrace_test_event(1).device, 0);
  EXPECT_EQ(gpumemtrace_test_event(2).address, range);
  EXPECT_EQ(gpumemtrace_test_event(2).argument[0], handle);
  EXPECT_EQ(gpumemtrace_test_event(3).argument[0], range);
}

TEST_F(Memory, CapturedAllocationsAreNodesAndLiveOnLaunch) {
  void* stream = nullptr;
  ASSERT_EQ((Call<int (*)(void**, unsigned)>("cuStreamCreate")(&stream, 1)), 0);
  gpumemtrace_test_clear();
  ASSERT_EQ((Call<int (*)(void*, int)>("cuStreamBeginCapture_v2")(stream, 0)), 0);
  uint64_t pointer = 0;
  ASSERT_EQ((Call<int (*)(uint64_t*, size_t, void*)>("cuMemAllocAsync")(&pointer, 4096, stream)), 0);
  ASSERT_EQ((Call<int (*)(uint64_t, void*)>("cuMemFreeAsync")(pointer, stream)), 0);
  void* graph = nullptr;
  ASSERT_EQ((Call<int (*)(void*, void**)>("cuStreamEndCapture")(stream, &graph)), 0);
  EXPECT_TRUE(Of(EventKind::kAllocate).empty());
  EXPECT_TRUE(Of(EventKind::kFree).empty());
  ASSERT_EQ(Of(EventKind::kGraphAllocateNode).size(), 1u);
  ASSERT_EQ(Of(EventKind::kGraphFreeNode).size(), 1u);
  // The capture made the graph, once.
  ASSERT_EQ(Of(EventKind::kHandleCreate).size(), 1u);
  EXPECT_EQ(Of(EventKind::kHandleCreate)[0].address, reinterpret_cast<uint64_t>(graph));
  const Event node = Of(EventKind::kGraphAllocateNode)[0];
  EXPECT_EQ(node.address, pointer);
  EXPECT_EQ(node.size, 4096u);
  EXPECT_EQ(node.argument[0], reinterpret_cast<uint64_t>(graph));

  void* executable = nullptr;
  ASSERT_EQ((Call<int (*)(void**, void*, uint64_t)>("cuGraphInstantiateWithFlags")(&executable, graph, 1)),
            0);
  ASSERT_EQ((Call<int (*)(void*, void*)>("cuGraphLaunch")(executable, stream)), 0);
  ASSERT_EQ(Of(EventKind::kGraphInstantiate).size(), 1u);
  EXPECT_EQ(Of(EventKind::kGraphInstantiate)[0].argument[0], reinterpret_cast<uint64_t>(graph));
  EXPECT_EQ(Of(EventKind::kGraphInstantiate)[0].argument[1], 1u);
  ASSERT_EQ(Of(EventKind::kGraphLaunch).size(), 1u);
  EXPECT_EQ(Of(EventKind::kGraphLaunch)[0].address, reinterpret_cast<uint64_t>(executable));
}

TEST_F(Memory, GraphsWithoutMemoryAreNotRecordedAtLaunch) {
  void* graph = nullptr;
  ASSERT_EQ((Call<int (*)(void**, unsigned)>("cuGraphCreate")(&graph, 0)), 0);
  void* executable = nullptr;
  ASSERT_EQ((Call<int (*)(void**, void*, uint64_t)>("cuGraphInstantiateWithFlags")(&executable, graph, 0)),
            0);
  ASSERT_EQ((Call<int (*)(void*, void*)>("cuGraphLaunch")(executable, nullptr)), 0);
  EXPECT_TRUE(Of(EventKind::kGraphLaunch).empty());
}

TEST_F(Memory, OwnContextsAreNamedByTheirAllocations) {
  void* context = nullptr;
  ASSERT_EQ((Call<int (*)(void**, unsigned, int)>("cuCtxCreate_v2")(&context, 0, 0)), 0);
  uint64_t pointer = 0;
  ASSERT_EQ((Call<int (*)(uint64_t*, size_t)>("cuMemAlloc_v2")(&pointer, 256)), 0);
  ASSERT_EQ(Call<int (*)(void*)>("cuCtxDestroy_v2")(context), 0);
  ASSERT_EQ(Of(EventKind::kContextCreate).size(), 1u);
  ASSERT_EQ(Of(EventKind::kAllocate).size(), 1u);
  EXPECT_EQ(Of(EventKind::kAllocate)[0].argument[1], reinterpret_cast<uint64_t>(context));
  ASSERT_EQ(Of(EventKind::kContextDestroy).size(), 1u);
  EXPECT_EQ(Of(EventKind::kContextDestroy)[0].address, reinterpret_cast<uint64_t>(context));
  EXPECT_EQ(Of(EventKind::kContextDestroy)[0].device, 0);
}

TEST_F(Memory, HandlesAreCounted) {
  void* event = nullptr;
  ASSERT_EQ((Call<int (*)(void**, unsigned)>("cuEventCreate")(&event, 0)), 0);
  ASSERT_EQ(Call<int (*)(void*)>("cuEventDestroy_v2")(event), 0);
  ASSERT_EQ(gpumemtrace_test_count(), 2);
  EXPECT_EQ(gpumemtrace_test_event(0).kind, EventKind::kHandleCreate);
  EXPECT_EQ(gpumemtrace_test_event(1).kind, EventKind::kHandleDestroy);
  EXPECT_EQ(gpumemtrace_test_event(0).address, gpumemtrace_test_event(1).address);
}

// Frees take their place before the call, so that an address that another thread gets at once is not freed
// after its new birth.
TEST_F(Memory, AFreeComesBeforeTheNextBirthOfItsAddress) {
  auto allocate = Call<int (*)(uint64_t*, size_t)>("cuMemAlloc_v2");
  auto release = Call<int (*)(uint64_t)>("cuMemFree_v2");
  auto set_current = Call<int (*)(void*)>("cuCtxSetCurrent");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      set_current(context_);
      for (int i = 0; i < 500; ++i) {
        uint64_t pointer = 0;
        ASSERT_EQ(allocate(&pointer, 4096), 0);
        ASSERT_EQ(release(pointer), 0);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  // Replayed in the order of the sequence numbers, no address is born twice or freed twice.
  std::vector<Event> events;
  for (int i = 0; i < gpumemtrace_test_count(); ++i) {
    events.push_back(gpumemtrace_test_event(i));
  }
  std::sort(events.begin(), events.end(),
            [](const Event& a, const Event& b) { return a.sequence < b.sequence; });
  std::set<uint64_t> live;
  for (const Event& event : events) {
    if (event.kind == EventKind::kAllocate) {
      EXPECT_TRUE(live.insert(event.address).second);
    } else if (event.kind == EventKind::kFree) {
      EXPECT_EQ(live.erase(event.address), 1u);
    }
  }
  EXPECT_TRUE(live.empty());
}

}  // namespace
