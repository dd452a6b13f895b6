// See chains.h. Compiled several times; CHAINS_NAMESPACE names the copy.
#include "chains.h"

#include <alloca.h>
#include <setjmp.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>

namespace CHAINS_NAMESPACE {
namespace {

#define SHAPE __attribute__((noinline)) void

// Keeps a call from becoming a jump, and a value from being optimized away.
template <typename T>
inline void Keep(T& value) {
  __asm__ volatile("" : : "r"(&value) : "memory");
}

SHAPE Plain(Plan& plan) {
  plan.next(plan);
  Keep(plan);
}

SHAPE LargeFrame(Plan& plan) {
  char room[3000];
  std::memset(room, static_cast<int>(plan.Random()), sizeof(room));
  Keep(room);
  plan.next(plan);
  Keep(room);
}

SHAPE Dynamic(Plan& plan) {
  const size_t size = 16 + plan.Random() % 500;
  char* room = static_cast<char*>(alloca(size));
  std::memset(room, 1, size);
  Keep(room);
  plan.next(plan);
  Keep(room);
}

// Realigned: the CFA can only be found through a saved pointer.
SHAPE Aligned(Plan& plan) {
  alignas(64) char room[128];
  const size_t size = 16 + plan.Random() % 300;
  char* more = static_cast<char*>(alloca(size));
  std::memset(room, 2, sizeof(room));
  Keep(room);
  Keep(more);
  plan.next(plan);
  Keep(more);
  Keep(room);
}

// Uses all callee-saved registers, rbp among them when it is free.
SHAPE ManyRegisters(Plan& plan) {
  uint64_t a = plan.Random(), b = plan.Random(), c = plan.Random(), d = plan.Random(), e = plan.Random(),
           f = plan.Random(), g = plan.Random();
  for (int i = 0; i < 3; ++i) {
    a += b ^ c;
    b += c ^ d;
    c += d ^ e;
    d += e ^ f;
    e += f ^ g;
    f += g ^ a;
    g += a ^ b;
    if (i == 1) plan.next(plan);
  }
  uint64_t sum = a ^ b ^ c ^ d ^ e ^ f ^ g;
  Keep(sum);
}

// The call is in one branch of several, with the stack at another depth in each.
SHAPE Branches(Plan& plan) {
  switch (plan.Random() % 3) {
    case 0: {
      char* room = static_cast<char*>(alloca(plan.Random() % 64 + 1));
      Keep(room);
      plan.next(plan);
      Keep(room);
      break;
    }
    case 1:
      if (plan.Random() % 2 == 0) plan.next(plan);
      plan.next(plan);
      Keep(plan);
      break;
    default:
      plan.next(plan);
      Keep(plan);
  }
}

SHAPE ManyArguments(Plan& plan);
__attribute__((noinline)) uint64_t Take(Plan& plan, uint64_t a, uint64_t b, uint64_t c, uint64_t d,
                                        uint64_t e, uint64_t f, uint64_t g, uint64_t h, uint64_t i) {
  plan.next(plan);
  uint64_t sum = a + b + c + d + e + f + g + h + i;
  Keep(sum);
  return sum;
}
SHAPE ManyArguments(Plan& plan) {
  uint64_t sum = Take(plan, 1, 2, 3, 4, 5, 6, 7, 8, plan.Random());
  Keep(sum);
}

__attribute__((noinline)) int Variable(Plan* plan, ...) {
  va_list list;
  va_start(list, plan);
  int value = va_arg(list, int);
  va_end(list);
  plan->next(*plan);
  Keep(value);
  return value;
}
SHAPE CallsVariable(Plan& plan) {
  int value = Variable(&plan, 7, 1.5, "text");
  Keep(value);
}

thread_local Plan* t_plan = nullptr;

int Compare(const void*, const void*) {
  Plan* plan = t_plan;
  if (plan != nullptr) {
    t_plan = nullptr;
    plan->next(*plan);
  }
  return 0;
}
// Through the C library, over its PLT.
SHAPE ThroughSort(Plan& plan) {
  Plan* before = t_plan;
  t_plan = &plan;
  int values[4] = {4, 3, 2, 1};
  std::qsort(values, 4, sizeof(int), Compare);
  t_plan = before;
}

SHAPE ThroughFunction(Plan& plan) {
  const std::unique_ptr<int> value(new int(1));
  const std::function<void(int)> call = [&](int number) {
    plan.next(plan);
    Keep(number);
  };
  call(*value);
}

struct Base {
  virtual ~Base() = default;
  virtual void Go(Plan& plan) = 0;
};
struct Left : virtual Base {
  int left = 1;
};
struct Right : virtual Base {
  int right = 2;
};
struct Derived final : Left, Right {
  void Go(Plan& plan) override {
    plan.next(plan);
    Keep(*this);
  }
};
// Through a thunk.
SHAPE ThroughVirtual(Plan& plan) {
  Derived derived;
  Right* base = &derived;
  Keep(base);
  base->Go(plan);
}

__attribute__((noinline)) void Throw(int value) {
  if (value != 0) throw std::runtime_error("thrown");
}
// In a handler, while an exception is alive.
SHAPE InHandler(Plan& plan) {
  try {
    Throw(1);
  } catch (const std::exception& error) {
    plan.next(plan);
    Keep(error);
  }
}

struct AtScopeEnd {
  Plan& plan;
  explicit AtScopeEnd(Plan& p) : plan(p) {}
  ~AtScopeEnd() { plan.next(plan); }
};
// In a destructor that the unwinder of the C++ runtime calls.
SHAPE InCleanup(Plan& plan) {
  try {
    const AtScopeEnd guard(plan);
    Throw(1);
  } catch (const std::exception& error) {
    Keep(error);
  }
}

// The call leaves by an exception through all that lies above it.
struct Unwind {};
SHAPE LeavesByException(Plan& plan) {
  try {
    plan.next(plan);
    Throw(static_cast<int>(plan.Random() % 2));
  } catch (const std::exception&) {
    plan.next(plan);
    Keep(plan);
  }
}

SHAPE AfterLongJump(Plan& plan) {
  jmp_buf buffer;
  Plan* volatile kept = &plan;
  if (setjmp(buffer) == 0) {
    kept->next(*kept);
    longjmp(buffer, 1);
  }
  kept->next(*kept);
  Keep(plan);
}

SHAPE Twice(Plan& plan) {
  plan.next(plan);
  plan.next(plan);
  Keep(plan);
}

constexpr Shape kShapes[] = {Plain,         LargeFrame,        Dynamic,        Aligned,
                             ManyRegisters, Branches,          ManyArguments,  CallsVariable,
                             ThroughSort,   ThroughFunction,   ThroughVirtual, InHandler,
                             InCleanup,     LeavesByException, AfterLongJump,  Twice};

}  // namespace

size_t Shapes(const Shape** shapes) {
  *shapes = kShapes;
  return sizeof(kShapes) / sizeof(kShapes[0]);
}

}  // namespace CHAINS_NAMESPACE

#ifdef CHAINS_MODULE
extern "C" __attribute__((visibility("default"))) size_t ModuleShapes(const Shape** shapes) {
  return CHAINS_NAMESPACE::Shapes(shapes);
}
#endif
