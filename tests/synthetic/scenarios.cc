#include "tests/synthetic/scenarios.h"

#include <algorithm>
#include <deque>
#include <map>

#include "tests/synthetic/scenario_lists.h"
#include "tests/synthetic/training.h"

namespace gpumemtrace::synthetic {
namespace {

Truth LossesKept(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t steps = 20 + seed * 7 % 100;
  Memories losses;
  for (uint64_t s = 0; s < steps; ++s) {
    losses.push_back(t.Forward(kMiB));
    t.Backward(kMiB);
    t.Optimize(seed % 2 == 0);
    t.FreeInput();
  }
  return {"leak", {kLossLine, kKeepLine}, 512, steps};
}

Truth LossesKeptRandomShapes(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t steps = 60 + seed * 11 % 200;
  Memories losses;
  for (uint64_t s = 0; s < steps; ++s) {
    const uint64_t batch = t.Random(1, 64) * 128 * kKiB;
    losses.push_back(t.Forward(batch));
    t.Backward(batch);
    t.Optimize(true);
    t.FreeInput();
  }
  return {"leak", {kLossLine}, 512, steps};
}

Truth OutputsKeptFewSteps(Program& p, uint64_t seed) {
  const uint64_t steps = 8 + seed % 6;
  Memories kept;
  for (uint64_t s = 0; s < steps; ++s) {
    kept.push_back(p.New(p.Line(kInputLine), 128000, 1));
    kept.push_back(p.New(p.Torch(kForwardLine, 1), 128000, 2));
  }
  return {"leak", {kInputLine, kForwardLine}, 256000, steps};
}

Truth OneLineLoop(Program& p, uint64_t seed) {
  const uint64_t steps = 12 + seed % 30;
  Memories kept;
  for (uint64_t s = 0; s < steps; ++s) kept.push_back(p.New(p.Line(kInputLine), 4 * kMiB, 1));
  return {"leak", {kInputLine}, 4.0 * kMiB, steps};
}

Truth KeptThenFreedAtExit(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t steps = 24 + seed % 40;
  Memories kept;
  t.Train(steps, true, [&](uint64_t) { kept.push_back(p.New(p.Torch(kEvalLine, 1), 2 * kMiB, 11)); });
  p.Free(kept);
  p.Free(t.parameters_);
  p.Free(t.state_);
  return {"leak", {kEvalLine}, 2.0 * kMiB, steps};
}

Truth EveryTenthStepKept(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t steps = 100 + seed % 50;
  Memories kept;
  t.Train(steps, true, [&](uint64_t s) {
    if (s % 10 == 9) kept.push_back(p.New(p.Line(kEvalLine), 8 * kMiB, 11));
  });
  return {"leak", {kEvalLine}, 0.8 * kMiB, steps};
}

Truth NowAndThenKept(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t steps = 300;
  Memories kept;
  t.Train(steps, true, [&](uint64_t) {
    if (t.Random(0, 9) == 0) kept.push_back(p.New(p.Line(kEvalLine), 8 * kMiB, 11));
  });
  return {"leak", {kEvalLine}, 0, steps};
}

Truth EvaluationKeepsOutputs(Program& p, uint64_t seed) {
  // Every tenth step evaluates, and what it gathers is never dropped.
  Training t(p, seed);
  const uint64_t steps = 100 + 10 * (seed % 5);
  Memories kept;
  t.Train(steps, false, [&](uint64_t s) {
    if (s % 10 != 9) return;
    for (int i = 0; i < 16; ++i) {
      const Memory batch = p.New(p.Line(kEvalLine, 101), kMiB, 11);
      kept.push_back(p.New(p.Line(kEvalLine, 102), kMiB, 12));
      p.Free(batch);
    }
  });
  return {"leak", {102}, 0, steps};
}

Truth LeakBesideSawTooth(Program& p, uint64_t seed) {
  Training t(p, seed);
  Memories cycles;
  Memories kept;
  const uint64_t steps = 90 + seed % 20;
  t.Train(steps, true, [&](uint64_t s) {
    cycles.push_back(p.New(p.Line(kEvalLine), 4 * kMiB, 11));
    kept.push_back(p.New(p.Line(kKeepLine), 512 * kKiB, 12));
    if (s % 17 == 16) p.Free(cycles);
  });
  return {"leak", {kKeepLine}, 512.0 * kKiB, steps};
}

Truth LeakInEightSteps(Program& p, uint64_t seed) {
  Training t(p, seed);
  Memories kept;
  t.Train(8 + seed % 3, seed % 2 == 0,
          [&](uint64_t) { kept.push_back(p.New(p.Line(kKeepLine), 3 * kMiB, 11)); });
  return {"leak", {kKeepLine}, 3.0 * kMiB, 8 + seed % 3};
}

Truth HandleOfUnknownCost(Program& p, uint64_t seed) {
  // Nothing tells the bytes: then they must not be told.
  Training t(p, seed);
  const uint64_t steps = 30 + seed % 20;
  t.Train(steps, true, [&](uint64_t) { p.Handle(p.Line(38, 33), "cudnnCreate"); });
  return {"leak", {33}, 0, steps};
}

Truth HandleThatAllocatesThrice(Program& p, uint64_t seed) {
  // Three allocations of one stack, events, and the handle: one call, not four.
  const uint64_t steps = 15 + seed % 20;
  const Stack library = p.Native({0x100, 0x900});
  for (uint64_t s = 0; s < steps; ++s) {
    const Stack line = p.Line(38, 33);
    for (uint64_t bytes : {kKiB, 128 * kKiB, 64 * kMiB}) {
      p.Driver(line, library, DEVICE, bytes, "cuMemAlloc");
      for (int i = 0; i < 6; ++i) p.Handle(line, "cuEventCreate");
    }
    p.Handle(line, "cublasCreate_v2");
  }
  return {"leak", {33}, 64.0 * kMiB + 129.0 * kKiB, steps};
}

Truth LeakSinceLater(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t steps = 120;
  Memories kept;
  t.Train(steps, true, [&](uint64_t s) {
    const Memory scores = p.New(p.Line(kEvalLine), kMiB, 11);
    if (s >= 60) {
      kept.push_back(scores);
    } else {
      p.Free(scores);
    }
  });
  return {"leak", {kEvalLine}, 1.0 * kMiB, steps};
}

Truth LeakBesideLateState(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t steps = 80;
  Memories kept, late;
  t.Train(steps, true, [&](uint64_t s) {
    if (s == 40) {
      for (int i = 0; i < 8; ++i) late.push_back(p.New(p.Optimizer(kStepLine, 3), 16 * kMiB, 12));
    }
    kept.push_back(p.New(p.Line(kKeepLine), 64 * kKiB, 11));
  });
  return {"leak", {kKeepLine}, 64.0 * kKiB, steps};
}

Truth InnerModelLoop(Program& p, uint64_t seed) {
  // The model's own code is the user's too and runs many times a step; a leak of one block a step sits in it.
  const uint64_t steps = 30 + seed % 20;
  const uint64_t blocks = 6 + seed % 6;
  Memories kept;
  for (uint64_t s = 0; s < steps; ++s) {
    const Memory x = p.New(p.Line(kInputLine), kMiB, 1);
    Memories activations;
    for (uint64_t b = 0; b < blocks; ++b) {
      for (uint32_t line : {101u, 102u, 103u, 104u})
        activations.push_back(p.New(p.Line(kForwardLine, line), kMiB, 2));
    }
    kept.push_back(p.New(p.Line(kForwardLine, 110), kMiB, 3));
    const Memory loss = p.New(p.Line(kLossLine), 4, 4);
    const Memory ones = p.New(p.Line(kBackwardLine), 4, 5);
    p.Free(ones);
    p.Free(activations);
    p.Free(loss);
    p.Free(x);
  }
  return {"leak", {110}, 1.0 * kMiB, steps};
}

Truth StepInFunction(Program& p, uint64_t seed) {
  // main: for …: train_step(); every tenth: evaluate(), which loops itself.
  const uint64_t steps = 50 + seed % 30;
  Memories kept;
  for (uint64_t s = 0; s < steps; ++s) {
    const Memory x = p.New(p.Line(40, 101), kMiB, 1);
    const Memory y = p.New(p.Line(40, 102), kMiB, 2);
    const Memory loss = p.New(p.Line(40, 103), 4, 3);
    kept.push_back(p.New(p.Line(40, 104), 32 * kKiB, 4));
    p.Free(x);
    p.Free(y);
    p.Free(loss);
    if (s % 10 == 9) {
      Memories outputs;
      for (int i = 0; i < 16; ++i) {
        const Memory batch = p.New(p.Line(42, 201), kMiB, 5);
        outputs.push_back(p.New(p.Line(42, 202), kMiB, 6));
        p.Free(batch);
      }
      const Memory all = p.New(p.Line(42, 204), 16 * kMiB, 7);
      p.Free(outputs);
      p.Free(all);
    }
  }
  return {"leak", {104}, 32.0 * kKiB, steps};
}

Truth Epochs(Program& p, uint64_t seed) {
  Training t(p, seed);
  Memories kept;
  uint64_t steps = 0;
  for (int epoch = 0; epoch < 5; ++epoch) {
    for (int batch = 0; batch < 40; ++batch, ++steps) {
      t.Step(kMiB, true);
      kept.push_back(p.New(p.Line(kKeepLine), 4096, 11));
    }
    const Memory score = p.New(p.Line(kEvalLine), 4 * kMiB, 12);
    p.Free(score);
  }
  return {"leak", {kKeepLine}, 4096, steps};
}

Truth PinnedBuffersKept(Program& p, uint64_t seed) {
  const uint64_t steps = 20 + seed % 30;
  const Memory target = p.New(p.Line(12), 4 * kMiB, 1);
  for (uint64_t s = 0; s < steps; ++s) p.Driver(p.Line(19), 0, PINNED_HOST, 4 * kMiB, "cudaHostAlloc");
  p.Free(target);
  return {"leak", {19}, 4.0 * kMiB, steps};
}

Truth AsyncBackend(Program& p, uint64_t seed) {
  const uint64_t steps = 20 + seed % 30;
  for (uint64_t s = 0; s < steps; ++s) {
    const Memory x = p.Driver(p.Line(kInputLine), 0, STREAM_ORDERED, 2 * kMiB, "cudaMallocAsync");
    p.Driver(p.Line(kForwardLine), 0, STREAM_ORDERED, 4 * kMiB, "cudaMallocAsync");
    p.Free(x);
  }
  return {"leak", {kForwardLine}, 4.0 * kMiB, steps};
}

Truth HandlePerCall(Program& p, uint64_t seed) {
  const uint64_t steps = 15 + seed % 20;
  const Memory a = p.New(p.Line(10), 16 * kKiB, 1);
  for (uint64_t s = 0; s < steps; ++s) {
    p.Handle(p.Line(38, 33), "cublasCreate_v2");
    p.Read((s + 1) * 8 * kMiB);
  }
  p.Free(a);
  return {"leak", {33}, 0, steps};
}

Truth NativeProgram(Program& p, uint64_t seed) {
  const uint64_t steps = 10 + seed % 40;
  for (uint64_t s = 0; s < steps; ++s) {
    const Memory a = p.Driver(0, p.Native({0x100, 0x210}), DEVICE, 4 * kMiB);
    const Memory b = p.Driver(0, p.Native({0x100, 0x220}), DEVICE, 4 * kMiB);
    p.Driver(0, p.Native({0x100, 0x230}), DEVICE, 4 * kMiB);
    p.Driver(0, p.Native({0x100, 0x240}), DEVICE, 4 * kMiB);
    p.Free(a);
    p.Free(b);
  }
  return {"leak", {}, 8.0 * kMiB, steps};
}

Truth Healthy(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t steps = 30 + seed % 50;
  t.Train(steps, seed % 2 == 0, [](uint64_t) {});
  return {"clean", {}, 0, steps};
}

Truth HealthyThenExits(Program& p, uint64_t seed) {
  Training t(p, seed);
  t.Train(30, true, [](uint64_t) {});
  p.Free(t.parameters_);
  p.Free(t.state_);
  return {"clean", {}, 0, 30};
}

Truth RandomShapes(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t steps = 200;
  for (uint64_t s = 0; s < steps; ++s) t.Step(t.Random(1, 64) * 64 * kKiB, true);
  return {"clean", {}, 0, steps};
}

Truth LeakThatStopped(Program& p, uint64_t seed) {
  Training t(p, seed);
  Memories kept;
  const uint64_t steps = 120 + seed % 30;
  t.Train(steps, true, [&](uint64_t s) {
    if (s < 50) kept.push_back(p.New(p.Line(kKeepLine), kMiB, 11));
  });
  return {"clean", {}, 0, steps};
}

Truth LruCacheFillsLate(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t bound = 60 + seed % 10;
  const uint64_t steps = 100;
  Bounded cache(p, bound);
  t.Train(steps, true, [&](uint64_t) { cache.Push(p.New(p.Line(kKeepLine), 2 * kMiB, 11)); });
  return {"clean", {}, 0, steps};
}

Truth PinnedRing(Program& p, uint64_t seed) {
  Training t(p, seed);
  std::deque<Memory> ring;
  const uint64_t steps = 40 + seed % 20;
  for (uint64_t s = 0; s < steps; ++s) {
    ring.push_back(p.Driver(p.Line(19), 0, PINNED_HOST, 4 * kMiB, "cudaHostAlloc"));
    t.Step(kMiB, false);
    if (ring.size() < 6) continue;
    p.Free(ring.front());
    ring.pop_front();
  }
  return {"clean", {}, 0, steps};
}

Truth AsyncBackendHealthy(Program& p, uint64_t seed) {
  const uint64_t steps = 20 + seed % 30;
  p.Driver(p.Line(kModelLine), 0, STREAM_ORDERED, 64 * kMiB, "cudaMallocAsync");
  Memory last;
  for (uint64_t s = 0; s < steps; ++s) {
    const Memory x = p.Driver(p.Line(kInputLine), 0, STREAM_ORDERED, 2 * kMiB, "cudaMallocAsync");
    const Memory y = p.Driver(p.Line(kForwardLine), 0, STREAM_ORDERED, 4 * kMiB, "cudaMallocAsync");
    p.Free(x);
    p.Free(last);
    last = y;
  }
  return {"clean", {}, 0, steps};
}

Truth HandlesInBulk(Program& p, uint64_t seed) {
  // A pool of streams and events, made where it is first asked for one; few allocations follow.
  const Memory w = p.New(p.Line(17), 32 * kMiB, 1);
  const uint64_t count = 8 + seed % 24;
  for (uint64_t i = 0; i < count; ++i) {
    p.Handle(p.Line(23), i % 2 == 0 ? "cudaEventCreateWithFlags" : "cudaStreamCreateWithPriority");
  }
  const Memory v = p.New(p.Line(23), 32 * kMiB, 2);
  p.Free(w);
  p.Free(v);
  return {"clean", {}, 0, 0};
}

Truth EventsInFlight(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t steps = 40 + seed % 20;
  Bounded events(p, 4);
  t.Train(steps, true, [&](uint64_t) { events.Push(p.Handle(p.Line(29), "cudaEventCreate")); });
  return {"clean", {}, 0, steps};
}

Truth EventsKept(Program& p, uint64_t seed) {
  // A library's queue keeps an event or two of each step: no device memory goes with them.
  Training t(p, seed);
  const uint64_t steps = 20 + seed % 20;
  t.Train(steps, true, [&](uint64_t s) {
    p.Handle(p.Line(29), "cudaEventCreateWithFlags");
    if (s % 2 == 0) p.Handle(p.Line(29), "cudaEventCreateWithFlags");
  });
  return {"clean", {}, 0, steps};
}

Truth ModelOnly(Program& p, uint64_t seed) {
  // A model put on the device piece by piece, a few results, no loop.
  Memories parameters;
  for (uint64_t i = 0; i < 20 + seed; ++i) {
    parameters.push_back(p.New(p.Move(kModelLine), (1 + (i * seed) % 7) * 256 * kKiB, 1));
  }
  const Memory out = p.New(p.Line(kForwardLine), kMiB, 2);
  p.Free(out);
  return {"clean", {}, 0, 0};
}

Truth ModelOfEqualLayers(Program& p, uint64_t seed) {
  // Likewise, but all pieces are of one size.
  for (uint64_t i = 0; i < 24 + seed; ++i) p.New(p.Move(kModelLine), 256 * kKiB, 1);
  p.Free(p.New(p.Line(kForwardLine), kMiB, 2));
  return {"clean", {}, 0, 0};
}

Truth LateState(Program& p, uint64_t seed) {
  Training t(p, seed);
  Memories late;
  t.Train(40, true, [&](uint64_t s) {
    if (s == 10 + seed % 20) {
      for (int i = 0; i < 6; ++i) late.push_back(p.New(p.Optimizer(kStepLine, 3), 16 * kMiB, 12));
    }
  });
  return {"clean", {}, 0, 40};
}

Truth ReplayBuffer(Program& p, uint64_t seed) {
  const uint64_t bound = 8 + seed % 16;
  const uint64_t steps = bound + 6 + seed * 5 % 40;
  std::deque<Memory> buffer;
  Memory frame;
  for (uint64_t s = 0; s < steps; ++s) {
    // The name `frame` still holds the previous one while the new one is made.
    frame = p.New(p.Line(kInputLine), 4 * kMiB, 1);
    buffer.push_back(frame);
    if (buffer.size() > bound) {
      p.Free(buffer.front());
      buffer.pop_front();
    }
  }
  return {"clean", {}, 0, steps};
}

Truth RandomKeyCache(Program& p, uint64_t seed) {
  Training t(p, seed);
  std::map<uint64_t, Memory> cache;
  const uint64_t keys = 24;
  t.Train(300, true, [&](uint64_t) {
    const uint64_t key = t.Random(0, keys - 1);
    if (!cache.contains(key)) cache[key] = p.New(p.Line(kKeepLine), 2 * kMiB, 11);
  });
  return {"clean", {}, 0, 300};
}

Truth SawTooth(Program& p, uint64_t seed) {
  // Reference cycles that the collector finds every so often.
  Training t(p, seed);
  Memories cycles;
  const uint64_t period = 13 + seed % 9;
  const uint64_t steps = 4 * period + seed % period;
  t.Train(steps, true, [&](uint64_t s) {
    cycles.push_back(p.New(p.Line(kKeepLine), 2 * kMiB, 11));
    if (s % period == period - 1) p.Free(cycles);
  });
  return {"clean", {}, 0, steps};
}

Truth LongerSequences(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t steps = 40;
  for (uint64_t s = 0; s < steps; ++s) t.Step(std::min<uint64_t>(s + 1, steps / 2) * 512 * kKiB, false);
  return {"clean", {}, 0, steps};
}

Truth Evaluation(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t steps = 50;
  t.Train(steps, false, [&](uint64_t s) {
    if (s % 10 == 9) {
      Memories outputs;
      for (int i = 0; i < 16; ++i) {
        const Memory batch = p.New(p.Line(kEvalLine, 101), kMiB, 11);
        outputs.push_back(p.New(p.Line(kEvalLine, 102), kMiB, 12));
        p.Free(batch);
      }
      p.Free(outputs);
    }
  });
  return {"clean", {}, 0, steps};
}

Truth GradientAccumulation(Program& p, uint64_t seed) {
  Training t(p, seed);
  for (uint64_t s = 0; s < 40; ++s) {
    const Memory loss = t.Forward(kMiB);
    t.Backward(kMiB);
    if (s % 4 == 3) t.Optimize(false);
    p.Free(loss);
    t.FreeInput();
  }
  return {"clean", {}, 0, 40};
}

Truth TwoGraphsAlive(Program& p, uint64_t seed) {
  const uint64_t steps = 20 + seed % 30;
  Memories previous;
  for (uint64_t s = 0; s < steps; ++s) {
    Memories now;
    now.push_back(p.New(p.Line(11), 4 * kMiB, 1));
    for (uint32_t i = 0; i < 4; ++i) now.push_back(p.New(p.Torch(12, i), 4 * kMiB, 2));
    p.Free(previous);
    previous = now;
  }
  return {"clean", {}, 0, steps};
}

Truth Prefetch(Program& p, uint64_t seed) {
  Training t(p, seed);
  std::deque<Memory> queue;
  const uint64_t depth = 2 + seed % 4;
  for (uint64_t s = 0; s < 40; ++s) {
    while (queue.size() < depth) queue.push_back(p.New(p.Line(kEvalLine), 3 * kMiB, 11));
    t.Step(kMiB, true);
    p.Free(queue.front());
    queue.pop_front();
  }
  return {"clean", {}, 0, 40};
}

Truth StreamPerCall(Program& p, uint64_t seed) {
  const uint64_t steps = 12 + seed % 18;
  const Memory weights = p.New(p.Line(10), 24 * kMiB, 1);
  for (uint64_t s = 0; s < steps; ++s) {
    const Memory pack = p.New(p.Line(kKeepLine, 120), 24 * kMiB, 2, 100 + s);
    p.Free(pack);
  }
  p.Free(weights);
  return {"fragmentation", {120, kKeepLine}, 24.0 * kMiB, steps};
}

Truth GrownByCat(Program& p, uint64_t seed) {
  const uint64_t steps = 20 + seed % 25;
  Memory cache = p.New(p.Line(14), 12 * kMiB, 1);
  Memory fresh;
  for (uint64_t s = 0; s < steps; ++s) {
    const Memory next = p.New(p.Line(16), 2 * kMiB, 2);
    p.Free(fresh);
    fresh = next;
    const Memory grown = p.New(p.Line(17), (14 + 2 * s) * kMiB, 3);
    p.Free(cache);
    cache = grown;
  }
  return {"fragmentation", {17}, 0, steps};
}

Truth ForeachAdam(Program& p, uint64_t seed) {
  const uint64_t layers = 4 + seed % 4;
  Memories parameters, state;
  for (uint64_t i = 0; i < layers; ++i) parameters.push_back(p.New(p.Line(9), 16 * kMiB, 1));
  for (uint64_t s = 0; s < 8; ++s) {
    const Memory x = p.New(p.Line(12), 512 * kKiB, 2);
    Memories activations, gradients, temporaries;
    for (uint32_t i = 0; i < layers; ++i) activations.push_back(p.New(p.Torch(12, i), 512 * kKiB, 3));
    const Memory loss = p.New(p.Line(13), 4, 4);
    const Memory ones = p.New(p.Line(14), 4, 5);
    for (uint32_t i = 0; i < layers; ++i) gradients.push_back(p.NewBackward(p.Torch(12, i), 16 * kMiB, 6));
    p.Free(ones);
    p.Free(activations);
    p.Free(x);
    if (state.empty()) {
      for (uint64_t i = 0; i < 2 * layers; ++i) state.push_back(p.New(p.Optimizer(22, 1), 16 * kMiB, 7));
    }
    for (uint64_t i = 0; i < layers; ++i) temporaries.push_back(p.New(p.Optimizer(22, 2), 16 * kMiB, 8));
    p.Free(temporaries);
    p.Free(gradients);
    p.Free(loss);
  }
  return {"peak", {22}, 0, 8};
}

Truth CheckpointLeft(Program& p, uint64_t seed) {
  const uint64_t layers = 4;
  Memories parameters, checkpoint;
  for (uint64_t i = 0; i < layers; ++i) parameters.push_back(p.New(p.Line(16), 16 * kMiB, 1));
  for (uint64_t i = 0; i < layers; ++i) checkpoint.push_back(p.New(p.Load(27), 16 * kMiB, 2));
  for (uint64_t s = 0; s < 15 + seed % 10; ++s) {
    const Memory x = p.New(p.Line(31), 128 * kKiB, 3);
    Memories gradients;
    const Memory loss = p.New(p.Line(32), 4, 4);
    for (uint32_t i = 0; i < layers; ++i) gradients.push_back(p.NewBackward(p.Torch(32, i), 16 * kMiB, 5));
    p.Free(gradients);
    p.Free(loss);
    p.Free(x);
  }
  return {"peak", {27}, 0, 0};
}

}  // namespace

const std::vector<Scenario>& Scenarios() {
  static const std::vector<Scenario> kOwn = {
      {"LossesKept", LossesKept},
      {"LossesKeptRandomShapes", LossesKeptRandomShapes},
      {"OutputsKeptFewSteps", OutputsKeptFewSteps},
      {"OneLineLoop", OneLineLoop},
      {"KeptThenFreedAtExit", KeptThenFreedAtExit},
      {"EveryTenthStepKept", EveryTenthStepKept},
      {"NowAndThenKept", NowAndThenKept},
      {"EvaluationKeepsOutputs", EvaluationKeepsOutputs},
      {"LeakBesideSawTooth", LeakBesideSawTooth},
      {"LeakInEightSteps", LeakInEightSteps},
      {"HandleOfUnknownCost", HandleOfUnknownCost},
      {"HandleThatAllocatesThrice", HandleThatAllocatesThrice},
      {"LeakThatStopped", LeakThatStopped},
      {"LruCacheFillsLate", LruCacheFillsLate},
      {"PinnedRing", PinnedRing},
      {"AsyncBackendHealthy", AsyncBackendHealthy},
      {"HandlesInBulk", HandlesInBulk},
      {"EventsInFlight", EventsInFlight},
      {"EventsKept", EventsKept},
      {"ModelOnly", ModelOnly},
      {"ModelOfEqualLayers", ModelOfEqualLayers},
      {"LeakSinceLater", LeakSinceLater},
      {"LeakBesideLateState", LeakBesideLateState},
      {"InnerModelLoop", InnerModelLoop},
      {"StepInFunction", StepInFunction},
      {"Epochs", Epochs},
      {"PinnedBuffersKept", PinnedBuffersKept},
      {"AsyncBackend", AsyncBackend},
      {"HandlePerCall", HandlePerCall},
      {"NativeProgram", NativeProgram},
      {"Healthy", Healthy},
      {"HealthyThenExits", HealthyThenExits},
      {"RandomShapes", RandomShapes},
      {"LateState", LateState},
      {"ReplayBuffer", ReplayBuffer},
      {"RandomKeyCache", RandomKeyCache},
      {"SawTooth", SawTooth},
      {"LongerSequences", LongerSequences},
      {"Evaluation", Evaluation},
      {"GradientAccumulation", GradientAccumulation},
      {"TwoGraphsAlive", TwoGraphsAlive},
      {"Prefetch", Prefetch},
      {"StreamPerCall", StreamPerCall},
      {"GrownByCat", GrownByCat},
      {"ForeachAdam", ForeachAdam},
      {"CheckpointLeft", CheckpointLeft},
  };
  static const std::vector<Scenario> kAll = [] {
    std::vector<Scenario> all = kOwn;
    for (const auto& more :
         {PhaseScenarios(), DeviceScenarios(), GrowthScenarios(), LibraryScenarios(), HabitScenarios()})
      all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  return kAll;
}

void TrainingLoop(Program& program, const LoopOptions& options) {
  Training training(program, 2, options.layers);
  for (uint64_t step = 0; program.trace().events() < options.events; ++step) {
    training.Step(options.shapes < 2 ? kMiB : (64 + training.Random(0, options.shapes - 1)) * 16 * kKiB,
                  true);
    if (options.leak_bytes != 0 && step % options.leak_every == 0) {
      program.New(program.Line(kKeepLine), options.leak_bytes, 20);
    }
  }
}

}  // namespace gpumemtrace::synthetic
