#include "recorder/fold/columns.h"

#include "recorder/fold/field_reader.h"
#include "recorder/writer/fields.h"

namespace gpumemtrace::recorder {

bool EventColumns::Load(std::span<const uint8_t> message, Decompressor& decompressor) {
  count = 0;
  first_index = first_time = first_sequence = 0;
  restart = predicted = addresses_predicted = false;
  time_step = 1;
  for (ByteBuffer& column : data) column.Clear();
  FieldReader reader(message);
  Field field;
  while (reader.Next(&field)) {
    switch (field.number) {
      case fields::kEventsCount:
        count = static_cast<uint32_t>(field.value);
        break;
      case fields::kEventsFirstIndex:
        first_index = field.value;
        break;
      case fields::kEventsFirstTime:
        first_time = field.value;
        break;
      case fields::kEventsFirstSequence:
        first_sequence = field.value;
        break;
      case fields::kEventsRestart:
        restart = field.value != 0;
        break;
      case fields::kEventsPredicted:
        predicted = field.value != 0;
        break;
      case fields::kEventsAddressesPredicted:
        addresses_predicted = field.value != 0;
        break;
      case fields::kEventsTimeStep:
        if (field.value != 0) time_step = field.value;
        break;
      case fields::kEventsColumn: {
        uint64_t id = 0;
        uint64_t codec = 0;
        uint64_t raw_size = 0;
        std::span<const uint8_t> bytes;
        FieldReader column(field.bytes);
        Field part;
        while (column.Next(&part)) {
          if (part.number == fields::kColumnId) id = part.value;
          if (part.number == fields::kColumnCodec) codec = part.value;
          if (part.number == fields::kColumnRawSize) raw_size = part.value;
          if (part.number == fields::kColumnData) bytes = part.bytes;
        }
        if (column.failed() || id == 0 || id >= kEventColumns) return false;
        if (codec == fields::kCodecZstd) {
          if (!decompressor.Decompress(bytes, raw_size, data[id])) return false;
        } else {
          data[id].Append(bytes.data(), bytes.size());
        }
        break;
      }
      default:
        return false;  // what it means for the events is not known here
    }
  }
  return !reader.failed();
}

}  // namespace gpumemtrace::recorder
