// What was recorded, by what and when: command, host, process, rank, devices, libraries seen.
#include <array>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "analyzer/analyzed_trace.h"
#include "analyzer/report/sections.h"

namespace gpumemtrace::analyzer {
namespace {

struct KnownLibrary {
  std::string_view prefix;  // of the module's base name
  std::string_view name;
};
constexpr std::array<KnownLibrary, 16> kKnownLibraries = {{
    {"libc10_cuda", "PyTorch"},
    {"libtorch_", "PyTorch"},
    {"xla_cuda_plugin", "JAX"},
    {"libjax_common", "JAX"},
    {"xla_extension", "JAX"},
    {"pjrt_c_api_gpu", "JAX"},
    {"libtensorflow", "TensorFlow"},
    {"_pywrap_tensorflow", "TensorFlow"},
    {"libcublas", "cuBLAS"},
    {"libcudnn", "cuDNN"},
    {"libnccl", "NCCL"},
    {"libcusparse", "cuSPARSE"},
    {"libcusolver", "cuSOLVER"},
    {"libcufft", "cuFFT"},
    {"librmm", "RMM"},
    {"libnvshmem", "NVSHMEM"},
}};

std::vector<std::string> LibrariesSeen(const TraceModel& model) {
  std::set<std::string> seen;
  for (const ModuleInfo& module : model.modules) {
    const std::string_view path = model.String(module.path);
    const std::string_view base = path.substr(path.rfind('/') + 1);
    for (const KnownLibrary& library : kKnownLibraries) {
      if (base.starts_with(library.prefix)) seen.emplace(library.name);
    }
    if (path.find("/cupy/") != path.npos || path.find("/cupy_backends/") != path.npos) seen.emplace("CuPy");
  }
  return {seen.begin(), seen.end()};
}

std::string PythonVersion(uint32_t hex) {
  std::string version = absl::StrFormat("%d.%d.%d", hex >> 24, (hex >> 16) & 0xff, (hex >> 8) & 0xff);
  return version;
}

std::string CudaVersion(uint32_t version) {
  return absl::StrFormat("%d.%d", version / 1000, version % 1000 / 10);
}

std::string Command(const Header& header) {
  std::vector<std::string> words;
  for (const std::string& argument : header.argument()) {
    const std::string word = Printable(argument);
    words.push_back(word.empty() || word.find(' ') != std::string::npos ? absl::StrCat("'", word, "'")
                                                                        : word);
  }
  if (words.empty()) return Printable(header.executable());
  return absl::StrJoin(words, " ");
}

absl::Time WallTime(const TraceModel& model, uint64_t monotonic_us) {
  const Clock& clock = model.header.clock();
  const int64_t since = static_cast<int64_t>(monotonic_us * 1000 - clock.monotonic_ns());
  return absl::FromUnixNanos(static_cast<int64_t>(clock.realtime_ns()) + since);
}

std::string FormatWallTime(absl::Time time, const char* format) {
  return absl::FormatTime(format, time, absl::UTCTimeZone());
}

void RecordedText(const AnalyzedTrace& trace, int, TextWriter& out) {
  const TraceModel& model = trace.model;
  const Header& header = model.header;
  const Ledger& ledger = trace.ledger;
  if (!model.has_header) {
    out.Field("command", "unknown: the packet that says so is damaged");
  } else {
    out.Field("command", Shorten(Command(header), out.width() - 16));
    std::string process = absl::StrCat(Printable(header.host_name()), ", process ", header.process_id());
    if (header.has_rank()) {
      absl::StrAppend(&process, ", rank ", header.rank());
      if (header.has_world_size()) absl::StrAppend(&process, " of ", header.world_size());
    }
    const uint64_t end = std::max(ledger.last_time_us(), model.has_end ? model.end.time_us() : 0);
    const uint64_t start = header.clock().monotonic_ns() / 1000;
    out.Field("recorded",
              absl::StrCat(FormatWallTime(WallTime(model, start), "%Y-%m-%d %H:%M:%S UTC"), ", ",
                           FormatDuration(end > start ? end - start : 0), " on ", process,
                           header.producer().empty() ? "" : ", by ", Printable(header.producer())));
  }
  for (const Device& device : model.devices) {
    std::string text = absl::StrCat(Printable(device.name()), ", ", FormatBytes(device.total_memory()));
    if (device.driver_version() != 0)
      absl::StrAppend(&text, ", CUDA driver ", CudaVersion(device.driver_version()));
    if (device.runtime_version() != 0)
      absl::StrAppend(&text, ", runtime ", CudaVersion(device.runtime_version()));
    out.Field(absl::StrCat("device ", device.ordinal()), text);
  }
  std::vector<std::string> seen = LibrariesSeen(model);
  for (const Interpreter& interpreter : model.interpreters) {
    std::string text = absl::StrCat("Python ", PythonVersion(interpreter.version()),
                                    interpreter.free_threaded() ? " free-threaded" : "");
    if (!interpreter.supported()) {
      absl::StrAppend(&text, " (no Python stacks: ", Printable(interpreter.reason()), ")");
    }
    seen.push_back(text);
  }
  if (!seen.empty()) out.Field("seen", absl::StrJoin(seen, ", "));
  out.Field("events", absl::StrCat(FormatCount(ledger.events()), " (", FormatCount(ledger.block_events()),
                                   " of tensors, ", FormatCount(ledger.events() - ledger.block_events()),
                                   " of the driver)"));
  if (ledger.folded_windows() != 0) {
    out.Field("folded", absl::StrCat(Plural(ledger.folded_windows(), "old window"), ", ",
                                     FormatCount(ledger.folded_events()),
                                     " events only counted, to keep the trace within its bound"));
    out.Field("", "exact in them: bytes and counts by stack, what outlived them, every window's peak");
    out.Field("", "not exact in them: fragmentation, lesser peaks, where steps begin, reserved totals");
  }
}

void RecordedJson(const AnalyzedTrace& trace, nlohmann::ordered_json& out) {
  const TraceModel& model = trace.model;
  const Header& header = model.header;
  const Ledger& ledger = trace.ledger;
  nlohmann::ordered_json& recorded = out["recorded"];
  recorded["producer"] = Printable(header.producer());
  recorded["format_version"] = header.format_version();
  nlohmann::ordered_json& arguments = recorded["arguments"] = nlohmann::ordered_json::array();
  for (const std::string& argument : header.argument()) arguments.push_back(Printable(argument));
  recorded["executable"] = Printable(header.executable());
  recorded["working_directory"] = Printable(header.working_directory());
  recorded["host"] = Printable(header.host_name());
  recorded["process_id"] = header.process_id();
  recorded["parent_process_id"] = header.parent_process_id();
  if (header.has_rank()) recorded["rank"] = header.rank();
  if (header.has_world_size()) recorded["world_size"] = header.world_size();
  if (model.has_header) {
    recorded["start"] =
        FormatWallTime(WallTime(model, header.clock().monotonic_ns() / 1000), "%Y-%m-%dT%H:%M:%E6SZ");
    const uint64_t end = std::max(ledger.last_time_us(), model.has_end ? model.end.time_us() : 0);
    const uint64_t start = header.clock().monotonic_ns() / 1000;
    recorded["seconds"] = end > start ? static_cast<double>(end - start) / 1e6 : 0.0;
  }
  nlohmann::ordered_json& environment = recorded["environment"] = nlohmann::ordered_json::object();
  for (const EnvironmentVariable& variable : header.environment()) {
    environment[Printable(variable.name())] = Printable(variable.value());
  }
  nlohmann::ordered_json& options = recorded["options"] = nlohmann::ordered_json::array();
  for (const std::string& option : header.option()) options.push_back(Printable(option));
  nlohmann::ordered_json& hardware = recorded["hardware"] = nlohmann::ordered_json::array();
  for (const Device& device : model.devices) {
    hardware.push_back({{"ordinal", device.ordinal()},
                        {"name", Printable(device.name())},
                        {"total_bytes", device.total_memory()},
                        {"driver_version", device.driver_version()},
                        {"runtime_version", device.runtime_version()}});
  }
  nlohmann::ordered_json& interpreters = recorded["interpreters"] = nlohmann::ordered_json::array();
  for (const Interpreter& interpreter : model.interpreters) {
    interpreters.push_back({{"version", PythonVersion(interpreter.version())},
                            {"free_threaded", interpreter.free_threaded()},
                            {"stacks", interpreter.supported()},
                            {"reason", Printable(interpreter.reason())}});
  }
  recorded["libraries_seen"] = LibrariesSeen(model);
  out["folded"] = {{"windows", ledger.folded_windows()}, {"events", ledger.folded_events()}};
  out["events"] = {{"total", ledger.events()},
                   {"segments", ledger.events() - ledger.block_events()},
                   {"blocks", ledger.block_events()}};
}

}  // namespace

const Section kRecordedSection = {"recorded", RecordedText, RecordedJson};

}  // namespace gpumemtrace::analyzer
