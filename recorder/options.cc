#include "recorder/options.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include <bit>

#include "proto/gpumemtrace/options.h"

namespace gpumemtrace::recorder {
namespace {

using options::kOptions;
using options::Option;
using options::Type;

bool ParseSwitch(const char* text, uint64_t* value) {
  for (const char* word : {"1", "on", "yes", "true"}) {
    if (strcasecmp(text, word) == 0) return *value = 1, true;
  }
  for (const char* word : {"0", "off", "no", "false"}) {
    if (strcasecmp(text, word) == 0) return *value = 0, true;
  }
  return false;
}

bool ParseNumber(const char* text, bool bytes, uint64_t* value) {
  uint64_t number = 0;
  const char* p = text;
  for (; *p >= '0' && *p <= '9'; ++p) {
    if (__builtin_mul_overflow(number, 10u, &number) ||
        __builtin_add_overflow(number, static_cast<uint64_t>(*p - '0'), &number)) {
      return false;
    }
  }
  if (p == text) return false;
  if (bytes && *p != '\0') {
    static constexpr char kUnits[] = "kmgt";
    const char* unit = strchr(kUnits, *p | 0x20);
    if (unit == nullptr) return false;
    const auto shift = static_cast<unsigned>(10 * (unit - kUnits + 1));
    if (number > (~uint64_t{0} >> shift)) return false;
    number <<= shift;
    ++p;
    if (strcasecmp(p, "iB") == 0) {
      p += 2;
    } else if (strcasecmp(p, "B") == 0) {
      ++p;
    }
  }
  *value = number;
  return *p == '\0';
}

// The place of the `length` bytes at `word` in a list separated by `separator`.
bool FindWord(const char* list, char separator, const char* word, size_t length, uint64_t* place) {
  for (uint64_t i = 0;; ++i) {
    const char* end = strchrnul(list, separator);
    if (static_cast<size_t>(end - list) == length && strncasecmp(list, word, length) == 0) {
      *place = i;
      return true;
    }
    if (*end == '\0') return false;
    list = end + 1;
  }
}

bool ParseSet(const char* list, const char* text, uint64_t* value) {
  *value = ~uint64_t{0};
  if (*text == '\0' || strcasecmp(text, "all") == 0) return true;
  *value = 0;
  for (;;) {
    const char* end = strchrnul(text, ',');
    uint64_t place;
    if (!FindWord(list, ',', text, static_cast<size_t>(end - text), &place)) return false;
    *value |= uint64_t{1} << place;
    if (*end == '\0') return true;
    text = end + 1;
  }
}

bool ParseValue(const Option& option, const char* text, uint64_t* value) {
  switch (option.type) {
    case Type::kSwitch:
      return ParseSwitch(text, value);
    case Type::kNumber:
    case Type::kBytes:
      return ParseNumber(text, option.type == Type::kBytes, value) && *value >= option.least &&
             *value <= option.greatest;
    case Type::kChoice:
      return FindWord(option.choices, '|', text, strlen(text), value);
    case Type::kSet:
      return ParseSet(option.choices, text, value);
    case Type::kText:
      *value = 0;
      return true;
  }
  return false;
}

const char* ValueOf(const char* const* environment, const char* name) {
  const size_t length = strlen(name);
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    if (strncmp(*environment, name, length) == 0 && (*environment)[length] == '=') {
      return *environment + length + 1;
    }
  }
  return nullptr;
}

void ComplainAboutUnknown(const char* const* environment, void (*complain)(const char*)) {
  static constexpr char kPrefix[] = "GPUMEMTRACE";
  for (; environment != nullptr && *environment != nullptr; ++environment) {
    if (strncmp(*environment, kPrefix, sizeof kPrefix - 1) != 0) continue;
    const auto length = static_cast<size_t>(strchrnul(*environment, '=') - *environment);
    bool known = false;
    for (const Option& option : kOptions) {
      known |= strlen(option.name) == length && strncmp(option.name, *environment, length) == 0;
    }
    if (known) continue;
    char line[256];
    snprintf(line, sizeof line, "gpumemtrace: %.*s is not an option and is ignored",
             static_cast<int>(length < 128 ? length : 128), *environment);
    complain(line);
  }
}

}  // namespace

bool Enabled() {
  const char* text = ValueOf(environ, kOptions[options::kEnabled].name);
  uint64_t value = 1;
  return text == nullptr || !ParseSwitch(text, &value) || value != 0;
}

Options ParseOptions(const char* const* environment, void (*complain)(const char* line)) {
  uint64_t values[options::kOptionCount];
  const char* texts[options::kOptionCount];
  for (size_t i = 0; i < options::kOptionCount; ++i) {
    const Option& option = kOptions[i];
    texts[i] = option.default_value;
    ParseValue(option, option.default_value, &values[i]);
    const char* text = ValueOf(environment, option.name);
    if (text == nullptr) continue;
    uint64_t value;
    if (ParseValue(option, text, &value)) {
      texts[i] = text;
      values[i] = value;
    } else {
      char line[384];
      snprintf(line, sizeof line, "gpumemtrace: %s=%.100s is not understood; the default, %s, is used",
               option.name, text, option.default_value);
      complain(line);
    }
  }
  ComplainAboutUnknown(environment, complain);

  Options result;
  result.enabled = values[options::kEnabled] != 0;
  result.out = texts[options::kOut];
  // The order of the words in the table.
  const bool python = values[options::kStacks] == 0 || values[options::kStacks] == 1;
  const bool native = values[options::kStacks] == 0 || values[options::kStacks] == 2;
  result.any_stacks = python || native;
  result.stacks.python = python;
  result.stacks.native = !native                                        ? stacks::NativeDepth::kNone
                         : values[options::kNativeDepth] == 0 && python ? stacks::NativeDepth::kToPython
                                                                        : stacks::NativeDepth::kFull;
  result.stacks.max_native = static_cast<uint16_t>(values[options::kMaxNativeFrames]);
  result.stacks.max_python = static_cast<uint16_t>(values[options::kMaxPythonFrames]);
  result.min_size = values[options::kMinSize];
  // The words stand in the order of Space, whose first value is 1. Events without a space always count.
  result.spaces = static_cast<uint32_t>(values[options::kSpaces] << 1) | 1u;
  result.flush_ns = values[options::kFlushMs] * 1'000'000;
  result.rings = static_cast<RingPlace>(values[options::kRings]);
  result.ring_bytes = std::bit_ceil(values[options::kRingBytes]);
  result.max_bytes = values[options::kMaxBytes];
  result.command_line = values[options::kCommandLine] != 0;
  result.quiet = values[options::kQuiet] != 0;
  result.census.mode = static_cast<census::Mode>(values[options::kCensus]);
  result.census.budget_ms = values[options::kCensusBudgetMs];
  result.census.growth = values[options::kCensusGrowth];
  result.census.signal = static_cast<int>(values[options::kCensusSignal]);
  return result;
}

}  // namespace gpumemtrace::recorder
