#include "recorder/fold/sites.h"

#include <algorithm>

#include "proto/gpumemtrace/address_prediction.h"
#include "proto/gpumemtrace/event_columns.h"
#include "recorder/event.h"
#include "recorder/fold/field_reader.h"
#include "recorder/writer/fields.h"

namespace gpumemtrace::recorder {
namespace {

namespace columns = event_columns;

// A writer that made greater ids than this is not ours.
constexpr uint64_t kMostSites = uint64_t{1} << 28;
constexpr uint64_t kMostSize = (uint64_t{1} << 56) - 1;

// Objects of these kinds are counted by place, and their pairs may go.
constexpr bool Folds(uint32_t kind) {
  return kind == columns::kAllocate || kind == columns::kHandleCreate || kind == columns::kBlockAllocate;
}

}  // namespace

bool FoldSites::Define(std::span<const uint8_t> message, Places& places, bool* is_new) {
  FoldSite site{};
  Places::Key key{};
  uint64_t id = 0;
  uint64_t size = 0;
  FieldReader reader(message);
  Field field;
  while (reader.Next(&field)) {
    switch (field.number) {
      case fields::kSiteId:
        id = field.value;
        break;
      case fields::kSiteKind:
        key.kind = static_cast<uint8_t>(field.value);
        break;
      case fields::kSiteSpace:
        key.space = static_cast<uint8_t>(field.value);
        break;
      case fields::kSiteApi:
        key.api = static_cast<uint32_t>(field.value);
        break;
      case fields::kSiteDevice:
        key.device = static_cast<int16_t>(field.Signed());
        if (key.device != field.Signed()) return false;
        break;
      case fields::kSiteSize:
        // Only a call that failed asked for more.
        size = std::min(field.value, kMostSize);
        break;
      case fields::kSiteStream:
        site.lane = address_prediction::LaneOf(field.value);
        break;
      case fields::kSiteNativeStack:
        key.native_stack = static_cast<uint32_t>(field.value);
        break;
      case fields::kSitePythonStack:
        key.python_stack = static_cast<uint32_t>(field.value);
        break;
      case fields::kSiteForwardStack:
        key.forward_stack = static_cast<uint32_t>(field.value);
        break;
      case fields::kSiteResult:
        site.failed = field.value != 0;
        break;
      case fields::kSiteAddressShift:
        site.shift = field.value & 63;
        break;
      case fields::kSiteFlags:
        site.without_totals = (field.value & kWithoutTotals) != 0;
        break;
      case fields::kSiteSizeVaries:
        site.size_varies = field.value != 0;
        break;
      default:
        break;
    }
  }
  if (reader.failed() || id == 0 || id > kMostSites || key.kind == 0) return false;
  *is_new = Find(id) == nullptr;
  if (!*is_new) return true;
  if (sites_.size() <= id && !sites_.Resize(id + 1)) return false;
  const uint32_t place = places.Number(key, static_cast<uint32_t>(id));
  if (place == 0) return false;
  site.place = place & Places::kMostPlaces;
  site.size = static_cast<uint32_t>(size);
  if (size != site.size) {
    site.large = 1;
    site.size = static_cast<uint32_t>(large_.size());
    if (!large_.Push(size)) return false;
  }
  site.counted = Folds(key.kind);
  sites_[id] = site;
  return true;
}

}  // namespace gpumemtrace::recorder
