#include "analyzer/trace/interner.h"

namespace gpumemtrace::analyzer {

Interner::Interner(TraceModel& model) : model_(model) {
  for (size_t id = 1; id < model.strings.size(); ++id) {
    strings_.try_emplace(model.strings[id], static_cast<StringId>(id));
  }
  for (size_t id = 1; id < model.threads.size(); ++id) {
    threads_.try_emplace({model.threads[id].tid, model.threads[id].name}, static_cast<ThreadId>(id));
  }
  for (size_t id = 1; id < model.frames.size(); ++id) {
    frames_.try_emplace(KeyOf(model.frames[id]), static_cast<FrameId>(id));
  }
  for (size_t id = 1; id < model.stack_nodes.size(); ++id) {
    const StackNode& node = model.stack_nodes[id];
    nodes_.try_emplace({node.parent, node.frame}, static_cast<StackId>(id));
  }
  for (size_t id = 1; id < model.sites.size(); ++id) {
    if (!model.sites[id].size_varies) sites_.try_emplace(KeyOf(model.sites[id]), static_cast<SiteId>(id));
  }
}

Interner::FrameKey Interner::KeyOf(const FrameInfo& frame) {
  // Native frames have no instruction; 0 in a trace, −1 by default.
  return {frame.module, frame.code_object, frame.offset, frame.is_python() ? frame.instruction : 0,
          frame.entry};
}

Interner::SiteKey Interner::KeyOf(const SiteInfo& site) {
  return {site.kind,   site.space,        site.flags,        site.device,        site.result, site.api,
          site.thread, site.native_stack, site.python_stack, site.forward_stack, site.stream, site.size};
}

StringId Interner::String(std::string_view text) {
  const auto [it, added] =
      strings_.try_emplace(std::string(text), static_cast<StringId>(model_.strings.size()));
  if (added) model_.strings.emplace_back(text);
  return it->second;
}

ThreadId Interner::Thread(uint64_t tid, std::string_view name) {
  const auto [it, added] =
      threads_.try_emplace({tid, std::string(name)}, static_cast<ThreadId>(model_.threads.size()));
  if (added) model_.threads.push_back({tid, std::string(name)});
  return it->second;
}

FrameId Interner::Frame(const FrameInfo& frame) {
  const auto [it, added] = frames_.try_emplace(KeyOf(frame), static_cast<FrameId>(model_.frames.size()));
  if (added) model_.frames.push_back(frame);
  return it->second;
}

StackId Interner::Node(StackId parent, FrameId frame) {
  const auto [it, added] =
      nodes_.try_emplace({parent, frame}, static_cast<StackId>(model_.stack_nodes.size()));
  if (added) model_.stack_nodes.push_back({parent, frame});
  return it->second;
}

SiteId Interner::Site(const SiteInfo& site, bool& added) {
  const auto [it, is_new] = sites_.try_emplace(KeyOf(site), static_cast<SiteId>(model_.sites.size()));
  if (is_new) model_.sites.push_back(site);
  added = is_new;
  return it->second;
}

}  // namespace gpumemtrace::analyzer
