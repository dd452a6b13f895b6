// The columns of an Events message (trace.proto) as they stand in the file, decompressed.
#pragma once

#include <cstdint>
#include <span>

#include "recorder/writer/byte_buffer.h"
#include "recorder/writer/decompressor.h"
#include "recorder/writer/event_column.h"

namespace gpumemtrace::recorder {

struct EventColumns {
  uint32_t count = 0;
  uint64_t first_index = 0;
  uint64_t first_time = 0;
  uint64_t first_sequence = 0;
  bool restart = false;
  bool predicted = false;
  bool addresses_predicted = false;
  // Unit of the column of times.
  uint64_t time_step = 1;
  ByteBuffer data[kEventColumns];

  // Takes a serialized Events message. False: damaged, with something that is not known here, or no memory.
  bool Load(std::span<const uint8_t> message, Decompressor& decompressor);
};

}  // namespace gpumemtrace::recorder
