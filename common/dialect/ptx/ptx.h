/// \file
/// All wrappers of single PTX instructions.
#pragma once

#include "common/dialect/ptx/barrier.h"
#include "common/dialect/ptx/cluster.h"
#include "common/dialect/ptx/cp_async.h"
#include "common/dialect/ptx/layouts.h"
#include "common/dialect/ptx/math.h"
#include "common/dialect/ptx/mbarrier.h"
#include "common/dialect/ptx/mma.h"
#include "common/dialect/ptx/more/tma.h"
#include "common/dialect/ptx/more/wgmma.h"
#include "common/dialect/ptx/setmaxnreg.h"
