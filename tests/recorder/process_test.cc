// Whole processes that record: how they end, fork, run out of things, and what is in the trace afterwards.
// Each test runs tests/recorder/process/driver.cc in a folder of its own.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "tests/recorder/process/workload.h"
#include "tests/recorder/support/trace_decoder.h"
#include "tests/recorder/support/writer_bench.h"

namespace gpumemtrace::tests {
namespace {

using Environment = std::map<std::string, std::string>;

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif
constexpr int kUsualKills = kSanitized ? 10 : 40;

class Process {
 public:
  Process(const std::string& folder, const std::vector<std::string>& arguments,
          const Environment& environment)
      : folder_(folder) {
    std::vector<std::string> variables = {"PATH=/usr/bin:/bin"};
    // Sanitizers' settings.
    for (const char* name : {"ASAN_OPTIONS", "TSAN_OPTIONS", "UBSAN_OPTIONS"}) {
      if (const char* value = getenv(name)) variables.push_back(std::string(name) + "=" + value);
    }
    for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
    std::vector<char*> argv = {const_cast<char*>(GPUMEMTRACE_RECORDER_DRIVER)};
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    std::vector<char*> envp;
    for (const std::string& variable : variables) envp.push_back(const_cast<char*>(variable.c_str()));
    envp.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      if (chdir(folder.c_str()) != 0) _exit(126);
      const int out = open("stdout", O_WRONLY | O_CREAT | O_TRUNC, 0600);
      const int err = open("stderr", O_WRONLY | O_CREAT | O_TRUNC, 0600);
      dup2(out, 1);
      dup2(err, 2);
      close(out);
      close(err);
      execve(argv[0], argv.data(), envp.data());
      _exit(127);
    }
  }
  pid_t pid() const { return pid_; }
  // Exit status, or 128 + signal.
  int Wait() {
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  std::string errors() const { return ReadFileBytes(folder_ + "/stderr"); }
  std::string output() const { return ReadFileBytes(folder_ + "/stdout"); }

 private:
  std::string folder_;
  pid_t pid_ = -1;
};

class ProcessTest : public testing::Test {
 protected:
  // Runs the driver to its end.
  void Run(const std::vector<std::string>& arguments, Environment environment = {}, int expected = 0) {
    environment.emplace("GPUMEMTRACE_STACKS", "none");
    Process process(folder_.path(), arguments, environment);
    EXPECT_EQ(process.Wait(), expected) << process.errors();
    errors_ = process.errors();
    output_ = process.output();
  }
  DecodedTrace Decode(const std::string& name = "trace.pb") {
    std::string error;
    auto trace = DecodeTrace(ReadFileBytes(folder_ / name), &error);
    EXPECT_TRUE(trace.has_value()) << error;
    return trace.value_or(DecodedTrace{});
  }
  // With what the rings still hold. The ring file is removed.
  DecodedTrace DecodeKilled(const std::string& name = "trace.pb") {
    std::string error;
    const std::string bytes = ReadFileBytes(folder_ / name);
    auto trace = DecodeTrace(bytes, &error);
    EXPECT_TRUE(trace.has_value()) << error;
    if (!trace.has_value()) return {};
    const std::string ring_file = trace->header.ring_file();
    auto all = DecodeTraceWithRings(bytes, ring_file.empty() ? "" : ReadFileBytes(ring_file), &error);
    EXPECT_TRUE(all.has_value()) << error;
    if (!ring_file.empty()) std::filesystem::remove(ring_file);
    return all.value_or(DecodedTrace{});
  }

  TemporaryFolder folder_;
  std::string errors_;
  std::string output_;
};

// Checks that the events of one thread are the first `count` of its workload, in order.
void ExpectWorkload(const DecodedTrace& trace, uint64_t thread, uint64_t count) {
  const uint64_t base = 0x7f0000000000 + (thread << 32);
  uint64_t i = 0;
  for (const DecodedEvent& event : trace.events) {
    if (event.address < base || event.address >= base + (uint64_t{1} << 32)) continue;
    const recorder::Event expected = WorkloadEvent(thread, i);
    ASSERT_EQ(static_cast<int>(event.kind), static_cast<int>(expected.kind)) << i;
    ASSERT_EQ(event.address, expected.address) << i;
    ASSERT_EQ(event.size, expected.size) << i;
    ASSERT_EQ(event.argument[0], expected.argument[0]) << i;
    ASSERT_EQ(event.argument[1], expected.argument[1]) << i;
    ASSERT_EQ(event.stream, expected.stream) << i;
    ASSERT_EQ(event.device, expected.device) << i;
    ASSERT_EQ(event.api, kDriverNames[expected.api]) << i;
    ++i;
  }
  EXPECT_EQ(i, count) << "thread " << thread;
}

bool NoRingFileOf(const DecodedTrace& trace) {
  return trace.header.ring_file().empty() || !std::filesystem::exists(trace.header.ring_file());
}

TEST_F(ProcessTest, RecordsEveryEventOfEveryThread) {
  Run({"events", "8", "20000"});
  const DecodedTrace trace = Decode();
  EXPECT_EQ(trace.events.size(), 160000u);
  for (uint64_t thread = 0; thread < 8; ++thread) ExpectWorkload(trace, thread, 20000);
  ASSERT_TRUE(trace.statistics.has_value());
  // A thread that finds its ring full does not wait for one that was stopped inside a call: then the order in
  // the file is not that of the numbers, which the trace tells all the same.
  uint64_t last = 0;
  for (const DecodedEvent& event : trace.events) {
    if (trace.statistics->full_rings() == 0) {
      ASSERT_GT(event.sequence, last);
    }
    last = event.sequence;
  }
  EXPECT_TRUE(trace.ended);
  EXPECT_EQ(trace.lost_in_statistics, 0u);
  EXPECT_TRUE(NoRingFileOf(trace));
  ASSERT_TRUE(trace.statistics.has_value());
  EXPECT_EQ(trace.statistics->events(), 160000u);
  EXPECT_GT(trace.statistics->sampled_hook_events(), 8u);
  EXPECT_EQ(errors_,
            "gpumemtrace: 160000 events written to trace.pb; read them with: gpumem-analyze trace.pb\n");
}

TEST_F(ProcessTest, HeaderTellsAboutTheProcessAndNothingSecret) {
  Run({"events", "1", "1"}, {{"SECRET_TOKEN", "hunter2"},
                             {"PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"},
                             {"NCCL_PROTO", "Simple"},
                             {"RANK", "3"},
                             {"WORLD_SIZE", "8"}});
  const DecodedTrace trace = Decode("trace.rank3.pb");
  EXPECT_EQ(trace.header.format_version(), 4u);
  ASSERT_EQ(trace.header.argument_size(), 4);
  EXPECT_EQ(trace.header.argument(1), "events");
  EXPECT_EQ(trace.header.rank(), 3u);
  EXPECT_EQ(trace.header.world_size(), 8u);
  EXPECT_EQ(trace.header.working_directory(), std::filesystem::canonical(folder_.path()));
  EXPECT_NE(trace.header.clock().monotonic_ns(), 0u);
  EXPECT_NE(trace.header.clock().realtime_ns(), 0u);
  std::map<std::string, std::string> kept;
  for (const auto& variable : trace.header.environment()) kept[variable.name()] = variable.value();
  EXPECT_EQ(kept["PYTORCH_CUDA_ALLOC_CONF"], "expandable_segments:True");
  EXPECT_EQ(kept["NCCL_PROTO"], "Simple");
  EXPECT_EQ(kept.count("PATH"), 0u);
  EXPECT_EQ(ReadFileBytes(folder_ / "trace.rank3.pb").find("hunter2"), std::string::npos);
}

TEST_F(ProcessTest, CommandLineCanBeLeftOut) {
  Run({"events", "1", "1"}, {{"GPUMEMTRACE_COMMAND_LINE", "0"}});
  EXPECT_EQ(Decode().header.argument_size(), 0);
}

TEST_F(ProcessTest, NeverOverwritesAndNeverFollowsALink) {
  std::ofstream(folder_ / "trace.pb") << "mine";
  std::filesystem::create_symlink(folder_ / "victim", folder_ / "trace.2.pb");
  Run({"events", "1", "10"});
  EXPECT_EQ(ReadFileBytes(folder_ / "trace.pb"), "mine");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "victim"));
  EXPECT_EQ(Decode("trace.3.pb").events.size(), 10u);
}

TEST_F(ProcessTest, OutputPattern) {
  Run({"events", "1", "10"},
      {{"GPUMEMTRACE_OUT", "run-%r-%%.trace"}, {"SLURM_PROCID", "5"}, {"SLURM_NTASKS", "9"}});
  EXPECT_EQ(Decode("run-5-%.trace").events.size(), 10u);
}

TEST_F(ProcessTest, UnwritableFolderIsOneLineAndTheHostRunsOn) {
  Run({"inert", "100"}, {{"GPUMEMTRACE_OUT", "/nonexistent/trace.pb"}});
  EXPECT_EQ(
      errors_,
      "gpumemtrace: /nonexistent/trace.pb cannot be created (No such file or directory); this process is not "
      "traced\n");
}

TEST_F(ProcessTest, SwitchedOffIsInert) {
  Run({"inert", "100"}, {{"GPUMEMTRACE", "0"}});
  EXPECT_EQ(errors_, "");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "trace.pb"));
}

TEST_F(ProcessTest, NothingHappensBeforeTheFirstEvent) {
  Run({"idle"});
  EXPECT_EQ(errors_, "");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "trace.pb"));
}

TEST_F(ProcessTest, MalformedOptionsAreNamedOnceAndDefaultsTaken) {
  Run({"events", "1", "5"}, {{"GPUMEMTRACE_FLUSH_MS", "soon"}, {"GPUMEMTRACE_COLOUR", "red"}});
  EXPECT_EQ(errors_,
            "gpumemtrace: GPUMEMTRACE_FLUSH_MS=soon is not understood; the default, 1000, is used\n"
            "gpumemtrace: GPUMEMTRACE_COLOUR is not an option and is ignored\n"
            "gpumemtrace: 5 events written to trace.pb; read them with: gpumem-analyze trace.pb\n");
  EXPECT_EQ(Decode().events.size(), 5u);
}

TEST_F(ProcessTest, FilesHaveTheUsersModeAndRingsAreOursAlone) {
  const mode_t old = umask(0027);
  Run({"leave", "100"});
  umask(old);
  struct stat status;
  ASSERT_EQ(stat((folder_ / "trace.pb").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0640u);
  const std::string ring_file = Decode().header.ring_file();
  ASSERT_EQ(stat(ring_file.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  DecodeKilled();
}

TEST_F(ProcessTest, LeavingWithoutFinishKeepsEverythingInTheRings) {
  Run({"leave", "5000"});
  const DecodedTrace trace = DecodeKilled();
  EXPECT_FALSE(trace.ended);
  ExpectWorkload(trace, 0, 5000);
}

TEST_F(ProcessTest, ForkedChildrenWriteTracesOfTheirOwn) {
  if (kThreadSanitizer) GTEST_SKIP() << "it does not let the child of a threaded process start threads";
  Run({"fork", "3000", GPUMEMTRACE_LOADING_MODULE});
  std::map<uint64_t, int> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("trace", 0) != 0) continue;
    const DecodedTrace trace = Decode(name);
    EXPECT_TRUE(trace.ended);
    EXPECT_TRUE(NoRingFileOf(trace));
    ASSERT_FALSE(trace.events.empty());
    const bool parent = trace.events.size() > 3000;
    if (parent) {
      ExpectWorkload(trace, 0, 6000);
      ExpectWorkload(trace, 1, 3000);
      ++found[0];
    } else {
      const uint64_t thread = (trace.events[0].address >> 32) - (uint64_t{0x7f0000000000} >> 32);
      ExpectWorkload(trace, thread, 3000);
      ++found[thread];
    }
  }
  EXPECT_EQ(found, (std::map<uint64_t, int>{{0, 1}, {2, 1}, {3, 1}}));
}

TEST_F(ProcessTest, ExecBeginsAnotherTrace) {
  Run({"exec", "2000"});
  ExpectWorkload(Decode("trace.2.pb"), 0, 2000);
  ExpectWorkload(DecodeKilled("trace.pb"), 0, 2000);
}

TEST_F(ProcessTest, EventsAfterFinishAreAppended) {
  Run({"late", "1000"});
  const DecodedTrace trace = Decode();
  ExpectWorkload(trace, 0, 1048);
  ExpectWorkload(trace, 1, 40);
  // The line comes once.
  EXPECT_EQ(std::count(errors_.begin(), errors_.end(), '\n'), 1);
}

TEST_F(ProcessTest, TenThousandShortLivedThreads) {
  // Sanitizers take milliseconds for each.
  const uint64_t threads = kSanitized ? 2000 : 10000;
  Run({"short-lived", std::to_string(threads), "16"});
  const DecodedTrace trace = Decode();
  EXPECT_EQ(trace.events.size(), threads * 16);
  for (uint64_t thread = 0; thread < threads; thread += 997) ExpectWorkload(trace, thread, 16);
  ASSERT_TRUE(trace.statistics.has_value());
  // Rings are reused: no more than threads at a time (and the main thread's).
  EXPECT_LE(trace.statistics->rings(), 12u);
  EXPECT_EQ(trace.lost_in_statistics, 0u);
}

TEST_F(ProcessTest, SixtyFourThreadsAtOnce) {
  // Room for all: where rings are full and a drain takes longer than a thread waits for it, on a machine that
  // is busy enough, events are lost (and counted), and small shared memory would make the last rings small.
  Run({"events", "64", "2000"}, {{"GPUMEMTRACE_RING_BYTES", "256K"}});
  const DecodedTrace trace = Decode();
  EXPECT_EQ(trace.events.size(), 128000u);
  for (uint64_t thread = 0; thread < 64; thread += 7) ExpectWorkload(trace, thread, 2000);
  EXPECT_EQ(trace.lost_in_statistics, 0u);
}

TEST_F(ProcessTest, NobodyWaitsForTheLoaderUnderALockOfOurs) {
  constexpr uint64_t kEvents = 40000;
  Run({"loading", GPUMEMTRACE_LOADING_MODULE, std::to_string(kEvents)}, {{"GPUMEMTRACE_RING_BYTES", "256K"}});
  const DecodedTrace trace = Decode();
  EXPECT_EQ(trace.events.size(), 2 * kEvents);
  EXPECT_EQ(trace.lost_in_statistics, 0u);
}

TEST_F(ProcessTest, EventsWhileAThreadIsTornDown) {
  // In the last round ThreadSanitizer has dropped its state of the thread, and takes the next one for a
  // rival.
  const unsigned rounds = PTHREAD_DESTRUCTOR_ITERATIONS - (kThreadSanitizer ? 1 : 0);
  Run({"thread-end", "50", std::to_string(rounds)});
  const DecodedTrace trace = Decode();
  EXPECT_EQ(trace.events.size(), 50u * 32u * (1 + rounds));
  EXPECT_EQ(trace.lost_in_statistics, 0u);
  ASSERT_TRUE(trace.statistics.has_value());
  // Rings of threads that died without giving them back are found again.
  EXPECT_LE(trace.statistics->rings(), 4u);
}

TEST_F(ProcessTest, SignalHandlersAreRecordedOrCounted) {
  // The start, once in a process, allocates (pthread_create and dlsym do), as any first call of CUDA does. In
  // a handler ThreadSanitizer calls that an error, whatever was interrupted; everything after it must be
  // right there, too.
  Run({"signals", "100000", kThreadSanitizer ? "started" : "idle"});
  const DecodedTrace trace = Decode();
  ExpectWorkload(trace, 0, 100000);
  const uint64_t from_handler = trace.events.size() - 100000;
  EXPECT_EQ(from_handler + trace.lost_in_statistics, std::stoull(output_));
}

TEST_F(ProcessTest, HostSeesNoTrace) {
  Run({"errno", "30000"}, {{"GPUMEMTRACE_RING_BYTES", "256K"}});
}

TEST_F(ProcessTest, DescriptorsThatTheHostTakes) {
  Run({"theft", "9000"}, {{"GPUMEMTRACE_RING_BYTES", "256K"}, {"GPUMEMTRACE_FLUSH_MS", "10"}});
  const DecodedTrace trace = Decode();
  // While the host used every number we could not write; what was lost then is counted.
  EXPECT_EQ(trace.events.size() + trace.lost_in_statistics, 54000u);
  EXPECT_TRUE(trace.ended);
}

TEST_F(ProcessTest, FileSizeLimitDoesNotKillTheHost) {
  Run({"full", "60000", "16384"}, {{"GPUMEMTRACE_RING_BYTES", "256K"}});
  const std::string bytes = ReadFileBytes(folder_ / "trace.pb");
  EXPECT_LE(bytes.size(), 16384u);
  const DecodedTrace trace = Decode();
  EXPECT_GT(trace.events.size(), 0u);
  EXPECT_EQ(trace.torn_bytes, 0u);
  EXPECT_NE(errors_.find("File too large"), std::string::npos) << errors_;
}

TEST_F(ProcessTest, FolderThatVanishes) {
  ASSERT_TRUE(std::filesystem::create_directory(folder_ / "out"));
  Run({"vanish", "30000"}, {{"GPUMEMTRACE_OUT", "out/trace.pb"}, {"GPUMEMTRACE_RING_BYTES", "256K"}});
  EXPECT_EQ(ReadFileBytes(folder_ / "out/trace.pb"), "");
  EXPECT_NE(errors_.find("is incomplete"), std::string::npos) << errors_;
}

TEST_F(ProcessTest, RingsBesideTheTraceOrPrivate) {
  Run({"leave", "3000"}, {{"GPUMEMTRACE_RINGS", "trace"}});
  const DecodedTrace trace = Decode();
  EXPECT_EQ(trace.header.ring_file(),
            std::filesystem::canonical(folder_.path()).string() + "/trace.pb.rings");
  ExpectWorkload(DecodeKilled(), 0, 3000);
  Run({"events", "2", "3000"}, {{"GPUMEMTRACE_RINGS", "private"}});
  const DecodedTrace second = Decode("trace.2.pb");
  EXPECT_EQ(second.header.ring_file(), "");
  ExpectWorkload(second, 0, 3000);
  ExpectWorkload(second, 1, 3000);
}

// SIGKILL at random moments: every event whose Record had returned is in the trace or in the rings, once.
TEST_F(ProcessTest, NothingIsLostToSigkill) {
  const char* wanted = getenv("GPUMEMTRACE_KILLS");
  const int kills = wanted == nullptr ? kUsualKills : atoi(wanted);
  constexpr uint64_t kThreads = 3;
  std::mt19937_64 random(20261130);
  uint64_t all_events = 0;
  uint64_t from_rings = 0;
  int torn = 0;
  for (int kill_number = 0; kill_number < kills; ++kill_number) {
    const std::string counts_path = folder_ / "counts";
    const int fd = open(counts_path.c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
    ASSERT_EQ(ftruncate(fd, 64 * kThreads), 0);
    auto* counts =
        static_cast<const volatile uint64_t*>(mmap(nullptr, 64 * kThreads, PROT_READ, MAP_SHARED, fd, 0));
    close(fd);
    ASSERT_NE(static_cast<const volatile void*>(counts), MAP_FAILED);
    {
      Process process(folder_.path(), {"killed", std::to_string(kThreads), counts_path},
                      {{"GPUMEMTRACE_STACKS", kill_number % 4 == 0 ? "both" : "none"},
                       {"GPUMEMTRACE_RING_BYTES", "256K"},
                       {"GPUMEMTRACE_FLUSH_MS", "10"},
                       {"GPUMEMTRACE_RINGS", kill_number % 2 == 0 ? "shm" : "trace"}});
      // Not before it records, and then at any moment of its first milliseconds.
      while (counts[0] == 0 && kill(process.pid(), 0) == 0) usleep(200);
      usleep(static_cast<useconds_t>(random() % 40000));
      kill(process.pid(), SIGKILL);
      EXPECT_EQ(process.Wait(), 128 + SIGKILL) << process.errors();
    }
    const DecodedTrace trace = DecodeKilled();
    if (HasFailure()) return;
    std::vector<uint64_t> found(kThreads);
    for (const DecodedEvent& event : trace.events) {
      from_rings += event.from_ring;
      const uint64_t thread = (event.address - 0x7f0000000000) >> 32;
      ASSERT_LT(thread, kThreads);
      ++found[thread];
    }
    for (uint64_t thread = 0; thread < kThreads; ++thread) {
      const uint64_t returned = counts[thread * 8];
      // One more may have been recorded and not yet returned.
      EXPECT_GE(found[thread], returned);
      EXPECT_LE(found[thread], returned + 1);
      ExpectWorkload(trace, thread, found[thread]);
    }
    all_events += trace.events.size();
    torn += trace.torn_bytes != 0;
    munmap(const_cast<uint64_t*>(counts), 64 * kThreads);
    std::filesystem::remove(folder_ / "trace.pb");
    if (HasFailure()) return;
  }
  RecordProperty("kills", kills);
  printf("%d kills, %llu events, %llu of them from rings, %d torn last packets\n", kills,
         static_cast<unsigned long long>(all_events), static_cast<unsigned long long>(from_rings), torn);
}

}  // namespace
}  // namespace gpumemtrace::tests
