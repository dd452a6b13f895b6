#include "analyzer/analyses/places.h"

#include "analyzer/symbols/names.h"

namespace gpumemtrace::analyzer {
namespace {

bool SystemHeader(std::string_view file) {
  return file.starts_with("/usr/include/") || file.find("/include/c++/") != std::string_view::npos ||
         file.find("cuda_runtime") != std::string_view::npos ||
         file.find("/targets/x86_64-linux/include/") != std::string_view::npos ||
         file.find("/targets/sbsa-linux/include/") != std::string_view::npos ||
         file.find("/include/crt/") != std::string_view::npos || file.ends_with(".stub.c") ||
         BaseName(file) == "device_functions.h";
}

// A function of the CUDA runtime, which nvcc links into the program itself.
bool OfStaticRuntime(std::string_view function) {
  for (std::string_view prefix : {"cuda", "__cuda", "libcudart_static", "cudart"}) {
    if (function.starts_with(prefix)) return true;
  }
  return false;
}

Place FromLocation(const Location& location) {
  Place place;
  place.file = location.file;
  place.line = location.line;
  place.function = location.function;
  place.module = location.module;
  place.python = location.python;
  return place;
}

}  // namespace

Place Places::OfFrame(FrameId frame) {
  const std::span<const Location> locations = symbols_.Resolve(frame);
  const Location* best = &locations.front();
  for (const Location& location : locations) {
    if (location.line != 0 && !SystemHeader(location.file)) {
      best = &location;
      break;
    }
  }
  Place place = FromLocation(*best);
  place.user_code = origins_.ClassOf(model_.Frame(frame)) == CodeClass::kUser;
  return place;
}

// No frame has a line, but symbol tables name functions: the innermost one of the user's own that is not the
// runtime's.
Place Places::WithoutLines(StackId stack, Place otherwise) {
  for (StackId node = stack; node != 0; node = model_.Node(node).parent) {
    const FrameId frame = model_.Node(node).frame;
    if (origins_.ClassOf(model_.Frame(frame)) != CodeClass::kUser) continue;
    for (const Location& location : symbols_.Resolve(frame)) {
      if (location.named && !OfStaticRuntime(location.function)) return FromLocation(location);
    }
  }
  return otherwise;
}

Place Places::Make(const Group& group) {
  if (group.frame == 0) {
    Place place;
    place.function = group.api != 0 ? std::string(model_.String(group.api)) : "(no stack)";
    return place;
  }
  Place place = OfFrame(group.frame);
  // Code that the CUDA compiler makes for the launch of a kernel stands at the kernel's own definition.
  bool stub = false;
  const auto made_by_compiler = [](const Place& one) {
    return one.line == 0 || SystemHeader(one.file) ||
           one.function.find("__device_stub__") != std::string::npos ||
           one.function.find("__cudaLaunch") != std::string::npos;
  };
  if (group.native != 0 && made_by_compiler(place)) {
    // Frames of a statically linked runtime have no lines; the caller that has one is the user's.
    for (StackId node = group.native; node != 0; node = model_.Node(node).parent) {
      const FrameId frame = model_.Node(node).frame;
      if (origins_.ClassOf(model_.Frame(frame)) != CodeClass::kUser) continue;
      Place outer = OfFrame(frame);
      if (made_by_compiler(outer)) {
        stub = stub || outer.function.find("__device_stub__") != std::string::npos ||
               outer.function.find("__cudaLaunch") != std::string::npos;
        continue;
      }
      if (stub) {
        // The kernel's host function, which only calls the stub.
        stub = false;
        const StackId parent = model_.Node(node).parent;
        if (parent != 0 && outer.function != "main" &&
            origins_.ClassOf(model_.Frame(model_.Node(parent).frame)) == CodeClass::kUser) {
          continue;
        }
      }
      place = outer;
      break;
    }
  }
  if (group.native != 0 && place.line == 0) place = WithoutLines(group.native, std::move(place));
  place.user_code = group.user_code;
  place.backward = group.backward;
  return place;
}

const Place& Places::OfGroup(GroupId group) {
  if (group >= known_.size()) {
    places_.resize(group + 1);
    known_.resize(group + 1, false);
  }
  if (!known_[group]) {
    places_[group] = Make(origins_.group(group));
    known_[group] = true;
  }
  return places_[group];
}

GroupId Places::Merged(GroupId group) {
  if (group >= merged_.size()) merged_.resize(group + 1, kNoGroup);
  if (merged_[group] == kNoGroup) {
    const Place& place = OfGroup(group);
    std::string key = place.backward ? "b" : "f";
    key += place.line != 0 ? place.file + ":" + std::to_string(place.line)
                           : "?" + place.module + "/" + place.function;
    merged_[group] = by_line_.try_emplace(std::move(key), group).first->second;
  }
  return merged_[group];
}

bool Places::StackNames(const Origin& origin, std::string_view part) {
  for (StackId node = origin.native; node != 0; node = model_.Node(node).parent) {
    for (const Location& location : symbols_.Resolve(model_.Node(node).frame)) {
      if (location.function.find(part) != std::string::npos) return true;
    }
  }
  return false;
}

std::string Place::Short() const {
  std::string text;
  if (line != 0) {
    text = std::string(BaseName(file)) + ":" + std::to_string(line);
    if (!function.empty() && function != "<module>") text += " (" + function + ")";
  } else if (!file.empty()) {
    text = std::string(BaseName(file)) + " (" + function + ")";
  } else {
    text = function.empty() ? "?" : function;
    if (!module.empty()) text += " [" + module + "]";
  }
  if (backward) text = "backward of " + text;
  return text;
}

}  // namespace gpumemtrace::analyzer
