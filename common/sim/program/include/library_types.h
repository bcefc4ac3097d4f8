// Stands in for NVIDIA's header of this name: the types that cuBLAS knows.
#pragma once
enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_64F = 1, CUDA_R_16F = 2, CUDA_R_16BF = 14 };
typedef cudaDataType_t cudaDataType;
