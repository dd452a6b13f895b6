// A make-believe training program: lines of Python that allocate tensors through a caching allocator, lines
// of C++ that call the driver, and their frees, written as a trace.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/synthetic/caching_allocator.h"
#include "tests/synthetic/trace_builder.h"

namespace gpumemtrace::synthetic {

constexpr uint64_t kKiB = uint64_t{1} << 10;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

// A live tensor or driver allocation.
struct Memory {
  uint64_t birth = TraceBuilder::kNone;
  uint64_t address = 0;
  uint64_t size = 0;
  int32_t device = 0;
  bool block = true;
  Space space = DEVICE;
  uint32_t api = 0;
};

class Program {
 public:
  explicit Program(const std::string& path = "", uint64_t capacity = 80 * kGiB);

  TraceBuilder& trace() { return trace_; }
  // What follows happens on this device, or on a thread of this name ("" = the first one).
  void OnDevice(int32_t device);
  void OnThread(const std::string& name);

  // The same program after an edit above: all lines of the script come `lines` later.
  void ShiftLines(uint32_t lines) { shift_ = lines; }

  // Stacks. A user line, below it calls of a framework: "torch" puts Module.__call__ and functional in
  // between.
  Stack Line(uint32_t line) { return trace_.Python({Script(line)}); }
  // `line` of the script calls a function of the script that stands at `inner`.
  Stack Line(uint32_t line, uint32_t inner);
  // The line runs through `depth` frames of torch; `op` tells the innermost one apart.
  Stack Torch(uint32_t line, uint32_t op);
  // The line calls optimizer.step.
  Stack Optimizer(uint32_t line, uint32_t op);
  // The line calls module.to(device), and a parameter goes there.
  Stack Move(uint32_t line);
  // The line calls torch.load.
  Stack Load(uint32_t line);

  // A tensor. `native` tells ops of one Python line apart.
  Memory New(Stack python, uint64_t bytes, uint32_t op = 1, uint64_t stream = 0);
  // Made on an autograd thread for the forward line.
  Memory NewBackward(Stack forward, uint64_t bytes, uint32_t op = 1);
  // A driver allocation by `library` (a module path), from Python or native code.
  Memory Driver(Stack python, Stack native, Space space, uint64_t bytes,
                const std::string& api = "cudaMalloc");
  // At the address of `old`, whose release the recorder did not see.
  Memory DriverInPlaceOf(const Memory& old, Stack native);
  // A handle, e.g. of cublasCreate_v2.
  Memory Handle(Stack python, const std::string& api);
  void Free(const Memory& memory);
  void Free(std::vector<Memory>& memory) {
    for (const Memory& one : memory) Free(one);
    memory.clear();
  }
  // A driver allocation, while another device is the current one.
  void FreeOn(const Memory& memory, int32_t device, Stack native = 0);
  // cudaFree of an address that is not live: freed already, or never given. The driver answers with an error.
  void FreeAddress(uint64_t address, Stack native);
  void EmptyCache() { Allocator().EmptyCache(); }
  // The driver's own figure of the current device.
  void Read(uint64_t more_used = 0);

  // main + offset of the user's C++ program, outermost first.
  Stack Native(const std::vector<uint64_t>& offsets);
  // A function of a library, e.g. libnccl.so.2.
  Stack Library(const std::string& name, uint64_t offset);
  void Finish() { trace_.Finish(); }
  uint32_t script() const { return script_; }
  bool failed() const { return failed_; }

 private:
  CachingAllocator& Allocator();
  Call Script(uint32_t line) const { return {script_, line + shift_}; }

  TraceBuilder trace_;
  std::map<int32_t, std::unique_ptr<CachingAllocator>> allocators_;
  std::map<uint64_t, Memory> segments_;
  uint64_t capacity_;
  std::map<int32_t, uint64_t> driver_bytes_;
  int32_t device_ = 0;
  uint32_t thread_ = 1;
  uint32_t shift_ = 0;
  uint64_t next_address_ = uint64_t{0x7e} << 40;
  uint64_t next_handle_ = 0x1000;
  uint32_t script_;
  uint32_t module_call_;
  uint32_t functional_;
  uint32_t module_apply_;
  uint32_t optimizer_wrapper_;
  uint32_t optimizer_step_;
  uint32_t load_;
  uint32_t c10_;
  uint32_t torch_;
  uint32_t program_;
  uint32_t autograd_thread_;
  Stack current_python_ = 0;
  Stack current_native_ = 0;
  bool failed_ = false;
};

}  // namespace gpumemtrace::synthetic
