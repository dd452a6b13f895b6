// A host that closes every descriptor it does not know and uses the numbers itself.
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cases.h"

using namespace edge_cases;

EDGE_CASE(closes_all_descriptors) {
  for (int i = 0; i < 500; ++i) Release(Allocate(4096));
  const long limit = sysconf(_SC_OPEN_MAX);
  for (long fd = 3; fd < limit && fd < 65536; ++fd) close(static_cast<int>(fd));
  // Our own file at every number that can be had.
  char name[] = "/tmp/edge_cases_XXXXXX";
  const int file = mkstemp(name);
  unlink(name);
  int opened = 0;
  for (int fd = 3; fd < 1024 && fd < limit; ++fd) {
    if (fd == file) continue;
    if (dup2(file, fd) == fd) ++opened;
  }
  if (limit > 1024) dup2(file, static_cast<int>(limit) - 1);
  if (write(file, "mine", 4) != 4) return 1;
  for (int i = 0; i < 20000; ++i) Release(Allocate(512 + static_cast<size_t>(i % 64) * 512));
  struct stat status {};
  fstat(file, &status);
  printf("%d descriptors, file has %lld bytes\n", opened, static_cast<long long>(status.st_size));
  return 0;
}

// What the process has open by itself, in the numbers that programs hand out.
EDGE_CASE(lists_low_descriptors) {
  Release(Allocate(4096));
  int low = 0;
  for (int fd = 3; fd < 100; ++fd) low += fcntl(fd, F_GETFD) != -1;
  const int next = open("/dev/null", O_RDONLY);
  printf("%d low descriptors, next is %d\n", low, next);
  return 0;
}
