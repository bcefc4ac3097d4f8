/// \file
/// Stands in for the headers <cuda/std/...>: the C++ library under another name.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <complex>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

#include "libcuxx.h"
