// Says what a trace's bytes consist of: each column of the events and each sort of definition, in all and for
// an event. With a second argument, a folder, it also leaves each column there, uncompressed.
//
//     trace_weight trace.pb [FOLDER]
#include <zstd.h>

#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "gpumemtrace/trace.pb.h"

namespace {

using gpumemtrace::Column;
using gpumemtrace::Content;

// Tag and length of a field that holds a message of some hundred bytes.
constexpr uint64_t kFrame = 3;

struct Weight {
  uint64_t bytes = 0;
  uint64_t raw = 0;
};
std::map<std::string, Weight> weights;

std::string Unpack(int codec, uint64_t raw_size, const std::string& data) {
  if (codec != Column::ZSTD) return data;
  std::string raw(raw_size, '\0');
  const size_t size = ZSTD_decompress(raw.data(), raw.size(), data.data(), data.size());
  if (ZSTD_isError(size) != 0) raw.clear();
  return raw;
}

// `share`: what one byte of this message takes in the file.
void Weigh(const Content& content, double share, const std::string& folder) {
  const auto* reflection = content.GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> present;
  reflection->ListFields(content, &present);
  for (const auto* field : present) {
    if (field->message_type() == nullptr || field->name() == "compressed_definitions") continue;
    const int count = field->is_repeated() ? reflection->FieldSize(content, field) : 1;
    for (int i = 0; i < count; ++i) {
      const auto& message = field->is_repeated() ? reflection->GetRepeatedMessage(content, field, i)
                                                 : reflection->GetMessage(content, field);
      uint64_t bytes = message.ByteSizeLong() + kFrame;
      if (field->name() == "events") {
        for (const Column& column : content.events().column()) {
          Weight& weight = weights["column " + gpumemtrace::ColumnId_Name(column.id())];
          weight.bytes += column.ByteSizeLong() + kFrame;
          weight.raw += column.raw_size();
          bytes -= column.ByteSizeLong() + kFrame;
          if (folder.empty()) continue;
          std::ofstream(folder + "/" + gpumemtrace::ColumnId_Name(column.id()), std::ios::app)
              << Unpack(column.codec(), column.raw_size(), column.data());
        }
      }
      Weight& weight = weights[field->name()];
      weight.bytes += static_cast<uint64_t>(static_cast<double>(bytes) * share);
      weight.raw += bytes;
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) return 2;
  std::ifstream file(arguments[1], std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  gpumemtrace::Trace trace;
  if (!file || !trace.ParseFromString(bytes)) {
    std::fprintf(stderr, "%s cannot be read\n", arguments[1]);
    return 1;
  }
  uint64_t events = 0;
  uint64_t restarts = 0;
  for (const auto& packet : trace.packet()) {
    const Content& content = packet.content();
    events += content.events().count();
    restarts += content.events().restart() ? 1 : 0;
    Weigh(content, 1, count > 2 ? arguments[2] : "");
    weights["packet"].bytes += 16;
    const auto& compressed = content.compressed_definitions();
    Content definitions;
    const std::string raw = Unpack(compressed.codec(), compressed.raw_size(), compressed.data());
    if (!raw.empty() && definitions.ParseFromString(raw)) {
      Weigh(definitions,
            static_cast<double>(compressed.ByteSizeLong() + kFrame) / static_cast<double>(raw.size()), "");
    }
  }
  const double each = events != 0 ? static_cast<double>(events) : 1;
  std::printf("%" PRIu64 " events, %d packets, %" PRIu64 " restarts, %zu bytes, %.3f bytes an event\n",
              events, trace.packet_size(), restarts, bytes.size(), static_cast<double>(bytes.size()) / each);
  for (const auto& [name, weight] : weights) {
    std::printf("  %-24s %10" PRIu64 " bytes %7.3f an event, %" PRIu64 " before compression\n", name.c_str(),
                weight.bytes, static_cast<double>(weight.bytes) / each, weight.raw);
  }
  return 0;
}
