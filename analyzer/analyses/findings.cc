// What kinds of findings there are, and their names.
#include "analyzer/analyses/findings.h"

namespace gpumemtrace::analyzer {

Residence ResidenceOf(Level level, Space space) {
  if (level == Level::kBlock) return Residence::kDevice;
  if (level != Level::kSegment) return Residence::kNone;
  switch (space) {
    case Space::kManaged:
      return Residence::kManaged;
    case Space::kPinnedHost:
    case Space::kRegisteredHost:
    case Space::kHostPool:
      return Residence::kHost;
    default:
      return Residence::kDevice;
  }
}

bool OnHost(Level level, Space space, int32_t device) {
  return level != Level::kHandle && (device < 0 || ResidenceOf(level, space) == Residence::kHost);
}

bool IsLeak(GrowthKind kind) {
  return kind == GrowthKind::kLeak || kind == GrowthKind::kStrandedCache || kind == GrowthKind::kUnattributed;
}

std::string_view GrowthKindName(GrowthKind kind) {
  switch (kind) {
    case GrowthKind::kLeak:
      return "leak";
    case GrowthKind::kSaturated:
      return "saturated";
    case GrowthKind::kSlowing:
      return "slowing";
    case GrowthKind::kOneOff:
      return "one-off";
    case GrowthKind::kSawtooth:
      return "saw-tooth";
    case GrowthKind::kLongerSteps:
      return "longer steps";
    case GrowthKind::kSetup:
      return "set-up";
    case GrowthKind::kStrandedCache:
      return "stranded cache";
    case GrowthKind::kHandles:
      return "handles";
    case GrowthKind::kUnattributed:
      return "unattributed growth";
  }
  return "";
}

std::string_view RemedyName(Remedy remedy) {
  switch (remedy) {
    case Remedy::kUnknown:
      return "unknown";
    case Remedy::kReference:
      return "drop the reference";
    case Remedy::kGarbageCollector:
      return "gc.collect()";
    case Remedy::kEmptyCache:
      return "empty_cache()";
    case Remedy::kPhaseEnd:
      return "the end of a phase";
    case Remedy::kExit:
      return "only exit";
    case Remedy::kDestroyHandle:
      return "destroy the handle";
    case Remedy::kFree:
      return "free it";
    case Remedy::kClearWorkspaces:
      return "clear the workspaces";
    case Remedy::kPreallocate:
      return "allocate once and write in place";
    case Remedy::kReceiver:
      return "the receiving process";
  }
  return "";
}

std::string_view RemedyText(Remedy remedy) {
  switch (remedy) {
    case Remedy::kReference:
      return "dropping the reference that keeps it";
    case Remedy::kGarbageCollector:
      return "gc.collect(), or breaking the reference cycle that keeps it";
    case Remedy::kEmptyCache:
      return "torch.cuda.empty_cache(), which gives the allocator's free segments back";
    case Remedy::kPhaseEnd:
      return "itself now and then, as seen: at the end of a phase or by the garbage collector";
    case Remedy::kExit:
      return "nothing that was seen, perhaps only by exit";
    case Remedy::kDestroyHandle:
      return "destroying the handle, or making it once and using it again";
    case Remedy::kFree:
      return "the release that belongs to the call that made it; none came";
    case Remedy::kClearWorkspaces:
      return "torch._C._cuda_clearCublasWorkspaces(), or fewer streams: one workspace is kept for each";
    case Remedy::kPreallocate:
      return "allocating the buffer once, at its full size or in large steps, and writing into it in place "
             "(no torch.cat); empty_cache() would only give back what was stranded so far";
    case Remedy::kReceiver:
      return "the other process, when it has opened and released it";
    case Remedy::kUnknown:
      break;
  }
  return RemedyName(remedy);
}

}  // namespace gpumemtrace::analyzer
