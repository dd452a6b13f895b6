// Another preload that hooks the same functions and asks dlsym(RTLD_NEXT), before or behind us. The test runs
// twice, with the two orders of LD_PRELOAD.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "recorded_events.h"

namespace {

// HAMi #2903: without a tail jump the wrapper finds itself and `import torch` hangs.
TEST(Company, NextFindsTheNextAndNotTheCaller) {
  ASSERT_NE(gpumemtrace_test_count, nullptr) << "libgpumemtrace_test.so is not preloaded";
  // Once through the other preload: a loop would add more.
  EXPECT_EQ(getppid(), 1000000 + syscall(SYS_getppid));
}

TEST(Company, BothPreloadsSeeTheCall) {
  ASSERT_NE(gpumemtrace_test_count, nullptr);
  void* user = dlopen(FIXTURES "/libruntime_user_13.so", RTLD_NOW | RTLD_GLOBAL);
  ASSERT_NE(user, nullptr) << dlerror();
  auto* calls = static_cast<int*>(dlsym(RTLD_DEFAULT, "next_wrapper_calls"));
  ASSERT_NE(calls, nullptr) << "libnext_wrapper.so is not preloaded";
  EXPECT_EQ(reinterpret_cast<long (*)()>(dlsym(user, "use_runtime"))(), 13);
  EXPECT_EQ(*calls, 1);
  EXPECT_EQ(gpumemtrace_test_count(), 2);
}

}  // namespace
