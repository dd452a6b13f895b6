// Libraries that do not see our symbols: RTLD_DEEPBIND and dlmopen.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

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

// Every namespace has a dlsym of its own; one answer for all of them would reach one.
TEST(OutOfReach, SeveralNamespacesKeepTheirOwnLookUps) {
  ASSERT_NE(gpumemtrace_test_count, nullptr);
  gpumemtrace_test_clear();
  struct {
    int major;
    long (*allocate)();
  } libraries[] = {{12, nullptr}, {13, nullptr}, {12, nullptr}};
  for (auto& library : libraries) {
    const std::string path = std::string(FIXTURES "/liblooks_up_") + std::to_string(library.major) + ".so";
    void* handle = dlmopen(LM_ID_NEWLM, path.c_str(), RTLD_NOW);
    ASSERT_NE(handle, nullptr) << dlerror();
    library.allocate = reinterpret_cast<long (*)()>(dlsym(handle, "look_up_and_allocate"));
    ASSERT_NE(library.allocate, nullptr);
  }
  for (int round = 0; round < 2; ++round) {
    for (const auto& library : libraries) {
      EXPECT_EQ(library.allocate(), library.major);
    }
  }
  EXPECT_EQ(gpumemtrace_test_count(), 6);
  EXPECT_EQ(gpumemtrace_test_note_count(), 0);
}

// Five: glibc never gives back the thread-local storage of a namespace, so more of them fail without us, too.
TEST(OutOfReach, NamespacesThatComeAndGoAreReached) {
  ASSERT_NE(gpumemtrace_test_count, nullptr);
  for (int round = 0; round < 5; ++round) {
    gpumemtrace_test_clear();
    const int major = 12 + round % 2;
    const std::string path = std::string(FIXTURES "/liblooks_up_") + std::to_string(major) + ".so";
    void* handle = dlmopen(LM_ID_NEWLM, path.c_str(), RTLD_NOW);
    ASSERT_NE(handle, nullptr) << dlerror();
    ASSERT_EQ(reinterpret_cast<long (*)()>(dlsym(handle, "look_up_and_allocate"))(), major);
    ASSERT_EQ(gpumemtrace_test_count(), 1) << round;
    ASSERT_EQ(dlclose(handle), 0);
  }
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
}

// And it decides before RTLD_DEEPBIND, after which we would change references: such a load is named instead.
TEST(OutOfReach, TheCallersSearchPathIsKeptWithDeepBind) {
  ASSERT_NE(gpumemtrace_test_count, nullptr);
  void* opener = dlopen(FIXTURES "/libopener.so", RTLD_NOW);
  ASSERT_NE(opener, nullptr) << dlerror();
  auto open = reinterpret_cast<void* (*)(const char*, int)>(dlsym(opener, "open_library"));
  EXPECT_NE(open("libonly_by_runpath.so", RTLD_NOW | RTLD_DEEPBIND), nullptr) << dlerror();
}

}  // namespace
