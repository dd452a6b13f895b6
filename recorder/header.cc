#include "recorder/header.h"

#include <string.h>
#include <unistd.h>

#include "proto/gpumemtrace/options.h"
#include "recorder/options.h"
#include "recorder/process_facts.h"
#include "recorder/system.h"
#include "recorder/writer/fields.h"

namespace gpumemtrace::recorder {
namespace {

constexpr uint32_t kFormatVersion = 4;
// Longer command lines are cut: the packet that holds the header has a limit.
constexpr size_t kLongestCommandLine = size_t{64} << 10;
constexpr size_t kLongestValue = 4096;

void AddText(ProtoWriter& message, uint32_t field, const char* text) {
  if (text[0] != '\0') message.add_bytes(field, text, strlen(text));
}

void AddArguments(ProtoWriter& header) {
  Array<char> text;
  if (!text.Resize(kLongestCommandLine)) return;
  const size_t length = sys::ReadFile("/proc/self/cmdline", text.data(), text.size());
  for (size_t start = 0; start < length;) {
    const size_t end = start + strnlen(text.data() + start, length - start);
    header.add_bytes(fields::kHeaderArgument, text.data() + start, end - start);
    start = end + 1;
  }
}

void AddEnvironment(const char* const* environment, ProtoWriter& header) {
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    const char* equals = strchr(*environment, '=');
    if (equals == nullptr) continue;
    const auto length = static_cast<size_t>(equals - *environment);
    if (!IsRecordedVariable(*environment, length)) continue;
    ByteBuffer buffer;
    ProtoWriter variable(buffer);
    variable.add_bytes(fields::kVariableName, *environment, length);
    variable.add_bytes(fields::kVariableValue, equals + 1, strnlen(equals + 1, kLongestValue));
    header.add_message(fields::kHeaderEnvironment, reinterpret_cast<const char*>(buffer.data()),
                       buffer.size());
  }
}

void AddOptions(const char* const* environment, ProtoWriter& header) {
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    for (const options::Option& option : options::kOptions) {
      const size_t length = strlen(option.name);
      if (strncmp(*environment, option.name, length) != 0 || (*environment)[length] != '=') continue;
      header.add_string(fields::kHeaderOption, *environment, strnlen(*environment, kLongestValue));
    }
  }
}

}  // namespace

void AppendHeader(const HeaderFacts& facts, ByteBuffer& out) {
  ProtoWriter header(out);
  header.add_uint32(fields::kHeaderFormatVersion, kFormatVersion);
  header.add_string(fields::kHeaderProducer, "gpumemtrace " GPUMEMTRACE_VERSION);
  {
    ByteBuffer buffer;
    ProtoWriter clock(buffer);
    clock.add_uint64(fields::kClockMonotonic, sys::MonotonicNs());
    clock.add_uint64(fields::kClockRealtime, sys::RealtimeNs());
    header.add_message(fields::kHeaderClock, reinterpret_cast<const char*>(buffer.data()), buffer.size());
  }
  AddText(header, fields::kHeaderHostName, facts.host_name);
  header.add_uint64(fields::kHeaderProcessId, static_cast<uint64_t>(getpid()));
  header.add_uint64(fields::kHeaderParentProcessId, static_cast<uint64_t>(getppid()));
  if (facts.options.command_line) AddArguments(header);
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  if (length > 0) header.add_bytes(fields::kHeaderExecutable, path, static_cast<size_t>(length));
  if (getcwd(path, sizeof path) != nullptr) AddText(header, fields::kHeaderWorkingDirectory, path);
  const Job job = ReadJob();
  if (job.rank.has_value()) header.add_uint32(fields::kHeaderRank, *job.rank);
  if (job.world_size.has_value()) header.add_uint32(fields::kHeaderWorldSize, *job.world_size);
  AddEnvironment(facts.environment, header);
  AddText(header, fields::kHeaderRingFile, facts.ring_file);
  header.add_fixed64(fields::kHeaderRingKey, facts.ring_key);
  AddText(header, fields::kHeaderBootId, facts.boot_id);
  AddOptions(facts.environment, header);
}

}  // namespace gpumemtrace::recorder
