/// \file
/// All wrappers of single PTX instructions.
#pragma once

#include "common/ptx/barrier.h"
#include "common/ptx/cluster.h"
#include "common/ptx/cp_async.h"
#include "common/ptx/layouts.h"
#include "common/ptx/math.h"
#include "common/ptx/mbarrier.h"
#include "common/ptx/mma.h"
#include "common/ptx/setmaxnreg.h"
#include "common/ptx/tma.h"
#include "common/ptx/wgmma.h"
