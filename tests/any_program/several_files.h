// Shared by the three files of this program.
#pragma once

#ifdef __cplusplus
extern "C" {
#endif
int sum_in_c(const int* p, int n);
#ifdef __cplusplus
}
void double_on_device(int* host, int n);
int biggest(const int* p, int n);
extern int calls;
#endif
