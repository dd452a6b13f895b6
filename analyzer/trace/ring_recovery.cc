#include "analyzer/trace/ring_recovery.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "analyzer/trace/interner.h"
#include "gpumemtrace/event_columns.h"
#include "gpumemtrace/ring_file.h"

namespace gpumemtrace::analyzer {
namespace {

namespace rf = gpumemtrace::ring_file;

// One record, checked to lie within its ring.
class Record {
 public:
  explicit Record(std::span<const char> bytes) : bytes_(bytes) {}

  // The fixed part; zeros where the record is too short, which `fits` tells.
  template <typename T>
  T Fixed() {
    T value{};
    std::memcpy(&value, bytes_.data(), std::min(sizeof(T), bytes_.size()));
    fits_ = fits_ && bytes_.size() >= sizeof(T);
    next_ = sizeof(T);
    return value;
  }
  // The next variable part.
  std::string_view Bytes(uint64_t size) {
    if (!fits_ || size > bytes_.size() - next_) {
      fits_ = false;
      return {};
    }
    const std::string_view part(bytes_.data() + next_, size);
    next_ += size;
    return part;
  }
  template <typename T>
  T Next() {
    T value{};
    const std::string_view part = Bytes(sizeof(T));
    if (!part.empty()) std::memcpy(&value, part.data(), sizeof(T));
    return value;
  }
  bool fits() const { return fits_; }

 private:
  std::span<const char> bytes_;
  size_t next_ = 0;
  bool fits_ = true;
};

struct PendingContent {
  std::string bytes;
};

struct Pending {
  uint64_t sequence = 0;
  std::variant<TraceEvent, TraceMark, DeviceReading, PendingContent> what;
};

class Recovery {
 public:
  Recovery(const RingNames& names, TraceModel& model, EventDecoder& decoder, RecoveryReport& report)
      : model_(model), decoder_(decoder), report_(report), intern_(model) {
    stacks_ = names.stacks;
    code_ = names.code;
    for (size_t id = 1; id < model.modules.size(); ++id) trace_modules_.push_back(static_cast<ModuleId>(id));
  }

  void SetApiNames(std::vector<std::string> api_names) { api_names_ = std::move(api_names); }

  // `data` holds the records of one ring in order. Returns false when it ends in damage.
  bool ReadRing(std::span<const char> data, ThreadId thread) {
    thread_ = thread;
    ring_modules_.clear();
    frame_of_address_.clear();
    while (!data.empty()) {
      rf::RecordHeader header;
      if (data.size() < sizeof(header)) return false;
      std::memcpy(&header, data.data(), sizeof(header));
      if (header.bytes < sizeof(header) || header.bytes % 8 != 0 || header.bytes > data.size()) return false;
      if (!ReadRecord(header, data.first(header.bytes))) ++report_.records_damaged;
      data = data.subspan(header.bytes);
    }
    return true;
  }

  void Deliver(TraceSink& sink) {
    std::stable_sort(pending_.begin(), pending_.end(),
                     [](const Pending& a, const Pending& b) { return a.sequence < b.sequence; });
    for (const Pending& pending : pending_) {
      if (const TraceEvent* event = std::get_if<TraceEvent>(&pending.what)) {
        decoder_.Append(*event);
        ++report_.events;
      } else if (const TraceMark* mark = std::get_if<TraceMark>(&pending.what)) {
        decoder_.AppendMark(*mark);
      } else if (const DeviceReading* reading = std::get_if<DeviceReading>(&pending.what)) {
        decoder_.AppendReading(*reading);
      } else if (const PendingContent* part = std::get_if<PendingContent>(&pending.what)) {
        Content content;
        if (content.ParseFromString(part->bytes)) {
          decoder_.Flush();
          sink.OnContent(content);
        } else {
          ++report_.records_damaged;
        }
      }
    }
    decoder_.Flush();
  }

 private:
  struct Stacks {
    StackId native = 0;
    StackId python = 0;
  };

  bool ReadRecord(const rf::RecordHeader& header, std::span<const char> bytes) {
    Record record(bytes);
    switch (header.kind) {
      case rf::RecordKind::kThread:
        return ReadThread(record);
      case rf::RecordKind::kModule:
        return ReadModule(record);
      case rf::RecordKind::kCode:
        return ReadCode(record);
      case rf::RecordKind::kStack:
        return ReadStack(record);
      case rf::RecordKind::kEvent:
        return ReadEvent(record);
      case rf::RecordKind::kMark:
        return ReadMark(record);
      case rf::RecordKind::kDeviceMemory:
        return ReadDeviceMemory(record);
      case rf::RecordKind::kDevice:
        return ReadDevice(record);
      case rf::RecordKind::kInterpreter:
        return ReadInterpreter(record);
      case rf::RecordKind::kNote:
        return ReadNote(record);
      case rf::RecordKind::kContent:
        return ReadContent(record);
      case rf::RecordKind::kNone:
        return false;
      case rf::RecordKind::kPad:
        break;
    }
    return true;  // of a later version
  }

  bool ReadThread(Record& record) {
    const auto thread = record.Fixed<rf::ThreadRecord>();
    if (!record.fits()) return false;
    thread_ = intern_.Thread(thread.tid, {thread.name, strnlen(thread.name, sizeof(thread.name))});
    return true;
  }

  bool ReadModule(Record& record) {
    const auto fixed = record.Fixed<rf::ModuleRecord>();
    const std::string_view path = record.Bytes(fixed.path_bytes);
    const std::string_view build_id = record.Bytes(fixed.build_id_bytes);
    if (!record.fits()) return false;
    const StringId path_id = intern_.String(path);
    // The same object again in another ring must not become another module.
    ModuleId id = 0;
    for (size_t i = model_.modules.size() - 1; i > 0 && id == 0; --i) {
      const ModuleInfo& known = model_.modules[i];
      if (known.path == path_id && known.start == fixed.start && known.end == fixed.end &&
          known.load_bias == fixed.load_bias && known.build_id == build_id) {
        id = static_cast<ModuleId>(i);
      }
    }
    if (id == 0) {
      id = static_cast<ModuleId>(model_.modules.size());
      model_.modules.push_back({path_id, std::string(build_id), fixed.load_bias, fixed.start, fixed.end});
    }
    ring_modules_.push_back(id);
    frame_of_address_.clear();
    return true;
  }

  bool ReadCode(Record& record) {
    const auto fixed = record.Fixed<rf::CodeRecord>();
    const std::string_view file = record.Bytes(fixed.file_bytes);
    const std::string_view name = record.Bytes(fixed.qualified_name_bytes);
    const std::string_view line_table = record.Bytes(fixed.line_table_bytes);
    if (!record.fits()) return false;
    const auto [it, added] = code_.try_emplace(fixed.number, static_cast<CodeId>(model_.code_objects.size()));
    if (!added) return true;
    CodeObjectInfo code;
    code.file = intern_.String(file);
    code.qualified_name = intern_.String(name);
    code.first_line = static_cast<uint32_t>(std::max(fixed.first_line, 0));
    code.python_version = fixed.python_version;
    code.line_table = std::string(line_table);
    model_.code_objects.push_back(std::move(code));
    return true;
  }

  FrameId NativeFrame(uint64_t address) {
    const auto [it, added] = frame_of_address_.try_emplace(address, 0);
    if (!added) return it->second;
    FrameInfo frame;
    frame.offset = address;
    for (const std::vector<ModuleId>* modules : {&ring_modules_, &trace_modules_}) {
      for (auto id = modules->rbegin(); id != modules->rend() && frame.module == 0; ++id) {
        const ModuleInfo& module = model_.modules[*id];
        if (address >= module.start && address < module.end) {
          frame.module = *id;
          frame.offset = address - module.load_bias;
        }
      }
    }
    it->second = intern_.Frame(frame);
    return it->second;
  }

  bool ReadStack(Record& record) {
    const auto fixed = record.Fixed<rf::StackRecord>();
    const std::string_view native = record.Bytes(uint64_t{fixed.native_count} * sizeof(uint64_t));
    const std::string_view python = record.Bytes(uint64_t{fixed.python_count} * sizeof(rf::PythonFrame));
    if (!record.fits()) return false;
    if (stacks_.contains(fixed.number)) return true;
    RingNames::Stacks stacks;
    for (size_t i = fixed.native_count; i-- > 0;) {
      uint64_t address;
      std::memcpy(&address, native.data() + i * sizeof(address), sizeof(address));
      stacks.native = intern_.Node(stacks.native, NativeFrame(address));
    }
    for (size_t i = fixed.python_count; i-- > 0;) {
      rf::PythonFrame python_frame;
      std::memcpy(&python_frame, python.data() + i * sizeof(python_frame), sizeof(python_frame));
      FrameInfo frame;
      const auto code = code_.find(python_frame.code);
      frame.code_object = code == code_.end() ? 0 : code->second;
      frame.instruction = python_frame.instruction;
      frame.entry = python_frame.entry != 0;
      stacks.python = intern_.Node(stacks.python, intern_.Frame(frame));
    }
    stacks_[fixed.number] = stacks;
    return true;
  }

  bool ReadEvent(Record& record) {
    const auto fixed = record.Fixed<rf::EventRecord>();
    uint64_t argument[2] = {0, 0};
    if (fixed.present & rf::kHasArgument0) argument[0] = record.Next<uint64_t>();
    if (fixed.present & rf::kHasArgument1) argument[1] = record.Next<uint64_t>();
    const uint64_t stream = fixed.present & rf::kHasStream ? record.Next<uint64_t>() : 0;
    const uint64_t forward = fixed.present & rf::kHasForwardStack ? record.Next<uint64_t>() : 0;
    const int64_t result = fixed.present & rf::kHasResult ? record.Next<int64_t>() : 0;
    if (!record.fits() || fixed.header.detail == 0) return false;

    SiteInfo site;
    site.kind = static_cast<EventKind>(fixed.header.detail);
    site.space = fixed.space < kSpaceCount ? static_cast<Space>(fixed.space) : Space::kUnspecified;
    site.flags = fixed.header.flags;
    site.device = fixed.device;
    site.result = static_cast<int32_t>(result);
    site.api = fixed.api < api_names_.size() ? intern_.String(api_names_[fixed.api]) : 0;
    site.thread = thread_;
    site.stream = stream;
    const uint32_t kind = fixed.header.detail;
    // As in the trace: what ends an object has the size of its birth.
    if (!event_columns::HasLive(kind)) site.size = fixed.size;
    if (const auto stacks = stacks_.find(fixed.stack); stacks != stacks_.end()) {
      site.native_stack = stacks->second.native;
      site.python_stack = stacks->second.python;
    }
    if (const auto stacks = stacks_.find(forward); forward != 0 && stacks != stacks_.end()) {
      site.forward_stack = stacks->second.python;
    }
    bool added = false;
    TraceEvent event;
    event.site = intern_.Site(site, added);
    if (added) decoder_.SiteDefined(event.site);
    event.kind = site.kind;
    event.sequence = fixed.sequence;
    event.time_us = fixed.time_ns / 1000;
    event.address = fixed.address;
    event.size = fixed.size;
    event.argument[0] = argument[0];
    event.argument[1] = argument[1];
    pending_.push_back({fixed.sequence, event});
    return true;
  }

  bool ReadMark(Record& record) {
    const auto fixed = record.Fixed<rf::MarkRecord>();
    const std::string_view text = record.Bytes(fixed.text_bytes);
    const std::string_view domain = record.Bytes(fixed.domain_bytes);
    if (!record.fits()) return false;
    TraceMark mark;
    mark.kind = static_cast<Mark::Kind>(fixed.header.detail);
    mark.source = static_cast<Mark::Source>(fixed.header.flags);
    mark.thread = thread_;
    mark.text = text.empty() ? 0 : intern_.String(text);
    mark.domain = domain.empty() ? 0 : intern_.String(domain);
    mark.sequence = fixed.sequence;
    mark.time_us = fixed.time_ns / 1000;
    mark.number = fixed.number;
    pending_.push_back({fixed.sequence, mark});
    return true;
  }

  bool ReadDeviceMemory(Record& record) {
    const auto fixed = record.Fixed<rf::DeviceMemoryRecord>();
    if (!record.fits()) return false;
    DeviceReading reading;
    reading.device = fixed.device;
    reading.sequence = fixed.sequence;
    reading.time_us = fixed.time_ns / 1000;
    reading.free = fixed.free_bytes;
    reading.total = fixed.total_bytes;
    pending_.push_back({fixed.sequence, reading});
    return true;
  }

  bool ReadDevice(Record& record) {
    const auto fixed = record.Fixed<rf::DeviceRecord>();
    const std::string_view name = record.Bytes(fixed.name_bytes);
    if (!record.fits()) return false;
    Device device;
    device.set_ordinal(fixed.device);
    device.set_name(std::string(name));
    device.set_uuid(fixed.uuid, sizeof(fixed.uuid));
    device.set_total_memory(fixed.total_bytes);
    device.set_driver_version(fixed.driver_version);
    device.set_runtime_version(fixed.runtime_version);
    model_.devices.push_back(device);
    return true;
  }

  bool ReadInterpreter(Record& record) {
    const auto fixed = record.Fixed<rf::InterpreterRecord>();
    const std::string_view reason = record.Bytes(fixed.reason_bytes);
    if (!record.fits()) return false;
    Interpreter interpreter;
    interpreter.set_version(fixed.version);
    interpreter.set_supported((fixed.header.detail & 1) != 0);
    interpreter.set_free_threaded((fixed.header.detail & 2) != 0);
    interpreter.set_reason(std::string(reason));
    model_.interpreters.push_back(interpreter);
    return true;
  }

  bool ReadNote(Record& record) {
    const auto fixed = record.Fixed<rf::NoteRecord>();
    const std::string_view text = record.Bytes(fixed.text_bytes);
    if (!record.fits()) return false;
    Note note;
    note.set_severity(static_cast<Note::Severity>(fixed.header.detail));
    note.set_time_us(fixed.time_ns / 1000);
    note.set_text(std::string(text));
    model_.notes.push_back(note);
    return true;
  }

  bool ReadContent(Record& record) {
    const auto fixed = record.Fixed<rf::ContentRecord>();
    const std::string_view bytes = record.Bytes(fixed.content_bytes);
    if (!record.fits()) return false;
    pending_.push_back({fixed.sequence, PendingContent{std::string(bytes)}});
    return true;
  }

  TraceModel& model_;
  EventDecoder& decoder_;
  RecoveryReport& report_;
  Interner intern_;
  std::vector<std::string> api_names_;
  absl::flat_hash_map<uint64_t, RingNames::Stacks> stacks_;
  absl::flat_hash_map<uint64_t, CodeId> code_;
  std::vector<ModuleId> trace_modules_;
  std::vector<ModuleId> ring_modules_;
  absl::flat_hash_map<uint64_t, FrameId> frame_of_address_;
  ThreadId thread_ = 0;
  std::vector<Pending> pending_;
};

std::vector<std::string> ReadApiNames(const RingBytes& bytes, const rf::FileHeader& header,
                                      uint64_t file_size) {
  std::vector<std::string> names;
  if (header.names_bytes > (1u << 20) || header.names_offset > file_size) return names;
  std::string text(header.names_bytes, '\0');
  if (text.empty() || !bytes(header.names_offset, text)) return names;
  size_t at = 0;
  while (names.size() < header.names_count && at < text.size()) {
    const size_t end = std::min(text.find('\0', at), text.size());
    names.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return names;
}

void Damaged(RecoveryReport& report, std::string_view detail) {
  report.state = RecoveryReport::State::kDamaged;
  if (report.detail.empty()) report.detail = std::string(detail);
}

// The ring file counts losses also when no packet could be written any more.
void TakeLosses(const rf::FileHeader& header, TraceModel& model) {
  for (size_t cause = 0; cause < rf::kLossCauses; ++cause) {
    if (header.lost[cause] == 0 || !Loss::Cause_IsValid(static_cast<int>(cause))) continue;
    Loss* found = nullptr;
    for (Loss& loss : *model.statistics.mutable_loss()) {
      if (static_cast<size_t>(loss.cause()) == cause) found = &loss;
    }
    if (found == nullptr) {
      found = model.statistics.add_loss();
      found->set_cause(static_cast<Loss::Cause>(cause));
    }
    found->set_events(std::max(found->events(), header.lost[cause]));
  }
}

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Field 22 of /proc/<pid>/stat, 0 when there is no such process.
uint64_t StartTicks(uint64_t pid) {
  const std::string stat = FirstLine(absl::StrCat("/proc/", pid, "/stat"));
  // The name, field 2, may contain anything: fields are counted after its last parenthesis.
  const size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos) return 0;
  std::istringstream rest(stat.substr(name_end + 1));
  std::string field;
  for (int i = 3; i <= 22; ++i) rest >> field;
  return std::strtoull(field.c_str(), nullptr, 10);
}

}  // namespace

void RecoverRings(const RingBytes& bytes, uint64_t file_size, bool any_key, const RingNames& names,
                  TraceModel& model, EventDecoder& decoder, TraceSink& sink, RecoveryReport& report) {
  rf::FileHeader header;
  if (!bytes(0, {reinterpret_cast<char*>(&header), sizeof(header)}) ||
      std::memcmp(header.magic, rf::kMagic, sizeof(rf::kMagic)) != 0) {
    report.state = RecoveryReport::State::kForeign;
    report.detail = "not a ring file";
    return;
  }
  if (header.version > rf::kVersion) {
    report.state = RecoveryReport::State::kForeign;
    report.detail = absl::StrCat("its version is ", header.version, ", this program reads ", rf::kVersion);
    return;
  }
  if (header.ring_key != model.header.ring_key() && !any_key) {
    report.state = RecoveryReport::State::kForeign;
    report.detail = "it belongs to another run";
    return;
  }
  const uint64_t capacity = header.ring_capacity;
  const bool sane = std::has_single_bit(capacity) && capacity <= file_size &&
                    header.ring_stride >= rf::kRingDataOffset + capacity && header.ring_stride <= file_size &&
                    header.first_ring_offset <= file_size;
  report.state = RecoveryReport::State::kRead;
  if (!sane) {
    Damaged(report, "its header is damaged");
    return;
  }
  Recovery recovery(names, model, decoder, report);
  recovery.SetApiNames(ReadApiNames(bytes, header, file_size));
  const uint64_t fitting = (file_size - header.first_ring_offset) / header.ring_stride + 1;
  const uint64_t rings = std::min<uint64_t>({header.ring_count, header.ring_limit, fitting});
  if (rings < header.ring_count) Damaged(report, "it is shorter than its header says");
  std::vector<char> data;
  for (uint64_t i = 0; i < rings; ++i) {
    const uint64_t at = header.first_ring_offset + i * header.ring_stride;
    rf::RingHeader ring;
    if (!bytes(at, {reinterpret_cast<char*>(&ring), sizeof(ring)})) {
      Damaged(report, "it is shorter than its header says");
      break;
    }
    const auto known = names.positions.find(static_cast<uint32_t>(i));
    uint64_t begin = known == names.positions.end() ? 0 : known->second.consumed;
    const ThreadId thread = known == names.positions.end() ? 0 : known->second.thread;
    if (begin < ring.tail) {
      // Written to the trace once, but not in what we could read of it.
      Damaged(report, "the trace lacks packets that had been written");
      begin = ring.tail;
    }
    if (begin > ring.head || ring.head - begin > capacity) {
      Damaged(report, absl::StrCat("ring ", i, " has impossible positions"));
      continue;
    }
    const uint64_t size = ring.head - begin;
    if (size == 0) continue;
    ++report.rings;
    data.resize(size);
    const uint64_t first = std::min(size, capacity - (begin & (capacity - 1)));
    const uint64_t data_at = at + rf::kRingDataOffset;
    if (!bytes(data_at + (begin & (capacity - 1)), std::span<char>(data).first(first)) ||
        (first < size && !bytes(data_at, std::span<char>(data).subspan(first)))) {
      Damaged(report, "it is shorter than its header says");
      continue;
    }
    if (!recovery.ReadRing(data, thread)) {
      ++report.records_damaged;
      Damaged(report, absl::StrCat("ring ", i, " holds bytes that are no record"));
    }
  }
  TakeLosses(header, model);
  recovery.Deliver(sink);
  if (report.records_damaged != 0) Damaged(report, "some records are damaged");
}

RecoveryReport RecoverFromFile(const std::string& explicit_path, const RingNames& names, TraceModel& model,
                               EventDecoder& decoder, TraceSink& sink) {
  RecoveryReport report;
  report.path = explicit_path.empty() ? model.header.ring_file() : explicit_path;
  if (report.path.empty()) {
    report.state = RecoveryReport::State::kNoRingFile;
    report.detail = "the process kept its rings in private memory";
    return report;
  }
  const int file = open(report.path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    report.state = errno == ENOENT ? RecoveryReport::State::kNoRingFile : RecoveryReport::State::kUnreadable;
    report.detail = std::strerror(errno);
    return report;
  }
  const std::unique_ptr<const int, void (*)(const int*)> close_at_end(&file, [](const int* f) { close(*f); });
  struct stat status;
  if (fstat(file, &status) != 0 || !S_ISREG(status.st_mode)) {
    report.state = RecoveryReport::State::kForeign;
    report.detail = "not a regular file";
    return report;
  }
  const RingBytes bytes = [file](uint64_t offset, std::span<char> out) {
    size_t done = 0;
    while (done < out.size()) {
      const ssize_t got =
          pread(file, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      done += static_cast<size_t>(got);
    }
    return true;
  };
  rf::FileHeader header;
  if (bytes(0, {reinterpret_cast<char*>(&header), sizeof(header)}) &&
      std::memcmp(header.magic, rf::kMagic, sizeof(rf::kMagic)) == 0) {
    const std::string_view boot_id(header.boot_id, strnlen(header.boot_id, sizeof(header.boot_id)));
    const bool same_boot = boot_id == FirstLine("/proc/sys/kernel/random/boot_id");
    if (same_boot && header.process_start_ticks != 0 &&
        StartTicks(header.process_id) == header.process_start_ticks) {
      // Still being written: the trace will have these events by and by.
      report.process_running = true;
      report.state = RecoveryReport::State::kNotNeeded;
      return report;
    }
    if (!same_boot && explicit_path.empty()) {
      report.state = RecoveryReport::State::kForeign;
      report.detail =
          "the machine was restarted since, its rings may be incomplete; --rings reads them anyway";
      return report;
    }
  }
  RecoverRings(bytes, static_cast<uint64_t>(status.st_size), /*any_key=*/false, names, model, decoder, sink,
               report);
  return report;
}

}  // namespace gpumemtrace::analyzer
