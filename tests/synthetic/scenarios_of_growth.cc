// Leaks and controls that differ in how they grow: in portions, with noise, slowly, beside others, in stairs,
// or never more than to a bound.
#include <algorithm>
#include <cmath>
#include <map>

#include "tests/synthetic/scenario_lists.h"
#include "tests/synthetic/training.h"

namespace gpumemtrace::synthetic {
namespace {

// One tensor of `bytes` stays of each step in [from, until) that `every` divides.
struct Portions {
  uint64_t bytes = kMiB;
  uint64_t every = 1;
  uint64_t from = 0;
  uint64_t until = UINT64_MAX;
};

void Keep(Program& p, const Portions& portions, uint64_t step, uint32_t line = kKeepLine) {
  if (step >= portions.from && step < portions.until && step % portions.every == portions.every - 1)
    p.New(p.Line(line), portions.bytes, 41);
}

Truth KeptBy(Program& p, uint64_t seed, uint64_t steps, const Portions& portions) {
  Training t(p, seed);
  t.Train(steps, seed % 2 == 0, [&](uint64_t s) { Keep(p, portions, s); });
  return {
      "leak", {kKeepLine}, static_cast<double>(portions.bytes) / static_cast<double>(portions.every), steps};
}

Truth SlowLeakBesideChurn(Program& p, uint64_t seed) {
  // A loss of four bytes a step, in a block of 512, beside a GiB that comes and goes.
  Training t(p, seed);
  const uint64_t steps = 300 + seed;
  for (uint64_t s = 0; s < steps; ++s) {
    t.Step(t.Random(100, 250) * kMiB, true);
    Keep(p, {.bytes = 512}, s);
  }
  return {"leak", {kKeepLine}, 512, steps};
}

Truth SlowLeakInALongRun(Program& p, uint64_t seed) {
  return KeptBy(p, seed, 5000 + seed, {.bytes = 512});
}

Truth EverySeventhStepKept(Program& p, uint64_t seed) {
  return KeptBy(p, seed, 140 + seed, {.bytes = 7 * kMiB, .every = 7});
}

Truth EveryHundredthStepKept(Program& p, uint64_t seed) {
  return KeptBy(p, seed, 1000 + 100 * (seed % 5), {.bytes = 24 * kMiB, .every = 100});
}

Truth FourEvaluationsKeep(Program& p, uint64_t seed) {
  // A run of four evaluations: few, but each adds the same.
  const Truth truth = KeptBy(p, seed, 200, {.bytes = 50 * kMiB, .every = 50});
  return {"leak", truth.lines, 0, 200};
}

Truth SmallLeakBesideALarge(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t steps = 60 + seed;
  t.Train(steps, true, [&](uint64_t s) {
    Keep(p, {.bytes = 8 * kMiB}, s);
    Keep(p, {.bytes = 2 * kKiB}, s, 41);
  });
  return {"leak", {kKeepLine, 41}, 8.0 * kMiB + 2 * kKiB, steps, true};
}

Truth TwoLeaksOneBeginsLater(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t steps = 90 + seed;
  t.Train(steps, true, [&](uint64_t s) {
    Keep(p, {.bytes = kMiB}, s);
    Keep(p, {.bytes = 3 * kMiB, .from = 45}, s, 41);
  });
  return {"leak", {kKeepLine, 41}, 4.0 * kMiB, steps, true};
}

Truth NoisyBatchesLeak(Program& p, uint64_t seed) {
  // Batches differ by up to 30 %, and the outputs that are kept with them.
  Training t(p, seed);
  const uint64_t steps = 60 + seed;
  for (uint64_t s = 0; s < steps; ++s) {
    const uint64_t batch = t.Random(700, 1300) * 4 * kKiB;
    t.Step(batch, true);
    p.New(p.Line(kKeepLine), batch / 4, 41);
  }
  return {"leak", {kKeepLine}, 0, steps};
}

Truth NoisyBatchesHealthy(Program& p, uint64_t seed) {
  // And so does how much of it is done in a step.
  Training t(p, seed);
  const uint64_t steps = 60 + seed;
  for (uint64_t s = 0; s < steps; ++s) {
    const uint64_t batch = t.Random(700, 1300) * 4 * kKiB;
    t.Step(batch, true);
    Memories scores;
    for (uint64_t i = 0; i < t.Random(7, 13); ++i) scores.push_back(p.New(p.Line(kEvalLine), batch / 8, 42));
    p.Free(scores);
  }
  return {"clean", {}, 0, steps};
}

Truth SawToothThatRises(Program& p, uint64_t seed) {
  // The collector finds most of the cycles, but one of each period is held from elsewhere.
  Training t(p, seed);
  const uint64_t period = 9 + seed % 5;
  const uint64_t steps = 12 * period;
  Memories cycles;
  t.Train(steps, true, [&](uint64_t s) {
    cycles.push_back(p.New(p.Line(kKeepLine), kMiB, 41));
    if (s % period != period - 1) return;
    cycles.pop_back();
    p.Free(cycles);
  });
  return {"leak", {kKeepLine}, 0, steps};
}

Truth LeakThatPauses(Program& p, uint64_t seed) {
  // It leaks while it logs: in every second hundred of steps, and at the end again.
  Training t(p, seed);
  const uint64_t steps = 300;
  t.Train(steps, true, [&](uint64_t s) {
    if (s / 100 != 1) Keep(p, {.bytes = 256 * kKiB}, s);
  });
  return {"leak", {kKeepLine}, 0, steps};
}

Truth LeakSinceTheLastEpoch(Program& p, uint64_t seed) {
  // Callbacks of the last of five epochs keep what they are given.
  Training t(p, seed);
  t.Train(250, true, [&](uint64_t s) {
    const Memory score = p.New(p.Line(kEvalLine), kMiB, 41);
    if (s < 200) p.Free(score);
  });
  return {"leak", {kEvalLine}, 1.0 * kMiB, 250};
}

Truth HooksNeverRemoved(Program& p, uint64_t seed) {
  // Each step registers one more hook, and every hook keeps the output of every later step.
  Training t(p, seed);
  const uint64_t steps = 30 + seed;
  t.Train(steps, true, [&](uint64_t s) {
    for (uint64_t hook = 0; hook <= s; ++hook) p.New(p.Line(kForwardLine, 115), 64 * kKiB, 41);
  });
  return {"leak", {115}, 0, steps};
}

Truth ParameterGroupsAdded(Program& p, uint64_t seed) {
  // Every step gives the optimizer one more group, and it keeps state for each.
  Training t(p, seed);
  const uint64_t steps = 40 + seed;
  t.Train(steps, true, [&](uint64_t) {
    p.New(p.Optimizer(kStepLine, 5), 128 * kKiB, 41);
    p.New(p.Optimizer(kStepLine, 5), 128 * kKiB, 41);
  });
  return {"leak", {kStepLine}, 256.0 * kKiB, steps};
}

Truth AveragesPerEpoch(Program& p, uint64_t seed) {
  // A copy of all weights at the end of each of eight epochs, and none goes.
  Training t(p, seed);
  t.Train(160, true, [&](uint64_t s) {
    if (s % 20 != 19) return;
    for (uint32_t i = 0; i < t.layers_; ++i) p.New(p.Line(kKeepLine), t.width_, 41);
  });
  return {"leak", {kKeepLine}, 0, 160};
}

Truth TrialsKeepTheirModels(Program& p, uint64_t seed) {
  // A search makes a model for each trial, and the list of results keeps them all.
  for (uint64_t trial = 0; trial < 10 + seed % 4; ++trial) {
    Training t(p, 3 * seed);
    t.Train(12, true, [](uint64_t) {});
  }
  return {"leak", {kModelLine, kStepLine}, 0, 0};
}

Truth TrialsDropTheirModels(Program& p, uint64_t seed) {
  for (uint64_t trial = 0; trial < 10 + seed % 4; ++trial) {
    Training t(p, 3 * seed);
    t.Train(12, true, [](uint64_t) {});
    p.Free(t.parameters_);
    p.Free(t.state_);
  }
  return {"clean", {}, 0, 0};
}

Truth SecondModelLater(Program& p, uint64_t seed) {
  // One model is trained, then a larger one, and the first stays for comparison.
  Training teacher(p, seed);
  teacher.Train(40, true, [](uint64_t) {});
  Training student(p, seed + 1, 0, 30);
  student.Train(40 + seed, true, [](uint64_t) {});
  return {"clean", {}, 0, 0};
}

Truth UnfrozenOneByOne(Program& p, uint64_t seed) {
  // Every ten steps one more layer is trained and gets its state: stairs with even treads, and an end.
  Training t(p, seed);
  const uint64_t stages = 4 + seed % 2;
  t.Train(10 * (stages + 1), false, [&](uint64_t s) {
    if (s % 10 != 9 || s / 10 >= stages) return;
    for (int moment = 0; moment < 2; ++moment) p.New(p.Optimizer(kStepLine, 5), 8 * kMiB, 41);
  });
  return {"clean", {}, 0, 10 * (stages + 1)};
}

Truth LazyLayers(Program& p, uint64_t seed) {
  // Experts get their weights when they are first chosen, one or two a step in the beginning.
  Training t(p, seed);
  uint64_t made = 0;
  t.Train(120 + seed, true, [&](uint64_t) {
    for (uint64_t i = 0; i < 1 + seed % 2 && made < 32; ++i, ++made)
      p.New(p.Torch(kForwardLine, 60), 2 * kMiB, 41);
  });
  return {"clean", {}, 0, 120 + seed};
}

Truth VocabularyCache(Program& p, uint64_t seed) {
  // Rows are kept for words when they first occur: with the logarithm of the text or its square root.
  Training t(p, seed);
  uint64_t words = 0;
  const uint64_t steps = 400;
  t.Train(steps, true, [&](uint64_t s) {
    const auto text = static_cast<double>(s);
    const auto known = static_cast<uint64_t>(seed % 2 == 0 ? 12 * std::sqrt(text) : 8 * std::log1p(text));
    for (; words < known; ++words) p.New(p.Line(kKeepLine), 256 * kKiB, 41);
  });
  return {"clean", {}, 0, steps};
}

Truth ZipfCache(Program& p, uint64_t seed) {
  // A table of embeddings by key, of which few are frequent and most rare.
  Training t(p, seed);
  std::map<uint64_t, Memory> cache;
  const uint64_t steps = 500;
  t.Train(steps, true, [&](uint64_t) {
    const double u = static_cast<double>(t.Random(1, 1000000)) / 1e6;
    const auto key = static_cast<uint64_t>(std::pow(40.0, u));
    if (!cache.contains(key)) cache[key] = p.New(p.Line(kKeepLine), kMiB, 41);
  });
  return {"clean", {}, 0, steps};
}

Truth QueueOfRandomDepth(Program& p, uint64_t seed) {
  // Work in flight goes up and down at random, and is never more than twelve.
  Training t(p, seed);
  Bounded queue(p, 12);
  const uint64_t steps = 120 + seed;
  t.Train(steps, true, [&](uint64_t) {
    for (uint64_t i = t.Random(0, 2); i > 0; --i) queue.Push(p.New(p.Line(kKeepLine), 2 * kMiB, 41));
    for (uint64_t i = t.Random(0, 2); i > 0 && queue.size() != 0; --i) queue.Drop();
  });
  return {"clean", {}, 0, steps};
}

Truth ReservoirOfSamples(Program& p, uint64_t seed) {
  // Sixty-four examples; a new one takes the place of any other, ever more seldom.
  Training t(p, seed);
  Memories kept;
  const uint64_t steps = 300;
  t.Train(steps, true, [&](uint64_t s) {
    const Memory sample = p.New(p.Line(kKeepLine), kMiB, 41);
    if (kept.size() < 64) {
      kept.push_back(sample);
      return;
    }
    const uint64_t place = t.Random(0, s);
    const Memory gone = place < kept.size() ? kept[place] : sample;
    if (place < kept.size()) kept[place] = sample;
    p.Free(gone);
  });
  return {"clean", {}, 0, steps};
}

Truth BestSnapshots(Program& p, uint64_t seed) {
  // The best three models so far are kept on the device; a better one replaces the worst.
  Training t(p, seed);
  std::vector<std::pair<uint64_t, Memories>> best;
  const uint64_t steps = 160;
  t.Train(steps, true, [&](uint64_t s) {
    if (s % 5 != 4) return;
    const uint64_t score = t.Random(0, 1000) + s;
    if (best.size() >= 3 && score <= best.front().first) return;
    Memories copy;
    for (uint32_t i = 0; i < t.layers_; ++i) copy.push_back(p.New(p.Line(kKeepLine), t.width_, 41));
    best.emplace_back(score, copy);
    std::sort(best.begin(), best.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    if (best.size() <= 3) return;
    p.Free(best.front().second);
    best.erase(best.begin());
  });
  return {"clean", {}, 0, steps};
}

Truth TruncatedHistory(Program& p, uint64_t seed) {
  // A recurrent state is detached every twentieth step: its graph grows until then, and goes.
  Training t(p, seed);
  Memories graph;
  const uint64_t steps = 110 + seed;
  t.Train(steps, true, [&](uint64_t s) {
    graph.push_back(p.New(p.Line(kKeepLine), kMiB, 41));
    graph.push_back(p.New(p.Torch(kEvalLine, 1), 256 * kKiB, 42));
    if (s % 20 == 19) p.Free(graph);
  });
  return {"clean", {}, 0, steps};
}

Truth StateNotDetached(Program& p, uint64_t seed) {
  // And here never: the state, the input of each step and the saved outputs stay.
  Training t(p, seed);
  const uint64_t steps = 40 + seed;
  t.Train(steps, true, [&](uint64_t) {
    p.New(p.Line(kKeepLine), kMiB, 41);
    p.New(p.Torch(kEvalLine, 1), 256 * kKiB, 42);
    p.Free(p.New(p.Torch(kEvalLine, 2), 512 * kKiB, 43));
  });
  return {"leak", {kKeepLine, kEvalLine}, 1.25 * kMiB, steps, true};
}

Truth GraphOfTheSum(Program& p, uint64_t seed) {
  // total = total + loss without backward: the newest sum replaces the old one, the activations all stay.
  const uint64_t steps = 30 + seed;
  Memory total;
  for (uint64_t s = 0; s < steps; ++s) {
    const Memory input = p.New(p.Line(kInputLine), 128 * kKiB, 1);
    for (uint32_t i = 0; i < 3; ++i) p.New(p.Torch(kForwardLine, i), 512 * kKiB, 3);
    const Memory loss = p.New(p.Line(kLossLine), 4, 5);
    const Memory sum = p.New(p.Line(kKeepLine), 4, 6);
    p.Free(total);
    p.Free(loss);
    if (seed % 2 == 0) p.Free(input);
    total = sum;
  }
  return {"leak", {kForwardLine}, (seed % 2 == 0 ? 1536.0 : 1664.0) * kKiB, steps};
}

Truth RetainedGraph(Program& p, uint64_t seed) {
  // backward(retain_graph=True): the graph goes when the next step's loss takes the name.
  const uint64_t steps = 30 + seed;
  Memories previous;
  for (uint64_t s = 0; s < steps; ++s) {
    Memories graph{p.New(p.Line(kInputLine), kMiB, 1)};
    for (uint32_t i = 0; i < 4; ++i) graph.push_back(p.New(p.Torch(kForwardLine, i), kMiB, 3));
    graph.push_back(p.New(p.Line(kLossLine), 4, 5));
    p.Free(previous);
    Memories gradients;
    for (uint32_t i = 0; i < 4; ++i) gradients.push_back(p.NewBackward(p.Torch(kForwardLine, i), kMiB, 7));
    p.Free(gradients);
    previous = graph;
  }
  return {"clean", {}, 0, steps};
}

Truth MetricsNotReset(Program& p, uint64_t seed) {
  // A metric gathers predictions and targets in evaluation, and is never reset.
  Training t(p, seed);
  t.Train(120, false, [&](uint64_t s) {
    if (s % 12 != 11) return;
    for (int batch = 0; batch < 6; ++batch) {
      p.New(p.Line(kEvalLine, 121), 512 * kKiB, 41);
      p.New(p.Line(kEvalLine, 122), 8 * kKiB, 42);
    }
  });
  return {"leak", {121}, 0, 120};
}

Truth MetricsResetEachEpoch(Program& p, uint64_t seed) {
  Training t(p, seed);
  Memories metric;
  t.Train(150, false, [&](uint64_t s) {
    metric.push_back(p.New(p.Line(kEvalLine, 121), 512 * kKiB, 41));
    metric.push_back(p.New(p.Line(kEvalLine, 122), 8 * kKiB, 42));
    if (s % 30 != 29) return;
    const Memory all = p.New(p.Line(kEvalLine, 126), 15 * kMiB, 43);
    p.Free(metric);
    p.Free(all);
  });
  return {"clean", {}, 0, 150};
}

Truth CyclesUntilTheEpochEnds(Program& p, uint64_t seed) {
  // gc.collect() at the end of each epoch finds them all; the run ends within an epoch.
  Training t(p, seed);
  Memories cycles;
  const uint64_t epoch = 30 + seed;
  t.Train(3 * epoch + epoch / 2, true, [&](uint64_t s) {
    cycles.push_back(p.New(p.Line(kKeepLine), 2 * kMiB, 41));
    if (s % epoch == epoch - 1) p.Free(cycles);
  });
  return {"clean", {}, 0, 3 * epoch + epoch / 2};
}

Truth SequencesInBuckets(Program& p, uint64_t seed) {
  Training t(p, seed);
  const uint64_t steps = 150 + seed;
  for (uint64_t s = 0; s < steps; ++s) t.Step((uint64_t{1} << t.Random(0, 4)) * 512 * kKiB, true);
  return {"clean", {}, 0, steps};
}

Truth LongerByTheRoot(Program& p, uint64_t seed) {
  // A curriculum whose lengths grow with the square root of the steps, to the end.
  Training t(p, seed);
  const uint64_t steps = 100 + seed;
  for (uint64_t s = 0; s < steps; ++s)
    t.Step(static_cast<uint64_t>(std::sqrt(static_cast<double>(s + 1)) * 8) * 128 * kKiB, seed % 2 == 0);
  return {"clean", {}, 0, steps};
}

Truth ProgressiveResize(Program& p, uint64_t seed) {
  // Three sizes of images, and the weights' positions are made anew for each.
  Training t(p, seed);
  Memory positions;
  for (uint64_t s = 0; s < 120; ++s) {
    if (s % 40 == 0) {
      const Memory next = p.New(p.Line(kEvalLine), (1 + s / 40) * 4 * kMiB, 41);
      p.Free(positions);
      positions = next;
    }
    t.Step((1 + s / 40) * kMiB, true);
  }
  return {"clean", {}, 0, 120};
}

Truth WarmUpInTenSteps(Program& p, uint64_t seed) {
  // Buffers of communication, a scaler, a plan: one of each of the first ten steps, then nothing.
  Training t(p, seed);
  t.Train(40 + seed, true, [&](uint64_t s) {
    if (s < 10) p.New(p.Line(kKeepLine), 4 * kMiB, 41);
  });
  return {"clean", {}, 0, 40 + seed};
}

Truth StoppedEarly(Program& p, uint64_t seed) {
  // A healthy run of six to ten steps whose optimizer makes its state in the first one.
  Training t(p, seed);
  t.Train(6 + seed % 5, true, [](uint64_t) {});
  return {"clean", {}, 0, 6 + seed % 5};
}

Truth LongHealthyRun(Program& p, uint64_t seed) {
  Training t(p, seed);
  t.Train(4000, true, [&](uint64_t s) {
    if (s % 500 == 499) p.Free(p.New(p.Line(kEvalLine), 64 * kMiB, 41));
  });
  return {"clean", {}, 0, 4000};
}

}  // namespace

std::vector<Scenario> GrowthScenarios() {
  return {
      {"SlowLeakBesideChurn", SlowLeakBesideChurn},
      {"SlowLeakInALongRun", SlowLeakInALongRun},
      {"EverySeventhStepKept", EverySeventhStepKept},
      {"EveryHundredthStepKept", EveryHundredthStepKept},
      {"FourEvaluationsKeep", FourEvaluationsKeep},
      {"SmallLeakBesideALarge", SmallLeakBesideALarge},
      {"TwoLeaksOneBeginsLater", TwoLeaksOneBeginsLater},
      {"NoisyBatchesLeak", NoisyBatchesLeak},
      {"NoisyBatchesHealthy", NoisyBatchesHealthy},
      {"SawToothThatRises", SawToothThatRises},
      {"LeakThatPauses", LeakThatPauses},
      {"LeakSinceTheLastEpoch", LeakSinceTheLastEpoch},
      {"HooksNeverRemoved", HooksNeverRemoved},
      {"ParameterGroupsAdded", ParameterGroupsAdded},
      {"AveragesPerEpoch", AveragesPerEpoch},
      {"TrialsKeepTheirModels", TrialsKeepTheirModels},
      {"TrialsDropTheirModels", TrialsDropTheirModels},
      {"SecondModelLater", SecondModelLater},
      {"UnfrozenOneByOne", UnfrozenOneByOne},
      {"LazyLayers", LazyLayers},
      {"VocabularyCache", VocabularyCache},
      {"ZipfCache", ZipfCache},
      {"QueueOfRandomDepth", QueueOfRandomDepth},
      {"ReservoirOfSamples", ReservoirOfSamples},
      {"BestSnapshots", BestSnapshots},
      {"TruncatedHistory", TruncatedHistory},
      {"StateNotDetached", StateNotDetached},
      {"GraphOfTheSum", GraphOfTheSum},
      {"RetainedGraph", RetainedGraph},
      {"MetricsNotReset", MetricsNotReset},
      {"MetricsResetEachEpoch", MetricsResetEachEpoch},
      {"CyclesUntilTheEpochEnds", CyclesUntilTheEpochEnds},
      {"SequencesInBuckets", SequencesInBuckets},
      {"LongerByTheRoot", LongerByTheRoot},
      {"ProgressiveResize", ProgressiveResize},
      {"WarmUpInTenSteps", WarmUpInTenSteps},
      {"StoppedEarly", StoppedEarly},
      {"LongHealthyRun", LongHealthyRun},
  };
}

}  // namespace gpumemtrace::synthetic
