// The Header of a trace: which process it is about.
#pragma once

#include "recorder/writer/byte_buffer.h"

namespace gpumemtrace::recorder {

struct Options;

struct HeaderFacts {
  const Options& options;
  const char* const* environment;
  const char* host_name;
  const char* boot_id;
  // "" = private rings.
  const char* ring_file;
  uint64_t ring_key;
};

// Appends the serialized Header.
void AppendHeader(const HeaderFacts& facts, ByteBuffer& out);

}  // namespace gpumemtrace::recorder
