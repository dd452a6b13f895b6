// Numbers the places where memory is born, and the code that is answerable for each.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "analyzer/analyses/findings.h"
#include "analyzer/analyses/frame_class.h"
#include "analyzer/ledger/ledger.h"
#include "analyzer/trace/model.h"

namespace gpumemtrace::analyzer {

struct Origin {
  SiteId site = 0;  // first one seen
  StackId native = 0;
  StackId python = 0;
  StackId forward = 0;
  StringId api = 0;
  GroupId group = kNoGroup;
  uint32_t library = 0;  // index into OriginTable::library_name
  int32_t device = -1;
  Level level = Level::kBlock;
  Space space = Space::kUnspecified;
  Phase phase = Phase::kUnknown;
  // The user calls torch.load or a like function of another library on this stack.
  bool loads_checkpoint = false;
  // Within Module.to, .cuda or the like, which go through all parameters (torch/nn/modules/module.py,
  // _apply).
  bool moves_module = false;
  // A copy that changes type or device (aten::_to_copy).
  bool converts = false;
};

// The code that is answerable: one Python line, or one path of native frames in the user's own modules.
struct Group {
  FrameId frame = 0;   // 0: no frame at all, the name of the API stands for it
  CodeId code = 0;     // Python
  uint32_t line = 0;   // Python
  StackId native = 0;  // native: the whole stack, innermost frame first
  StringId api = 0;    // frame = 0
  bool user_code = false;
  bool backward = false;
};

class OriginTable {
 public:
  OriginTable(const TraceModel& model, const std::vector<std::string>& user_code)
      : model_(model), user_code_(user_code), libraries_{""} {}

  // Of the memory that was allocated at `site`.
  OriginId OfSite(SiteId site, Level level, Space space, int32_t device) {
    if (site < by_site_.size() && by_site_[site] != kNoOrigin) return by_site_[site];
    return Add(site, level, space, device);
  }

  size_t size() const { return origins_.size(); }
  const Origin& operator[](OriginId id) const { return origins_[id]; }
  size_t group_count() const { return groups_.size(); }
  const Group& group(GroupId id) const { return groups_[id]; }
  Group& group(GroupId id) { return groups_[id]; }
  const std::string& library_name(uint32_t index) const { return libraries_[index]; }
  size_t library_count() const { return libraries_.size(); }

  CodeClass ClassOfCode(CodeId code);
  CodeClass ClassOfModule(ModuleId module);
  CodeClass ClassOf(const FrameInfo& frame) {
    return frame.is_python() ? ClassOfCode(frame.code_object) : ClassOfModule(frame.module);
  }

  // The user's own frames of an origin, outermost first: Python, then those of the user's native code. All
  // Python frames when none is the user's.
  std::vector<FrameId> UserPath(const Origin& origin);

 private:
  OriginId Add(SiteId site, Level level, Space space, int32_t device);
  GroupId GroupOf(const Origin& origin);
  GroupId AddGroup(const Group& group);
  uint32_t LibraryOf(const Origin& origin);
  void Describe(Origin& origin);
  // Innermost frame that satisfies a rank of "whose code is it", 0 when there is none.
  FrameId AnswerableFrame(StackId python, bool& user_code);
  FrameId AnswerableNativeFrame(StackId native, bool& user_code);

  const TraceModel& model_;
  std::vector<std::string> user_code_;
  std::vector<Origin> origins_;
  std::vector<Group> groups_;
  std::vector<OriginId> by_site_;
  std::vector<std::string> libraries_;
  absl::flat_hash_map<std::string, uint32_t> library_index_;
  // Classes are cached; 255 = not yet asked.
  std::vector<uint8_t> code_class_;
  std::vector<uint8_t> module_class_;
  struct Key {
    uint64_t stacks = 0;  // native, python
    uint64_t rest = 0;    // forward, device, level, space
    uint32_t api = 0;
    friend bool operator==(const Key&, const Key&) = default;
    template <typename H>
    friend H AbslHashValue(H state, const Key& key) {
      return H::combine(std::move(state), key.stacks, key.rest, key.api);
    }
  };
  absl::flat_hash_map<Key, OriginId> by_key_;
  struct GroupKey {
    uint64_t place = 0;
    uint64_t kind = 0;
    friend bool operator==(const GroupKey&, const GroupKey&) = default;
    template <typename H>
    friend H AbslHashValue(H state, const GroupKey& key) {
      return H::combine(std::move(state), key.place, key.kind);
    }
  };
  absl::flat_hash_map<GroupKey, GroupId> group_index_;
};

}  // namespace gpumemtrace::analyzer
