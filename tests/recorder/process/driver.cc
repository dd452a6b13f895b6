// A process that uses the recorder as the shim does, for tests that end, fork, starve or kill it. The first
// argument names what it does; it works in its working directory. Exit status 0 = as expected, 1 = not.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "recorder/recorder.h"
#include "tests/recorder/process/workload.h"

namespace gpumemtrace::tests {
#ifdef __SANITIZE_THREAD__
// ThreadSanitizer takes a descriptor for a shared object. A host that takes ours while the writer thread asks
// what it is races with it on purpose (Theft); what must hold, and is tested, is that no byte of ours reaches
// the host's file.
extern "C" const char* __tsan_default_suppressions();
extern "C" const char* __tsan_default_suppressions() {
  return "race:gpumemtrace::recorder::sys::Status\n";
}
#endif

namespace {

using recorder::Event;

void RecordWorkload(uint64_t thread, uint64_t begin, uint64_t end) {
  for (uint64_t i = begin; i < end; ++i) {
    Event event = WorkloadEvent(thread, i);
    if (event.kind == recorder::EventKind::kBlockFree) event.sequence = recorder::ReserveSequence();
    recorder::Record(event);
  }
}

[[noreturn]] void Fail(const char* what) {
  dprintf(2, "driver: %s\n", what);
  _exit(1);
}
void Require(bool condition, const char* what) {
  if (!condition) Fail(what);
}

void InThreads(uint64_t threads, uint64_t events) {
  std::vector<std::thread> all;
  for (uint64_t t = 0; t < threads; ++t) all.emplace_back(RecordWorkload, t, 0, events);
  for (std::thread& thread : all) thread.join();
}

uint64_t Number(char** arguments, int i) {
  return strtoull(arguments[i], nullptr, 10);
}

// events THREADS EVENTS
int Events(char** arguments) {
  InThreads(Number(arguments, 0), Number(arguments, 1));
  recorder::Finish();
  return 0;
}

// One counter per thread, a cache line each, in a file that survives.
struct alignas(64) Acknowledged {
  std::atomic<uint64_t> events;
};

// killed THREADS FILE: records for ever; counts each event whose Record has returned.
int Killed(char** arguments) {
  const uint64_t threads = Number(arguments, 0);
  const int fd = open(arguments[1], O_RDWR | O_CLOEXEC);
  auto* counts = static_cast<Acknowledged*>(
      mmap(nullptr, threads * sizeof(Acknowledged), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
  Require(counts != MAP_FAILED, "no acknowledge file");
  std::vector<std::thread> all;
  for (uint64_t t = 0; t < threads; ++t) {
    all.emplace_back([t, counts] {
      for (uint64_t i = 0;; ++i) {
        RecordWorkload(t, i, i + 1);
        counts[t].events.store(i + 1, std::memory_order_release);
      }
    });
  }
  for (std::thread& thread : all) thread.join();
  return 0;
}

// theft EVENTS: between events the host closes every descriptor and opens files of its own at every number.
int Theft(char** arguments) {
  const uint64_t events = Number(arguments, 0);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  const int most = static_cast<int>(limit.rlim_cur < 1024 ? limit.rlim_cur : 1024);
  mkdir("own", 0777);
  std::map<int, std::string> own;
  for (int round = 0; round < 6; ++round) {
    RecordWorkload(0, static_cast<uint64_t>(round) * events, static_cast<uint64_t>(round + 1) * events);
    for (int fd = 3; fd < most; ++fd) close(fd);
    own.clear();
    for (int number = 3; number < most; ++number) {
      const std::string name = "own/" + std::to_string(round) + "-" + std::to_string(number);
      const int fd = open(name.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
      if (fd < 0) break;
      Require(write(fd, name.data(), name.size()) == static_cast<ssize_t>(name.size()), "own write");
      own[fd] = name;
    }
    Require(own.size() > 900, "could not take the numbers");
    if (round == 2) {
      // And has freed them again when the recorder looks for one.
      for (const auto& [fd, name] : own) close(fd);
      own.clear();
    } else if (round > 2) {
      // One number must be left: a process that uses them all cannot open our file again.
      close(own.rbegin()->first);
      own.erase(std::prev(own.end()));
    }
  }
  recorder::Finish();
  for (const auto& [fd, name] : own) {
    char text[64];
    const ssize_t length = pread(fd, text, sizeof text, 0);
    Require(length == static_cast<ssize_t>(name.size()) && memcmp(text, name.data(), name.size()) == 0,
            "a file of the host was written to");
  }
  return 0;
}

int WaitFor(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void (*g_while_loading)() = nullptr;

// A child without the handlers that fork() runs, and without what fork() does for the loader's locks: whoever
// makes one has to see to it that no other thread holds these, as the recorder's writer does now and then. A
// constructor has the one, a visitor of the loaded objects has the other.
pid_t BareClone(const char* module) {
  static pid_t child;
  g_while_loading = [] {
    dl_iterate_phdr(
        [](dl_phdr_info*, size_t, void*) {
          child = static_cast<pid_t>(syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
          return 1;
        },
        nullptr);
  };
  Require(dlopen(module, RTLD_NOW) != nullptr, "the module cannot be loaded");
  return child;
}

// fork EVENTS MODULE: a child of fork(), one of a bare clone(), and the parent, each record; a third child
// does not.
int Fork(char** arguments) {
  const uint64_t events = Number(arguments, 0);
  std::thread busy([events] { RecordWorkload(1, 0, events); });
  RecordWorkload(0, 0, events);
  const pid_t child = fork();
  if (child == 0) {
    RecordWorkload(2, 0, events);
    recorder::Finish();
    _exit(0);
  }
  const pid_t silent = fork();
  if (silent == 0) {
    recorder::Finish();
    _exit(0);
  }
  const pid_t bare = BareClone(arguments[1]);
  if (bare == 0) {
    RecordWorkload(3, 0, events);
    recorder::Finish();
    _exit(0);
  }
  RecordWorkload(0, events, 2 * events);
  busy.join();
  Require(WaitFor(child) == 0 && WaitFor(silent) == 0 && WaitFor(bare) == 0, "a child failed");
  recorder::Finish();
  return 0;
}

// exec EVENTS: another program takes the process over.
int Exec(char** arguments) {
  RecordWorkload(0, 0, Number(arguments, 0));
  char self[] = "/proc/self/exe";
  char name[] = "driver";
  char what[] = "events";
  char threads[] = "1";
  char* next[] = {name, what, threads, arguments[0], nullptr};
  execv(self, next);
  return 1;
}

// leave EVENTS: without Finish.
int Leave(char** arguments) {
  RecordWorkload(0, 0, Number(arguments, 0));
  _exit(0);
}

// late EVENTS: events after Finish, from this and from another thread, and Finish again.
int Late(char** arguments) {
  const uint64_t events = Number(arguments, 0);
  RecordWorkload(0, 0, events);
  recorder::Finish();
  RecordWorkload(0, events, events + 40);
  std::thread other(RecordWorkload, 1, 0, 40);
  other.join();
  recorder::Finish();
  RecordWorkload(0, events + 40, events + 48);
  return 0;
}

// short-lived THREADS EVENTS: one after the other, eight at a time.
int ShortLived(char** arguments) {
  const uint64_t threads = Number(arguments, 0);
  const uint64_t events = Number(arguments, 1);
  std::vector<std::thread> all;
  for (uint64_t t = 0; t < threads; ++t) {
    all.emplace_back(RecordWorkload, t, 0, events);
    if (all.size() == 8) {
      for (std::thread& thread : all) thread.join();
      all.clear();
    }
  }
  for (std::thread& thread : all) thread.join();
  recorder::Finish();
  return 0;
}

pthread_key_t g_late_key;
uintptr_t g_late_rounds;
void RecordAtThreadEnd(void* value) {
  const auto round = reinterpret_cast<uintptr_t>(value);
  RecordWorkload(round, 0, 32);
  // Comes again, after the recorder's own destructor.
  if (round < g_late_rounds) pthread_setspecific(g_late_key, reinterpret_cast<void*>(round + 1));
}
// thread-end THREADS ROUNDS: events in so many rounds of destroying thread-specific data, also after our own.
int ThreadEnd(char** arguments) {
  g_late_rounds = Number(arguments, 1);
  pthread_key_create(&g_late_key, RecordAtThreadEnd);
  for (uint64_t t = 0; t < Number(arguments, 0); ++t) {
    std::thread thread([] {
      RecordWorkload(0, 0, 32);
      pthread_setspecific(g_late_key, reinterpret_cast<void*>(uintptr_t{1}));
    });
    thread.join();
  }
  recorder::Finish();
  return 0;
}

std::atomic<uint64_t> g_in_handler{0};
// signals EVENTS started|idle: a handler records too, whatever it interrupts; the recorder starts before, or
// perhaps in the handler.
int Signals(char** arguments) {
  const uint64_t before = strcmp(arguments[1], "started") == 0 ? 16 : 0;
  RecordWorkload(0, 0, before);
  struct sigaction action {};
  action.sa_handler = [](int) {
    const int saved = errno;
    Event event = WorkloadEvent(9, 15);
    recorder::Record(event);
    g_in_handler.fetch_add(1);
    errno = saved;
  };
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
  const pthread_t main_thread = pthread_self();
  std::atomic<bool> stop{false};
  std::thread sender([&] {
    while (!stop.load()) {
      pthread_kill(main_thread, SIGUSR1);
      sched_yield();
    }
  });
  RecordWorkload(0, before, Number(arguments, 0));
  stop.store(true);
  sender.join();
  recorder::Finish();
  printf("%llu\n", static_cast<unsigned long long>(g_in_handler.load()));
  return 0;
}

uint64_t g_events_while_loading = 0;
std::atomic<uint32_t> g_other_id{0};
std::thread g_other_thread;
// Whether the thread sleeps in the kernel (state S in proc(5)), or has ended.
bool Sleeps(uint32_t tid) {
  char path[64];
  snprintf(path, sizeof path, "/proc/self/task/%u/stat", tid);
  char text[256] = "";
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return true;
  const ssize_t length = read(fd, text, sizeof text - 1);
  close(fd);
  const char* name_end = length > 0 ? strrchr(text, ')') : nullptr;
  return name_end != nullptr && name_end[2] == 'S';
}
// loading MODULE EVENTS: a constructor of a library that is being loaded records, while another thread makes
// its first event and the set of loaded modules changes: both want the loader's lock, which the constructor's
// thread has.
void WhileLoading();
int Loading(char** arguments) {
  g_events_while_loading = Number(arguments, 1);
  g_while_loading = WhileLoading;
  // Who waits for ever ends.
  alarm(120);
  Require(dlopen(arguments[0], RTLD_NOW) != nullptr, "the module cannot be loaded");
  Require(g_other_thread.joinable(), "its constructor did not run");
  g_other_thread.join();
  recorder::Finish();
  return 0;
}
void WhileLoading() {
  g_other_thread = std::thread([] {
    g_other_id = static_cast<uint32_t>(syscall(SYS_gettid));
    RecordWorkload(1, 0, g_events_while_loading);
  });
  // It waits for the loader, or for us, or is through.
  uint32_t tid = 0;
  while ((tid = g_other_id) == 0) sched_yield();
  for (int looks = 0; looks < 100; ++looks) {
    while (!Sleeps(tid)) sched_yield();
  }
  for (uint64_t i = 0; i < g_events_while_loading; i += 8) {
    if (i % 4096 == 0) recorder::ModulesChanged();
    RecordWorkload(0, i, i + 8);
  }
}

// full EVENTS BYTES: the host's own limit on file sizes; a SIGXFSZ would kill it.
int FileSizeLimit(char** arguments) {
  const rlimit limit{Number(arguments, 1), RLIM_INFINITY};
  RecordWorkload(0, 0, 1);
  Require(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
  InThreads(2, Number(arguments, 0));
  recorder::Finish();
  return 0;
}

// vanish EVENTS: the folder of the trace is removed under it, and another file takes the name.
int Vanish(char** arguments) {
  RecordWorkload(0, 0, 16);
  Require(rename("out", "moved") == 0 && mkdir("out", 0777) == 0, "rename");
  const int fd = open("out/trace.pb", O_RDWR | O_CREAT | O_EXCL, 0600);
  Require(fd >= 0, "own file");
  // Descriptors are gone too, so that only the name is left.
  for (int other = 3; other < 1024; ++other) {
    if (other != fd) close(other);
  }
  RecordWorkload(0, 16, Number(arguments, 0));
  recorder::Finish();
  struct stat status;
  Require(fstat(fd, &status) == 0 && status.st_size == 0, "a file of the host was written to");
  return 0;
}

// errno EVENTS: errno, the signal mask and the cancellation state are what they were.
int Errno(char** arguments) {
  sigset_t before;
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGTERM);
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  pthread_sigmask(SIG_BLOCK, nullptr, &before);
  for (uint64_t i = 0; i < Number(arguments, 0); ++i) {
    errno = 4711;
    RecordWorkload(0, i, i + 1);
    Require(errno == 4711, "errno changed");
  }
  recorder::Finish();
  Require(errno == 4711, "errno changed by Finish");
  sigset_t after;
  pthread_sigmask(SIG_BLOCK, nullptr, &after);
  for (int signal = 1; signal < 32; ++signal) {
    Require(sigismember(&before, signal) == sigismember(&after, signal), "the signal mask changed");
  }
  int state = 0;
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
  Require(state == PTHREAD_CANCEL_ENABLE, "the cancellation state changed");
  return 0;
}

// idle: nothing was recorded.
int Idle(char**) {
  recorder::ModulesChanged();
  recorder::CancelSequence(0);
  Require(!recorder::Active(), "active without an event");
  recorder::Finish();
  return 0;
}

// inert EVENTS: switched off or impossible: everything may be called, nothing happens.
int Inert(char** arguments) {
  InThreads(4, Number(arguments, 0));
  Require(!recorder::Active(), "active");
  Require(!recorder::Activate(), "active");
  Require(recorder::CaptureForwardStack() == 0, "a stack");
  recorder::RecordMark(recorder::MarkKind::kInstant, recorder::MarkSource::kApi, "x", nullptr, 0);
  recorder::Finish();
  return 0;
}

int Main(int count, char** arguments) {
  const std::map<std::string, int (*)(char**)> commands = {
      {"events", Events},
      {"killed", Killed},
      {"theft", Theft},
      {"fork", Fork},
      {"exec", Exec},
      {"leave", Leave},
      {"late", Late},
      {"loading", Loading},
      {"short-lived", ShortLived},
      {"thread-end", ThreadEnd},
      {"signals", Signals},
      {"errno", Errno},
      {"vanish", Vanish},
      {"full", FileSizeLimit},
      {"idle", Idle},
      {"inert", Inert},
  };
  recorder::Initialize({kDriverNames, static_cast<uint16_t>(std::size(kDriverNames))});
  const auto found = count < 2 ? commands.end() : commands.find(arguments[1]);
  Require(found != commands.end(), "unknown command");
  return found->second(arguments + 2);
}

}  // namespace
}  // namespace gpumemtrace::tests

// Called by the constructor of process/loading_module.cc.
extern "C" __attribute__((visibility("default"))) void DriverWhileLoading();
extern "C" void DriverWhileLoading() {
  gpumemtrace::tests::g_while_loading();
}

int main(int count, char** arguments) {
  return gpumemtrace::tests::Main(count, arguments);
}
