#include <cuda_runtime.h>
#ifndef NAME
#define NAME hostenv_run
#endif
#ifdef OUTSIDE
extern __device__ int add(int);
#else
__device__ __forceinline__ static int add(int x){ return x + 41; }
#endif
#ifndef NO_KERNEL
static __global__ void kernel(int *p){ *p = add(*p); }
extern "C" int NAME(void){ int *d; int h=1; cudaError_t e=cudaMalloc(&d,4); if(e) return 1000+e; cudaMemcpy(d,&h,4,cudaMemcpyHostToDevice); kernel<<<1,1>>>(d); e=cudaGetLastError(); if(e) return e; e=cudaDeviceSynchronize(); if(e) return e; cudaMemcpy(&h,d,4,cudaMemcpyDeviceToHost); return h==42?0:9999; }
#endif
