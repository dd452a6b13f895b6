// How findings look in text and JSON: places, curves, moments, stacks. Shared by the sections about findings.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "analyzer/analyzed_trace.h"
#include "analyzer/report/text.h"

namespace gpumemtrace::analyzer {

// On the host, memory that is smaller than this is the small change of libraries.
inline constexpr uint64_t kSmallOnHost = 1u << 20;

nlohmann::ordered_json PlaceJson(const Place& place);
nlohmann::ordered_json MomentJson(const Moment& moment, const AnalyzedTrace& trace);
// "step 412, 3 min 20 s after the start".
std::string MomentText(const Moment& moment, const AnalyzedTrace& trace);
// Eight heights, `width` columns at most; empty when there is nothing to draw.
std::string Sparkline(const std::vector<CurvePoint>& curve, size_t width);
// "3.9 MiB/step", "512 B/step", "1 object/step".
std::string RateText(double bytes_per_step, double count_per_step, bool real_steps);
// Of an estimate, two digits: "230 ms", "2.2 s", "19 min", "55 h", "120 d".
std::string RoughDuration(uint64_t microseconds);
// Rows of a stack, innermost first, each "function file:line"; at most `most` of them.
std::vector<std::string> StackRows(const AnalyzedTrace& trace, OriginId origin, size_t most);
// One frame; `forward`: of the forward pass, for memory that the backward pass made.
nlohmann::ordered_json LocationJson(const Location& location, bool forward);
nlohmann::ordered_json StackJson(const AnalyzedTrace& trace, OriginId origin);
// Why what lay free in the allocator of a device did not serve, with its figures; empty when not known.
std::string WhyNotServed(const Findings& findings, int32_t device);
// "device 0" or "host".
std::string DeviceText(int32_t device);
uint64_t SinceStart(const AnalyzedTrace& trace, uint64_t time_us);
std::string SpaceKey(Space space);

}  // namespace gpumemtrace::analyzer
