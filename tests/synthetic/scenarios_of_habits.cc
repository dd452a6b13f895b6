// Habits of real programs that the other files have not: a library that runs the loop, notebooks, several
// models, frameworks' own caches, memory of rarer kinds, work whose parts differ in length.
#include <algorithm>
#include <map>
#include <string>

#include "tests/synthetic/scenario_lists.h"
#include "tests/synthetic/training.h"

namespace gpumemtrace::synthetic {
namespace {

// A step whose loop stands in an installed library: the user's own lines are those of a callback.
Truth RunByALibrary(Program& p, uint64_t seed, bool leaks) {
  TraceBuilder& trace = p.trace();
  const std::string library = "/usr/lib/python3/dist-packages/lightning/pytorch";
  const uint32_t fit = trace.Code(library + "/trainer/trainer.py", "Trainer.fit", 540);
  const uint32_t advance = trace.Code(library + "/loops/training_epoch_loop.py", "advance", 200);
  const uint32_t module = trace.Code("/home/user/model.py", "Model.training_step", 60);
  const uint32_t adam = trace.Code("/usr/lib/python3/dist-packages/torch/optim/adam.py", "Adam.step", 200);
  const auto called = [&](uint32_t line) {
    return trace.Python({{p.script(), 80}, {fit, 560}, {advance, 250}, {module, line}});
  };
  const Stack step = trace.Python({{p.script(), 80}, {fit, 560}, {advance, 280}, {adam, 210}});
  Memories parameters, state, kept;
  for (int i = 0; i < 4; ++i) parameters.push_back(p.New(p.Move(kModelLine), 8 * kMiB, 1));
  const uint64_t steps = 40 + seed;
  for (uint64_t s = 0; s < steps; ++s) {
    const Memory x = p.New(called(62), 4 * kMiB, 2);
    const Memory y = p.New(called(63), 4 * kMiB, 3);
    if (leaks) kept.push_back(p.New(called(64), 512, 4));
    for (int i = 0; i < 8 && state.size() < 8; ++i) state.push_back(p.New(step, 8 * kMiB, 5));
    p.Free(p.New(step, kMiB, 6));
    p.Free(x);
    p.Free(y);
  }
  return {leaks ? "leak" : "clean", leaks ? std::vector<uint32_t>{64} : std::vector<uint32_t>{},
          leaks ? 512.0 : 0, steps};
}

Truth LibraryRunsTheLoop(Program& p, uint64_t seed) {
  return RunByALibrary(p, seed, true);
}

Truth LibraryRunsTheLoopHealthy(Program& p, uint64_t seed) {
  return RunByALibrary(p, seed, false);
}

Truth NotebookCells(Program& p, uint64_t seed) {
  // A cell with a loop is run three times; each run keeps its outputs in a list that the first one made.
  TraceBuilder& trace = p.trace();
  const uint32_t shell =
      trace.Code("/usr/lib/python3/dist-packages/IPython/core/interactiveshell.py", "run_code", 3500);
  Memories kept;
  const uint64_t rounds = 20 + seed;
  for (uint32_t run = 0; run < 3; ++run) {
    const uint32_t cell =
        trace.Code("/tmp/ipykernel_4242/" + std::to_string(1000 + run) + ".py", "<module>", 1);
    for (uint64_t i = 0; i < rounds; ++i) {
      const Memory x = p.New(trace.Python({{shell, 3550}, {cell, 3}}), 2 * kMiB, 1);
      kept.push_back(p.New(trace.Python({{shell, 3550}, {cell, 4}}), kMiB, 2));
      p.Free(x);
    }
  }
  return {"leak", {4}, 0, 0};
}

Truth TwoModelsOneLeak(Program& p, uint64_t seed) {
  // A discriminator is trained twice for each step of the generator; scores of its fakes are kept.
  Training generator(p, seed);
  Training discriminator(p, seed + 1, 0, 100);
  const uint64_t steps = 40 + seed;
  Memories kept;
  for (uint64_t s = 0; s < steps; ++s) {
    generator.Step(kMiB, true);
    for (int i = 0; i < 2; ++i) discriminator.Step(512 * kKiB, true);
    kept.push_back(p.New(p.Line(kEvalLine), 64 * kKiB, 30));
  }
  return {"leak", {kEvalLine}, 64.0 * kKiB, 0};
}

Truth AutocastCache(Program& p, uint64_t seed) {
  // Weights are cast once for each forward, kept until its end, and dropped.
  Training t(p, seed);
  const uint64_t steps = 40 + seed;
  Memories casts;
  for (uint64_t s = 0; s < steps; ++s) {
    for (uint32_t i = 0; i < t.layers_; ++i) casts.push_back(p.New(p.Torch(kForwardLine, 500 + i), kMiB, 31));
    t.Step(kMiB, true);
    p.Free(casts);
  }
  return {"clean", {}, 0, steps};
}

Truth QuasiNewtonHistory(Program& p, uint64_t seed) {
  // L-BFGS keeps the last hundred directions: its state grows for a hundred steps.
  Training t(p, seed);
  Bounded history(p, 100);
  const uint64_t steps = 150 + seed;
  t.Train(steps, false, [&](uint64_t) { history.Push(p.New(p.Optimizer(kStepLine, 4), 4 * kMiB, 12)); });
  return {"clean", {}, 0, steps};
}

Truth LastBatchSmaller(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t epoch = 20 + seed % 7;
  for (uint64_t s = 0; s < 5 * epoch; ++s) t.Step(s % epoch == epoch - 1 ? 384 * kKiB : 4 * kMiB, true);
  return {"clean", {}, 0, 5 * epoch};
}

Truth ReplicatedEachStep(Program& p, uint64_t seed) {
  // DataParallel: the model goes to the second device in each step, and its copy is dropped.
  Training t(p, seed);
  const uint64_t steps = 40 + seed;
  for (uint64_t s = 0; s < steps; ++s) {
    p.OnDevice(1);
    Memories replica;
    for (int i = 0; i < 4; ++i) replica.push_back(p.New(p.Torch(kForwardLine, 600), 2 * kMiB, 32));
    p.OnDevice(0);
    t.Step(kMiB, true);
    p.Free(replica);
  }
  return {"clean", {}, 0, steps};
}

Truth PhysicalMemoryKept(Program& p, uint64_t seed) {
  // A pool of its own makes physical memory for each request, and one path forgets to release it.
  const uint64_t steps = 30 + seed;
  for (uint64_t s = 0; s < steps; ++s) {
    p.Free(p.Driver(0, p.Native({0x100, 0x710}), VIRTUAL, 4 * kMiB, "cuMemCreate"));
    p.Driver(0, p.Native({0x100, 0x720}), VIRTUAL, 2 * kMiB, "cuMemCreate");
  }
  return {"leak", {}, 2.0 * kMiB, steps};
}

Truth TexturesKept(Program& p, uint64_t seed) {
  const uint64_t steps = 30 + seed;
  for (uint64_t s = 0; s < steps; ++s) {
    p.Free(p.Driver(0, p.Native({0x100, 0x810}), DEVICE, 8 * kMiB));
    p.Driver(0, p.Native({0x100, 0x820}), ARRAY, kMiB, "cudaMallocArray");
  }
  return {"leak", {}, 1.0 * kMiB, steps};
}

Truth NativeLeakInSixRounds(Program& p, uint64_t) {
  for (int round = 0; round < 6; ++round) {
    p.Free(p.Driver(0, p.Native({0x100, 0x910}), DEVICE, 16 * kMiB));
    p.Driver(0, p.Native({0x100, 0x920}), DEVICE, 3 * kMiB);
  }
  return {"leak", {}, 3.0 * kMiB, 6};
}

Truth PoolOfCuPySaturates(Program& p, uint64_t seed) {
  // The pool asks the driver when nothing of a size is free, gives nothing back, and soon has enough.
  std::mt19937_64 random(seed);
  const Stack pool = p.Library("cupy_backends.so", 0x400);
  std::map<uint64_t, uint64_t> have;
  const uint64_t steps = 150;
  for (uint64_t s = 0; s < steps; ++s) {
    const uint64_t size = 1 + random() % 10;
    if (have[size]++ == 0) p.Driver(p.Line(18), pool, DEVICE, size * kMiB, "cudaMalloc");
    const Memory event = p.Handle(p.Line(18), "cudaEventCreateWithFlags");
    p.Free(event);
  }
  return {"clean", {}, 0, 0};
}

Truth GlobalsByShape(Program& p, uint64_t seed) {
  // A mask for each length that came; lengths are real numbers rounded, so that they hardly ever come again.
  Training t(p, seed);
  std::map<uint64_t, Memory> masks;
  const uint64_t steps = 150 + seed;
  t.Train(steps, true, [&](uint64_t) {
    const uint64_t length = t.Random(1, 1'000'000);
    if (!masks.contains(length)) masks[length] = p.New(p.Line(kKeepLine, 130), 2 * kMiB, 33);
  });
  return {"leak", {130}, 2.0 * kMiB, steps};
}

Truth GenerationPerRequest(Program& p, uint64_t seed) {
  // Each answer grows its cache token by token, and drops it at the end.
  std::mt19937_64 random(seed);
  p.New(p.Move(kModelLine), 64 * kMiB, 1);
  for (uint64_t request = 0; request < 30 + seed; ++request) {
    Memories cache;
    const uint64_t tokens = 4 + random() % 12;
    for (uint64_t token = 0; token < tokens; ++token) {
      const Memory logits = p.New(p.Line(kForwardLine), 2 * kMiB, 2);
      cache.push_back(p.New(p.Line(kForwardLine, 140), 512 * kKiB, 3));
      p.Free(logits);
    }
    p.Free(cache);
  }
  return {"clean", {}, 0, 0};
}

// Few steps between evaluations that are longer than what they evaluate.
Truth WithLongEvaluations(Program& p, uint64_t seed, bool leaks) {
  Training t(p, seed);
  Memories kept;
  const uint64_t steps = 60 + seed;
  t.Train(steps, true, [&](uint64_t s) {
    if (s % 6 != 5) return;
    for (int batch = 0; batch < 40; ++batch) {
      const Memory x = p.New(p.Line(kEvalLine, 150), kMiB, 11);
      const Memory y = p.New(p.Line(kEvalLine, 151), kMiB, 12);
      p.Free(x);
      p.Free(y);
    }
    if (leaks) kept.push_back(p.New(p.Line(kEvalLine, 152), 4 * kMiB, 13));
  });
  return {leaks ? "leak" : "clean", leaks ? std::vector<uint32_t>{152} : std::vector<uint32_t>{}, 0, 0};
}

Truth LongEvaluations(Program& p, uint64_t seed) {
  return WithLongEvaluations(p, seed, false);
}

Truth LongEvaluationsLeak(Program& p, uint64_t seed) {
  return WithLongEvaluations(p, seed, true);
}

Truth PinnedAndDevice(Program& p, uint64_t seed) {
  // Batches are kept on both sides.
  Training t(p, seed);
  Memories kept;
  const uint64_t steps = 40 + seed;
  t.Train(steps, true, [&](uint64_t) {
    kept.push_back(p.Driver(p.Line(160), 0, PINNED_HOST, 2 * kMiB, "cudaHostAlloc"));
    kept.push_back(p.New(p.Line(161), 2 * kMiB, 34));
  });
  return {"leak", {160, 161}, 4.0 * kMiB, steps, true};
}

Truth ProfilerLeftOn(Program& p, uint64_t seed) {
  // An event for each operation of each step, and never read.
  Training t(p, seed);
  const uint64_t steps = 80 + seed;
  t.Train(steps, true, [&](uint64_t) {
    for (int i = 0; i < 20; ++i) p.Handle(p.Line(kForwardLine, 170), "cudaEventCreateWithFlags");
  });
  return {"leak", {170}, 0, steps};
}

Truth SecondPhaseLeaks(Program& p, uint64_t seed) {
  // First a head is trained, then all of it, for longer or shorter, by other lines: these keep their losses.
  Training head(p, seed);
  head.Train(60, true, [](uint64_t) {});
  Training whole(p, seed, 0, 100);
  Memories kept;
  const uint64_t steps = (seed % 2 == 0 ? 45 : 75) + seed % 7;
  whole.Train(steps, true, [&](uint64_t) { kept.push_back(p.New(p.Line(180), 512, 35)); });
  return {"leak", {180}, 512, 0};
}

Truth SecondPhaseHealthy(Program& p, uint64_t seed) {
  // A shorter last phase that gathers what it computes, and drops it when it is done.
  Training head(p, seed);
  head.Train(60 + seed, true, [](uint64_t) {});
  Training whole(p, seed, 0, 100);
  Memories gathered;
  whole.Train(40 + seed / 2, true, [&](uint64_t) { gathered.push_back(p.New(p.Line(180), kMiB, 35)); });
  p.Free(p.New(p.Line(190), kMiB, 37));
  p.Free(gathered);
  return {"clean", {}, 0, 0};
}

Truth BatchesLoadedFirst(Program& p, uint64_t seed) {
  // All batches are put on the device before the first step, by a loop of its own.
  for (uint64_t batch = 0; batch < 100 + seed; ++batch) {
    const Memory raw = p.New(p.Line(12), 2 * kMiB, 1);
    p.New(p.Line(13), kMiB, 2);
    p.Free(raw);
  }
  Training t(p, seed);
  t.Train(90 + seed, true, [](uint64_t) {});
  return {"clean", {}, 0, 0};
}

Truth GraphsOfGradients(Program& p, uint64_t seed) {
  // Gradients of gradients make cycles through .grad: they pile up until the collector comes, at random.
  Training t(p, seed);
  Memories cycles;
  const uint64_t steps = 200;
  t.Train(steps, true, [&](uint64_t) {
    for (int i = 0; i < 3; ++i) cycles.push_back(p.New(p.Torch(kForwardLine, 700), kMiB, 36));
    if (t.Random(0, 11) == 0) p.Free(cycles);
  });
  return {"clean", {}, 0, steps};
}

Truth BatchSizeSearch(Program& p, uint64_t seed) {
  // Ever larger batches until one does not fit, each tried for three steps; then the last that did.
  Training t(p, seed);
  for (uint64_t batch = kMiB; batch <= 64 * kMiB; batch *= 2) {
    for (int i = 0; i < 3; ++i) t.Step(batch, true);
  }
  const uint64_t steps = 60 + seed;
  for (uint64_t s = 0; s < steps; ++s) t.Step(32 * kMiB, true);
  return {"clean", {}, 0, 21 + steps};
}

}  // namespace

std::vector<Scenario> HabitScenarios() {
  return {
      {"LibraryRunsTheLoop", LibraryRunsTheLoop},
      {"LibraryRunsTheLoopHealthy", LibraryRunsTheLoopHealthy},
      {"NotebookCells", NotebookCells},
      {"TwoModelsOneLeak", TwoModelsOneLeak},
      {"AutocastCache", AutocastCache},
      {"QuasiNewtonHistory", QuasiNewtonHistory},
      {"LastBatchSmaller", LastBatchSmaller},
      {"ReplicatedEachStep", ReplicatedEachStep},
      {"PhysicalMemoryKept", PhysicalMemoryKept},
      {"TexturesKept", TexturesKept},
      {"NativeLeakInSixRounds", NativeLeakInSixRounds},
      {"PoolOfCuPySaturates", PoolOfCuPySaturates},
      {"GlobalsByShape", GlobalsByShape},
      {"GenerationPerRequest", GenerationPerRequest},
      {"LongEvaluations", LongEvaluations},
      {"LongEvaluationsLeak", LongEvaluationsLeak},
      {"PinnedAndDevice", PinnedAndDevice},
      {"ProfilerLeftOn", ProfilerLeftOn},
      {"SecondPhaseLeaks", SecondPhaseLeaks},
      {"SecondPhaseHealthy", SecondPhaseHealthy},
      {"BatchesLoadedFirst", BatchesLoadedFirst},
      {"GraphsOfGradients", GraphsOfGradients},
      {"BatchSizeSearch", BatchSizeSearch},
  };
}

}  // namespace gpumemtrace::synthetic
