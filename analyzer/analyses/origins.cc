#include "analyzer/analyses/origins.h"

#include <algorithm>

#include "analyzer/symbols/names.h"
#include "analyzer/symbols/symbolizer.h"

namespace gpumemtrace::analyzer {
namespace {

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

}  // namespace

CodeClass OriginTable::ClassOfCode(CodeId code) {
  if (code >= code_class_.size()) code_class_.resize(code + 1, 255);
  uint8_t& cached = code_class_[code];
  if (cached == 255) {
    cached = static_cast<uint8_t>(ClassifyPythonFile(model_.String(model_.Code(code).file), user_code_));
  }
  return static_cast<CodeClass>(cached);
}

CodeClass OriginTable::ClassOfModule(ModuleId module) {
  if (module >= module_class_.size()) module_class_.resize(module + 1, 255);
  uint8_t& cached = module_class_[module];
  if (cached == 255) {
    cached = static_cast<uint8_t>(
        ClassifyModule(model_.String(model_.Module(module).path), model_.header.executable(), user_code_));
  }
  return static_cast<CodeClass>(cached);
}

OriginId OriginTable::Add(SiteId site, Level level, Space space, int32_t device) {
  const SiteInfo& info = model_.Site(site);
  // What a handle is follows from the API that made it, so it belongs to its identity; for memory it does
  // not.
  const StringId api =
      level == Level::kHandle || (info.native_stack == 0 && info.python_stack == 0) ? info.api : 0;
  const Key key{(static_cast<uint64_t>(info.native_stack) << 32) | info.python_stack,
                (static_cast<uint64_t>(info.forward_stack) << 32) |
                    (static_cast<uint64_t>(static_cast<uint16_t>(device)) << 16) |
                    (static_cast<uint64_t>(level) << 8) | static_cast<uint64_t>(space),
                api};
  const auto [it, added] = by_key_.try_emplace(key, static_cast<OriginId>(origins_.size()));
  if (added) {
    Origin origin;
    origin.site = site;
    origin.native = info.native_stack;
    origin.python = info.python_stack;
    origin.forward = info.forward_stack;
    origin.api = info.api;
    origin.device = device;
    origin.level = level;
    origin.space = space;
    origin.library = LibraryOf(origin);
    Describe(origin);
    origin.group = GroupOf(origin);
    origins_.push_back(origin);
  }
  if (site >= by_site_.size()) by_site_.resize(std::max<size_t>(site + 1, by_site_.size() * 2), kNoOrigin);
  by_site_[site] = it->second;
  return it->second;
}

FrameId OriginTable::AnswerableFrame(StackId python, bool& user_code) {
  FrameId other = 0;
  FrameId any = 0;
  for (StackId node = python; node != 0; node = model_.Node(node).parent) {
    const FrameId frame = model_.Node(node).frame;
    if (any == 0) any = frame;
    const CodeClass code = ClassOfCode(model_.Frame(frame).code_object);
    if (code == CodeClass::kUser) {
      user_code = true;
      return frame;
    }
    if (code == CodeClass::kLibrary && other == 0) other = frame;
  }
  return other != 0 ? other : any;
}

FrameId OriginTable::AnswerableNativeFrame(StackId native, bool& user_code) {
  FrameId other = 0;
  FrameId any = 0;
  for (StackId node = native; node != 0; node = model_.Node(node).parent) {
    const FrameId frame = model_.Node(node).frame;
    const FrameInfo& info = model_.Frame(frame);
    if (info.is_python()) continue;
    const CodeClass code = ClassOfModule(info.module);
    // A program that links CUDA's runtime statically has its frames in its own module; they carry no line, so
    // the caller of the runtime is found later, when lines are known.
    if (code == CodeClass::kUser) {
      user_code = true;
      return frame;
    }
    if (code == CodeClass::kLibrary && other == 0) other = frame;
    if (any == 0 && code != CodeClass::kSystem) any = frame;
  }
  return other != 0 ? other : any;
}

GroupId OriginTable::GroupOf(const Origin& origin) {
  Group group;
  bool user = false;
  FrameId python = AnswerableFrame(origin.python, user);
  if (!user && origin.forward != 0) {
    // An autograd thread: the forward line that made the running node.
    bool forward_user = false;
    const FrameId forward = AnswerableFrame(origin.forward, forward_user);
    if (forward != 0) {
      python = forward;
      user = forward_user;
      group.backward = true;
    }
  }
  // The user's own extension module, called from the user's Python, is nearer to the allocation; still the
  // Python line is the better name: it is what people read.
  FrameId frame = python;
  if (frame == 0 || !user) {
    bool native_user = false;
    const FrameId native = AnswerableNativeFrame(origin.native, native_user);
    if (native != 0 && (frame == 0 || native_user)) {
      frame = native;
      user = native_user;
      group.backward = false;
      group.native = origin.native;
    }
  }
  group.frame = frame;
  group.user_code = user;
  if (frame != 0) {
    const FrameInfo& info = model_.Frame(frame);
    if (info.is_python()) {
      group.code = info.code_object;
      group.line = PythonLine(model_.Code(info.code_object), info.instruction);
    }
  } else {
    group.api = origin.api;
  }
  return AddGroup(group);
}

GroupId OriginTable::AddGroup(const Group& group) {
  GroupKey key;
  if (group.code != 0) {
    key = {(static_cast<uint64_t>(group.code) << 32) | group.line, group.backward ? 2u : 1u};
  } else if (group.frame != 0) {
    // A runtime that is linked statically has its frames in the program's own module, the same ones for every
    // caller, so the whole path is the key; lines make one of those that belong together when they are known.
    uint64_t path = 0;
    for (StackId node = group.native; node != 0; node = model_.Node(node).parent) {
      const FrameId frame = model_.Node(node).frame;
      const CodeClass code = ClassOf(model_.Frame(frame));
      if (code == CodeClass::kUser || frame == group.frame) path = (path ^ frame) * 0x9e3779b97f4a7c15ull;
    }
    key = {path, 3};
  } else {
    key = {group.api, 4};
  }
  const auto [it, added] = group_index_.try_emplace(key, static_cast<GroupId>(groups_.size()));
  if (added) groups_.push_back(group);
  return it->second;
}

uint32_t OriginTable::LibraryOf(const Origin& origin) {
  std::string name;
  for (StackId node = origin.native; node != 0; node = model_.Node(node).parent) {
    const FrameInfo& frame = model_.Frame(model_.Node(node).frame);
    if (frame.is_python() || frame.module == 0) continue;
    const std::string_view path = model_.String(model_.Module(frame.module).path);
    if (IsCudaOrShim(path)) continue;
    name = LibraryName(path);
    break;
  }
  if (name.empty()) return 0;
  const auto [it, added] = library_index_.try_emplace(name, static_cast<uint32_t>(libraries_.size()));
  if (added) libraries_.push_back(name);
  return it->second;
}

void OriginTable::Describe(Origin& origin) {
  if (origin.forward != 0) origin.phase = Phase::kBackward;
  for (StackId node = origin.python; node != 0; node = model_.Node(node).parent) {
    const FrameInfo& frame = model_.Frame(model_.Node(node).frame);
    if (!frame.is_python()) continue;
    const CodeObjectInfo& code = model_.Code(frame.code_object);
    const std::string_view file = model_.String(code.file);
    const std::string_view name = model_.String(code.qualified_name);
    origin.moves_module |= file.ends_with("torch/nn/modules/module.py") && name.starts_with("Module._apply");
    if (Contains(file, "torch/optim/") && Contains(name, "step")) {
      origin.phase = Phase::kOptimizer;
    } else if (file.ends_with("torch/serialization.py") || Contains(file, "/safetensors/")) {
      origin.loads_checkpoint = true;
      origin.phase = Phase::kLoading;
    } else if (Contains(file, "torch/distributed/") && origin.phase == Phase::kUnknown) {
      origin.phase = Phase::kCollective;
    } else if (ClassOfCode(frame.code_object) == CodeClass::kUser && origin.phase == Phase::kUnknown) {
      const std::string lower = Lower(name);
      if (Contains(lower, "evaluat") || Contains(lower, "validat") || lower.ends_with("eval") ||
          lower.starts_with("eval_")) {
        origin.phase = Phase::kEvaluation;
      }
    }
  }
  if (origin.phase == Phase::kUnknown && origin.python != 0) origin.phase = Phase::kForward;
  if (origin.phase == Phase::kUnknown && origin.level == Level::kBlock) origin.phase = Phase::kBackward;
}

std::vector<FrameId> OriginTable::UserPath(const Origin& origin) {
  std::vector<FrameId> all;
  std::vector<FrameId> user;
  for (StackId node = origin.python; node != 0; node = model_.Node(node).parent) {
    const FrameId frame = model_.Node(node).frame;
    all.push_back(frame);
    if (ClassOf(model_.Frame(frame)) == CodeClass::kUser) user.push_back(frame);
  }
  if (user.empty()) {
    // Native code of the user's own; with a Python caller, the calls below it.
    for (StackId node = origin.native; node != 0; node = model_.Node(node).parent) {
      const FrameId frame = model_.Node(node).frame;
      if (!model_.Frame(frame).is_python() && ClassOf(model_.Frame(frame)) == CodeClass::kUser)
        user.push_back(frame);
    }
  }
  std::vector<FrameId>& path = user.empty() ? all : user;
  std::reverse(path.begin(), path.end());
  // Deep recursion says nothing more about loops.
  if (path.size() > 32) path.resize(32);
  return path;
}

}  // namespace gpumemtrace::analyzer
