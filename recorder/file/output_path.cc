#include "recorder/file/output_path.h"

#include <stdio.h>
#include <string.h>

namespace gpumemtrace::recorder {
namespace {

// A bounded, zero-terminated text.
class Text {
 public:
  Text(char* data, size_t capacity) : data_(data), capacity_(capacity) {
    if (capacity_ > 0) data_[0] = '\0';
  }
  void Append(const char* text, size_t length) {
    if (length >= capacity_ - used_) {
      overflowed_ = true;
      return;
    }
    memcpy(data_ + used_, text, length);
    used_ += length;
    data_[used_] = '\0';
  }
  void Append(const char* text) { Append(text, strlen(text)); }
  void Append(int64_t number) {
    char digits[24];
    const int length = snprintf(digits, sizeof digits, "%lld", static_cast<long long>(number));
    Append(digits, static_cast<size_t>(length));
  }
  bool fits() const { return !overflowed_; }

 private:
  char* const data_;
  const size_t capacity_;
  size_t used_ = 0;
  bool overflowed_ = false;
};

}  // namespace

bool OutputPath(const OutputName& name, unsigned attempt, char* path, size_t capacity) {
  char first[4096];
  Text base(first, sizeof first);
  if (name.pattern[0] == '\0') {
    base.Append("trace");
    if (name.rank.has_value()) {
      base.Append(".rank");
      base.Append(static_cast<int64_t>(*name.rank));
    }
    base.Append(".pb");
  } else {
    for (const char* p = name.pattern; *p != '\0'; ++p) {
      if (*p != '%') {
        base.Append(p, 1);
        continue;
      }
      ++p;
      if (*p == 'p') {
        base.Append(name.process_id);
      } else if (*p == 'h') {
        base.Append(name.host_name);
      } else if (*p == 'r') {
        base.Append(static_cast<int64_t>(name.rank.value_or(0)));
      } else if (*p == '%') {
        base.Append("%");
      } else {
        // Not a placeholder: as it stands.
        base.Append("%");
        if (*p == '\0') break;
        base.Append(p, 1);
      }
    }
  }
  if (!base.fits()) return false;

  Text result(path, capacity);
  if (attempt <= 1) {
    result.Append(first);
    return result.fits();
  }
  // The number goes before the extension of the last component.
  const char* slash = strrchr(first, '/');
  const char* file = slash == nullptr ? first : slash + 1;
  const char* dot = strrchr(file, '.');
  if (dot == nullptr || dot == file) dot = file + strlen(file);
  result.Append(first, static_cast<size_t>(dot - first));
  result.Append(".");
  result.Append(static_cast<int64_t>(attempt));
  result.Append(dot);
  return result.fits();
}

}  // namespace gpumemtrace::recorder
