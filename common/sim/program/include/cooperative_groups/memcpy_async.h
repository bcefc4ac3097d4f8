// Stands in for NVIDIA's header of this name.
#pragma once
#include "../cooperative_groups.h"
