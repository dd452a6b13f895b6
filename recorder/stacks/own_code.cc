#include "recorder/stacks/own_code.h"

#include <atomic>

#include "recorder/stacks/modules.h"

namespace gpumemtrace::recorder::stacks {
namespace {

constinit std::atomic<uint64_t> g_start{0};
constinit std::atomic<uint64_t> g_end{0};
constinit std::atomic<bool> g_known{false};

}  // namespace

CodeRange OwnCode() {
  return {g_start.load(std::memory_order_relaxed), g_end.load(std::memory_order_relaxed)};
}

void FindOwnCode() {
  if (g_known.load(std::memory_order_acquire)) return;
  CodeRange range;
  if (RangeOfObject(reinterpret_cast<uint64_t>(&FindOwnCode), range.start, range.end)) SetOwnCode(range);
}

void SetOwnCode(CodeRange range) {
  g_start.store(range.start, std::memory_order_relaxed);
  g_end.store(range.end, std::memory_order_relaxed);
  g_known.store(true, std::memory_order_release);
}

}  // namespace gpumemtrace::recorder::stacks
