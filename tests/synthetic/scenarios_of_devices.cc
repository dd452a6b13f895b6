// Several devices and threads, libraries that take memory themselves, and programs without a framework.
#include <deque>
#include <string>

#include "tests/synthetic/scenario_lists.h"
#include "tests/synthetic/training.h"

namespace gpumemtrace::synthetic {
namespace {

Truth SecondDeviceLeaks(Program& p, uint64_t seed) {
  // One process drives two devices; what is kept is on the second one only.
  Training t(p, seed);
  p.OnDevice(1);
  Memories other{p.New(p.Line(11), 8 * kMiB, 1)};
  const uint64_t steps = 30 + seed;
  Memories kept;
  for (uint64_t s = 0; s < steps; ++s) {
    p.OnDevice(0);
    t.Step(kMiB, true);
    p.OnDevice(1);
    const Memory gathered = p.New(p.Line(35), 2 * kMiB, 12);
    kept.push_back(p.New(p.Line(kKeepLine), kMiB, 13));
    p.Free(gathered);
  }
  p.OnDevice(0);
  return {"leak", {kKeepLine}, 1.0 * kMiB, steps};
}

Truth BothDevicesLeak(Program& p, uint64_t seed) {
  // Replicas: the same line keeps the same on each device.
  const uint64_t steps = 24 + seed;
  Memories kept;
  for (uint64_t s = 0; s < steps; ++s) {
    for (int32_t device : {0, 1}) {
      p.OnDevice(device);
      const Memory x = p.New(p.Line(kInputLine), 2 * kMiB, 1);
      const Memory y = p.New(p.Torch(kForwardLine, 1), 4 * kMiB, 2);
      kept.push_back(p.New(p.Line(kKeepLine), kMiB, 3));
      p.Free(x);
      p.Free(y);
    }
  }
  p.OnDevice(0);
  return {"leak", {kKeepLine}, 0, 0};
}

Truth TwoDevicesHealthy(Program& p, uint64_t seed) {
  // Halves of a model on two devices: activations go from one to the other.
  Memories parameters;
  for (int32_t device : {0, 1}) {
    p.OnDevice(device);
    for (int i = 0; i < 4; ++i) parameters.push_back(p.New(p.Line(kModelLine), 8 * kMiB, 1));
  }
  const uint64_t steps = 30 + seed;
  for (uint64_t s = 0; s < steps; ++s) {
    Memories activations;
    for (int32_t device : {0, 1}) {
      p.OnDevice(device);
      for (uint32_t i = 0; i < 4; ++i) activations.push_back(p.New(p.Torch(kForwardLine, i), 2 * kMiB, 2));
    }
    p.Free(activations);
  }
  p.OnDevice(0);
  return {"clean", {}, 0, 0};
}

Truth ThreadsServe(Program& p, uint64_t seed) {
  // Requests are served by a few threads; each answer stays in a table.
  std::mt19937_64 random(seed);
  Memories kept;
  for (uint64_t request = 0; request < 200; ++request) {
    p.OnThread("server-" + std::to_string(random() % 4));
    const Memory input = p.New(p.Line(60, 71), kMiB, 1);
    const Memory hidden = p.New(p.Line(60, 72), (1 + random() % 8) * kMiB, 2);
    const Memory output = p.New(p.Line(60, 73), 512 * kKiB, 3);
    p.Free(hidden);
    p.Free(input);
    kept.push_back(output);
  }
  p.OnThread("");
  return {"leak", {73}, 0, 0};
}

Truth ThreadsServeHealthy(Program& p, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (uint64_t request = 0; request < 200; ++request) {
    p.OnThread("server-" + std::to_string(random() % 4));
    Memories cache;
    // A cache of keys and values that grows with the answer and goes with it.
    for (uint64_t token = 0; token < 2 + random() % 6; ++token) {
      const Memory grown = p.New(p.Line(60, 72), (token + 1) * 256 * kKiB, 2);
      p.Free(cache);
      cache.push_back(grown);
    }
    p.Free(cache);
  }
  p.OnThread("");
  return {"clean", {}, 0, 0};
}

Truth ThreadPerRequest(Program& p, uint64_t seed) {
  const uint64_t requests = 60 + seed;
  Memories kept;
  for (uint64_t request = 0; request < requests; ++request) {
    p.OnThread("worker-" + std::to_string(request));
    const Memory input = p.New(p.Line(60, 71), kMiB, 1);
    const Memory hidden = p.New(p.Line(60, 72), 2 * kMiB, 2);
    kept.push_back(p.New(p.Line(60, 73), 512 * kKiB, 3));
    p.Free(hidden);
    p.Free(input);
  }
  p.OnThread("");
  return {"leak", {73}, 0, 0};
}

Truth PinningThreadKeeps(Program& p, uint64_t seed) {
  // A loader's thread pins the batches; who holds them is the training loop, but they are born over there.
  Training t(p, seed);
  const uint64_t steps = 30 + seed;
  const Stack loader = p.Line(52);
  for (uint64_t s = 0; s < steps; ++s) {
    p.OnThread("pin_memory");
    p.Driver(loader, 0, PINNED_HOST, 2 * kMiB, "cudaHostAlloc");
    p.OnThread("");
    t.Step(kMiB, true);
  }
  return {"leak", {52}, 2.0 * kMiB, steps};
}

Truth CommunicatorPerStep(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t steps = 20 + seed;
  t.Train(steps, true, [&](uint64_t) {
    const Stack line = p.Line(44);
    for (uint64_t channel = 0; channel < 4; ++channel)
      p.Driver(line, p.Library("libnccl.so.2", 0x400 + channel), DEVICE, 4 * kMiB, "cudaMalloc");
  });
  return {"leak", {44}, 16.0 * kMiB, steps};
}

Truth CommunicatorOnce(Program& p, uint64_t seed) {
  // Made with the first collective of the third step, and kept for good.
  Training t(p, seed);
  const uint64_t steps = 40 + seed;
  t.Train(steps, true, [&](uint64_t s) {
    if (s != 3) return;
    for (uint64_t channel = 0; channel < 12; ++channel)
      p.Driver(p.Line(44), p.Library("libnccl.so.2", 0x400 + channel % 2), DEVICE, 4 * kMiB, "cudaMalloc");
  });
  return {"clean", {}, 0, steps};
}

Truth GraphPerCall(Program& p, uint64_t seed) {
  // Each call captures anew: a private pool, its blocks and the executable graph stay.
  Training t(p, seed);
  const uint64_t steps = 20 + seed;
  Memories kept;
  t.Train(steps, true, [&](uint64_t s) {
    kept.push_back(p.New(p.Line(46, 202), 20 * kMiB, 12, 500 + s));
    p.Handle(p.Line(46, 203), "cudaGraphInstantiate");
  });
  return {"leak", {202}, 20.0 * kMiB, steps};
}

Truth ManyEventsKept(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t steps = 400 + seed;
  t.Train(steps, false, [&](uint64_t) {
    for (int i = 0; i < 4; ++i) p.Handle(p.Line(29), "cudaEventCreateWithFlags");
  });
  return {"leak", {29}, 0, steps};
}

Truth ManagedKept(Program& p, uint64_t seed) {
  const uint64_t steps = 20 + seed;
  for (uint64_t s = 0; s < steps; ++s) {
    const Memory a = p.Driver(p.Line(31), 0, MANAGED, 8 * kMiB, "cudaMallocManaged");
    p.Driver(p.Line(32), 0, MANAGED, 2 * kMiB, "cudaMallocManaged");
    p.Free(a);
  }
  return {"leak", {32}, 2.0 * kMiB, steps};
}

Truth NativeErrorPath(Program& p, uint64_t seed) {
  // Every fifth call fails half-way and returns without its frees.
  const uint64_t steps = 60 + 5 * (seed % 4);
  for (uint64_t s = 0; s < steps; ++s) {
    const Memory a = p.Driver(0, p.Native({0x100, 0x210}), DEVICE, 4 * kMiB);
    const Memory b = p.Driver(0, p.Native({0x100, 0x220}), DEVICE, kMiB);
    if (s % 5 != 4) p.Free(b);
    p.Free(a);
  }
  return {"leak", {}, 0.2 * kMiB, steps};
}

Truth NativeHealthy(Program& p, uint64_t seed) {
  // What was made once is not freed at the end: that is listed, but it is no leak.
  p.Driver(0, p.Native({0x100, 0x180}), DEVICE, 256 * kMiB);
  const uint64_t steps = 30 + seed;
  Memory last;
  for (uint64_t s = 0; s < steps; ++s) {
    const Memory a = p.Driver(0, p.Native({0x100, 0x210}), DEVICE, 4 * kMiB);
    const Memory b = p.Driver(0, p.Native({0x100, 0x220}), DEVICE, 8 * kMiB);
    p.Free(a);
    p.Free(last);
    last = b;
  }
  return {"clean", {}, 0, steps};
}

Truth NativeMisuse(Program& p, uint64_t seed) {
  // Frees twice, frees what it never had, and frees on another device; one release is not seen. Nothing
  // grows.
  const uint64_t steps = 20 + seed;
  for (uint64_t s = 0; s < steps; ++s) {
    p.OnDevice(0);
    const Memory a = p.Driver(0, p.Native({0x100, 0x210}), DEVICE, 4 * kMiB);
    const Memory b = p.Driver(0, p.Native({0x100, 0x220}), DEVICE, 2 * kMiB);
    p.Free(a);
    if (s == 5) p.FreeAddress(a.address, p.Native({0x100, 0x310}));
    if (s == 7) p.FreeAddress(0x1234000, p.Native({0x100, 0x320}));
    if (s == 11) {
      const Memory lost = p.Driver(0, p.Native({0x100, 0x230}), DEVICE, kMiB);
      p.Free(p.DriverInPlaceOf(lost, p.Native({0x100, 0x230})));
    }
    p.FreeOn(b, s % 10 == 9 ? 1 : 0, p.Native({0x100, 0x330}));
  }
  return {"clean", {}, 0, 0};
}

Truth PoolGivesBack(Program& p, uint64_t seed) {
  // The cache is emptied after each evaluation: segments come and go, and nothing grows.
  Training t(p, seed);
  const uint64_t steps = 60 + seed;
  t.Train(steps, true, [&](uint64_t s) {
    if (s % 12 != 11) return;
    const Memory large = p.New(p.Line(kEvalLine), 200 * kMiB, 11);
    p.Free(large);
    p.EmptyCache();
  });
  return {"clean", {}, 0, steps};
}

Truth LosesToTheDriver(Program& p, uint64_t seed) {
  // The device has less with each step, by the same amount, and no call tells why.
  Training t(p, seed);
  const uint64_t steps = 30 + seed;
  t.Train(steps, true, [&](uint64_t s) { p.Read(s * 2 * kMiB); });
  return {"leak", {}, 2.0 * kMiB, steps};
}

Truth OutOfMemory(Program& p, uint64_t seed) {
  // A request for more than is left, while one line holds enough to have made room.
  const Memory weights = p.New(p.Line(kModelLine), 10 * kGiB, 1);
  const Memory cache = p.New(p.Line(kKeepLine), 40 * kGiB, 2);
  Training t(p, seed);
  t.Train(12, true, [](uint64_t) {});
  p.New(p.Line(kEvalLine), 45 * kGiB, 3);
  p.Free(cache);
  p.Free(weights);
  return {"clean", {}, 0, 12};
}

}  // namespace

std::vector<Scenario> DeviceScenarios() {
  return {
      {"SecondDeviceLeaks", SecondDeviceLeaks},
      {"BothDevicesLeak", BothDevicesLeak},
      {"TwoDevicesHealthy", TwoDevicesHealthy},
      {"ThreadsServe", ThreadsServe},
      {"ThreadsServeHealthy", ThreadsServeHealthy},
      {"ThreadPerRequest", ThreadPerRequest},
      {"PinningThreadKeeps", PinningThreadKeeps},
      {"CommunicatorPerStep", CommunicatorPerStep},
      {"CommunicatorOnce", CommunicatorOnce},
      {"GraphPerCall", GraphPerCall},
      {"ManyEventsKept", ManyEventsKept},
      {"ManagedKept", ManagedKept},
      {"NativeErrorPath", NativeErrorPath},
      {"NativeHealthy", NativeHealthy},
      {"NativeMisuse", NativeMisuse},
      {"PoolGivesBack", PoolGivesBack},
      {"LosesToTheDriver", LosesToTheDriver},
      {"OutOfMemory", OutOfMemory},
  };
}

}  // namespace gpumemtrace::synthetic
