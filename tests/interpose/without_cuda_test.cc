// A process without CUDA sees what it would see without the shim.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

#include "recorded_events.h"

namespace {

void Preloaded() {
  ASSERT_NE(gpumemtrace_test_count, nullptr) << "libgpumemtrace_test.so is not preloaded";
}

TEST(WithoutCuda, LookUpsStillFail) {
  Preloaded();
  for (const char* name : {"cudaMalloc", "cuMemAlloc_v2", "cuInit", "ncclCommInitRank", "cublasCreate_v2"}) {
    dlerror();
    EXPECT_EQ(dlsym(RTLD_DEFAULT, name), nullptr) << name;
    EXPECT_NE(dlerror(), nullptr) << name;
    void* program = dlopen(nullptr, RTLD_NOW);
    EXPECT_EQ(dlsym(program, name), nullptr) << name;
    EXPECT_NE(dlerror(), nullptr) << name;
  }
  EXPECT_EQ(gpumemtrace_test_count(), 0);
}

TEST(WithoutCuda, WeakReferencesAnswerThatThereIsNoDriver) {
  Preloaded();
  void* user = dlopen(FIXTURES "/libweak_user.so", RTLD_NOW);
  ASSERT_NE(user, nullptr) << dlerror();
  EXPECT_EQ(reinterpret_cast<int (*)()>(dlsym(user, "call_weak_runtime"))(),
            35);  // cudaErrorInsufficientDriver
  EXPECT_EQ(reinterpret_cast<int (*)()>(dlsym(user, "call_weak_driver"))(), 34);  // CUDA_ERROR_STUB_LIBRARY
  EXPECT_EQ(reinterpret_cast<int (*)()>(dlsym(user, "call_weak_init"))(), 34);
  EXPECT_EQ(gpumemtrace_test_count(), 0);
}

TEST(WithoutCuda, OtherLookUpsAreUntouched) {
  Preloaded();
  void* expected = reinterpret_cast<void*>(&gpumemtrace_test_count);
  EXPECT_EQ(dlsym(RTLD_DEFAULT, "gpumemtrace_test_count"), expected);
  EXPECT_NE(dlsym(RTLD_DEFAULT, "malloc"), nullptr);
  EXPECT_EQ(dlsym(RTLD_DEFAULT, "no_such_function"), nullptr);
}

TEST(WithoutCuda, OurOwnFunctionsAreFound) {
  Preloaded();
  auto mark = reinterpret_cast<void (*)(const char*)>(dlsym(RTLD_DEFAULT, "gpumemtrace_mark"));
  ASSERT_NE(mark, nullptr);
  mark("hello");
  ASSERT_EQ(gpumemtrace_test_mark_count(), 1);
  EXPECT_STREQ(gpumemtrace_test_mark(0), "1 1 |hello|0");
}

TEST(WithoutCuda, NvtxArrivesByInjection) {
  Preloaded();
  void* user = dlopen(FIXTURES "/libnvtx_user.so", RTLD_NOW);
  ASSERT_NE(user, nullptr) << dlerror();
  reinterpret_cast<void (*)()>(dlsym(user, "use_nvtx"))();
  const char* expected[] = {"2 2 |forward|0",
                            "1 2 |moment|0",
                            "3 2 ||0",
                            "2 2 loader|fetch|0",
                            "3 2 loader||0",
                            "2 2 TSL|XlaModule:#hlo_module=jit_step,program_id=1#|0",
                            "2 2 TSL|mine|0",
                            "3 2 TSL||0",
                            "3 2 TSL||0",
                            "5 2 |w\xc3\xaf"
                            "de|1",
                            "6 2 ||1"};
  ASSERT_EQ(gpumemtrace_test_mark_count(), 11);
  for (int i = 0; i < 11; ++i) {
    EXPECT_STREQ(gpumemtrace_test_mark(i), expected[i]) << i;
  }
}

}  // namespace
