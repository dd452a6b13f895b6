#include "analyzer/trace/reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "analyzer/trace/definitions.h"
#include "analyzer/trace/event_decoder.h"
#include "analyzer/trace/framing.h"
#include "analyzer/trace/packet_source.h"
#include "analyzer/trace/ring_recovery.h"

namespace gpumemtrace::analyzer {
namespace {

// The greatest Header.format_version that this reader understands.
constexpr uint32_t kFormatVersion = 4;

// Decodes packets one after another.
class TraceAssembler {
 public:
  TraceAssembler(const std::string& name, TraceModel& model, TraceSink& sink, ReadResult& result)
      : name_(name), model_(model), sink_(sink), result_(result), decoder_(model, sink, result.damage) {}

  // False: stop reading, result.fault says why.
  bool Add(const ReadyPacket& packet) {
    const Content& content = packet.content();
    DamageReport& damage = result_.damage;
    if (content.has_header() && content.header().format_version() > kFormatVersion) {
      result_.fault = TraceFault::kNewerVersion;
      result_.message = absl::StrCat(
          name_, ": format version ", content.header().format_version(), " is newer than the ",
          kFormatVersion, " that this program reads; use the gpumem-analyze that came with the recorder");
      return false;
    }
    if (content.packet_index() > next_packet_) missing_packets_ += content.packet_index() - next_packet_;
    if (content.packet_index() < next_packet_) {
      PacketFramer::NoteDamage(
          damage, packet.offset,
          content.has_header() ? "a second trace begins (two files in one?)" : "packets are out of order");
      ++damage.packets_lost;
      return true;
    }
    // A folded window stands for more packets than it has.
    next_packet_ = content.packet_index() + std::max<uint64_t>(1, content.folded().packets());
    ++result_.packets;

    uint64_t refused = 0;
    if (packet.definitions() != nullptr) {
      id_limit_ += content.compressed_definitions().raw_size();
      refused += Define(*packet.definitions());
    }
    id_limit_ += content.ByteSizeLong();
    refused += Define(content);
    if (refused != 0) {
      PacketFramer::NoteDamage(damage, packet.offset, "a definition has an impossible id");
      ++damage.packets_lost;
    }
    sink_.OnContent(content);
    decoder_.Decode(packet);
    return true;
  }

  void Finish(const ReaderOptions& options) {
    result_.damage.packets_lost = std::max(result_.damage.packets_lost, missing_packets_);
    if (options.recover && model_.has_header && (!model_.has_end || !options.ring_file.empty())) {
      result_.recovery = RecoverFromFile(options.ring_file, names_, model_, decoder_, sink_);
    }
    result_.events = decoder_.next_index() - result_.damage.events_lost;
  }

  // Lost bytes may have defined ids, too.
  void Skipped(uint64_t bytes) { id_limit_ += bytes; }

 private:
  uint64_t Define(const Content& content) {
    const uint64_t refused = ApplyDefinitions(content, id_limit_, model_, names_);
    for (const gpumemtrace::Site& site : content.site()) {
      if (site.id() < model_.sites.size()) decoder_.SiteDefined(site.id());
    }
    return refused;
  }

  const std::string& name_;
  TraceModel& model_;
  TraceSink& sink_;
  ReadResult& result_;
  EventDecoder decoder_;
  RingNames names_;
  uint64_t next_packet_ = 0;
  uint64_t missing_packets_ = 0;
  uint64_t id_limit_ = 0;
};

// What the framer found and what the decoder found, as one.
void Merge(const DamageReport& framing, DamageReport& damage) {
  damage.cut = framing.cut;
  damage.cut_at = framing.cut_at;
  damage.packets_lost += framing.packets_lost;
  damage.bytes_skipped += framing.bytes_skipped;
  if (!framing.first_fault.empty() &&
      (damage.first_fault.empty() || framing.first_damage_at < damage.first_damage_at)) {
    damage.first_fault = framing.first_fault;
    damage.first_damage_at = framing.first_damage_at;
  }
}

// From this size on a second thread pays.
constexpr uint64_t kThreadedBytes = 4u << 20;

ReadResult ReadStream(ByteSource source, uint64_t total_bytes, const std::string& name,
                      const ReaderOptions& options, TraceModel& model, TraceSink& sink) {
  ReadResult result;
  DamageReport framing;
  PacketSource packets(std::move(source), framing, total_bytes >= kThreadedBytes);
  TraceAssembler assembler(name, model, sink, result);
  uint64_t skipped = 0;
  while (const FramedPacket* framed = packets.Next()) {
    const ReadyPacket& packet = framed->packet;
    if (packet.after_damage) {
      assembler.Skipped(framed->bytes_skipped - skipped + kMaxPacketBytes);
      skipped = framed->bytes_skipped;
    }
    if (!framed->loaded) {
      PacketFramer::NoteDamage(result.damage, packet.offset, packet.fault());
      ++result.damage.packets_lost;
      continue;
    }
    if (!assembler.Add(packet)) return result;
    if (options.progress) options.progress(framed->end_offset, std::max(total_bytes, framed->end_offset));
  }
  packets.Finish();
  Merge(framing, result.damage);
  result.bytes = packets.bytes();
  if (packets.read_error() != 0) {
    result.fault = TraceFault::kCannotRead;
    result.message = absl::StrCat(name, ": cannot read on at byte ", packets.bytes(), ": ",
                                  std::strerror(packets.read_error()));
    return result;
  }
  if (result.packets == 0) {
    result.fault = TraceFault::kNotATrace;
    result.message =
        result.bytes == 0
            ? absl::StrCat(name,
                           ": empty: nothing was recorded, or the process was killed before its first write")
            : absl::StrCat(name, ": not a trace of gpumemtrace (no valid packet in ", result.bytes,
                           " bytes); give the trace.pb that the recorder named on stderr");
    return result;
  }
  assembler.Finish(options);
  return result;
}

}  // namespace

ReadResult ReadTrace(const std::string& path, const ReaderOptions& options, TraceModel& model,
                     TraceSink& sink) {
  const auto failed = [&](int error) {
    ReadResult result;
    result.fault = TraceFault::kCannotRead;
    result.message = absl::StrCat(path, ": cannot be read: ", std::strerror(error));
    return result;
  };
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return failed(errno);
  const std::unique_ptr<const int, void (*)(const int*)> close_at_end(&file, [](const int* f) { close(*f); });
  struct stat status;
  if (fstat(file, &status) != 0) return failed(errno);
  if (S_ISDIR(status.st_mode)) return failed(EISDIR);
  const ByteSource source = [file](std::span<char> out) -> int64_t {
    for (;;) {
      const ssize_t got = read(file, out.data(), out.size());
      if (got >= 0) return got;
      if (errno != EINTR) return -errno;
    }
  };
  return ReadStream(source, static_cast<uint64_t>(status.st_size), path, options, model, sink);
}

ReadResult ReadTraceBytes(std::span<const char> bytes, const std::string& name, const ReaderOptions& options,
                          TraceModel& model, TraceSink& sink) {
  size_t done = 0;
  const ByteSource source = [&](std::span<char> out) -> int64_t {
    const size_t count = std::min(out.size(), bytes.size() - done);
    std::memcpy(out.data(), bytes.data() + done, count);
    done += count;
    return static_cast<int64_t>(count);
  };
  return ReadStream(source, bytes.size(), name, options, model, sink);
}

}  // namespace gpumemtrace::analyzer
