// What Capture promises to the recorder: definitions before uses, once each, again when asked; the same
// number for the same stack; nothing but arithmetic on the warm path.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/seccomp.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "chains.h"
#include "recorder/stacks/modules.h"
#include "recorder/stacks/own_code.h"
#include "recorder/stacks/stacks.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

namespace gpumemtrace::recorder::stacks {
namespace {

struct Module {
  std::string path;
  std::string build_id;
  uint64_t start;
  uint64_t end;
};

class Ring final : public DefinitionSink {
 public:
  bool DefineModule(const ModuleDefinition& module) override {
    if (Refuse()) return false;
    modules.push_back({std::string(module.path.begin(), module.path.end()),
                       std::string(module.build_id.begin(), module.build_id.end()), module.start,
                       module.end});
    return true;
  }
  bool DefineCode(const CodeDefinition&) override { return !Refuse(); }
  bool DefineStack(const StackDefinition& stack) override {
    if (Refuse()) return false;
    // Every module was defined before.
    for (const uint64_t address : stack.native) {
      const bool covered = std::any_of(modules.begin(), modules.end(), [&](const Module& module) {
        return address >= module.start && address < module.end;
      });
      if (!covered) ++uncovered;
    }
    ++defined;
    stacks[stack.number] = {stack.native.begin(), stack.native.end()};
    return true;
  }

  // Definitions to refuse before the next is accepted.
  int refusals = 0;
  std::vector<Module> modules;
  std::map<uint64_t, std::vector<uint64_t>> stacks;
  uint64_t defined = 0;
  uint64_t uncovered = 0;

 private:
  bool Refuse() {
    if (refusals == 0) return false;
    --refusals;
    return true;
  }
};

class Capturing : public testing::Test {
 protected:
  void SetUp() override {
    Prepare();
    SetOwnCode({});  // our own frames are what is to be seen
    thread_ = New();
  }
  void TearDown() override { munmap(thread_, kThreadStacksSize); }

  static ThreadStacks* New() {
    void* memory =
        mmap(nullptr, kThreadStacksSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    return static_cast<ThreadStacks*>(memory);
  }

  __attribute__((noinline)) uint64_t Look() { return Capture(*thread_, options_, ring_); }

  ThreadStacks* thread_ = nullptr;
  Ring ring_;
  CaptureOptions options_;
};

TEST_F(Capturing, SameStackSameNumberOneDefinition) {
  std::set<uint64_t> numbers;
  for (int i = 0; i < 100; ++i) numbers.insert(Look());
  EXPECT_EQ(numbers.size(), 1u);
  EXPECT_EQ(numbers.count(0), 0u);
  EXPECT_EQ(ring_.defined, 1u);
  EXPECT_EQ(ring_.uncovered, 0u);
  EXPECT_EQ(ring_.stacks.begin()->first, *numbers.begin());
  const uint64_t here = Look();
  EXPECT_EQ(numbers.count(here), 0u);
}

TEST_F(Capturing, ModulesAreDescribedAsTheyAre) {
  Look();
  ASSERT_GE(ring_.modules.size(), 2u);  // this program and the C library
  char self[4096];
  const ssize_t size = readlink("/proc/self/exe", self, sizeof(self));
  ASSERT_GT(size, 0);
  const Module* program = nullptr;
  std::set<std::string> paths;
  for (const Module& module : ring_.modules) {
    EXPECT_TRUE(paths.insert(module.path).second) << module.path << " twice";
    EXPECT_EQ(module.path[0], '/') << module.path;
    if (module.path == std::string(self, static_cast<size_t>(size))) program = &module;
  }
  ASSERT_NE(program, nullptr);
  EXPECT_EQ(program->build_id.size(), 20u);
  const auto here = reinterpret_cast<uint64_t>(&kThreadStacksSize);
  EXPECT_TRUE(here >= program->start && here < program->end);
}

TEST_F(Capturing, ARefusalIsTriedAgain) {
  for (int refusals = 1; refusals < 4; ++refusals) {
    Forget(*thread_);
    ring_ = Ring();
    ring_.refusals = refusals;
    int zeros = 0;
    uint64_t number = 0;
    for (int i = 0; i < 10 && number == 0; ++i) {
      number = Look();
      if (number == 0) ++zeros;
    }
    EXPECT_EQ(zeros, refusals);
    EXPECT_NE(number, 0u);
    EXPECT_EQ(ring_.defined, 1u);
    EXPECT_EQ(ring_.uncovered, 0u);
  }
}

TEST_F(Capturing, ForgettingDefinesAgainUnderTheSameNumber) {
  uint64_t numbers[2];
  for (uint64_t& number : numbers) {
    ring_ = Ring();
    number = Look();
    Forget(*thread_);
    EXPECT_EQ(ring_.defined, 1u);
    EXPECT_FALSE(ring_.modules.empty());
  }
  EXPECT_EQ(numbers[0], numbers[1]);
}

TEST_F(Capturing, NoneMeansNone) {
  options_.native = NativeDepth::kNone;
  EXPECT_EQ(Look(), 0u);
  EXPECT_EQ(ring_.defined, 0u);
}

TEST_F(Capturing, TheLimitHolds) {
  options_.max_native = 3;
  EXPECT_EQ(ring_.stacks[Look()].size(), 3u);
  options_.max_native = 65535;
  const size_t all = ring_.stacks[Look()].size();
  EXPECT_GT(all, 3u);
  options_.max_native = 0;
  EXPECT_EQ(Look(), 0u);
}

TEST_F(Capturing, ErrnoStays) {
  for (int i = 0; i < 3; ++i) {
    Forget(*thread_);
    errno = 12345;
    Look();
    EXPECT_EQ(errno, 12345);
  }
}

TEST_F(Capturing, ModulesAreDefinedAgainAfterAnUnload) {
  Look();
  const size_t before = ring_.modules.size();
  void* handle = dlopen(CHAINS_MODULE_PATH, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(handle, nullptr) << dlerror();
  ModulesChanged();
  const uint64_t generation = UnloadGeneration();
  Look();
  EXPECT_EQ(UnloadGeneration(), generation);
  EXPECT_EQ(ring_.modules.size(), before) << "loading alone changes no address";
  dlclose(handle);
  ModulesChanged();
  EXPECT_GT(UnloadGeneration(), generation);
  Look();
  EXPECT_GT(ring_.modules.size(), before);
}

// A stack through a module that is not where it was has the number of neither an older nor a newer one.
TEST_F(Capturing, AModuleOfAnotherContentIsAnotherStack) {
  struct Local {
    static void Next(Plan& plan) { (*reinterpret_cast<std::function<void()>*>(plan.random))(); }
  };
  std::set<uint64_t> numbers;
  for (int i = 0; i < 3; ++i) {
    void* handle = dlopen(CHAINS_MODULE_PATH, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(handle, nullptr) << dlerror();
    ModulesChanged();
    const auto module_shapes = reinterpret_cast<size_t (*)(const Shape**)>(dlsym(handle, "ModuleShapes"));
    const Shape* shapes;
    module_shapes(&shapes);
    std::function<void()> look = [&] { numbers.insert(Look()); };
    Plan plan;
    plan.next = Local::Next;
    plan.random = reinterpret_cast<uint64_t>(&look);
    shapes[0](plan);
    shapes[0](plan);
    dlclose(handle);
    ModulesChanged();
  }
  EXPECT_EQ(numbers.count(0), 0u);
  EXPECT_EQ(ring_.uncovered, 0u);
}

TEST_F(Capturing, ManyThreadsWhileModulesComeAndGo) {
  std::atomic<bool> stop{false};
  std::thread loader([&] {
    while (!stop.load(std::memory_order_relaxed)) {
      void* handle = dlopen(CHAINS_MODULE_PATH, RTLD_NOW | RTLD_LOCAL);
      ModulesChanged();
      Prepare();
      if (handle != nullptr) dlclose(handle);
      ModulesChanged();
    }
  });
  std::vector<std::thread> threads;
  std::atomic<uint64_t> uncovered{0};
  std::atomic<uint64_t> zeros{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      ThreadStacks* thread = New();
      Ring ring;
      for (int j = 0; j < 300; ++j) {
        std::vector<int> values = {3, 1, 2};
        std::sort(values.begin(), values.end(), [&](int a, int b) {
          if (Capture(*thread, options_, ring) == 0) ++zeros;
          return a < b;
        });
        if (j % 100 == 99) Forget(*thread);
      }
      uncovered += ring.uncovered;
      munmap(thread, kThreadStacksSize);
    });
  }
  for (std::thread& thread : threads) thread.join();
  stop = true;
  loader.join();
  EXPECT_EQ(uncovered, 0u);
  EXPECT_EQ(zeros, 0u);
}

#if !SANITIZED
// In a child that the kernel kills at any system call but exit.
TEST_F(Capturing, AWarmCaptureMakesNoSystemCall) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    AfterForkInChild();
    uint64_t last = 0;
    for (int i = 0; i < 100; ++i) {
      if (i == 50 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0) _exit(3);
      last = Look();
    }
    syscall(SYS_exit, last != 0 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}
#endif

}  // namespace
}  // namespace gpumemtrace::recorder::stacks
