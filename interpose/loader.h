// The doors of the dynamic loader: dlsym, dlvsym, dlopen, dlmopen, dlclose.
#pragma once

namespace gpumemtrace::interpose {

// Tells the recorder about libraries that were opened or closed since the last time. Called on paths that
// are not hot.
void NoticeLoads();

}  // namespace gpumemtrace::interpose
