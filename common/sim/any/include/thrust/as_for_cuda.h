/// \file
/// What Thrust's headers include for a GPU and not for the host: programs rely on it. scripts/sim
/// includes it before each file that includes Thrust.
#pragma once

#include <chrono>
#include <iostream>

#include <thrust/execution_policy.h>
#include <thrust/extrema.h>
#include <thrust/sequence.h>
#include <thrust/system/cuda/error.h>
#include <thrust/system_error.h>
