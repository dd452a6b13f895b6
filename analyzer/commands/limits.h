// Amounts as people write them on a command line: "40GiB", "1MiB/step", "512", "2%".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gpumemtrace::analyzer {

// Bytes with an optional unit: B, K, M, G, T with or without iB (powers of 1024), KB, MB, GB, TB (powers of
// 1000); an optional "/step" at the end is ignored when `per_step`. False when it is not an amount.
bool ParseBytes(std::string_view text, bool per_step, uint64_t& bytes);

// "2%" or "0.02" as a fraction.
bool ParseFraction(std::string_view text, double& fraction);

}  // namespace gpumemtrace::analyzer
