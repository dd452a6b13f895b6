// The ways by which a program reaches a CUDA function, each with the mistake that broke other interposers.
// Runs with libgpumemtrace_test.so preloaded and the simulated CUDA in LD_LIBRARY_PATH.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <string>
#include <thread>

#include "recorded_events.h"

namespace {

using gpumemtrace::recorder::Event;
using gpumemtrace::recorder::EventKind;
using gpumemtrace::recorder::Space;

using GetProcAddressV2 = int (*)(const char*, void**, int, uint64_t, int*);
using GetProcAddressV1 = int (*)(const char*, void**, int, uint64_t);

class Doors : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(gpumemtrace_test_count, nullptr) << "libgpumemtrace_test.so is not preloaded";
    driver_ = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(driver_, nullptr) << dlerror();
    ASSERT_EQ(Get<int (*)(unsigned)>("cuInit")(0), 0);
    void* context = nullptr;
    ASSERT_EQ((Get<int (*)(void**, int)>("cuDevicePrimaryCtxRetain")(&context, 0)), 0);
    ASSERT_EQ(Get<int (*)(void*)>("cuCtxSetCurrent")(context), 0);
    gpumemtrace_test_clear();
  }
  void TearDown() override { EXPECT_EQ(gpumemtrace_test_open_reservations(), 0); }

  template <typename Function>
  Function Get(const char* name) {
    auto function = reinterpret_cast<Function>(dlsym(driver_, name));
    EXPECT_NE(function, nullptr) << name;
    return function;
  }

  // What the driver's own look-up gives, through our hook of it.
  void* Ask(const char* name, int version, uint64_t flags) {
    void* function = nullptr;
    EXPECT_EQ(Get<GetProcAddressV2>("cuGetProcAddress_v2")(name, &function, version, flags, nullptr), 0);
    return function;
  }

  static std::string SymbolAt(void* address) {
    Dl_info info;
    return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
  }
  static bool InShim(void* address) {
    return SymbolAt(address).find("libgpumemtrace_test") != std::string::npos;
  }

  void* driver_ = nullptr;
};

TEST_F(Doors, DlsymOnAHandleGivesAWrapperThatRecords) {
  auto allocate = Get<int (*)(uint64_t*, size_t)>("cuMemAlloc_v2");
  auto release = Get<int (*)(uint64_t)>("cuMemFree_v2");
  EXPECT_TRUE(InShim(reinterpret_cast<void*>(allocate)));
  uint64_t pointer = 0;
  ASSERT_EQ(allocate(&pointer, 4096), 0);
  ASSERT_EQ(release(pointer), 0);
  ASSERT_EQ(gpumemtrace_test_count(), 2);
  const Event born = gpumemtrace_test_event(0);
  EXPECT_EQ(born.kind, EventKind::kAllocate);
  EXPECT_EQ(born.space, Space::kDevice);
  EXPECT_EQ(born.address, pointer);
  EXPECT_EQ(born.size, 4096u);
  EXPECT_EQ(born.device, 0);
  EXPECT_STREQ(gpumemtrace_test_api(0), "cuMemAlloc");
  const Event freed = gpumemtrace_test_event(1);
  EXPECT_EQ(freed.kind, EventKind::kFree);
  EXPECT_EQ(freed.address, pointer);
  EXPECT_LT(born.sequence, freed.sequence);
}

// HAMi-core PR #279: a table of past look-ups answered null the second time.
TEST_F(Doors, TheSecondLookUpAnswersLikeTheFirst) {
  void* first = dlsym(driver_, "cuMemAlloc_v2");
  EXPECT_EQ(dlsym(driver_, "cuMemAlloc_v2"), first);
  EXPECT_EQ(dlsym(driver_, "cuMemAlloc_v2"), first);
}

// HAMi-core PR #215: the handle was thrown away and the look-up became a global one.
TEST_F(Doors, TheCallersHandleIsKept) {
  void* libc = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(libc, nullptr);
  EXPECT_EQ(dlsym(libc, "cuMemAlloc_v2"), nullptr);
  EXPECT_NE(dlerror(), nullptr);
}

// vgpu-manager PR #89: names that only begin like hooked ones.
TEST_F(Doors, OnlyExactNamesAreHooked) {
  EXPECT_FALSE(InShim(dlsym(driver_, "cuDriverGetVersion")));
  EXPECT_EQ(dlsym(driver_, "cuMemAlloc_v2x"), nullptr);
  EXPECT_EQ(dlsym(driver_, "curl_easy_init"), nullptr);
  EXPECT_EQ(dlsym(driver_, "cudnnCreateSomething"), nullptr);
}

TEST_F(Doors, DlvsymWithAnUnknownVersionStillFails) {
  EXPECT_EQ(dlvsym(driver_, "cuMemAlloc_v2", "NO_SUCH_VERSION"), nullptr);
  EXPECT_NE(dlerror(), nullptr);
}

TEST_F(Doors, GetProcAddressToleratesANullStatusAndTheEmptyName) {
  auto ask = Get<GetProcAddressV2>("cuGetProcAddress_v2");
  void* function = nullptr;
  EXPECT_EQ(ask("cuMemAlloc", &function, 12000, 0, nullptr), 0);
  EXPECT_TRUE(InShim(function));
  function = nullptr;
  ask("", &function, 0, 0, nullptr);
  EXPECT_FALSE(InShim(function));
}

TEST_F(Doors, GetProcAddressLeavesTheStatusToTheDriver) {
  auto ask = Get<GetProcAddressV2>("cuGetProcAddress_v2");
  void* function = nullptr;
  int status = -1;
  EXPECT_EQ(ask("cuMemAlloc", &function, 12000, 0, &status), 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ask("cuNoSuchFunction", &function, 12000, 0, &status), 0);
  EXPECT_EQ(status, 1);
  EXPECT_EQ(function, nullptr);
}

TEST_F(Doors, GetProcAddressHonorsTheVersion) {
  void* old_resolver = Ask("cuGetProcAddress", 11030, 0);
  void* new_resolver = Ask("cuGetProcAddress", 12000, 0);
  EXPECT_TRUE(InShim(old_resolver));
  EXPECT_TRUE(InShim(new_resolver));
  EXPECT_NE(old_resolver, new_resolver);
  // The old ABI has four arguments and says a miss by its result.
  void* function = nullptr;
  EXPECT_EQ(reinterpret_cast<GetProcAddressV1>(old_resolver)("cuMemAlloc", &function, 11030, 0), 0);
  EXPECT_TRUE(InShim(function));
  EXPECT_NE(Ask("cuGraphAddNode", 12020, 0), Ask("cuGraphAddNode", 12030, 0));
  EXPECT_NE(Ask("cuCtxCreate", 3020, 0), Ask("cuCtxCreate", 12050, 0));
  // The first ABI, with 32-bit pointers, is not hooked.
  EXPECT_FALSE(InShim(Ask("cuMemAlloc", 2000, 0)));
}

TEST_F(Doors, GetProcAddressHonorsThePerThreadStreamFlag) {
  void* legacy = Ask("cuMemAllocAsync", 12000, 0);
  void* per_thread = Ask("cuMemAllocAsync", 12000, 2);
  ASSERT_TRUE(InShim(legacy));
  ASSERT_TRUE(InShim(per_thread));
  ASSERT_NE(legacy, per_thread);
  using Allocate = int (*)(uint64_t*, size_t, void*);
  uint64_t pointer = 0;
  ASSERT_EQ(reinterpret_cast<Allocate>(legacy)(&pointer, 512, nullptr), 0);
  ASSERT_EQ(reinterpret_cast<Allocate>(per_thread)(&pointer, 512, nullptr), 0);
  ASSERT_EQ(gpumemtrace_test_count(), 2);
  EXPECT_EQ(gpumemtrace_test_event(0).stream, 0u);
  EXPECT_EQ(gpumemtrace_test_event(1).stream, 2u);
  EXPECT_EQ(gpumemtrace_test_event(0).space, Space::kStreamOrdered);
}

TEST_F(Doors, GetProcAddressPassesTheUnknownThrough) {
  void* function = Ask("cuDriverGetVersion", 12000, 0);
  ASSERT_NE(function, nullptr);
  EXPECT_FALSE(InShim(function));
}

TEST_F(Doors, ExportTablesArePassedThrough) {
  const unsigned char id[16] = {0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a,
                                0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9};
  const void* table = nullptr;
  ASSERT_EQ((Get<int (*)(const void**, const unsigned char*)>("cuGetExportTable")(&table, id)), 0);
  EXPECT_FALSE(InShim(const_cast<void*>(table)));
  ASSERT_EQ(gpumemtrace_test_note_count(), 1);
  EXPECT_NE(std::string(gpumemtrace_test_note(0)).find("6bd5fb6c"), std::string::npos);
}

// torch_memory_saver and many others: RTLD_NEXT finds nothing when the runtime was loaded RTLD_LOCAL, and one
// original for all callers mixes up two runtimes.
TEST_F(Doors, TwoRuntimesOfDifferentMajorsEachGetTheirOwn) {
  void* user_12 = dlopen(FIXTURES "/libruntime_user_12.so", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(user_12, nullptr) << dlerror();
  void* user_13 = dlopen(FIXTURES "/libruntime_user_13.so", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(user_13, nullptr) << dlerror();
  auto use_12 = reinterpret_cast<long (*)()>(dlsym(user_12, "use_runtime"));
  auto use_13 = reinterpret_cast<long (*)()>(dlsym(user_13, "use_runtime"));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(use_12(), 12);
    EXPECT_EQ(use_13(), 13);
  }
  EXPECT_EQ(gpumemtrace_test_count(), 12);
  EXPECT_STREQ(gpumemtrace_test_api(0), "cudaMalloc");
}

TEST_F(Doors, TwoGlobalRuntimesAreToldApartByVersion) {
  void* user_12 = dlopen(FIXTURES "/libruntime_user_12.so", RTLD_NOW | RTLD_GLOBAL);
  void* user_13 = dlopen(FIXTURES "/libruntime_user_13.so", RTLD_NOW | RTLD_GLOBAL);
  ASSERT_NE(user_12, nullptr);
  ASSERT_NE(user_13, nullptr);
  EXPECT_EQ(reinterpret_cast<long (*)()>(dlsym(user_12, "use_runtime"))(), 12);
  EXPECT_EQ(reinterpret_cast<long (*)()>(dlsym(user_13, "use_runtime"))(), 13);
}

TEST_F(Doors, DlsymOnEachRuntimeKeepsItsOwnOriginal) {
  for (const int major : {12, 13}) {
    const std::string path = std::string(FIXTURES "/libcudart.so.") + std::to_string(major);
    void* runtime = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(runtime, nullptr) << dlerror();
    auto allocate = reinterpret_cast<int (*)(void**, size_t)>(dlsym(runtime, "cudaMalloc"));
    ASSERT_TRUE(InShim(reinterpret_cast<void*>(allocate)));
    void* pointer = nullptr;
    ASSERT_EQ(allocate(&pointer, 16), 0);
    EXPECT_EQ(reinterpret_cast<long>(pointer), major);
  }
}

TEST_F(Doors, UnloadedRuntimesGiveTheirEntriesBack) {
  for (int round = 0; round < 40; ++round) {
    void* user = dlopen(FIXTURES "/libruntime_user_13.so", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(user, nullptr);
    ASSERT_EQ(reinterpret_cast<long (*)()>(dlsym(user, "use_runtime"))(), 13);
    void* runtime = dlopen(FIXTURES "/libcudart.so.13", RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    ASSERT_NE(runtime, nullptr);
    ASSERT_TRUE(InShim(dlsym(runtime, "cudaMalloc"))) << round;
    dlclose(runtime);
    dlclose(user);
  }
}

TEST_F(Doors, ErrnoIsKept) {
  auto allocate = Get<int (*)(uint64_t*, size_t)>("cuMemAlloc_v2");
  auto release = Get<int (*)(uint64_t)>("cuMemFree_v2");
  uint64_t pointer = 0;
  allocate(&pointer, 64);
  errno = 5;
  allocate(&pointer, 64);
  EXPECT_EQ(errno, 5);
  release(pointer);
  EXPECT_EQ(errno, 5);
}

TEST_F(Doors, RuntimeCallsDriverOnceAndLendsItsName) {
  void* runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(runtime, nullptr) << dlerror();
  auto allocate = reinterpret_cast<int (*)(void**, size_t)>(dlsym(runtime, "cudaMalloc"));
  auto release = reinterpret_cast<int (*)(void*)>(dlsym(runtime, "cudaFree"));
  void* pointer = nullptr;
  ASSERT_EQ(allocate(&pointer, 1000), 0);
  gpumemtrace_test_clear();
  ASSERT_EQ(allocate(&pointer, 1000), 0);
  ASSERT_EQ(release(pointer), 0);
  ASSERT_EQ(gpumemtrace_test_count(), 2);
  EXPECT_STREQ(gpumemtrace_test_api(0), "cudaMalloc");
  EXPECT_STREQ(gpumemtrace_test_api(1), "cudaFree");
  EXPECT_EQ(gpumemtrace_test_event(0).address, reinterpret_cast<uint64_t>(pointer));
  EXPECT_EQ(gpumemtrace_test_event(1).address, reinterpret_cast<uint64_t>(pointer));
}

jmp_buf escape;

// A call that is left by longjmp or by an exception must not silence its thread for ever.
TEST_F(Doors, CallsThatAreEscapedFromLeaveTheThreadRecording) {
  void* runtime = dlopen(FIXTURES "/libcudart.so.13", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(runtime, nullptr) << dlerror();
  auto allocate = reinterpret_cast<int (*)(void**, size_t)>(dlsym(runtime, "cudaMalloc"));
  auto* on_escape = static_cast<void (**)()>(dlsym(runtime, "fixture_escape"));
  ASSERT_NE(on_escape, nullptr);
  void* pointer = nullptr;
  *on_escape = [] { longjmp(escape, 1); };
  if (setjmp(escape) == 0) {
    allocate(&pointer, 4321);
    FAIL() << "longjmp did not happen";
  }
  *on_escape = [] { throw 5; };
  EXPECT_THROW(allocate(&pointer, 4321), int);
  // A free that is escaped from gives its place in the order back with the next event.
  auto release = reinterpret_cast<int (*)(void*)>(dlsym(runtime, "cudaFree"));
  EXPECT_THROW(release(reinterpret_cast<void*>(4321)), int);
  gpumemtrace_test_clear();
  ASSERT_EQ(allocate(&pointer, 100), 0);
  ASSERT_EQ(gpumemtrace_test_count(), 1);
  EXPECT_STREQ(gpumemtrace_test_api(0), "cudaMalloc");
}

TEST_F(Doors, DriverEntryPointsOfTheRuntimeAreSubstituted) {
  void* runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(runtime, nullptr);
  using ByVersion = int (*)(const char*, void**, unsigned, uint64_t, int*);
  auto ask = reinterpret_cast<ByVersion>(dlsym(runtime, "cudaGetDriverEntryPointByVersion"));
  ASSERT_NE(ask, nullptr);
  void* function = nullptr;
  int status = -1;
  ASSERT_EQ(ask("cuMemCreate", &function, 12000, 0, &status), 0);
  EXPECT_TRUE(InShim(function));
  EXPECT_EQ(status, 0);
}

// nvshare issue #27: the driver's own dlsym("cuInit"), made inside cuInit, got the wrapper and waited for
// itself.
TEST_F(Doors, ADriverThatAsksForItselfFindsItself) {
  void* driver = dlopen(FIXTURES "/libcuda.so.asking", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(driver, nullptr) << dlerror();
  auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(driver, "cuInit"));
  ASSERT_TRUE(InShim(reinterpret_cast<void*>(init)));
  EXPECT_EQ(init(0), 0);
  EXPECT_EQ(*static_cast<int*>(dlsym(driver, "fixture_found_itself")), 1);
}

// A thread calls a hooked function for the first time while another holds the loader's lock, in a dlopen
// whose constructor waits for that thread: the wrapper must find its original without the lock.
std::promise<long> called;
void* user_of_runtime = nullptr;
long (*use_runtime)() = nullptr;

void CallWhileLoading() {
  std::thread([] { called.set_value(use_runtime()); }).detach();
  // Ends with the call; the bound is for the failure alone.
  if (called.get_future().wait_for(std::chrono::seconds(20)) != std::future_status::ready) {
    std::fputs("the wrapper waits for the loader's lock\n", stderr);
    std::_Exit(1);
  }
}

TEST_F(Doors, AFirstCallDuringAnotherThreadsDlopenDoesNotWait) {
  user_of_runtime = dlopen(FIXTURES "/libruntime_user_13.so", RTLD_LAZY | RTLD_LOCAL);
  ASSERT_NE(user_of_runtime, nullptr) << dlerror();
  use_runtime = reinterpret_cast<long (*)()>(dlsym(user_of_runtime, "use_runtime"));
  char address[32];
  std::snprintf(address, sizeof(address), "%lx", reinterpret_cast<unsigned long>(&CallWhileLoading));
  ASSERT_EQ(setenv("FIXTURE_ON_LOAD", address, 1), 0);
  EXPECT_NE(dlopen(FIXTURES "/libwaiting_constructor.so", RTLD_NOW), nullptr) << dlerror();
  unsetenv("FIXTURE_ON_LOAD");
  EXPECT_EQ(gpumemtrace_test_count(), 2);
}

}  // namespace
