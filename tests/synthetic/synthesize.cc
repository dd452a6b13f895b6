// gpumem-synthesize: writes a synthetic trace.
//   gpumem-synthesize OUT loop EVENTS [LAYERS [SHAPES [LEAK-BYTES [LEAK-EVERY]]]]
//   gpumem-synthesize OUT NAME [SEED [SHIFT]]  one of the scenarios, all lines of its script SHIFT later
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/synthetic/scenarios.h"

int main(int argc, char** argv) {
  using namespace gpumemtrace::synthetic;
  if (argc < 3) {
    std::fprintf(stderr,
                 "usage: gpumem-synthesize OUT loop EVENTS [LAYERS [SHAPES [LEAK-BYTES [LEAK-EVERY]]]]\n"
                 "       gpumem-synthesize OUT SCENARIO [SEED [SHIFT]]\n");
    for (const Scenario& scenario : Scenarios()) std::fprintf(stderr, "  %s\n", scenario.name.c_str());
    return 64;
  }
  const std::string name = argv[2];
  if (name == "loop") {
    Program program(argv[1]);
    LoopOptions options;
    uint64_t* const numbers[] = {&options.events, &options.layers, &options.shapes, &options.leak_bytes,
                                 &options.leak_every};
    for (int i = 0; i < 5 && i + 3 < argc; ++i) *numbers[i] = std::strtoull(argv[i + 3], nullptr, 10);
    options.leak_every = std::max<uint64_t>(1, options.leak_every);
    TrainingLoop(program, options);
    program.Finish();
    return 0;
  }
  for (const Scenario& scenario : Scenarios()) {
    if (scenario.name != name) continue;
    Program program(argv[1]);
    if (argc > 4) program.ShiftLines(static_cast<uint32_t>(std::strtoul(argv[4], nullptr, 10)));
    const Truth truth = scenario.run(program, argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1);
    program.Finish();
    std::printf("%s %.0f bytes/step, %llu steps\n", truth.verdict.c_str(), truth.bytes_per_step,
                static_cast<unsigned long long>(truth.steps));
    return 0;
  }
  std::fprintf(stderr, "gpumem-synthesize: no scenario is called %s\n", name.c_str());
  return 64;
}
