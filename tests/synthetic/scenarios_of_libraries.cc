// What frameworks, libraries and the driver keep by themselves: graphs, plans, pools, modules, state, buffers
// of communication; kept by mistake or within a bound.
#include <algorithm>
#include <map>
#include <string>

#include "tests/synthetic/scenario_lists.h"
#include "tests/synthetic/training.h"

namespace gpumemtrace::synthetic {
namespace {

constexpr char kPool[] = "xla_cuda_plugin.so";

Truth PlanPerShape(Program& p, uint64_t seed, uint64_t shapes, bool leaks) {
  // A plan of a Fourier transform and its work area for each length that was not met before.
  Training t(p, seed);
  std::map<uint64_t, Memory> plans;
  const uint64_t steps = 60 + seed;
  t.Train(steps, false, [&](uint64_t s) {
    const uint64_t shape = leaks ? s : t.Random(0, shapes - 1);
    if (plans.contains(shape)) return;
    p.Handle(p.Line(38, 133), "cufftPlanMany");
    plans[shape] =
        p.Driver(p.Line(38, 133), p.Library("libcufft.so.11", 0x700), DEVICE, 8 * kMiB, "cudaMalloc");
  });
  return {leaks ? "leak" : "clean", leaks ? std::vector<uint32_t>{133} : std::vector<uint32_t>{},
          leaks ? 8.0 * kMiB : 0, steps};
}

Truth PlanPerCall(Program& p, uint64_t seed) {
  return PlanPerShape(p, seed, 0, true);
}

Truth PlansOfFewShapes(Program& p, uint64_t seed) {
  return PlanPerShape(p, seed, 10, false);
}

Truth GraphsByShape(Program& p, uint64_t seed) {
  // A graph is captured for each of a dozen shapes: a private pool and an executable graph each, then
  // replays.
  Training t(p, seed);
  std::map<uint64_t, bool> captured;
  const uint64_t steps = 120 + seed;
  t.Train(steps, false, [&](uint64_t) {
    const uint64_t shape = t.Random(1, 12);
    if (captured[shape]) return;
    captured[shape] = true;
    p.New(p.Line(46, 202), (10 + 2 * shape) * kMiB, 41, 500 + shape);
    p.Handle(p.Line(46, 203), "cudaGraphInstantiate");
  });
  return {"clean", {}, 0, steps};
}

Truth ModulePerCall(Program& p, uint64_t seed) {
  // The same kernel is compiled and loaded anew in each step; the driver's own figure tells what it takes.
  Training t(p, seed);
  const uint64_t steps = 30 + seed;
  t.Train(steps, false, [&](uint64_t s) {
    p.Handle(p.Line(38, 133), "cuModuleLoadData");
    p.Read((s + 1) * 2 * kMiB);
  });
  return {"leak", {133}, 2.0 * kMiB, steps};
}

Truth ModulesAtFirst(Program& p, uint64_t seed) {
  // Kernels are loaded when they are first launched, most of them in the first steps.
  Training t(p, seed);
  const uint64_t steps = 40 + seed;
  uint64_t modules = 0;
  t.Train(steps, false, [&](uint64_t s) {
    for (uint64_t i = s < 4 ? 5 - s : 0; i > 0; --i, ++modules) p.Handle(p.Line(38, 133), "cuModuleLoadData");
    p.Read(modules * 2 * kMiB);
  });
  return {"clean", {}, 0, steps};
}

Truth HandleMadeAndDestroyed(Program& p, uint64_t seed) {
  // Wasteful, but it does not grow.
  Training t(p, seed);
  const uint64_t steps = 40 + seed;
  t.Train(steps, false, [&](uint64_t) {
    const Memory handle = p.Handle(p.Line(38, 133), "cublasCreate_v2");
    const Memory workspace =
        p.Driver(p.Line(38, 133), p.Library("libcublas.so.12", 0x500), DEVICE, 32 * kMiB, "cudaMalloc");
    p.Free(workspace);
    p.Free(handle);
  });
  return {"clean", {}, 0, steps};
}

Truth MappingsOfOthersKept(Program& p, uint64_t seed) {
  // Memory of a sending process is opened for each message and never closed.
  Training t(p, seed);
  const uint64_t steps = 30 + seed;
  t.Train(steps, false,
          [&](uint64_t) { p.Driver(p.Line(53), 0, ALIAS, 16 * kMiB, "cuIpcOpenMemHandle_v2"); });
  return {"leak", {53}, 16.0 * kMiB, steps};
}

Truth MappingsOfOthersClosed(Program& p, uint64_t seed) {
  Training t(p, seed);
  Bounded open(p, 3);
  const uint64_t steps = 30 + seed;
  t.Train(steps, false,
          [&](uint64_t) { open.Push(p.Driver(p.Line(53), 0, ALIAS, 16 * kMiB, "cuIpcOpenMemHandle_v2")); });
  return {"clean", {}, 0, steps};
}

Truth RegisteredPerBatch(Program& p, uint64_t seed) {
  // Host memory is pinned for each batch and never released.
  Training t(p, seed);
  const uint64_t steps = 30 + seed;
  t.Train(steps, false,
          [&](uint64_t) { p.Driver(p.Line(19), 0, REGISTERED_HOST, 2 * kMiB, "cudaHostRegister"); });
  return {"leak", {19}, 2.0 * kMiB, steps};
}

Truth PinnedCacheFills(Program& p, uint64_t seed) {
  // The host allocator keeps what it pinned, by powers of two, and soon has enough of each.
  Training t(p, seed);
  std::map<uint64_t, uint64_t> have;
  const uint64_t steps = 120 + seed;
  t.Train(steps, true, [&](uint64_t) {
    const uint64_t power = t.Random(0, 5);
    if (have[power] >= 2) return;
    ++have[power];
    p.Driver(p.Line(19), 0, PINNED_HOST, kMiB << power, "cudaHostAlloc");
  });
  return {"clean", {}, 0, steps};
}

Truth PoolOfTheDriverKeeps(Program& p, uint64_t seed) {
  // cudaMallocAsync with a release threshold: all is freed, and the pool keeps what it once needed.
  const uint64_t steps = 60 + seed;
  std::mt19937_64 random(seed);
  p.Driver(p.Line(kModelLine), 0, STREAM_ORDERED, 256 * kMiB, "cudaMallocAsync");
  uint64_t most = 0;
  for (uint64_t s = 0; s < steps; ++s) {
    const uint64_t bytes = (1 + random() % 16) * 4 * kMiB;
    const Memory x = p.Driver(p.Line(kInputLine), 0, STREAM_ORDERED, bytes, "cudaMallocAsync");
    const Memory y = p.Driver(p.Line(kForwardLine), 0, STREAM_ORDERED, 2 * bytes, "cudaMallocAsync");
    most = std::max(most, 3 * bytes);
    p.Free(x);
    p.Free(y);
    p.Read(most);
  }
  return {"clean", {}, 0, steps};
}

// A pool that takes ever larger regions of the driver and gives none back, under ranges that XLA marks.
void JaxSteps(Program& p, uint64_t steps, uint64_t kept_per_step, uint64_t working) {
  uint64_t region = 2 * kMiB;
  uint64_t have = 0;
  for (uint64_t s = 0; s < steps; ++s) {
    p.trace().Mark(Mark::PUSH, "XlaModule:#hlo_module=jit_step", 0);
    const uint64_t need = working + (s + 1) * kept_per_step;
    while (have < need) {
      p.Driver(p.Line(35), p.Library(kPool, 0x9000), DEVICE, region, "cuMemAlloc_v2");
      have += region;
      region *= 2;
    }
    // What a step does on the device shows in events of the stream alone.
    const Memory event = p.Handle(p.Line(35), "cuEventCreate");
    p.Free(event);
    p.trace().Mark(Mark::POP, "", 0);
  }
}

Truth JaxKeepsArrays(Program& p, uint64_t seed) {
  JaxSteps(p, 60 + seed, 4 * kMiB, 2 * kMiB);
  return {"leak", {35}, 0, 0};
}

Truth JaxHealthy(Program& p, uint64_t seed) {
  JaxSteps(p, 60 + seed, 0, (20 + seed) * kMiB);
  return {"clean", {}, 0, 0};
}

Truth ArraysOfCuPyKept(Program& p, uint64_t seed) {
  // Every slice that is kept keeps its whole array, and the pool asks the driver for each.
  const uint64_t steps = 30 + seed;
  const Stack pool = p.Library("cupy_backends.so", 0x400);
  for (uint64_t s = 0; s < steps; ++s) {
    p.Driver(p.Line(18), pool, DEVICE, 4 * kMiB, "cudaMalloc");
    if (s == 0) p.Driver(p.Line(20), pool, DEVICE, 2 * kMiB, "cudaMalloc");
  }
  return {"leak", {18}, 4.0 * kMiB, steps};
}

Truth ServerOfRequests(Program& p, uint64_t seed) {
  // A C++ server: each request makes three buffers, and one path out of its function forgets the third.
  const uint64_t requests = 80 + seed;
  std::mt19937_64 random(seed);
  for (uint64_t request = 0; request < requests; ++request) {
    const Memory in = p.Driver(0, p.Native({0x100, 0x500, 0x610}), DEVICE, (1 + random() % 4) * kMiB);
    const Memory work = p.Driver(0, p.Native({0x100, 0x500, 0x620}), DEVICE, 8 * kMiB);
    const Memory out = p.Driver(0, p.Native({0x100, 0x500, 0x630}), DEVICE, kMiB);
    p.Free(in);
    p.Free(work);
    if (random() % 3 != 0) p.Free(out);
  }
  return {"leak", {}, 0, 0};
}

Truth ServerOfRequestsHealthy(Program& p, uint64_t seed) {
  // And one whose arena is doubled whenever a request does not fit.
  const uint64_t requests = 80 + seed;
  std::mt19937_64 random(seed);
  Memory arena;
  uint64_t size = 0;
  for (uint64_t request = 0; request < requests; ++request) {
    const Memory in = p.Driver(0, p.Native({0x100, 0x500, 0x610}), DEVICE, (1 + random() % 4) * kMiB);
    const uint64_t need = (1 + random() % 64) * kMiB;
    if (need > size) {
      if (size != 0) p.Free(arena);
      size = std::max(need, 2 * size);
      arena = p.Driver(0, p.Native({0x100, 0x500, 0x640}), DEVICE, size);
    }
    p.Free(in);
  }
  return {"clean", {}, 0, 0};
}

Truth GrowsByDoubling(Program& p, uint64_t seed) {
  // A vector on the device that doubles when it is full: few, large, ever rarer steps.
  Training t(p, seed);
  Memory vector = p.New(p.Line(14), 2 * kMiB, 41);
  uint64_t size = 2 * kMiB;
  const uint64_t steps = 300 + seed;
  t.Train(steps, true, [&](uint64_t s) {
    if ((s + 1) * 256 * kKiB <= size) return;
    size *= 2;
    const Memory next = p.New(p.Line(17), size, 42);
    p.Free(vector);
    vector = next;
  });
  return {"clean", {}, 0, steps};
}

Truth CacheOfTheAnswerGoes(Program& p, uint64_t seed) {
  // Keys and values grow by concatenation through an answer, and go with it: the same sizes come again. Two
  // of them are alive at once in every token, which is most of the peak.
  for (uint64_t request = 0; request < 30 + seed; ++request) {
    Memory cache = p.New(p.Line(14), 2 * kMiB, 1);
    for (uint64_t token = 0; token < 12; ++token) {
      const Memory fresh = p.New(p.Line(16), 2 * kMiB, 2);
      const Memory grown = p.New(p.Line(17), (2 + token) * 2 * kMiB, 3);
      p.Free(cache);
      p.Free(fresh);
      cache = grown;
    }
    p.Free(cache);
  }
  return {"peak", {17}, 0, 0};
}

Truth LayersGatheredAndFreed(Program& p, uint64_t seed) {
  // Sharded weights: each layer is gathered before it is used, the next one already under way.
  Memories shards;
  for (uint32_t i = 0; i < 6; ++i) shards.push_back(p.New(p.Line(kModelLine), 4 * kMiB, 1));
  for (uint64_t s = 0; s < 30 + seed; ++s) {
    Bounded whole(p, 2);
    Memories activations;
    for (uint32_t i = 0; i < 6; ++i) {
      whole.Push(p.New(p.Torch(kForwardLine, 50), 16 * kMiB, 2));
      activations.push_back(p.New(p.Torch(kForwardLine, i), kMiB, 3));
    }
    for (uint32_t i = 0; i < 6; ++i) whole.Push(p.NewBackward(p.Torch(kForwardLine, i), 16 * kMiB, 4));
    p.Free(activations);
    whole.Drop();
    whole.Drop();
    p.Free(p.New(p.Optimizer(kStepLine, 2), kMiB, 5));
  }
  return {"clean", {}, 0, 30 + seed};
}

Truth BucketsRebuilt(Program& p, uint64_t seed) {
  // Distributed training makes its buckets, and makes them anew after the first step.
  Training t(p, seed);
  Memories buckets;
  const uint64_t steps = 40 + seed;
  t.Train(steps, true, [&](uint64_t s) {
    if (s > 1) return;
    Memories next;
    for (int i = 0; i < 3; ++i) next.push_back(p.New(p.Line(44), 25 * kMiB, 41));
    p.Free(buckets);
    buckets = next;
  });
  return {"clean", {}, 0, steps};
}

Truth Recomputed(Program& p, uint64_t seed) {
  // Activations are made again in backward, by the forward's own lines.
  Training t(p, seed);
  const uint64_t steps = 30 + seed;
  for (uint64_t s = 0; s < steps; ++s) {
    const Memory loss = t.Forward(kMiB);
    for (uint32_t i = 0; i < 3; ++i) {
      const Memory again = p.New(p.Torch(kForwardLine, i), kMiB, 13);
      p.Free(p.NewBackward(p.Torch(kForwardLine, i), kMiB, 14));
      p.Free(again);
    }
    t.Backward(kMiB);
    t.Optimize(true);
    p.Free(loss);
    t.FreeInput();
  }
  return {"clean", {}, 0, steps};
}

Truth MicrobatchesInFlight(Program& p, uint64_t seed) {
  // A pipeline: four microbatches go forward before the first comes back, in every step.
  const uint64_t depth = 3 + seed % 3;
  for (uint64_t s = 0; s < 30 + seed; ++s) {
    Bounded flight(p, depth);
    for (int i = 0; i < 8; ++i) flight.Push(p.New(p.Torch(kForwardLine, 1), 4 * kMiB, 3));
    while (flight.size() != 0) {
      p.Free(p.NewBackward(p.Torch(kForwardLine, 1), 4 * kMiB, 7));
      flight.Drop();
    }
    p.Free(p.New(p.Optimizer(kStepLine, 2), kMiB, 5));
  }
  return {"clean", {}, 0, 0};
}

Truth PrefetchingThreadLeaks(Program& p, uint64_t seed) {
  // A thread fills a queue of bounded depth, and its list of what it made has no bound.
  Training t(p, seed);
  const uint64_t steps = 40 + seed;
  Bounded queue(p, 4);
  t.Train(steps, false, [&](uint64_t) {
    p.OnThread("prefetch");
    queue.Push(p.New(p.Line(60, 151), 3 * kMiB, 41));
    p.New(p.Line(60, 152), kMiB, 42);
    p.OnThread("");
  });
  return {"leak", {152}, 1.0 * kMiB, steps};
}

Truth ErrorsKeepFrames(Program& p, uint64_t seed) {
  // Now and then a request fails, and the error that is stored keeps what its function had made.
  Training t(p, seed);
  t.Train(200, false, [&](uint64_t) {
    const Memory scratch = p.New(p.Line(60, 171), 2 * kMiB, 41);
    const Memory part = p.New(p.Line(60, 172), kMiB, 42);
    if (t.Random(0, 4) == 0) return;
    p.Free(scratch);
    p.Free(part);
  });
  return {"leak", {171, 172}, 0, 200, true};
}

Truth WorkspaceOnALeakingLine(Program& p, uint64_t seed) {
  // The line that leaks also makes a workspace of 32 MiB, once, by another path: it is no part of the leak.
  Training t(p, seed);
  const uint64_t steps = 40 + seed;
  t.Train(steps, true, [&](uint64_t s) {
    if (s == 0) p.New(p.Line(kKeepLine), 32 * kMiB, 55);
    p.New(p.Line(kKeepLine), 64 * kKiB, 41);
  });
  return {"leak", {kKeepLine}, 64.0 * kKiB, steps};
}

Truth StreamPerRequestOnce(Program& p, uint64_t seed) {
  // Four side streams used in turn: each strands a segment the first time, and never again.
  Training t(p, seed);
  const uint64_t steps = 60 + seed;
  t.Train(steps, false,
          [&](uint64_t s) { p.Free(p.New(p.Line(kKeepLine, 120), 24 * kMiB, 41, 100 + s % 4)); });
  return {"clean", {}, 0, steps};
}

}  // namespace

std::vector<Scenario> LibraryScenarios() {
  return {
      {"PlanPerCall", PlanPerCall},
      {"PlansOfFewShapes", PlansOfFewShapes},
      {"GraphsByShape", GraphsByShape},
      {"ModulePerCall", ModulePerCall},
      {"ModulesAtFirst", ModulesAtFirst},
      {"HandleMadeAndDestroyed", HandleMadeAndDestroyed},
      {"MappingsOfOthersKept", MappingsOfOthersKept},
      {"MappingsOfOthersClosed", MappingsOfOthersClosed},
      {"RegisteredPerBatch", RegisteredPerBatch},
      {"PinnedCacheFills", PinnedCacheFills},
      {"PoolOfTheDriverKeeps", PoolOfTheDriverKeeps},
      {"JaxKeepsArrays", JaxKeepsArrays},
      {"JaxHealthy", JaxHealthy},
      {"ArraysOfCuPyKept", ArraysOfCuPyKept},
      {"ServerOfRequests", ServerOfRequests},
      {"ServerOfRequestsHealthy", ServerOfRequestsHealthy},
      {"GrowsByDoubling", GrowsByDoubling},
      {"CacheOfTheAnswerGoes", CacheOfTheAnswerGoes},
      {"LayersGatheredAndFreed", LayersGatheredAndFreed},
      {"BucketsRebuilt", BucketsRebuilt},
      {"Recomputed", Recomputed},
      {"MicrobatchesInFlight", MicrobatchesInFlight},
      {"PrefetchingThreadLeaks", PrefetchingThreadLeaks},
      {"ErrorsKeepFrames", ErrorsKeepFrames},
      {"WorkspaceOnALeakingLine", WorkspaceOnALeakingLine},
      {"StreamPerRequestOnce", StreamPerRequestOnce},
  };
}

}  // namespace gpumemtrace::synthetic
