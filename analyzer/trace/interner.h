// Gives ids of the model to what arrives without one (recovered rings), reusing the ids that the trace
// already gave to equal things.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "analyzer/trace/model.h"

namespace gpumemtrace::analyzer {

class Interner {
 public:
  explicit Interner(TraceModel& model);

  StringId String(std::string_view text);
  ThreadId Thread(uint64_t tid, std::string_view name);
  FrameId Frame(const FrameInfo& frame);
  StackId Node(StackId parent, FrameId frame);
  // Equal in everything but the way addresses and sizes are encoded. `added`: the site is new.
  SiteId Site(const SiteInfo& site, bool& added);

 private:
  using FrameKey = std::tuple<ModuleId, CodeId, uint64_t, int32_t, bool>;
  using SiteKey = std::tuple<EventKind, Space, uint32_t, int32_t, int32_t, StringId, ThreadId, StackId,
                             StackId, StackId, uint64_t, uint64_t>;
  static FrameKey KeyOf(const FrameInfo& frame);
  static SiteKey KeyOf(const SiteInfo& site);

  TraceModel& model_;
  absl::flat_hash_map<std::string, StringId> strings_;
  absl::flat_hash_map<std::pair<uint64_t, std::string>, ThreadId> threads_;
  absl::flat_hash_map<FrameKey, FrameId> frames_;
  absl::flat_hash_map<std::pair<StackId, FrameId>, StackId> nodes_;
  absl::flat_hash_map<SiteKey, SiteId> sites_;
};

}  // namespace gpumemtrace::analyzer
