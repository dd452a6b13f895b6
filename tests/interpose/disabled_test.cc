// GPUMEMTRACE=0: the shim is there and does nothing.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "recorded_events.h"

namespace {

TEST(Disabled, LookUpsGiveTheRealFunctions) {
  ASSERT_NE(gpumemtrace_test_count, nullptr) << "libgpumemtrace_test.so is not preloaded";
  ASSERT_STREQ(getenv("GPUMEMTRACE"), "0");
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(driver, nullptr) << dlerror();
  auto allocate = reinterpret_cast<int (*)(uint64_t*, size_t)>(dlsym(driver, "cuMemAlloc_v2"));
  Dl_info info;
  ASSERT_NE(dladdr(reinterpret_cast<void*>(allocate), &info), 0);
  EXPECT_NE(std::string(info.dli_fname).find("libcuda.so"), std::string::npos) << info.dli_fname;
  EXPECT_EQ(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"), nullptr);
}

TEST(Disabled, BoundCallsArePassedThrough) {
  void* user = dlopen(FIXTURES "/libruntime_user_13.so", RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(user, nullptr) << dlerror();
  EXPECT_EQ(reinterpret_cast<long (*)()>(dlsym(user, "use_runtime"))(), 13);
  EXPECT_EQ(gpumemtrace_test_count(), 0);
}

TEST(Disabled, TheEnvironmentIsLeftAlone) {
  EXPECT_EQ(getenv("NVTX_INJECTION64_PATH"), nullptr);
}

}  // namespace
