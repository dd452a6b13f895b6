// See autograd.h.
//
// Every autograd node takes a number from at::sequence_number::get_and_increment() when the forward operation
// makes it, on the thread that has the Python frames. That call is hooked: (thread, number) → Python stack.
// While a node runs backward, torch::autograd::get_current_node() gives it, and the node says its number and
// the thread that made it. Numbers count per thread, so both are needed.
//
// The node's members are read at fixed offsets (torch/csrc/autograd/function.h, PyTorch 1.13 … 2.14). Nothing
// is believed that the hook did not see: a number counts only if it was handed out to that very thread, and
// if the first nodes do not check out, the whole feature is switched off with a note.
#include "interpose/torch/autograd.h"

#include <pthread.h>
#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>

#include "interpose/activation.h"
#include "interpose/hooks.h"
#include "interpose/original.h"
#include "recorder/recorder.h"

namespace gpumemtrace::interpose::torch {
namespace {

// Offsets: the vtable pointer (8) and enable_shared_from_this (16) come first.
constexpr size_t kSequenceOffset = 24;
constexpr size_t kHasParentOffset = 40;
constexpr size_t kThreadOffset = 48;
// Nodes without a forward operation (AccumulateGrad) have this number, so that they run first.
constexpr uint64_t kNoSequence = ~uint64_t{0};

// How many nodes may be made after one before its backward; older ones lose their line.
constexpr uint64_t kEntries = uint64_t{1} << 18;
constexpr int kMaxThreads = 256;

struct Entry {
  std::atomic<uint64_t> number_plus_1;
  std::atomic<uint64_t> stack;
};

// Numbers handed out to one thread. Outlives the thread: its nodes may run later.
struct ThreadNumbers {
  // at::RecordFunction::currentThreadId(): counted by PyTorch from 1, never reused.
  std::atomic<uint64_t> thread{0};
  std::atomic<uint64_t> first{kNoSequence};
  std::atomic<bool> thread_ended{false};
  std::atomic<Entry*> entries{nullptr};
};

ThreadNumbers threads[kMaxThreads];
std::atomic<int> thread_count{0};
// Which slot to look at first for reuse.
std::atomic<uint32_t> next_reuse{0};

thread_local constinit ThreadNumbers* own_numbers __attribute__((tls_model("initial-exec"))) = nullptr;
thread_local constinit ThreadNumbers* last_found __attribute__((tls_model("initial-exec"))) = nullptr;
thread_local constinit bool without_numbers __attribute__((tls_model("initial-exec"))) = false;

class Node;
using CurrentNodeFunction = std::shared_ptr<Node> (*)();
using ThreadIdFunction = uint64_t (*)();
std::atomic<CurrentNodeFunction> current_node{nullptr};
std::atomic<ThreadIdFunction> current_thread_id{nullptr};

enum State : int { kUnused, kOn, kOff };
std::atomic<int> state{kUnused};

// The start-up check.
constexpr uint32_t kNodesToCheck = 64;
std::atomic<uint32_t> nodes_good{0};
std::atomic<uint32_t> nodes_bad{0};

void SwitchOff(const char* why) {
  if (state.exchange(kOff) != kOff) {
    recorder::RecordNote(recorder::NoteSeverity::kWarning, why);
  }
}

void Judge(bool good) {
  const uint32_t goods = good ? nodes_good.fetch_add(1, std::memory_order_relaxed) + 1
                              : nodes_good.load(std::memory_order_relaxed);
  const uint32_t bads = good ? nodes_bad.load(std::memory_order_relaxed)
                             : nodes_bad.fetch_add(1, std::memory_order_relaxed) + 1;
  if (goods + bads >= kNodesToCheck && bads > goods) {
    SwitchOff(
        "Allocations of backward passes carry no forward line: this PyTorch lays out its autograd nodes in "
        "an "
        "unknown way");
  }
}

pthread_key_t end_of_thread;
pthread_once_t end_of_thread_once = PTHREAD_ONCE_INIT;
std::atomic<bool> have_end_of_thread{false};

void MakeEndOfThread() {
  have_end_of_thread =
      pthread_key_create(&end_of_thread, [](void* numbers) {
        static_cast<ThreadNumbers*>(numbers)->thread_ended.store(true, std::memory_order_release);
      }) == 0;
}

// A slot for the calling thread: a fresh one, or that of a thread that has ended. Null when there is none.
ThreadNumbers* ClaimNumbers() {
  const ThreadIdFunction thread_id = current_thread_id.load(std::memory_order_acquire);
  if (thread_id == nullptr) {
    return nullptr;
  }
  ThreadNumbers* claimed = nullptr;
  int count = thread_count.load(std::memory_order_relaxed);
  while (count < kMaxThreads && !thread_count.compare_exchange_weak(count, count + 1)) {
  }
  if (count < kMaxThreads) {
    claimed = &threads[count];
    void* memory = mmap(nullptr, kEntries * sizeof(Entry), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      return nullptr;
    }
    claimed->entries.store(static_cast<Entry*>(memory), std::memory_order_release);
  } else {
    for (int i = 0; i < kMaxThreads && claimed == nullptr; ++i) {
      ThreadNumbers& candidate = threads[next_reuse.fetch_add(1, std::memory_order_relaxed) % kMaxThreads];
      bool ended = true;
      if (candidate.thread_ended.compare_exchange_strong(ended, false)) {
        claimed = &candidate;
      }
    }
    if (claimed == nullptr) {
      return nullptr;
    }
    // Numbers of the old thread may look like ours; nobody may find them under the new thread's name.
    claimed->thread.store(0, std::memory_order_release);
    if (Entry* entries = claimed->entries.load(std::memory_order_acquire); entries != nullptr) {
      madvise(entries, kEntries * sizeof(Entry), MADV_DONTNEED);
    }
    claimed->first.store(kNoSequence, std::memory_order_relaxed);
  }
  claimed->thread.store(thread_id(), std::memory_order_release);
  pthread_once(&end_of_thread_once, MakeEndOfThread);
  if (have_end_of_thread) {
    pthread_setspecific(end_of_thread, claimed);
  }
  return claimed;
}

const ThreadNumbers* NumbersOf(uint64_t thread) {
  if (last_found != nullptr && last_found->thread.load(std::memory_order_acquire) == thread) {
    return last_found;
  }
  const int count = thread_count.load(std::memory_order_acquire);
  for (int i = 0; i < count && i < kMaxThreads; ++i) {
    if (threads[i].thread.load(std::memory_order_acquire) == thread) {
      last_found = &threads[i];
      return last_found;
    }
  }
  return nullptr;
}

template <typename T>
T ReadAt(const void* object, size_t offset) {
  T value;
  std::memcpy(&value, static_cast<const char*>(object) + offset, sizeof(value));
  return value;
}

uint64_t StackOf(const void* node) {
  const auto number = ReadAt<uint64_t>(node, kSequenceOffset);
  const auto thread = ReadAt<uint64_t>(node, kThreadOffset);
  if (number == kNoSequence) {
    return 0;
  }
  const ThreadNumbers* numbers =
      ReadAt<uint8_t>(node, kHasParentOffset) <= 1 && thread != 0 ? NumbersOf(thread) : nullptr;
  const bool checking =
      nodes_good.load(std::memory_order_relaxed) + nodes_bad.load(std::memory_order_relaxed) < kNodesToCheck;
  if (numbers == nullptr) {
    if (checking) {
      Judge(false);
    }
    return 0;
  }
  if (number < numbers->first.load(std::memory_order_acquire)) {
    return 0;  // Made before tracing began.
  }
  const Entry* entries = numbers->entries.load(std::memory_order_acquire);
  if (entries == nullptr) {
    return 0;
  }
  const Entry& entry = entries[number % kEntries];
  const uint64_t before = entry.number_plus_1.load(std::memory_order_acquire);
  const uint64_t stack = entry.stack.load(std::memory_order_acquire);
  const bool known = before == number + 1 && entry.number_plus_1.load(std::memory_order_acquire) == before;
  if (checking) {
    Judge(known);
  }
  return known ? stack : 0;
}

// First use in this process: libtorch is loaded, since it called us.
bool Prepare() {
  const auto node =
      reinterpret_cast<CurrentNodeFunction>(FindInTorch("_ZN5torch8autograd16get_current_nodeEv"));
  const auto thread =
      reinterpret_cast<ThreadIdFunction>(FindInTorch("_ZN2at14RecordFunction15currentThreadIdEv"));
  if (node == nullptr || thread == nullptr) {
    SwitchOff(
        "Allocations of backward passes carry no forward line: this PyTorch does not export what is needed");
    return false;
  }
  current_thread_id.store(thread, std::memory_order_release);
  current_node.store(node, std::memory_order_release);
  int unused = kUnused;
  state.compare_exchange_strong(unused, kOn);
  return true;
}

[[gnu::hot]] void RememberNumber(uint64_t number) {
  if (state.load(std::memory_order_acquire) == kUnused && !Prepare()) {
    return;
  }
  ThreadNumbers* numbers = own_numbers;
  if (numbers == nullptr) {
    if (without_numbers) {
      return;
    }
    numbers = own_numbers = ClaimNumbers();
    without_numbers = numbers == nullptr;
    if (numbers == nullptr) {
      return;
    }
  }
  uint64_t stack = recorder::CaptureForwardStack();
  if (stack == 0) {
    // Double backward makes nodes while a node runs, on a thread without Python: they belong to its line.
    stack = ForwardStackOfRunningNode();
  }
  Entry* entries = numbers->entries.load(std::memory_order_relaxed);
  Entry& entry = entries[number % kEntries];
  entry.number_plus_1.store(0, std::memory_order_release);
  entry.stack.store(stack, std::memory_order_release);
  entry.number_plus_1.store(number + 1, std::memory_order_release);
  if (numbers->first.load(std::memory_order_relaxed) == kNoSequence) {
    numbers->first.store(number, std::memory_order_release);
  }
}

[[gnu::hot]] uint64_t NextSequenceNumber(Call<uint64_t> call) {
  const uint64_t number = call();
  // A process that has not touched CUDA pays one look.
  if (recorder::Active() && state.load(std::memory_order_relaxed) != kOff) {
    const int saved_errno = errno;
    RememberNumber(number);
    errno = saved_errno;
  }
  return number;
}

}  // namespace

[[gnu::hot]] uint64_t ForwardStackOfRunningNode() {
  if (state.load(std::memory_order_acquire) != kOn) [[likely]] {
    return 0;
  }
  const CurrentNodeFunction get = current_node.load(std::memory_order_acquire);
  // The engine holds the node while it runs; our reference comes and goes within the call.
  const std::shared_ptr<Node> node = get();
  return node == nullptr ? 0 : StackOf(node.get());
}

}  // namespace gpumemtrace::interpose::torch

namespace gpumemtrace::interpose {
GPUMEMTRACE_TORCH_AUTOGRAD_HOOKS(GPUMEMTRACE_DEFINE_ENTRIES)
}  // namespace gpumemtrace::interpose
