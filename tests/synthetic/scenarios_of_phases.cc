// Training loops whose phases differ: what is kept only in some of them, what begins late or ends, what a
// garbage collector takes away now and then, and runs of a few steps.
#include <algorithm>
#include <deque>
#include <map>

#include "tests/synthetic/scenario_lists.h"
#include "tests/synthetic/training.h"

namespace gpumemtrace::synthetic {
namespace {

Truth EpochEndKept(Program& p, uint64_t seed) {
  // At the end of each epoch the predictions of the validation are kept.
  Training t(p, seed);
  Memories kept;
  uint64_t steps = 0;
  const int epochs = 6 + static_cast<int>(seed % 4);
  for (int epoch = 0; epoch < epochs; ++epoch) {
    for (int batch = 0; batch < 25; ++batch, ++steps) t.Step(kMiB, true);
    for (int i = 0; i < 8; ++i) {
      const Memory input = p.New(p.Line(kEvalLine, 101), kMiB, 11);
      kept.push_back(p.New(p.Line(kEvalLine, 103), kMiB, 12));
      p.Free(input);
    }
  }
  return {"leak", {103}, 0, 0};
}

Truth EveryThirdStepKept(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t steps = 48 + 3 * (seed % 10);
  Memories kept;
  t.Train(steps, seed % 2 == 0, [&](uint64_t s) {
    if (s % 3 == 2) kept.push_back(p.New(p.Line(kKeepLine), 3 * kMiB, 11));
  });
  return {"leak", {kKeepLine}, 1.0 * kMiB, steps};
}

Truth TwoLeaksAtOnce(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t steps = 40 + seed;
  Memories first, second;
  t.Train(steps, true, [&](uint64_t) {
    first.push_back(p.New(p.Line(kKeepLine), kMiB, 11));
    second.push_back(p.New(p.Line(41), 256 * kKiB, 12));
  });
  return {"leak", {kKeepLine}, 1.25 * kMiB, steps};
}

Truth LeakBeginsNearTheEnd(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t steps = 150;
  Memories kept;
  t.Train(steps, true, [&](uint64_t s) {
    const Memory scores = p.New(p.Line(kEvalLine), 2 * kMiB, 11);
    if (s >= steps - 20) {
      kept.push_back(scores);
    } else {
      p.Free(scores);
    }
  });
  return {"leak", {kEvalLine}, 2.0 * kMiB, steps};
}

Truth LeakSinceLaterOnItsOwnLine(Program& p, uint64_t seed) {
  // The line that leaks does not run before: logging begins after a warm-up.
  Training t(p, seed);
  const uint64_t steps = 100 + seed;
  Memories kept;
  t.Train(steps, true, [&](uint64_t s) {
    if (s >= 70) kept.push_back(p.New(p.Line(kKeepLine), 64 * kKiB, 11));
  });
  return {"leak", {kKeepLine}, 64.0 * kKiB, steps};
}

Truth GradientsKeptByHook(Program& p, uint64_t seed) {
  // A hook stores a gradient of each backward: born on an autograd thread, named by its forward line.
  Training t(p, seed);
  const uint64_t steps = 30 + seed % 20;
  Memories kept;
  for (uint64_t s = 0; s < steps; ++s) {
    const Memory loss = t.Forward(kMiB);
    kept.push_back(p.NewBackward(p.Torch(kForwardLine, 0), 2 * kMiB, 14));
    t.Backward(kMiB);
    t.Optimize(false);
    p.Free(loss);
    t.FreeInput();
  }
  return {"leak", {kForwardLine}, 2.0 * kMiB, steps};
}

Truth ClosurePerStep(Program& p, uint64_t seed) {
  // A function is registered each step and its closure keeps the batch and the output.
  Training t(p, seed);
  const uint64_t steps = 25 + seed;
  Memories kept;
  for (uint64_t s = 0; s < steps; ++s) {
    kept.push_back(p.New(p.Line(kKeepLine, 107), 512 * kKiB, 11));
    kept.push_back(p.New(p.Line(kKeepLine, 108), 256 * kKiB, 12));
    t.Step(kMiB, true);
  }
  return {"leak", {107, 108}, 768.0 * kKiB, steps};
}

Truth GeneratorKeepsBatches(Program& p, uint64_t seed) {
  // The generator that gives the batches also collects them; they are named by its line.
  const uint64_t steps = 40 + seed;
  Memories kept;
  for (uint64_t s = 0; s < steps; ++s) {
    kept.push_back(p.New(p.Line(40, 55), 4 * kMiB, 1));
    const Memory a = p.New(p.Torch(41, 1), 2 * kMiB, 2);
    const Memory b = p.New(p.Torch(42, 2), 2 * kMiB, 3);
    p.Free(a);
    p.Free(b);
  }
  return {"leak", {55}, 4.0 * kMiB, steps};
}

Truth LeakWhileSequencesGrow(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t steps = 60 + seed;
  Memories kept;
  for (uint64_t s = 0; s < steps; ++s) {
    t.Step((s + 1) * 256 * kKiB, true);
    kept.push_back(p.New(p.Line(kKeepLine), 128 * kKiB, 11));
  }
  return {"leak", {kKeepLine}, 128.0 * kKiB, steps};
}

Truth LeakOfGrowingTensors(Program& p, uint64_t seed) {
  // Each step keeps its hidden states, and the sequences get longer: the growth itself grows.
  Training t(p, seed);
  const uint64_t steps = 40 + seed;
  Memories kept;
  t.Train(steps, true,
          [&](uint64_t s) { kept.push_back(p.New(p.Line(kKeepLine), (s + 1) * 64 * kKiB, 11)); });
  return {"leak", {kKeepLine}, 0, steps};
}

Truth LeakOfRandomSizes(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t steps = 120;
  Memories kept;
  t.Train(steps, true,
          [&](uint64_t) { kept.push_back(p.New(p.Line(kKeepLine), t.Random(1, 64) * 64 * kKiB, 11)); });
  return {"leak", {kKeepLine}, 0, steps};
}

Truth HalfOfItIsFreed(Program& p, uint64_t seed) {
  // An error path forgets: of what each step makes, some is never taken out again.
  Training t(p, seed);
  const uint64_t steps = 200;
  Memories kept;
  t.Train(steps, true, [&](uint64_t) {
    const Memory one = p.New(p.Line(kKeepLine), kMiB, 11);
    if (t.Random(0, 3) == 0) {
      kept.push_back(one);
    } else {
      p.Free(one);
    }
  });
  return {"leak", {kKeepLine}, 0, steps};
}

Truth WarmUpThenLeak(Program& p, uint64_t seed) {
  // The first steps try things out and drop them at once; from then on the same line keeps one of each step.
  Training t(p, seed);
  Memories tried;
  const uint64_t steps = 50 + seed;
  Memories kept;
  t.Train(steps, true, [&](uint64_t s) {
    if (s == 2) p.Free(tried);
    for (int i = 0; i < 30 && s < 2; ++i) tried.push_back(p.New(p.Line(kKeepLine), kMiB, 11));
    if (s >= 2) kept.push_back(p.New(p.Line(kKeepLine), kMiB, 11));
  });
  return {"leak", {kKeepLine}, 1.0 * kMiB, steps};
}

Truth LeakIn(Program& p, uint64_t seed, uint64_t steps) {
  Training t(p, seed);
  Memories kept;
  t.Train(steps, seed % 2 == 0, [&](uint64_t) { kept.push_back(p.New(p.Line(kKeepLine), 3 * kMiB, 11)); });
  return {"leak", {kKeepLine}, 3.0 * kMiB, steps};
}

Truth LeakInFiveSteps(Program& p, uint64_t seed) {
  return LeakIn(p, seed, 5);
}

Truth LeakInSixSteps(Program& p, uint64_t seed) {
  return LeakIn(p, seed, 6);
}

Truth HealthyIn(Program& p, uint64_t seed, uint64_t steps) {
  Training t(p, seed);
  t.Train(steps, true, [](uint64_t) {});
  return {"clean", {}, 0, 0};
}

Truth HealthyInThreeSteps(Program& p, uint64_t seed) {
  return HealthyIn(p, seed, 3);
}

Truth HealthyInFiveSteps(Program& p, uint64_t seed) {
  return HealthyIn(p, seed, 5);
}

Truth HealthyInEightSteps(Program& p, uint64_t seed) {
  return HealthyIn(p, seed, 8);
}

Truth CacheFillsVeryLate(Program& p, uint64_t seed) {
  // The cache is full just before the run ends.
  Training t(p, seed);
  const uint64_t steps = 200;
  const uint64_t bound = 180 + seed % 10;
  Bounded cache(p, bound);
  t.Train(steps, true, [&](uint64_t) { cache.Push(p.New(p.Line(kKeepLine), kMiB, 11)); });
  return {"clean", {}, 0, steps};
}

Truth LongSawTooth(Program& p, uint64_t seed) {
  // Cycles that only the rare full collection finds.
  Training t(p, seed);
  Memories cycles;
  const uint64_t period = 90 + seed;
  const uint64_t steps = 2 * period + period * 2 / 3;
  t.Train(steps, true, [&](uint64_t s) {
    cycles.push_back(p.New(p.Line(kKeepLine), kMiB, 11));
    if (s % period == period - 1) p.Free(cycles);
  });
  return {"clean", {}, 0, steps};
}

Truth UnevenSawTooth(Program& p, uint64_t seed) {
  // Collections come when they like, and each leaves the youngest behind.
  Training t(p, seed);
  std::deque<Memory> cycles;
  const uint64_t steps = 150;
  uint64_t until = t.Random(8, 30);
  t.Train(steps, true, [&](uint64_t s) {
    cycles.push_back(p.New(p.Line(kKeepLine), kMiB, 11));
    if (s < until) return;
    const size_t left = t.Random(0, 3);
    while (cycles.size() > left) {
      p.Free(cycles.front());
      cycles.pop_front();
    }
    until = s + t.Random(8, 30);
  });
  return {"clean", {}, 0, steps};
}

Truth ListClearedEachEpoch(Program& p, uint64_t seed) {
  Training t(p, seed);
  Memories losses;
  uint64_t steps = 0;
  for (int epoch = 0; epoch < 4; ++epoch) {
    for (int batch = 0; batch < 30; ++batch, ++steps) {
      t.Step(kMiB, true);
      losses.push_back(p.New(p.Line(kKeepLine), 512, 11));
    }
    p.Free(losses);
  }
  return {"clean", {}, 0, steps};
}

Truth AveragedWeights(Program& p, uint64_t seed) {
  // A copy of the weights that is made anew each step: the old one goes after the new one came.
  Training t(p, seed);
  Memories average;
  const uint64_t steps = 40 + seed;
  t.Train(steps, true, [&](uint64_t) {
    Memories next;
    for (uint32_t i = 0; i < t.layers_; ++i) next.push_back(p.New(p.Line(kKeepLine), t.width_, 11));
    p.Free(average);
    average = next;
  });
  return {"clean", {}, 0, steps};
}

Truth CheckpointsNowAndThen(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t steps = 120;
  t.Train(steps, true, [&](uint64_t s) {
    if (s % 25 != 24) return;
    Memories copy;
    for (uint32_t i = 0; i < t.layers_; ++i) copy.push_back(p.New(p.Line(kKeepLine), t.width_, 11));
    p.Free(copy);
  });
  return {"clean", {}, 0, steps};
}

Truth CurriculumInStairs(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t steps = 160;
  for (uint64_t s = 0; s < steps; ++s) t.Step((1 + s / 40) * 2 * kMiB, seed % 2 == 0);
  return {"clean", {}, 0, steps};
}

Truth FullerBufferByBytes(Program& p, uint64_t seed) {
  // Episodes of random length; the oldest go when there are too many bytes.
  Training t(p, seed);
  std::deque<Memory> buffer;
  uint64_t bytes = 0;
  const uint64_t steps = 200;
  t.Train(steps, true, [&](uint64_t) {
    buffer.push_back(p.New(p.Line(kKeepLine), t.Random(1, 32) * 128 * kKiB, 11));
    bytes += buffer.back().size;
    while (bytes > 128 * kMiB) {
      bytes -= buffer.front().size;
      p.Free(buffer.front());
      buffer.pop_front();
    }
  });
  return {"clean", {}, 0, steps};
}

Truth TwoOptimizers(Program& p, uint64_t seed) {
  // Two networks in turn, each with its own optimizer: one step of the loop, two calls.
  Training first(p, seed);
  Training second(p, seed + 1, 0, 20);
  const uint64_t steps = 40 + seed;
  for (uint64_t s = 0; s < steps; ++s) {
    first.Step(kMiB, true);
    const Memory fake = p.New(p.Line(35), kMiB, 15);
    second.Step(kMiB, true);
    p.Free(fake);
  }
  return {"clean", {}, 0, steps};
}

Truth MarkedSteps(Program& p, uint64_t seed) {
  // The program marks its steps itself; nothing else tells them, and what comes between is kept.
  const uint64_t steps = 20 + seed;
  Memories kept;
  Training t(p, seed);
  for (uint64_t s = 0; s < steps; ++s) {
    p.trace().Mark(Mark::STEP, "", s);
    for (uint64_t i = 0; i < 3; ++i) t.Step(kMiB, true);
    kept.push_back(p.New(p.Line(kKeepLine), kMiB, 11));
  }
  return {"leak", {kKeepLine}, 1.0 * kMiB, steps};
}

Truth RangesNameTheSteps(Program& p, uint64_t seed) {
  // NVTX ranges "iteration 0", "iteration 1", …, with others inside.
  const uint64_t steps = 20 + seed;
  Memories kept;
  Training t(p, seed);
  for (uint64_t s = 0; s < steps; ++s) {
    p.trace().Mark(Mark::PUSH, "iteration " + std::to_string(s), 0);
    for (uint64_t i = 0; i < 2; ++i) {
      p.trace().Mark(Mark::PUSH, "forward", 0);
      t.Step(kMiB, true);
      p.trace().Mark(Mark::POP, "", 0);
    }
    kept.push_back(p.New(p.Line(kKeepLine), kMiB, 11));
    p.trace().Mark(Mark::POP, "", 0);
  }
  return {"leak", {kKeepLine}, 1.0 * kMiB, steps};
}

Truth DynamicShapesRecompile(Program& p, uint64_t seed) {
  // Each new shape brings a plan with its workspace, and there are so many shapes.
  Training t(p, seed);
  std::map<uint64_t, Memory> plans;
  const uint64_t steps = 250;
  for (uint64_t s = 0; s < steps; ++s) {
    const uint64_t shape = std::min(t.Random(1, 20), t.Random(1, 20));
    t.Step(shape * 128 * kKiB, true);
    if (!plans.contains(shape)) plans[shape] = p.New(p.Torch(kForwardLine, 77), 4 * kMiB + shape * 512, 16);
  }
  return {"clean", {}, 0, steps};
}

Truth Accumulated(Program& p, uint64_t seed) {
  // Gradients are never set to none: they stay, and only their content grows.
  Training t(p, seed);
  const uint64_t steps = 50 + seed;
  for (uint64_t s = 0; s < steps; ++s) {
    const Memory loss = t.Forward(kMiB);
    t.Backward(kMiB);
    p.Free(loss);
    t.FreeInput();
  }
  return {"clean", {}, 0, steps};
}

Truth ScoresOfTheLastHundred(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t steps = 300;
  Bounded scores(p, 100);
  t.Train(steps, true, [&](uint64_t) { scores.Push(p.New(p.Line(kKeepLine), 512, 11)); });
  return {"clean", {}, 0, steps};
}

}  // namespace

std::vector<Scenario> PhaseScenarios() {
  return {
      {"EpochEndKept", EpochEndKept},
      {"EveryThirdStepKept", EveryThirdStepKept},
      {"TwoLeaksAtOnce", TwoLeaksAtOnce},
      {"LeakBeginsNearTheEnd", LeakBeginsNearTheEnd},
      {"LeakSinceLaterOnItsOwnLine", LeakSinceLaterOnItsOwnLine},
      {"GradientsKeptByHook", GradientsKeptByHook},
      {"ClosurePerStep", ClosurePerStep},
      {"GeneratorKeepsBatches", GeneratorKeepsBatches},
      {"LeakWhileSequencesGrow", LeakWhileSequencesGrow},
      {"LeakOfGrowingTensors", LeakOfGrowingTensors},
      {"LeakOfRandomSizes", LeakOfRandomSizes},
      {"HalfOfItIsFreed", HalfOfItIsFreed},
      {"WarmUpThenLeak", WarmUpThenLeak},
      {"LeakInFiveSteps", LeakInFiveSteps},
      {"LeakInSixSteps", LeakInSixSteps},
      {"HealthyInThreeSteps", HealthyInThreeSteps},
      {"HealthyInFiveSteps", HealthyInFiveSteps},
      {"HealthyInEightSteps", HealthyInEightSteps},
      {"CacheFillsVeryLate", CacheFillsVeryLate},
      {"LongSawTooth", LongSawTooth},
      {"UnevenSawTooth", UnevenSawTooth},
      {"ListClearedEachEpoch", ListClearedEachEpoch},
      {"AveragedWeights", AveragedWeights},
      {"CheckpointsNowAndThen", CheckpointsNowAndThen},
      {"CurriculumInStairs", CurriculumInStairs},
      {"FullerBufferByBytes", FullerBufferByBytes},
      {"TwoOptimizers", TwoOptimizers},
      {"MarkedSteps", MarkedSteps},
      {"RangesNameTheSteps", RangesNameTheSteps},
      {"DynamicShapesRecompile", DynamicShapesRecompile},
      {"Accumulated", Accumulated},
      {"ScoresOfTheLastHundred", ScoresOfTheLastHundred},
  };
}

}  // namespace gpumemtrace::synthetic
