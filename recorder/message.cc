#include "recorder/message.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "recorder/system.h"

namespace gpumemtrace::recorder {
namespace {

bool g_known = false;
dev_t g_device;
ino_t g_inode;

}  // namespace

void RememberStderr() {
  struct stat status;
  g_known = sys::Status(STDERR_FILENO, &status) == 0;
  if (!g_known) return;
  g_device = status.st_dev;
  g_inode = status.st_ino;
}

void MessageLine(const char* line) {
  struct stat status;
  if (!g_known || sys::Status(STDERR_FILENO, &status) != 0 || status.st_dev != g_device ||
      status.st_ino != g_inode) {
    return;
  }
  char text[4700];
  int length = snprintf(text, sizeof text, "%s\n", line);
  if (length < 0) return;
  if (static_cast<size_t>(length) >= sizeof text) {
    length = sizeof text - 1;
    text[length - 1] = '\n';
  }
  // One write: lines of several processes do not mix. A full pipe is the host's to deal with.
  sys::Write(STDERR_FILENO, text, static_cast<size_t>(length));
}

void Message(const char* format, ...) {
  char line[4600];
  size_t length = static_cast<size_t>(snprintf(line, sizeof line, "gpumemtrace: "));
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line + length, sizeof line - length, format, arguments);
  va_end(arguments);
  MessageLine(line);
}

const char* ErrorText(int error) {
  static __thread char buffer[64];
  // The GNU variant: known errors have constant texts.
  return strerror_r(error, buffer, sizeof buffer);
}

}  // namespace gpumemtrace::recorder
