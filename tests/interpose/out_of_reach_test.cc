// Libraries that do not see our symbols: RTLD_DEEPBIND and dlmopen.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "recorded_events.h"

namespace {

TEST(OutOfReach, DeepBoundReferencesArePatched) {
  ASSERT_NE(gpumemtrace_test_count, nullptr) << "libgpumemtrace_test.so is not preloaded";
  for (const int mode : {RTLD_NOW, RTLD_LAZY}) {
    gpumemtrace_test_clear();
    void* user = dlopen(FIXTURES "/libruntime_user_13.so", mode | RTLD_DEEPBIND | RTLD_LOCAL);
    ASSERT_NE(user, nullptr) << dlerror();
    EXPECT_EQ(reinterpret_cast<long (*)()>(dlsym(user, "use_runtime"))(), 13);
    EXPECT_EQ(gpumemtrace_test_count(), 2);
    EXPECT_STREQ(gpumemtrace_test_api(0), "cudaMalloc");
    dlclose(user);
  }
}

TEST(OutOfReach, ANamespaceOfItsOwnIsPatched) {
  ASSERT_NE(gpumemtrace_test_count, nullptr);
  gpumemtrace_test_clear();
  void* user = dlmopen(LM_ID_NEWLM, FIXTURES "/libruntime_user_12.so", RTLD_NOW);
  ASSERT_NE(user, nullptr) << dlerror();
  EXPECT_EQ(reinterpret_cast<long (*)()>(dlsym(user, "use_runtime"))(), 12);
  EXPECT_EQ(gpumemtrace_test_count(), 2);
}

TEST(OutOfReach, FailingLoadsStillFail) {
  EXPECT_EQ(dlopen("/no/such/library.so", RTLD_NOW | RTLD_DEEPBIND), nullptr);
  EXPECT_NE(dlerror(), nullptr);
  EXPECT_EQ(dlmopen(LM_ID_NEWLM, "/no/such/library.so", RTLD_NOW), nullptr);
  EXPECT_NE(dlerror(), nullptr);
  EXPECT_EQ(dlopen("libno_such_library.so", RTLD_NOW), nullptr);
  EXPECT_NE(dlerror(), nullptr);
}

// The caller's own search path decides; a wrapper that calls dlopen itself would lose it.
TEST(OutOfReach, TheCallersSearchPathIsKept) {
  void* opener = dlopen(FIXTURES "/libopener.so", RTLD_NOW);
  ASSERT_NE(opener, nullptr) << dlerror();
  auto open = reinterpret_cast<void* (*)(const char*, int)>(dlsym(opener, "open_library"));
  EXPECT_NE(open("libonly_by_runpath.so", RTLD_NOW), nullptr) << dlerror();
  EXPECT_NE(open("libonly_by_runpath.so", RTLD_NOW | RTLD_DEEPBIND), nullptr) << dlerror();
}

}  // namespace
