/* The pass for any CPU. */
#include "pass.h"

DEFINE(base)
