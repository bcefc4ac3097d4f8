/// \file
/// All wrappers of single PTX instructions; more/ has those that few kernels need.
#pragma once

#include "common/dialect/ptx/barrier.h"
#include "common/dialect/ptx/bf16.h"
#include "common/dialect/ptx/cp_async.h"
#include "common/dialect/ptx/f32x2.h"
#include "common/dialect/ptx/fp8.h"
#include "common/dialect/ptx/layouts.h"
#include "common/dialect/ptx/math.h"
#include "common/dialect/ptx/mma.h"
#include "common/dialect/ptx/more/cluster.h"
#include "common/dialect/ptx/more/dependent.h"
#include "common/dialect/ptx/more/tcgen05_2cta.h"
#include "common/dialect/ptx/more/tma.h"
#include "common/dialect/ptx/more/wgmma.h"
#include "common/dialect/ptx/reduce.h"
#include "common/dialect/ptx/setmaxnreg.h"
#include "common/dialect/ptx/tcgen05.h"
#include "common/dialect/ptx/tensor_sum.h"
