// Runs a fuzz target without libFuzzer (any compiler): every file of a folder as it is, then mutations of
// them.
//   usage: <program> <folder> [rounds]
// The rounds are the same every time; a failure says which one it was.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

void Run(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

std::string Mutate(std::string input, const std::vector<std::string>& seeds, std::mt19937_64& random) {
  for (uint64_t steps = 1 + random() % 6; steps > 0 && !input.empty(); --steps) {
    const size_t at = random() % input.size();
    switch (random() % 7) {
      case 0:
        input[at] = static_cast<char>(input[at] ^ (1 << (random() % 8)));
        break;
      case 1:
        input[at] = static_cast<char>(random());
        break;
      case 2:
        input.resize(at);
        break;
      case 3:
        input.erase(at, 1 + random() % 16);
        break;
      case 4:
        input.insert(at, 1 + random() % 16, static_cast<char>(random() % 2 == 0 ? 0xff : random()));
        break;
      case 5: {  // a part of another seed
        const std::string& other = seeds[random() % seeds.size()];
        const size_t from = random() % other.size();
        input.insert(at, other, from, 1 + random() % 200);
        break;
      }
      default:  // a large number
        for (size_t i = at; i < input.size() && i < at + 4; ++i) input[i] = static_cast<char>(0xff);
        break;
    }
  }
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s <folder> [rounds]\n", argv[0]);
    return 64;
  }
  std::vector<std::string> seeds;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1])) {
    std::ifstream file(entry.path(), std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    if (seeds.back().empty()) seeds.pop_back();
  }
  if (seeds.empty()) {
    std::fprintf(stderr, "%s: no seeds in %s\n", argv[0], argv[1]);
    return 1;
  }
  std::sort(seeds.begin(), seeds.end());
  for (const std::string& seed : seeds) Run(seed);
  const uint64_t rounds = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 2000;
  std::mt19937_64 random(20240607);
  for (uint64_t round = 0; round < rounds; ++round) {
    Run(Mutate(seeds[random() % seeds.size()], seeds, random));
  }
  std::printf("%zu seeds, %llu mutations\n", seeds.size(), static_cast<unsigned long long>(rounds));
  return 0;
}
