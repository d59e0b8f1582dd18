/* Which sources a library was built from: a library of other sources than those next to it is not loaded. */
#include "gpusight_core.h"

#ifndef GPUSIGHT_SOURCES
#error "GPUSIGHT_SOURCES, the checksum of the sources, comes from tools/build_core.py"
#endif
#ifndef GPUSIGHT_COMPILER
#define GPUSIGHT_COMPILER "an unnamed compiler"
#endif

/* Give the checksum of the sources; `source_checksum` of native.py computes the same from the files. */
GPUSIGHT_API uint32_t gpusight_sources(void) { return GPUSIGHT_SOURCES; }

/* Give the command that compiled it and the compiler's own name, for people. */
GPUSIGHT_API const char *gpusight_compiler(void)
{
#ifdef __VERSION__
    return GPUSIGHT_COMPILER " " __VERSION__;
#else
    return GPUSIGHT_COMPILER;
#endif
}
