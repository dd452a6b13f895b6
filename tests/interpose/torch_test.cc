// PyTorch's allocator reports, streams and autograd nodes, against a fixture that has PyTorch's symbols.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <string>
#include <thread>

#include "recorded_events.h"

namespace {

using gpumemtrace::recorder::Event;
using gpumemtrace::recorder::EventKind;

class Torch : public testing::Test {
 protected:
  explicit Torch(const char* library = FIXTURES "/libtorch_user.so") : library_(library) {}
  void SetUp() override {
    ASSERT_NE(gpumemtrace_test_count, nullptr) << "libgpumemtrace_test.so is not preloaded";
    // As Python opens an extension module.
    user_ = dlopen(library_, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(user_, nullptr) << dlerror();
    gpumemtrace_test_set_python_stack(0);
  }
  template <typename Function>
  Function Get(const char* name) {
    auto function = reinterpret_cast<Function>(dlsym(user_, name));
    EXPECT_NE(function, nullptr) << name;
    return function;
  }
  void Allocate() {
    Get<void (*)(void*, int64_t, uint64_t, uint64_t, int, int)>("user_report")(
        reinterpret_cast<void*>(0x1000), 512, 512, 2 << 20, 1, 0);
  }
  static Event Last() { return gpumemtrace_test_event(gpumemtrace_test_count() - 1); }

  const char* library_;
  void* user_ = nullptr;
};

TEST_F(Torch, EverySpellingIsRecordedAndForwarded) {
  auto report = Get<void (*)(void*, int64_t, uint64_t, uint64_t, int, int)>("user_report");
  errno = 5;
  report(reinterpret_cast<void*>(0x2000), 1024, 1024, 4096, 1, 3);
  EXPECT_EQ(errno, 5);
  ASSERT_EQ(gpumemtrace_test_count(), 1);
  EXPECT_EQ(Last().kind, EventKind::kBlockAllocate);
  EXPECT_EQ(Last().address, 0x2000u);
  EXPECT_EQ(Last().size, 1024u);
  EXPECT_EQ(Last().device, 3);
  EXPECT_EQ(Last().argument[0], 1024u);
  EXPECT_EQ(Last().argument[1], 4096u);
  report(reinterpret_cast<void*>(0x2000), -1024, 0, 4096, 1, 3);
  EXPECT_EQ(Last().kind, EventKind::kBlockFree);
  EXPECT_EQ(Last().size, 1024u);
  Get<void (*)(void*, int64_t, int64_t, int64_t)>("user_report_113")(reinterpret_cast<void*>(0x3000), 10, 10,
                                                                     20);
  EXPECT_EQ(Last().argument[1], 20u);
  Get<void (*)(void*, int64_t)>("user_report_109")(reinterpret_cast<void*>(0x4000), 7);
  EXPECT_EQ(Last().address, 0x4000u);
  Get<void (*)(int64_t)>("user_out_of_memory")(1 << 30);
  EXPECT_EQ(Last().kind, EventKind::kBlockOutOfMemory);
  EXPECT_EQ(Last().size, 1u << 30);
  EXPECT_EQ(Last().device, 1);
  Get<void (*)(int64_t)>("user_out_of_memory_113")(1 << 29);
  EXPECT_EQ(Last().size, 1u << 29);
  EXPECT_EQ(gpumemtrace_test_count(), 6);
  EXPECT_EQ(Get<int (*)()>("fixture_reports")(), 6);
  EXPECT_EQ(Get<int64_t (*)()>("fixture_reported_bytes")(), 17);
}

TEST_F(Torch, ReportsOfTheProcessorAreForwardedOnly) {
  Get<void (*)(void*, int64_t, uint64_t, uint64_t, int, int)>("user_report")(nullptr, 64, 0, 0, 0, -1);
  EXPECT_EQ(gpumemtrace_test_count(), 0);
  EXPECT_EQ(Get<int (*)()>("fixture_reports")(), 1);
}

TEST_F(Torch, BlocksCarryTheThreadsStream) {
  Get<void (*)(int, int64_t)>("user_set_stream")(0, 42);
  EXPECT_EQ(Get<int64_t (*)()>("fixture_stream")(), 42);
  Allocate();
  EXPECT_EQ(Last().stream, 42u);
  std::thread([&] {
    Allocate();
    EXPECT_EQ(Last().stream, 0u);
  }).join();
}

TEST_F(Torch, BackwardCarriesTheForwardLine) {
  auto next = Get<uint64_t (*)()>("user_next_number");
  auto make_node = Get<void* (*)(uint64_t, uint64_t)>("fixture_make_node");
  auto run = Get<void (*)(void*)>("fixture_run");
  const uint64_t forward_thread = Get<uint64_t (*)()>("user_thread")();
  gpumemtrace_test_set_python_stack(101);
  const uint64_t first = next();
  gpumemtrace_test_set_python_stack(102);
  const uint64_t second = next();
  void* first_node = make_node(first, forward_thread);
  void* second_node = make_node(second, forward_thread);
  Allocate();
  EXPECT_EQ(Last().forward_stack, 0u);
  std::thread([&] {
    run(second_node);
    Allocate();
    EXPECT_EQ(Last().forward_stack, 102u);
    // Double backward: a node made while a node runs belongs to the same line.
    const uint64_t third = next();
    void* third_node = make_node(third, Get<uint64_t (*)()>("user_thread")());
    run(first_node);
    Allocate();
    EXPECT_EQ(Last().forward_stack, 101u);
    run(third_node);
    Allocate();
    EXPECT_EQ(Last().forward_stack, 102u);
    // AccumulateGrad has no forward operation.
    run(make_node(~uint64_t{0}, forward_thread));
    Allocate();
    EXPECT_EQ(Last().forward_stack, 0u);
    run(nullptr);
    Allocate();
    EXPECT_EQ(Last().forward_stack, 0u);
  }).join();
  // The references that were taken are given back.
  EXPECT_EQ(Get<long (*)(void*)>("fixture_use_count")(first_node), 1);
}

// Numbers count per thread: two threads hand out the same ones.
TEST_F(Torch, EqualNumbersOfTwoThreadsAreToldApart) {
  auto next = Get<uint64_t (*)()>("user_next_number");
  auto make_node = Get<void* (*)(uint64_t, uint64_t)>("fixture_make_node");
  auto run = Get<void (*)(void*)>("fixture_run");
  void* nodes[2];
  for (int i = 0; i < 2; ++i) {
    std::thread([&, i] {
      gpumemtrace_test_set_python_stack(200 + static_cast<uint64_t>(i));
      const uint64_t number = next();
      EXPECT_EQ(number, 0u);
      nodes[i] = make_node(number, Get<uint64_t (*)()>("user_thread")());
    }).join();
  }
  for (int i = 0; i < 2; ++i) {
    run(nodes[i]);
    Allocate();
    EXPECT_EQ(Last().forward_stack, 200u + static_cast<uint64_t>(i));
  }
}

// A number that was never handed out, or was overwritten since, gives no line rather than a wrong one.
TEST_F(Torch, OldNumbersGiveNoLine) {
  auto next = Get<uint64_t (*)()>("user_next_number");
  auto make_node = Get<void* (*)(uint64_t, uint64_t)>("fixture_make_node");
  const uint64_t thread = Get<uint64_t (*)()>("user_thread")();
  gpumemtrace_test_set_python_stack(300);
  const uint64_t old = next();
  for (int i = 0; i < (1 << 18); ++i) {
    next();
  }
  Get<void (*)(void*)>("fixture_run")(make_node(old, thread));
  Allocate();
  EXPECT_EQ(Last().forward_stack, 0u);
}

class UnknownTorch : public Torch {
 protected:
  UnknownTorch() : Torch(FIXTURES "/libtorch_user_unknown.so") {}
};

TEST_F(UnknownTorch, AnUnknownLayoutSwitchesTheFeatureOffAndSaysSo) {
  auto next = Get<uint64_t (*)()>("user_next_number");
  auto make_node = Get<void* (*)(uint64_t, uint64_t)>("fixture_make_node");
  const uint64_t thread = Get<uint64_t (*)()>("user_thread")();
  gpumemtrace_test_set_python_stack(400);
  for (int i = 0; i < 100; ++i) {
    Get<void (*)(void*)>("fixture_run")(make_node(next(), thread));
    Allocate();
    EXPECT_EQ(Last().forward_stack, 0u);
  }
  ASSERT_EQ(gpumemtrace_test_note_count(), 1);
  EXPECT_NE(std::string(gpumemtrace_test_note(0)).find("forward line"), std::string::npos);
}

}  // namespace
