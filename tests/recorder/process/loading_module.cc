// A library whose constructor, which runs with the loader's lock, calls back into the driver (driver.cc,
// "loading").
extern "C" void DriverWhileLoading();

namespace {
const struct Constructor {
  Constructor() { DriverWhileLoading(); }
} g_constructor;
}  // namespace
