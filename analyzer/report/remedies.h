// What would give leaked memory back, in terms of who keeps it and in the words of the framework that made
// it.
#pragma once

#include <string>

#include "analyzer/analyzed_trace.h"

namespace gpumemtrace::analyzer {

// Of Findings::growth[growth] and of all that its keeper keeps (SameKeeper): "a bound, or storing …, in
// train.cache". What frees a part only says so.
std::string WhatFrees(const AnalyzedTrace& trace, size_t growth);

// The growth above this one in the report whose remedy frees this one too; `growth` itself when there is
// none.
size_t FreedWith(const AnalyzedTrace& trace, size_t growth);

}  // namespace gpumemtrace::analyzer
