/// \file
/// The program that judges kernels: an exercise's (judge.cpp) or an extension's (extension.cpp).
#pragma once

namespace fa {

/// Until its standard input ends. \returns the exit status
int judge_extension();

}  // namespace fa
