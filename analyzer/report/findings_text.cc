#include "analyzer/report/findings_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace gpumemtrace::analyzer {

nlohmann::ordered_json PlaceJson(const Place& place) {
  nlohmann::ordered_json json;
  json["file"] = Printable(place.file);
  json["line"] = place.line;
  json["function"] = Printable(place.function);
  if (!place.module.empty()) json["module"] = Printable(place.module);
  json["user_code"] = place.user_code;
  if (place.backward) json["backward"] = true;
  return json;
}

uint64_t SinceStart(const AnalyzedTrace& trace, uint64_t time_us) {
  const uint64_t start = trace.ledger.first_time_us();
  return time_us > start ? time_us - start : 0;
}

nlohmann::ordered_json MomentJson(const Moment& moment, const AnalyzedTrace& trace) {
  nlohmann::ordered_json json;
  json["event"] =
      moment.index == kNoIndex ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(moment.index);
  json["seconds"] = static_cast<double>(SinceStart(trace, moment.time_us)) / 1e6;
  if (moment.step >= 0) {
    json["step"] = static_cast<uint64_t>(moment.step);
  } else {
    json["step"] = nullptr;
  }
  return json;
}

std::string MomentText(const Moment& moment, const AnalyzedTrace& trace) {
  std::string text;
  if (moment.step >= 0) {
    text = "in step " + FormatCount(static_cast<uint64_t>(moment.step)) + ", ";
  } else if (trace.analyses.findings().steps.real()) {
    text = "before the first step, ";
  }
  return text + FormatDuration(SinceStart(trace, moment.time_us)) + " after the first event";
}

std::string Sparkline(const std::vector<CurvePoint>& curve, size_t width) {
  static const char* const kBars[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  if (curve.size() < 2 || width == 0) return "";
  // By bytes, or by count where sizes are unknown.
  const bool by_bytes =
      std::any_of(curve.begin(), curve.end(), [](const CurvePoint& p) { return p.bytes != 0; });
  std::vector<uint64_t> columns;
  const size_t used = std::min(width, curve.size());
  for (size_t i = 0; i < used; ++i) {
    const size_t begin = i * curve.size() / used;
    const size_t end = std::max(begin + 1, (i + 1) * curve.size() / used);
    uint64_t most = 0;
    for (size_t j = begin; j < end; ++j) most = std::max(most, by_bytes ? curve[j].bytes : curve[j].count);
    columns.push_back(most);
  }
  const auto [least, most] = std::minmax_element(columns.begin(), columns.end());
  if (*most == *least) return "";
  // A high level that was there from the beginning must not hide what grows on top of it.
  const double floor = *least * 2 > *most ? static_cast<double>(*least) : 0.0;
  std::string line;
  for (uint64_t value : columns) {
    const double height = (static_cast<double>(value) - floor) / (static_cast<double>(*most) - floor) * 7.0;
    line += kBars[static_cast<size_t>(std::lround(height))];
  }
  return line;
}

std::string RateText(double bytes_per_step, double count_per_step, bool real_steps) {
  const std::string unit = real_steps ? "/step" : "/slice";
  if (bytes_per_step >= 0.5) return FormatBytes(static_cast<uint64_t>(std::llround(bytes_per_step))) + unit;
  char text[64];
  std::snprintf(text, sizeof text, "%.3g", count_per_step);
  return std::string(text) + (text == std::string("1") ? " object" : " objects") + unit;
}

std::string RoughDuration(uint64_t microseconds) {
  struct Unit {
    double microseconds;
    const char* name;
  };
  static constexpr Unit kDurations[] = {
      {86400e6, "d"}, {3600e6, "h"}, {60e6, "min"}, {1e6, "s"}, {1e3, "ms"}};
  double value = static_cast<double>(microseconds);
  const char* name = "µs";
  for (const Unit& unit : kDurations) {
    // 90 s says more than 1.5 min, 36 h more than 1.5 d.
    const double least = unit.microseconds >= 60e6 ? 2 * unit.microseconds : unit.microseconds;
    if (static_cast<double>(microseconds) < least) continue;
    value = static_cast<double>(microseconds) / unit.microseconds;
    name = unit.name;
    break;
  }
  if (value < 9.95 && std::string_view(name) != "µs") {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f", value);
    std::string digits = text;
    if (digits.ends_with(".0")) digits.resize(digits.size() - 2);
    return digits + " " + name;
  }
  double digit = 1;
  while (value / digit >= 100) digit *= 10;
  return FormatCount(static_cast<uint64_t>(std::llround(value / digit) * std::llround(digit))) + " " + name;
}

std::vector<std::string> StackRows(const AnalyzedTrace& trace, OriginId origin, size_t most) {
  std::vector<std::string> rows;
  const auto& origins = trace.analyses.findings().origins;
  if (origin >= origins.size()) return rows;
  bool forward = false;
  for (const MergedFrame& frame : trace.symbols.Merge(trace.model.Site(origins[origin].site))) {
    if (rows.size() >= most) {
      rows.push_back("…");
      break;
    }
    if (frame.forward && !forward) {
      forward = true;
      rows.push_back("-- backward of --");
    }
    for (const Location& location : trace.symbols.Resolve(frame.frame)) {
      rows.push_back(Printable(Symbolizer::Describe(location)));
    }
  }
  return rows;
}

nlohmann::ordered_json LocationJson(const Location& location, bool forward) {
  nlohmann::ordered_json entry;
  entry["function"] = Printable(location.function);
  if (!location.file.empty()) entry["file"] = Printable(location.file);
  if (location.line != 0) entry["line"] = location.line;
  if (!location.module.empty()) entry["module"] = Printable(location.module);
  if (forward) entry["forward"] = true;
  return entry;
}

nlohmann::ordered_json StackJson(const AnalyzedTrace& trace, OriginId origin) {
  nlohmann::ordered_json stack = nlohmann::ordered_json::array();
  const auto& origins = trace.analyses.findings().origins;
  if (origin >= origins.size()) return stack;
  for (const MergedFrame& frame : trace.symbols.Merge(trace.model.Site(origins[origin].site))) {
    for (const Location& location : trace.symbols.Resolve(frame.frame)) {
      stack.push_back(LocationJson(location, frame.forward));
    }
  }
  return stack;
}

std::string WhyNotServed(const Findings& findings, int32_t device) {
  const auto pool = std::ranges::find(findings.fragmentation, device, &FragmentationFinding::device);
  if (pool == findings.fragmentation.end() || pool->why.free == 0) return "";
  const Refusal& why = pool->why;
  std::string parts;
  const auto part = [&](uint64_t bytes, const std::string& where) {
    if (bytes == 0) return;
    parts += (parts.empty() ? "" : ", ") + (bytes == why.free ? "all" : FormatBytes(bytes)) + where;
  };
  part(why.other_streams, " in segments of other streams, which serve no other");
  part(why.too_small, " too small, the largest " + FormatBytes(why.largest));
  part(why.other_pool, " in other pools (small tensors, CUDA graphs)");
  return "when " + Printable(why.place.Short()) + " asked for " + FormatBytes(why.asked) +
         (why.moment.step >= 0 ? " in step " + FormatCount(static_cast<uint64_t>(why.moment.step)) : "") +
         ", " + FormatBytes(why.free) + " lay free in " + Plural(why.pieces, "piece") + ": " + parts;
}

std::string DeviceText(int32_t device) {
  return device < 0 ? "host" : "device " + std::to_string(device);
}

std::string SpaceKey(Space space) {
  std::string name(SpaceName(space));
  for (char& c : name) {
    if (c == ' ' || c == '-') c = '_';
  }
  return name;
}

}  // namespace gpumemtrace::analyzer
