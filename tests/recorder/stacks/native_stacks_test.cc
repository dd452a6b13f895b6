// Native stacks equal those that libunwind's unw_step gives, whatever the stack is made of.
#include "recorder/stacks/native.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "chains.h"
#include "recorder/stacks/eh_frame.h"
#include "recorder/stacks/libunwind_api.h"
#include "recorder/stacks/modules.h"
#include "recorder/stacks/own_code.h"
#include "recorder/stacks/stack_bounds.h"
#include "recorder/stacks/stacks.h"

#define UNW_LOCAL_ONLY
#include <libunwind.h>

namespace gpumemtrace::recorder::stacks {
namespace {

constexpr size_t kMost = 900;

ThreadStacks* NewStacks() {
  void* memory = mmap(nullptr, kThreadStacksSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return memory != MAP_FAILED ? static_cast<ThreadStacks*>(memory) : nullptr;
}

void DeleteStacks(ThreadStacks* stacks) {
  munmap(stacks, kThreadStacksSize);
}

// A stack by whose words others may be known again, and its addresses.
struct Path {
  KnownPath words;
  uint64_t generation;
  size_t count;
  uint64_t addresses[kMost];
};
// As many as three of the random programs below have.
constexpr size_t kPaths = 384;

// Two memories, so that each stack is seen once with and once without what the last one left; and the paths
// of earlier stacks.
struct Watch {
  ThreadStacks* incremental = NewStacks();
  ThreadStacks* fresh = NewStacks();
  ThreadStacks* pathfinder = NewStacks();
  std::vector<Path> paths{kPaths};
  size_t next_path = 0;
  uint64_t known_again = 0;
  uint64_t overlooked = 0;
  uint64_t without_path = 0;
  uint64_t checks = 0;
  uint64_t failures = 0;
  std::string first_failure;
  // Not on the stack, which may be small, and with room enough: handlers must not allocate.
  std::vector<uint64_t> expected;
  Watch() { expected.reserve(kMost); }
  ~Watch() {
    DeleteStacks(incremental);
    DeleteStacks(fresh);
    DeleteStacks(pathfinder);
  }
};
thread_local Watch* t_watch = nullptr;

std::string Describe(std::span<const uint64_t> addresses) {
  std::string text;
  for (const uint64_t address : addresses) {
    Dl_info info;
    char line[64];
    std::snprintf(line, sizeof(line), "%#llx ", static_cast<unsigned long long>(address));
    text += line;
    if (dladdr(reinterpret_cast<void*>(address), &info) != 0 && info.dli_sname != nullptr)
      text += info.dli_sname;
    text += "\n";
  }
  return text;
}

__attribute__((noinline)) bool SameBeyondFirst(std::span<const uint64_t> a, std::span<const uint64_t> b) {
  if (a.size() != b.size() || a.empty()) return false;
  return std::memcmp(a.data() + 1, b.data() + 1, (a.size() - 1) * sizeof(uint64_t)) == 0;
}

// Every path that knows the stack above `frame` again must be a path of that very stack, and a path of that
// stack must know it.
bool PathsTellTheTruth(Watch& watch, uint64_t frame, std::span<const uint64_t> expected) {
  ThreadStacks& thread = *watch.pathfinder;
  thread.generation = UnloadGeneration();
  const NativeWalk walk = WalkNativeFrom(frame, thread, nullptr, kMost);
  const std::span<const uint64_t> got = NativeAddresses(thread, walk);
  const uint64_t salt = PathSalt(thread, nullptr, kMost);
  const auto same = [](std::span<const uint64_t> a, std::span<const uint64_t> b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
  };
  bool truth = same(got, expected);
  for (const Path& path : watch.paths) {
    if (path.count == 0 || !PathIsInside(path.words, frame, thread)) continue;
    const bool known = PathCheck(path.words, frame, salt) == path.words.check;
    const bool equal = path.generation == thread.generation && same({path.addresses, path.count}, expected);
    if (known && !equal) truth = false;
    watch.known_again += known ? 1 : 0;
    // The same addresses may lie in frames of other sizes, where arrays have a length of their own.
    watch.overlooked += equal && !known ? 1 : 0;
  }
  if (thread.path.count == 0 || !PathIsInside(thread.path, frame, thread)) {
    ++watch.without_path;
    return truth;
  }
  Path& path = watch.paths[watch.next_path++ % kPaths];
  path.words = thread.path;
  path.words.check = PathCheck(path.words, frame, salt);
  path.generation = thread.generation;
  path.count = got.size();
  std::memcpy(path.addresses, got.data(), got.size_bytes());
  return truth;
}

// Compares the stacks of its caller. The first frame is this function, at different places in it.
__attribute__((noinline)) void Check() {
  Watch& watch = *t_watch;
  ++watch.checks;
  unw_context_t context;
  unw_cursor_t cursor;
  std::vector<uint64_t>& expected = watch.expected;
  expected.clear();
  unw_getcontext(&context);
  unw_init_local(&cursor, &context);
  do {
    unw_word_t address = 0;
    unw_get_reg(&cursor, UNW_REG_IP, &address);
    if (address == 0) break;
    expected.push_back(address);
  } while (unw_step(&cursor) > 0 && expected.size() < kMost);

  watch.incremental->generation = UnloadGeneration();
  const NativeWalk incremental = WalkNative(*watch.incremental, nullptr, kMost);
  const std::span<const uint64_t> got = NativeAddresses(*watch.incremental, incremental);
  watch.fresh->generation = UnloadGeneration();
  watch.fresh->remembered_count = 0;
  const NativeWalk fresh = WalkNative(*watch.fresh, nullptr, kMost);
  const std::span<const uint64_t> got_fresh = NativeAddresses(*watch.fresh, fresh);
  // Below the first frame, where the two calls differ, the same.
  const bool same = SameBeyondFirst(got, expected) && SameBeyondFirst(got_fresh, expected) &&
                    PathsTellTheTruth(watch, reinterpret_cast<uint64_t>(__builtin_frame_address(0)),
                                      std::span<const uint64_t>(expected).subspan(1));
  if (same) return;
  if (watch.failures++ == 0) {
    watch.first_failure = "unw_step:\n" + Describe(expected) + "incremental:\n" + Describe(got) + "fresh:\n" +
                          Describe(got_fresh);
  }
}

class NativeStacks : public testing::Test {
 protected:
  void SetUp() override {
    SetOwnCode({});  // our own frames are what is to be seen
    PrepareEhFrame();
    ASSERT_EQ(PrepareLibunwind(), nullptr);
    t_watch = &watch_;
    libunwind_walks_ = LibunwindWalks();
  }
  void TearDown() override {
    t_watch = nullptr;
    EXPECT_GT(watch_.checks, 0u);
    EXPECT_EQ(watch_.failures, 0u) << "of " << watch_.checks << "\n" << watch_.first_failure;
  }
  uint64_t LeftToLibunwind() const { return LibunwindWalks() - libunwind_walks_; }

  Watch watch_;
  uint64_t libunwind_walks_ = 0;
};

std::vector<Shape> AllShapes() {
  std::vector<Shape> all;
  const Shape* shapes;
  size_t count = with_frame_pointers::Shapes(&shapes);
  all.insert(all.end(), shapes, shapes + count);
  count = without_frame_pointers::Shapes(&shapes);
  all.insert(all.end(), shapes, shapes + count);
  return all;
}

std::vector<Shape> g_shapes;
std::atomic<int> g_budget{0};

// Goes deeper by a random shape, or looks.
__attribute__((noinline)) void Wander(Plan& plan) {
  if (g_budget.load(std::memory_order_relaxed) <= 0) return;
  if (plan.depth == 0 || plan.Random() % 8 == 0) {
    g_budget.fetch_sub(1, std::memory_order_relaxed);
    Check();
  }
  if (plan.depth == 0) return;
  --plan.depth;
  g_shapes[plan.Random() % g_shapes.size()](plan);
  ++plan.depth;
  if (plan.Random() % 8 == 0) Check();
}

void WanderFrom(uint64_t seed, int depth, int budget) {
  Plan plan;
  plan.next = Wander;
  plan.random = seed * 0x9e3779b97f4a7c15 | 1;
  g_budget = budget;
  while (g_budget > 0) {
    plan.depth = depth;
    Wander(plan);
  }
}

TEST_F(NativeStacks, EqualUnwStepOnRandomChains) {
  g_shapes = AllShapes();
  uint64_t known_before = 0;
  for (uint64_t i = 1; i <= 63; ++i) {
    if (i == 61) known_before = watch_.known_again;
    // The last three once more.
    const uint64_t seed = i <= 60 ? i : i - 3;
    WanderFrom(seed, static_cast<int>(5 + seed % 40), 100);
  }
  EXPECT_GT(watch_.checks, 6000u);
  // None of these is beyond the rules.
  EXPECT_EQ(LeftToLibunwind(), 0u);
  EXPECT_GT(watch_.known_again, known_before + 20);
  EXPECT_LE(watch_.overlooked, 20u);
  std::printf(
      "%llu known again, %llu overlooked, %llu of %llu without a path\n",
      static_cast<unsigned long long>(watch_.known_again), static_cast<unsigned long long>(watch_.overlooked),
      static_cast<unsigned long long>(watch_.without_path), static_cast<unsigned long long>(watch_.checks));
}

TEST_F(NativeStacks, EqualUnwStepInCodeLoadedLater) {
  for (int round = 0; round < 6; ++round) {
    void* handle = dlopen(CHAINS_MODULE_PATH, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(handle, nullptr) << dlerror();
    ModulesChanged();
    const auto module_shapes = reinterpret_cast<size_t (*)(const Shape**)>(dlsym(handle, "ModuleShapes"));
    ASSERT_NE(module_shapes, nullptr);
    const Shape* shapes;
    const size_t count = module_shapes(&shapes);
    g_shapes = AllShapes();
    g_shapes.insert(g_shapes.end(), shapes, shapes + count);
    WanderFrom(static_cast<uint64_t>(round) + 1, 25, 200);
    g_shapes.clear();
    dlclose(handle);
    const uint64_t before = UnloadGeneration();
    ModulesChanged();
    EXPECT_GT(UnloadGeneration(), before);
    // Something else may come to lie where the module was.
    if (round % 2 == 0) mmap(nullptr, 65536, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
}

// glibc before 2.35 has no lock-free lookup.
TEST_F(NativeStacks, EqualUnwStepWithTheLoadersList) {
  void* handle = dlopen(CHAINS_MODULE_PATH, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(handle, nullptr) << dlerror();
  dlclose(handle);
  ModulesChanged();  // so that no rule is known any more
  ForgetLoaderLookup();
  g_shapes = AllShapes();
  for (uint64_t seed = 1; seed <= 10; ++seed) WanderFrom(seed, 20, 50);
  EXPECT_EQ(LeftToLibunwind(), 0u);
}

void CheckInHandler(int) {
  Check();
  Check();
}

void InstallHandler(int signal, int flags) {
  struct sigaction action {};
  action.sa_handler = CheckInHandler;
  action.sa_flags = flags;
  sigemptyset(&action.sa_mask);
  ASSERT_EQ(sigaction(signal, &action, nullptr), 0);
}

void RaiseDeep(Plan& plan) {
  if (plan.depth == 0) {
    raise(SIGUSR1);
    // Interrupted at an instruction of ours, not in a call.
    __asm__ volatile("ud2");
    return;
  }
  --plan.depth;
  g_shapes[plan.Random() % g_shapes.size()](plan);
  ++plan.depth;
}

void CheckAndSkip(int, siginfo_t*, void* context) {
  Check();
  // Past the two bytes of ud2.
  static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP] += 2;
}

void RaiseFromManyPlaces() {
  struct sigaction action {};
  action.sa_sigaction = CheckAndSkip;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ASSERT_EQ(sigaction(SIGILL, &action, nullptr), 0);
  g_shapes = AllShapes();
  Plan plan;
  plan.next = RaiseDeep;
  for (int i = 0; i < 60; ++i) {
    plan.random = static_cast<uint64_t>(i) * 77 + 1;
    plan.depth = i % 7;
    RaiseDeep(plan);
  }
  signal(SIGILL, SIG_DFL);
}

TEST_F(NativeStacks, EqualUnwStepInSignalHandlers) {
  InstallHandler(SIGUSR1, 0);
  RaiseFromManyPlaces();
  EXPECT_GT(watch_.checks, 100u);
  EXPECT_EQ(LeftToLibunwind(), 0u);
}

TEST_F(NativeStacks, EqualUnwStepOnAlternateSignalStacks) {
  std::vector<char> memory(256 * 1024);
  stack_t stack{};
  stack.ss_sp = memory.data();
  stack.ss_size = memory.size();
  ASSERT_EQ(sigaltstack(&stack, nullptr), 0);
  InstallHandler(SIGUSR1, SA_ONSTACK);
  Check();  // the thread's own stack is known
  RaiseFromManyPlaces();
  EXPECT_EQ(LeftToLibunwind(), 0u);
  stack.ss_flags = SS_DISABLE;
  ASSERT_EQ(sigaltstack(&stack, nullptr), 0);
}

// libunwind, which is the reference here, frees what it keeps for a thread in the last round of destructors
// of thread-specific data, with a mutex; ThreadSanitizer's own data of the thread is gone by then, and it
// crashes.
#if !defined(__SANITIZE_THREAD__)
TEST_F(NativeStacks, EqualUnwStepWhenTheFirstLookIsOnASignalStack) {
  std::thread thread([this] {
    t_watch = &watch_;
    std::vector<char> memory(256 * 1024);
    stack_t stack{};
    stack.ss_sp = memory.data();
    stack.ss_size = memory.size();
    ASSERT_EQ(sigaltstack(&stack, nullptr), 0);
    InstallHandler(SIGUSR1, SA_ONSTACK);
    raise(SIGUSR1);
    Check();
    raise(SIGUSR1);
    stack.ss_flags = SS_DISABLE;
    ASSERT_EQ(sigaltstack(&stack, nullptr), 0);
  });
  thread.join();
}
#endif

StackBounds g_own_in_handler;
StackBounds g_signal_in_handler;
uint64_t g_sp_in_handler;
void LookInHandler(int) {
  g_sp_in_handler = reinterpret_cast<uint64_t>(__builtin_frame_address(0));
  g_own_in_handler = FindStackBounds(g_sp_in_handler);
  g_signal_in_handler = FindSignalStack(g_sp_in_handler);
}

// ThreadSanitizer reports what allocates in a handler.
TEST(StackBounds, AreFoundInAHandlerWithoutAllocating) {
  std::thread([] { EXPECT_TRUE(LearnWhereBoundsAre()); }).join();
  struct sigaction action {};
  action.sa_handler = LookInHandler;
  for (const bool alternate : {false, true}) {
    action.sa_flags = alternate ? SA_ONSTACK : 0;
    ASSERT_EQ(sigaction(SIGUSR1, &action, nullptr), 0);
    std::thread([] {
      std::vector<char> memory(256 * 1024);
      stack_t stack{};
      stack.ss_sp = memory.data();
      stack.ss_size = memory.size();
      ASSERT_EQ(sigaltstack(&stack, nullptr), 0);
      raise(SIGUSR1);
      stack.ss_flags = SS_DISABLE;
      ASSERT_EQ(sigaltstack(&stack, nullptr), 0);
    }).join();
    // ThreadSanitizer runs handlers where it likes.
    const bool on_own = g_own_in_handler.Contains(g_sp_in_handler);
    EXPECT_NE(on_own, g_signal_in_handler.Contains(g_sp_in_handler));
#if !defined(__SANITIZE_THREAD__)
    EXPECT_EQ(on_own, !alternate);
#endif
  }
  signal(SIGUSR1, SIG_DFL);
}

// Bounds that are read from where they were found are those that pthread_getattr_np tells.
TEST(StackBounds, AreThoseOfTheLibrary) {
  const auto compare = [] {
    pthread_attr_t attributes;
    void* low = nullptr;
    size_t bytes = 0;
    ASSERT_EQ(pthread_getattr_np(pthread_self(), &attributes), 0);
    pthread_attr_getstack(&attributes, &low, &bytes);
    pthread_attr_destroy(&attributes);
    const StackBounds bounds = FindStackBounds(reinterpret_cast<uint64_t>(__builtin_frame_address(0)));
    EXPECT_EQ(bounds.low, reinterpret_cast<uint64_t>(low));
    EXPECT_EQ(bounds.high, reinterpret_cast<uint64_t>(low) + bytes);
  };
  std::thread([] { EXPECT_TRUE(LearnWhereBoundsAre()); }).join();
  std::thread(compare).join();
  const auto run = [](void* function) -> void* {
    (*static_cast<decltype(compare)*>(function))();
    return nullptr;
  };
  auto function = compare;
  for (const bool own_memory : {false, true}) {
    constexpr size_t kBytes = size_t{1} << 20;
    void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, kBytes);
    if (own_memory) pthread_attr_setstack(&attributes, memory, kBytes);
    pthread_t thread;
    ASSERT_EQ(pthread_create(&thread, &attributes, run, &function), 0);
    pthread_join(thread, nullptr);
    pthread_attr_destroy(&attributes);
    munmap(memory, kBytes);
  }
}

ucontext_t g_main_context;
ucontext_t g_coroutine_context;

void Coroutine() {
  g_shapes = AllShapes();
  for (int i = 0; i < 5; ++i) {
    Check();
    swapcontext(&g_coroutine_context, &g_main_context);
  }
}

int LowestFreeDescriptor() {
  const int descriptor = dup(0);
  close(descriptor);
  return descriptor;
}

TEST_F(NativeStacks, EqualUnwStepInCoroutines) {
  [[maybe_unused]] const int lowest = LowestFreeDescriptor();
  std::vector<char> memory(256 * 1024);
  getcontext(&g_coroutine_context);
  g_coroutine_context.uc_stack.ss_sp = memory.data();
  g_coroutine_context.uc_stack.ss_size = memory.size();
  g_coroutine_context.uc_link = &g_main_context;
  makecontext(&g_coroutine_context, Coroutine, 0);
  for (int i = 0; i < 5; ++i) {
    Check();
    swapcontext(&g_main_context, &g_coroutine_context);
  }
  // The C library does not know that stack's extent.
  EXPECT_EQ(LeftToLibunwind(), 15u);
#if GPUMEMTRACE_LIBUNWIND_STATIC
  EXPECT_EQ(LowestFreeDescriptor(), lowest) << "libunwind has opened something";
#endif
}

// Code as a just-in-time compiler makes it: with frame pointers, without unwind information.
TEST_F(NativeStacks, EqualUnwStepBelowCodeWithoutUnwindInformation) {
  const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x90, 0x5d, 0xc3};
  void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memcpy(memory, code, sizeof(code));
  const auto call = reinterpret_cast<void (*)(void (*)())>(memory);
  for (int i = 0; i < 3; ++i) {
    call(Check);
    Check();
  }
  EXPECT_EQ(LeftToLibunwind(), 0u);
  munmap(memory, 4096);
}

// Runs `function` on a thread with a stack of `bytes`.
template <typename Function>
void OnSmallThread(size_t bytes, Function function) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, bytes), 0);
  pthread_t thread;
  ASSERT_EQ(pthread_create(
                &thread, &attributes,
                [](void* argument) -> void* {
                  (*static_cast<Function*>(argument))();
                  return nullptr;
                },
                &function),
            0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

TEST_F(NativeStacks, EqualUnwStepOnSmallStacks) {
  OnSmallThread(65536, [this] {
    t_watch = &watch_;
    g_shapes = AllShapes();
    WanderFrom(3, 4, 50);
  });
}

thread_local struct AtThreadEnd {
  Watch* watch = nullptr;
  ~AtThreadEnd() {
    if (watch == nullptr) return;
    t_watch = watch;
    Check();
  }
} t_at_thread_end;

TEST_F(NativeStacks, EqualUnwStepWhileThreadDataAreDestroyed) {
  std::thread([this] { t_at_thread_end.watch = &watch_; }).join();
}

TEST_F(NativeStacks, MemoryOfADeadThreadServesAnother) {
  for (int i = 0; i < 20; ++i) {
    OnSmallThread(static_cast<size_t>(64 + i % 3 * 64) * 1024, [this, i] {
      t_watch = &watch_;
      g_shapes = AllShapes();
      WanderFrom(static_cast<uint64_t>(i) + 1, 5, 20);
    });
  }
}

TEST_F(NativeStacks, DeepStacksAreCutAtTheLimit) {
  struct Local {
    static __attribute__((noinline)) void Down(Watch& watch, int depth, size_t most) {
      if (depth > 0) {
        Down(watch, depth - 1, most);
        __asm__ volatile("" ::: "memory");
        return;
      }
      for (int i = 0; i < 3; ++i) {
        const NativeWalk walk = WalkNative(*watch.incremental, nullptr, most);
        std::vector<uint64_t> cut(most);
        const auto got = NativeAddresses(*watch.incremental, walk);
        ASSERT_EQ(got.size(), most);
        std::copy(got.begin(), got.end(), cut.begin());
        const NativeWalk other = WalkByLibunwind(*watch.fresh, nullptr, kMaxFrames, 0);
        const auto all = NativeAddresses(*watch.fresh, other);
        // libunwind's first frame is inside WalkByLibunwind.
        size_t skip = 0;
        while (skip < all.size() && all[skip] != cut[1]) ++skip;
        ASSERT_LE(skip + most - 1, all.size());
        for (size_t j = 1; j < most; ++j) ASSERT_EQ(all[skip + j - 1], cut[j]);
      }
    }
  };
  watch_.incremental->generation = watch_.fresh->generation = UnloadGeneration();
  for (const size_t most : {size_t{10}, size_t{100}, size_t{128}}) {
    for (const int depth : {130, 200, 131}) Local::Down(watch_, depth, most);
  }
  Check();
}

}  // namespace
}  // namespace gpumemtrace::recorder::stacks
