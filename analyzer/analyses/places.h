// Names for what the analyses found: source places of groups, origins and frames.
#pragma once

#include <string>
#include <vector>

#include "analyzer/analyses/findings.h"
#include "analyzer/analyses/origins.h"
#include "analyzer/symbols/symbolizer.h"

namespace gpumemtrace::analyzer {

class Places {
 public:
  Places(const TraceModel& model, OriginTable& origins, Symbolizer& symbols)
      : model_(model), origins_(origins), symbols_(symbols) {}

  const Place& OfGroup(GroupId group);
  Place OfFrame(FrameId frame);
  const Place& OfOrigin(OriginId origin) { return OfGroup(origins_[origin].group); }
  // Groups on the same source line answer the same number.
  GroupId Merged(GroupId group);
  Symbolizer& symbols() { return symbols_; }
  // True when a native frame of the origin's stack has a function whose name contains `part`.
  bool StackNames(const Origin& origin, std::string_view part);

 private:
  Place WithoutLines(StackId stack, Place otherwise);
  Place Make(const Group& group);

  const TraceModel& model_;
  OriginTable& origins_;
  Symbolizer& symbols_;
  std::vector<Place> places_;
  std::vector<bool> known_;
  std::vector<GroupId> merged_;
  absl::flat_hash_map<std::string, GroupId> by_line_;
};

}  // namespace gpumemtrace::analyzer
