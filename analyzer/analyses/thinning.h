// A series of stretches in bounded memory: when there are too many, short neighbors are joined. Long ones
// stay as they are, so that what came as few long stretches (folded windows) is not joined again and again
// for what came in short ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpumemtrace::analyzer {

// Doubles `longest` until no more than half of `most` stretches are left. A Stretch has a `weight` and takes
// in what follows it with Join(next), its weight included.
template <typename Stretch>
void Thin(std::vector<Stretch>& series, size_t most, uint64_t& longest) {
  while (series.size() > most / 2) {
    longest *= 2;
    size_t out = 0;
    for (size_t i = 0; i < series.size(); ++i) {
      if (out != 0 && series[out - 1].weight + series[i].weight <= longest) {
        series[out - 1].Join(series[i]);
      } else {
        series[out++] = series[i];
      }
    }
    series.resize(out);
  }
}

}  // namespace gpumemtrace::analyzer
