"""./scripts/sim: the programs of tests/any_program, its report on them, and its refusals."""

import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

from copies import BUILD, ROOT, Folder, for_all, main, said
from flash_steps import building, cuda_program, inline_ptx, sarif
from flash_steps.cuda_translator import COMMENT, TranslationError, Translator
from flash_steps.files import read_json, version
from flash_steps.nvcc import every_arch_of, find_nvcc

SIM = ROOT / "scripts" / "sim"
FOLDER = str(ROOT / "tests" / "any_program")
FILES = {"several_files": ["several_files.cu", "several_files_cpp.cpp", "several_files_c.c"]}
PROGRAMS = sorted(name.removesuffix(".cu") for name in os.listdir(FOLDER) if name.endswith(".cu"))
if not any(Path(folder, "thrust").is_dir() for folder in ("/usr/include", "/usr/local/include")):
    PROGRAMS.remove("thrust")  # of the package libthrust-dev
# Programs that CUDA refuses in part: each a finding with the launch's line, @, and an error.
REFUSED = {
    "errors": [
        ("set<<<1, 2048>>>", r"kernel set: a block of 2048 threads; .*, at errors.cu:@"),
        ("set<<<0, 32>>>", r"kernel set: a grid of \(0,1,1\); .*, at errors.cu:@"),
        ("dim3(1, 1, 65)", r"kernel set: a block of 65 threads; .*, at errors.cu:@"),
        ("dim3(1, 65536)", r"kernel set: a grid of \(1,65536,1\); .*, at errors.cu:@"),
        ("300 * 1024", r"kernel set_with_room: 307200 B of dynamic .*, at errors.cu:@"),
        ("without permission", r"kernel set_with_room: 65536 B .* more than 49152 .* errors.cu:@"),
        ("dim3(1025)", r"kernel set: a block of 1025 threads; .*, at errors.cu:@"),
    ],
    "blas": [
        ("beyond A", r"cuBLAS at blas.cu:\d+: A lies at bytes 0 to 528 of .*, which has 32 bytes"),
        ("of the host", r"cuBLAS at blas.cu:\d+: A is memory of the host"),
        ("2, 2, &d_zero, dW, 1, 0, 2)", r"cuBLAS at blas.cu:\d+: B lies at bytes 0 to 40 of .*"),
    ],
    "grid_sync": [
        ("dim3(100000)", r"kernel prefix_sums: a cooperative launch of 100000 .* grid_sync.cu:@")
    ],
}
# Run without a race search: those above, races on purpose, and those whose report is checked.
PLAIN = [*REFUSED, "arithmetic", "atomics", "copies", "memory", "printf", "several_files"]
PLAIN += ["streams", "transposes"]
ANALYSED = ["transposes", *(name for name in PROGRAMS if name not in PLAIN)]


def program(body, launch="k<<<1, 1>>>(p)", head="", signature="int* p"):
    """One kernel, and a main() that passes it 4096 zero bytes."""
    return f"""{head}
__global__ void k({signature}) {{
{textwrap.dedent(body).strip(chr(10))}
}}
int main() {{
  int* p;
  cudaMalloc(&p, 4096), cudaMemset(p, 0, 4096);
  {launch};
  return cudaDeviceSynchronize();
}}
"""


# Name: (the program, the finding, status, further arguments); @: the line with HERE in the text.
ERRORS = {
    "broken": (
        """
        __global__ void k(int* out) { out[0] = 1; }
        int main() {
          k<<<1,
              1>>>(
              nullptr);
          return undefined_name;  // HERE
        }""",
        r"broken.cu:@:\d+: error: .undefined_name. was not declared",
    ),
    "named_badly": (  # other text of the file, such as launch attributes, is no reason
        """
        int main() {
          cudaLaunchAttribute a[1];
          a[0].id = cudaLaunchAttributeClusterDimension;
          return undefined_name;  // HERE
        }""",
        r"^sim: \S*named_badly.cu:@:\d+: error: .undefined_name. was not declared",
    ),
    "announced": (
        program(
            """
            cuda::atomic_ref<int, cuda::thread_scope_device> flag(p[1]);
            if (blockIdx.x == 0) {
              p[0] = 1;
              flag.store(1, cuda::memory_order_relaxed);
            } else if (flag.load(cuda::memory_order_acquire)) {
              p[2] = p[0];  // HERE
            }
            """,
            "k<<<2, 1>>>(p)",
            "#include <cuda/atomic>",
        ),
        r"race on device memory: kernel k, block \(1,0,0\), .*load of p, byte 0 at announced.cu:@ ",
        1,
        ("--analyse",),
    ),
    "unset": (
        """
        int host() { return 1; }
        __device__ int both() { return 2; }
        __global__ void k(const float* x, float* y, int n) {
          extern __shared__ __align__(2048) char t[]; float s;
          for (int i = 0; i < n; ++i) y[i] = s += x[i];  // HERE
          if (n == 7) *y = host() + both() + rand() + std::min(1, 2);
        }
        int main() {
          float* p;
          cudaMalloc(&p, 4096), cudaMemset(p, 0, 4096);
          k<<<1, 1>>>(p, p + 100, 8 + 0 * host());
          return cudaDeviceSynchronize();
        }""",
        r"remark: s may be read before it is set \(unset.cu:@\), .*\n.*"
        r"remark: host is the host's, and nvcc refuses it in a kernel \(unset.cu:6\)\n"
        r"remark: rand is the host's, and nvcc refuses it in a kernel \(unset.cu:6\)\n"
        r"remark: shared memory is aligned to 1024 bytes at most, not 2048 \(unset.cu:4\)\n"
        r"no finding: no race, no uninitialised read of memory, ",
        *(0, ("--analyse",)),
    ),
    "tile": (
        "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;\n"
        + program("cg::tiled_partition<64>(cg::this_thread_block()).sync();  // HERE"),
        r"^sim: not supported: tiles of more than a warp \(tile.cu:@\)\n$",
    ),
    "blackwell": (
        """
        #include <cuda.h>
        static_assert(__CUDA_ARCH__ == 1000 && __CUDA_ARCH_FEAT_SM100_ALL && CUDA_VERSION == 12080);
        static_assert(__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ == 9);
        template <class T> __forceinline__ __device__ T right(T x, int s);
        template <class T> __forceinline__ __device__ T left(T x, int s) {
          return s < 0 ? right(x, -s) : x << s;
        }
        template <class T> __forceinline__ __device__ T right(T x, int s) {
          return s < 0 ? left(x, -s) : x >> s;
        }
        __global__ void k(int* p) { p[0] = left(p[0], p[1]); }
        int main() {
          int* p, version;
          cudaMalloc(&p, 8), cudaMemset(p, 0, 8);
          k<<<1, 1>>>(p);
          return cudaRuntimeGetVersion(&version) || version != CUDART_VERSION;
        }""",
        "no access out of bounds",
        *(0, ("--gpu", "B200", "-D", "__CUDACC_VER_MINOR__=9")),
    ),
    "textures": (
        """
        __global__ void k(float* out, cudaTextureObject_t t) {  // HERE
          out[0] = tex1Dfetch<float>(t, 0);
        }
        int main() { return 0; }""",
        r"sim: not supported: textures \(textures.cu:@\)\n$",
    ),
    "header": (
        '#include <stdio.h>\n#include "nowhere/at_all.h"  // HERE\nint main() { return 0; }',
        r"sim: header.cu:@ includes nowhere/at_all.h, which is not here: "
        r"give its folder with -I\n$",
    ),
    "library": (
        "\n#include <cusparse.h>  // HERE\nint main() { return 0; }",
        r"sim: not supported: cuSPARSE, which library.cu:@ includes\n$",
    ),
    "without_sync": (
        program(
            "assert(__shfl_down((int)threadIdx.x, 1, 4) == threadIdx.x + (threadIdx.x % 4 < 3));\n"
            "assert(__ballot(threadIdx.x > 29) == 3u << 30 && __any(1) && !__all(threadIdx.x));",
            "k<<<1, 32>>>(p), k<<<1, 32>>>(p)",
        ),
        r"(?s)remark: shuffles or votes without _sync, which nvcc refuses(?!.*remark: shuffles)",
        0,
    ),
    "static_memory": (
        program("__shared__ int s[12289]; s[1] = 1; *p = s[1];", "k<<<1, 1>>>(p);  // HERE"),
        "kernel k: k has 49156 B of static shared memory; nvcc compiles no more than 49152, at "
        "static_memory.cu:@",
        1,
    ),
    # What signals an mbarrier, at HERE, and is it waited for?
    **{
        name: (
            f"""
            __global__ void __cluster_dims__(2, 1, 1) k(int* p) {{
              __shared__ __align__(16) int s[4];
              __shared__ unsigned long long bars[1];
              const unsigned own = __cvta_generic_to_shared(bars);
              unsigned to = __cvta_generic_to_shared(s), bar = own, rank;
              asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
              if (threadIdx.x == 0) {{
                asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(bar));
                asm volatile("fence.mbarrier_init.release.cluster;");
              }}
              if (threadIdx.x < 4) s[threadIdx.x] = 0;
              asm("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;");
              if (threadIdx.x == 0) {{
                asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 16;" ::"r"(own));
                {ptx}
              }}
              __syncthreads();
              p[rank * 32 + threadIdx.x] = s[0];
              asm("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;");
            }}
            int main() {{
              int* p;
              cudaMalloc(&p, 256), cudaMemset(p, 0, 256);
              k<<<2, 32>>>(p);
              return cudaDeviceSynchronize();
            }}""",
            finding,
            1,
            ("--analyse",),
        )
        for name, ptx, finding in (
            (
                "sent_elsewhere",
                'asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(to) : "r"(rank ^ 1));\n'
                'asm("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" '
                '::"r"(to), "r"(1), "r"(bar));  // HERE',
                r"st.async at sent_elsewhere.cu:@ writes to the block of rank \d of the cluster, "
                r"but its mbarrier is that of rank \d",
            ),
            (
                "sent_unwaited",
                'asm("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], '
                '{%1, %1, %1, %1}, [%2];" ::"r"(to), "r"(1), "r"(bar));  // HERE',
                r"race on shared memory: .*load of s, byte 0 at .* and a st.async by thread "
                r"\(0,0,0\) at sent_unwaited.cu:@ have no wait on its mbarrier",
            ),
            (
                "canceled_unwaited",
                'asm("clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes'
                '.b128 [%0], [%1];" ::"r"(to), "r"(bar));  // HERE',
                r"race on shared memory: .*load of s, byte 0 at .* and a "
                r"clusterlaunchcontrol.try_cancel by .* at canceled_unwaited.cu:@ have no wait",
            ),
            (
                "loaded_outside",
                'asm("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes'
                '.multicast::cluster [%0], [%1], 16, [%2], 4;" ::"r"(to), "l"(p), "r"(bar));'
                "  // HERE",
                "the bulk load at loaded_outside.cu:@ is multicast to a block outside the cluster",
            ),
        )
    },
    "early_store": (
        f'#define EARLY\n#include "{FOLDER}/hopper.cu"\n',
        r"store of A's registers, element 0, at hopper.cu:\d+ and the wgmma at hopper.cu:\d+ have",
        *(1, ("--analyse",)),
    ),
    # A relaxed arrival publishes no stores, a relaxed wait acquires none.
    "relaxed": (
        program(
            """
            __shared__ int a, b;
            __shared__ unsigned long long bars[2];
            const unsigned bar = __cvta_generic_to_shared(bars);
            if (threadIdx.x == 0) {
              asm("mbarrier.init.shared.b64 [%0], 1;" ::"r"(bar));
              asm("mbarrier.init.shared.b64 [%0 + 8], 1;" ::"r"(bar));
            }
            __syncthreads();
            if (threadIdx.x == 0) {
              a = b = 1;
              asm("mbarrier.arrive.relaxed.cta.shared.b64 _, [%0];" ::"r"(bar));
              asm("mbarrier.arrive.release.cta.shared.b64 _, [%0 + 8];" ::"r"(bar));
            } else if (threadIdx.x == 32) {
              WAIT(".acquire.cta", bar);
              p[0] = a;
              WAIT(".relaxed.cta", bar + 8);
              p[1] = b;
            }
            """,
            "k<<<1, 64>>>(p)",
            '#define WAIT(order, bar) asm("{ .reg .pred p; A: mbarrier.try_wait.parity" order \\\n'
            '    ".shared.b64 p, [%0], 0; @!p bra A; }" ::"r"(bar))',
        ),
        r"(?s)load of a, byte 0 at .*have no barrier between them.*load of b, byte 0 at ",
        1,
        ("--analyse",),
    ),
    "left_behind": (  # the program continues
        program(
            """
            __shared__ alignas(16) int a[4];
            const unsigned from = __cvta_generic_to_shared(a);
            a[0] = a[1] = a[2] = a[3] = 1;
            asm volatile("fence.proxy.async;" ::: "memory");
            COPY("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 16;");  // HERE
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            """,
            "k<<<1, 1>>>(p), k<<<1, 1>>>(p)",
            '#define COPY(how) asm volatile(how ::"l"(p), "r"(from) : "memory")',
        ),
        r"(?s)while its TMA store at left_behind.cu:@ may still read .*\nk, 2 launches of 1 x 1\n",
        1,
        ("--analyse",),
    ),
    "deleted": (
        program("atomicAdd((float2*)p, make_float2(1, 1));  // HERE"),
        r"sim: not supported: atomicAdd\(float2\*, float2\) \(deleted.cu:@\)\n$",
    ),
    "blas": (
        """
        #include <cublas_v2.h>
        int main() {
          return cublasSaxpy(nullptr, 0, nullptr, nullptr, 1, nullptr, 1);  // HERE
        }""",
        r"sim: not supported: cublasSaxpy \(blas.cu:@\)\n$",
    ),
    "braces": (
        program("", "k<<<1, 1>>>({1, 2});  // HERE", signature="int2 p"),
        r"sim: cannot read a launch with an argument in braces \(braces.cu:@\)\n$",
    ),
    "undefined": (
        "int elsewhere(int);\nint main() { return elsewhere(3); }",
        r"sim: elsewhere\(int\) is declared and nowhere defined: give the file that has it, too\n$",
    ),
    "own_status": (
        """
        #include <stdlib.h>
        int main(int argc, char** argv) { return argc == 3 && _OPENMP ? atoi(argv[2]) : 9; }""",
        *(r"no kernel ran|^$", 7, ["-fopenmp", "-l", "rt", "--", "x", "7"]),
    ),
    "killed": (
        "#include <signal.h>\nint main() { return raise(SIGKILL); }",
        r"^sim: the program was ended by SIGKILL\n"
        rf"sim: --sarif {os.devnull} is not written: the program ended without a report\n$",
        *(128 + signal.SIGKILL, ["--sarif", os.devnull]),
    ),
    "no_such_library": (
        "int main() { return 0; }",
        *(r"^sim: -l nowhere: there is no such library\n$", 2, ["-l", "nowhere"]),
    ),
}


# What each text becomes; ¶ is the end of a line, and {words} are the parts of PARTS.
SPELLINGS = r"""
puts("a<<<1>>>(b)"); char c = '<', d = '\'', e = '"'; k<<<1, 1>>>(x); =>
    puts("a<<<1>>>(b)"); char c = '<', d = '\'', e = '"';  {launch}"k", {named}k{args},x);
(*p).k<<<1, 1>>>(x); =>
    {launch}"(*p).k", ::sim::any::Shape(1, 1), false, [fa_kernel = (*p).k{body}fa_kernel{args},x);
t["a\\"]<<<1, 1>>>(x); =>
    {launch}"t[\"a\\\\\"]", ::sim::any::Shape(1, 1), false, [fa_kernel =
    t["a\\"]{body}fa_kernel{args},x);
ns::A<int>::k<(2 > 1)><<<1, 1>>>(); =>
    {launch}"ns::A<int>::k<(2>1)>", {named}ns::A<int>::k<(2 > 1)>{args});
k<<<dim3(1, 2), f<1, 2>(3), 0, s>>>(x, y); =>
    {launch}"k", ::sim::any::Shape(dim3(1, 2), f<1, 2>(3), 0, s), false, [={body}k{args},x, y);
__global__ void k(int& x, float (&y)[4], A<int&> z, T* w); k<<<1, 1>>>(a, b + 1, c, d); =>
    {global}(int& x, float (&y)[4], A<int&> z, T* w);  {launch}"k", {named}k{args},{reference}(a),
    {reference}(b + 1), c, d);
__global__ void k(int x, T (&y)[2]); k<3><<<1, 1>>>(a, b); =>
    {global}(int x, T (&y)[2]);  {launch}"k<3>", {named}k<3>{args},a, {reference}(b));
__global__ void k(int& x); __global__ void k(int x); k<<<1, 1>>>(a); =>
    {global}(int& x); {global}(int x);  {launch}"k", {named}k{args},a);
__global__ void k(int& x); k<<<1, 1>>>(f<1, 2>(a)); =>
    {global}(int& x);  {launch}"k", {named}k{args},f<1, 2>(a));
__global__ void k(); (void*)&k<A<3>>; (void const*)k; (int*)k; (const void*)k; =>
    {global}(); (void*){address}(k<A<3>>); (void const*){address}(k); (int*)k; (const
    void*){address}(k);
__global__ __sim_launch_bounds__(128, 2) void k(int* x) { x[0] = 1; } =>
    __attribute__((flatten))  void k(int* x) { ::sim::any::need_bounds(128, 2); x[0] = 1; 
    ::sim::reached_end(); }
__global__ void __cluster_dims__(2, 1, 1) k() {} =>
    __attribute__((flatten)) void  k() { ::sim::any::need_cluster(2, 1, 1); ::sim::reached_end(); }
cudaLaunchKernel((const void*)&k, 1, 2, args); =>
    ::sim::any::launch_kernel("k", false, &k, 1, 2, args);
cudaLaunchCooperativeKernel(reinterpret_cast<void*>(&ns::k<2>), g, b, a, 0, s); =>
    ::sim::any::launch_kernel("ns::k<2>", true, (&ns::k<2>), g, b, a, 0, s);
cudaLaunchKernel(k, 1, 2); => same
cudaLaunchKernelEx(&c, k<1>, a, b); =>
    ::sim::any::launch_extended("k<1>", ::sim::Where::here(), &c, k<1>, a, b);
namespace a::b { extern __shared__ int s[]; } =>
    namespace a::b { extern {shared} int s[] {dynamic} }
extern "C" { extern __shared__ int s[]; } => extern "C" { extern {shared} int s[] {dynamic} }
namespace { void f() { extern __shared__ const float4 s[]; } } =>
    namespace { void f() { const float4 (&s)[] = reinterpret_cast<const float4
    (&)[]>(::sim::dynamic_smem); } }
static __shared__ [[maybe_unused]] int v; => [[maybe_unused]] static {shared}  int v;
__device__ alignas(8) int v[2]; => alignas(8) {device}  int v[2];
__device__ const int x = 3; => {device_fixed} const int x = 3;
constexpr __device__ int x = 3; => constexpr {device_fixed} int x = 3;
__device__ const int* p; => {device} const int* p;
__device__ int* const p = 0; => {device_fixed} int* const p = 0;
__device__ T<int, 2> v; => {device} T<int, 2> v;
__constant__ float c[3]; => {constant} float c[3];
static __constant__ constexpr float c[3] = {1}; =>
    static {constant_fixed} constexpr float c[3] = {1};
__managed__ int m; => {managed} int m;
__device__ int f(int); => int f(int);
__device__ S<(3 > 2)> f(); => S<(3 > 2)> f();
__device__ struct S { int x; }; => struct S { int x; };
__device__ operator int() const; => operator int() const;
struct A { __device__ A() {} __device__ ~A(); }; => struct A {  A() {}  ~A(); };
__attribute__((__noinline__)) __noinline__ __host__ void f(const __grid_constant__ T t); =>
    __attribute__((__noinline__)) __attribute__((noinline))  void f(const  T t);
operator<< <T>(a, b); => same
  #pragma unroll => #pragma unroll
x;¶#pragma GCC diagnostic error "-Wextra"¶asm(""); => x;¶¶asm("" ::: "memory");
asm("" : "+r"(x)); => asm("" ::: "memory");
extern int x asm("foo"), y; => same
asm("mov.u32 %[to], %[from]\073" : [to] "=r"(x) : [from] "r"(y)); =>
    do { { ::sim::any::move(x, y); } } while (0);
asm volatile("st.u32 [%0], %1;" :: "l"(p) "r"(f(a, b)) : "memory"); =>
    do { { *::sim::ptx::global_pointer<uint32_t>(p) = ::sim::ptx::as<uint32_t>(f(a, b)); } } while
    (0);
# 1 "a.cu"¶# 1 "/x.h" 1 3¶asm("y;");¶# 3 "a.cu" 2¶asm("nanosleep.u32 1;"); =>
    # 1 "a.cu"¶# 1 "/x.h" 1 3¶asm("y;");¶# 3 "a.cu" 2¶do { { ; } } while (0);
# 1 "/x.h" 1 3¶__device__ int v; => # 1 "/x.h" 1 3¶{device} int v;
# 1 "/common/x.h"¶cudaMalloc(&x, n); __shared__ int s; =>
    # 1 "/common/x.h"¶cudaMalloc(&x, n); {shared} int s;
cudaMalloc((void**)&x, n); => ::sim::any::Naming("x").cudaMalloc((void**)&x, n);
cudaMallocManaged(reinterpret_cast<void**>(&a.b[i]), n); =>
    ::sim::any::Naming("a.b[i]").cudaMallocManaged(reinterpret_cast<void**>(&a.b[i]), n);
cudaMallocAsync(((void**)(&x)), n); => ::sim::any::Naming("x").cudaMallocAsync(((void**)(&x)), n);
cudaMallocPitch(static_cast<void**>(p), n); =>
    ::sim::any::Naming("p").cudaMallocPitch(static_cast<void**>(p), n);
cudaMallocHost(*h, n); => ::sim::any::Naming("h").cudaMallocHost(*h, n);
cudaHostAlloc(&h, n); => ::sim::any::Naming("h").cudaHostAlloc(&h, n);
cudaMalloc(x); => same
"""
PARTS = {
    "body": "](auto fa_leave, auto&... fa_a) __attribute__((no_sanitize_thread)) { ",
    "args": "(::sim::any::passed(fa_a)...), fa_leave(); }",
    "launch": "::sim::any::launch(",
    "address": "::sim::any::kernel_address",
    "reference": "::sim::any::reference",
    "shared": "constinit thread_local __attribute__((aligned(128)))",
    "dynamic": '__asm__("_ZN3sim12dynamic_smemE");',
    "global": "__attribute__((flatten)) void k",
    **{
        part: f'__attribute__((section("fa_{part},\\"aw\\",@progbits{COMMENT}1")))'
        for part in ("device", "device_fixed", "constant", "constant_fixed", "managed")
    },
}
PARTS["named"] = "::sim::any::Shape(1, 1), false, [=" + PARTS["body"]


def unindented(text):
    return textwrap.dedent(text).lstrip("\n") + "\n"


def line_of(text):
    return next((n for n, x in enumerate(text.splitlines(), 1) if "// HERE" in x), 0)


def line_in(name, code):
    """The line of a program of FOLDER that has this code."""
    with open(os.path.join(FOLDER, name), encoding="utf-8") as file:
        return next(n for n, x in enumerate(file, 1) if code in x)


def told(done):
    """A finding, which may take several lines, as one line."""
    done.stderr = re.sub(
        r"^finding: .*(?:\n  \S.*)*", lambda m: m[0].replace("\n ", ""), done.stderr, flags=re.M
    )
    return done


def sim(*words, **more):
    return told(said([sys.executable, SIM, *words], timeout=300, **more))


class Jobs:
    """The outputs that the tests check, two at a time: compiling takes seconds."""

    def __init__(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.pool = ThreadPoolExecutor(2)
        self.words, self.done = {}, {}
        for name in PLAIN:
            files = [os.path.join(FOLDER, f) for f in FILES.get(name, [name + ".cu"])]
            self.add(name, *files, "--json", self.path(name + ".json"))
        for name in ANALYSED:
            words = ("--analyse", "--lines", os.path.join(FOLDER, name + ".cu"))
            self.add(name + " analysed", *words, "--json", self.path(name + ".analysed.json"))
        for name, (text, _, *more) in ERRORS.items():
            self.add("error " + name, self.write(name, text), *(more[1] if more[1:] else ()))
        none = self.write("no_kernel", "\nint main() { void* p; return cudaMalloc(&p, 4); }\n")
        self.add("full", none, "--json", "/dev/full")
        self.add("sarif full", none, "--sarif", "/dev/full", "--json", self.path("both.json"))

    def path(self, name):
        return os.path.join(self.temporary.name, name)

    def write(self, name, text):
        with open(self.path(name + ".cu"), "w", encoding="utf-8") as file:
            file.write(unindented(text))
        return file.name

    def add(self, name, *words):
        self.words[name] = words

    def start(self, *names):
        for name in names:
            if name not in self.done:
                self.done[name] = self.pool.submit(sim, *self.words[name])

    def __getitem__(self, name):
        self.start(name)
        return self.done[name].result()

    def json(self, name):
        self[name]
        return read_json(self.path(name.replace(" ", ".") + ".json"))


def setUpModule():
    global JOBS
    sim("--help")
    built = sim(os.path.join(FOLDER, "printf.cu"), "-o", os.devnull)  # builds the library, once
    if built.returncode:
        raise RuntimeError(built.stderr)
    JOBS = Jobs()


def tearDownModule():
    JOBS.pool.shutdown()
    JOBS.temporary.cleanup()


class Programs(unittest.TestCase):
    def test_each_finds_what_it_expects(self):
        JOBS.start(*PLAIN)
        for name in PLAIN:
            with self.subTest(name):
                done = JOBS[name]
                self.assertEqual(done.stdout.splitlines()[-1:], ["ok"], done.stdout + done.stderr)
                findings = re.findall(r"^finding: (.*)$", done.stderr, re.MULTILINE)
                expected = REFUSED.get(name, [])
                self.assertEqual(len(findings), len(expected), findings)
                for finding, (code, pattern) in zip(findings, expected):
                    pattern = pattern.replace("@", str(line_in(name + ".cu", code)))
                    self.assertRegex(finding, f"^{pattern}$")
                self.assertEqual(done.returncode, 1 if expected else 0, done.stderr)

    def test_printf_of_a_kernel_stands_between_the_hosts_own(self):
        middle = ["block 0, thread 2: hello  1.25 1 z%", "between", "from the device"]
        self.assertEqual(JOBS["printf"].stdout.splitlines(), ["before", *middle, "ok"])

    def test_correct_programs_have_no_finding_when_analysed(self):
        JOBS.start(*(name + " analysed" for name in ANALYSED))
        for name in ANALYSED:
            with self.subTest(name):
                done = JOBS[name + " analysed"]
                self.assertEqual((done.returncode, done.stdout), (0, "ok\n"), done.stderr)
                self.assertIn("no finding: no race, no uninitialised read", done.stderr)
        words = " ".join(JOBS["tensor_memory analysed"].stderr.split())
        self.assertRegex(
            words, "tcgen05.ld at tensor_memory.cu:[0-9]+ from lane 0 on; warp 1 reaches"
        )

    @for_all
    @unittest.skipUnless(find_nvcc(), "there is no nvcc")
    def test_nvcc_takes_each_as_it_is(self):
        def compiled(file):
            arch = {"hopper.cu": "90a", **dict.fromkeys(of_blackwell, "100a")}
            arch = arch.get(Path(file).name, "90")
            command = [find_nvcc(), "-std=c++17", "-rdc=true", "-DNVCC_REFUSES_IT"]
            command += ["-gencode", f"arch=compute_{arch},code=sm_{arch}"]
            return said([*command, "-ptx", "-o", os.devnull, file])  # g++ took the host's half

        of_blackwell = ("tensor_memory.cu", "blackwell.cu")
        slow = ("cub", "thrust")  # NVIDIA's headers: half a minute
        files = [os.path.join(FOLDER, name + ".cu") for name in PROGRAMS if name not in slow]
        if not every_arch_of("sm_100a", find_nvcc()):
            files = [file for file in files if Path(file).name not in of_blackwell]
        files.append(str(ROOT / "tests/programs/faults.cu"))
        for file, done in zip(files, JOBS.pool.map(compiled, files)):
            with self.subTest(file):
                self.assertEqual(done.returncode, 0, done.stderr)


@for_all
class Alone(Folder):
    """`pip install ./common/sim`, without pip (common/sim/any/README.md)."""

    def test_it_is_configured_without_the_rest_of_the_tree(self):
        parts = ["CMakeLists.txt", "scripts/sim", "common/build.cmake", "common/dependencies.cmake"]
        for part in (*parts, *(f"common/{x}" for x in ("dialect", "counts", "sim", "data"))):
            here = self.folder / "tree" / part
            here.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (ROOT / part).is_dir() else shutil.copy)(ROOT / part, here)
        common, build = self.folder / "tree" / "common", self.folder / "build"
        self.ended(said(["cmake", "-G", "Ninja", "-S", common / "sim", "-B", build]))
        plan = said(["ninja", "-C", build, "-t", "commands", "any_program"]).stdout
        self.assertEqual(set(re.findall(rf" {common}/(\w+)/\S+\.cpp", plan)), {"counts", "sim"})

    def test_what_is_installed_finds_a_race_wherever_it_lies(self):
        first, there = self.folder / "first", self.folder / "there"
        call = ["cmake", "--install", BUILD, "--component", "simulator", "--prefix", first]
        self.ended(said(call))
        first.rename(there)
        folders = {str(path.relative_to(there)) for path in there.glob("*/*") if path.is_dir()}
        own = {f"common/{name}" for name in ("counts", "data", "dialect", "sim")}
        self.assertEqual(folders, own | {"built/headers", "scripts/flash_steps"})
        gpus = there / "common/data/gpus.json"
        gpus.write_text(gpus.read_text().replace('"H200"', '"Mine"'))  # no other file has it
        museum = ROOT / "docs/museum/loop_parity.cu"
        done = told(said([there / "scripts/sim", "--analyse", "--gpu", "Mine", museum], cwd="/"))
        self.ended(done, 1)
        self.assertIn("\n2 findings, reported above\n", done.stderr)
        self.assertIn("simulated, modelling Mine ", done.stderr)
        words = f"flash-steps sim {version()}\n"
        self.assertEqual(said([there / "scripts/sim", "--version"]).stdout, words)


class Report(unittest.TestCase):
    def kernels(self, name):
        return {k["name"]: k for k in JOBS.json(name)["kernels"]}

    def test_bytes_requests_and_sectors_of_each_buffer(self):
        # 64 x 64 floats by warps of 32: 128 requests of 128 bytes, with 4 or 32 sectors.
        for name in ("transposes", "transposes analysed"):
            kernels = self.kernels(name)
            self.assertEqual(list(kernels), ["spread", "tiled<T>", "tiled<T + 1>"])
            rows = zip(kernels, (1, 1, 2), (32, 4, 4), (32, 1, 1), (16384, 0, 0))
            for kernel, launches, sectors, lines, hbm in rows:  # the first kernel fills the L2
                k, n = kernels[kernel], 128 * launches
                self.assertEqual(k["lines"], {"load": n, "store": lines * n, "atomic": 0})
                self.assertEqual(k["hbm"], {"read": hbm, "write": 0, "atomic": 0})
                self.assertEqual((k["launches"], k["first_shape"]), (launches, "(2,2) x (32,32)"))
                self.assertEqual((k["blocks"], k["threads"]), (4 * launches, 4096 * launches))
                self.assertEqual(list(k["buffers"]), ["m.in", "m.out[i]"])
                for buffer, way, kind, each in zip(
                    k["buffers"].values(), ("read", "write"), ("load", "store"), (4, sectors)
                ):
                    none = {"load": 0, "store": 0, "atomic": 0}
                    moved = {"read": 0, "write": 0, "atomic": 0, way: 128 * n}
                    sums = {"requests": {**none, kind: n}, "sectors": {**none, kind: each * n}}
                    self.assertEqual(buffer, {"bytes": moved, **sums})

    def test_bank_conflicts(self):
        kernels = self.kernels("transposes")
        for name, times, each in (("tiled<T>", 1, 32), ("tiled<T + 1>", 2, 1)):
            shared = kernels[name]["shared"]
            self.assertEqual(shared["read"], 16384 * times)
            self.assertEqual(shared["write"], 16384 * times)
            self.assertEqual(shared["requests"], 256 * times)
            self.assertEqual(shared["ideal"], 256 * times)
            self.assertEqual(shared["load_wavefronts"], 128 * times * each)
            self.assertEqual(shared["store_wavefronts"], 128 * times)
            self.assertEqual(shared["wavefronts"], 128 * times * (each + 1))
        text = re.sub(" +", " ", JOBS["transposes analysed"].stderr)
        for words in (
            "tiled<T + 1>, 2 launches of (2,2) x (32,32)\n m.in read 32,768 256 4.0\n",
            "shared memory write 32,768\n bank conflicts: 512 wavefronts, 1.00 times the 512",
            "bank conflicts: 4,224 wavefronts, 16.50 times the 256 without any",
        ):
            self.assertIn(words, text)
        *_, last, looks = JOBS["transposes"].stderr.splitlines()
        self.assertEqual(last, "no access out of bounds")
        words = r"races were not looked for: \S+/sim --analyse \S+/transposes.cu --json \S+"
        self.assertRegex(looks, f"^{words}$")

    def test_atomics_and_copies(self):
        kernels = self.kernels("atomics")
        n = 96 * 11 - 56  # each of 1,000 numbers, in shared memory; then 16 bins of 4 bytes
        self.assertEqual(n, 1000)
        self.assertEqual(kernels["in_shared"]["buffers"]["d_bins"]["bytes"]["atomic"], 64)
        self.assertEqual(kernels["in_shared"]["buffers"]["d_bins"]["bytes"]["write"], 4)
        self.assertEqual(kernels["in_shared"]["buffers"]["d_data"]["bytes"]["read"], n)
        streams = self.kernels("streams")
        self.assertEqual(streams["times"]["launches"], 2)
        self.assertEqual(sorted(streams["times"]["buffers"]), ["x", "y"])
        for buffer in streams["times"]["buffers"].values():  # copies have rows of their own
            self.assertEqual(buffer["bytes"], {"read": 16384, "write": 16384, "atomic": 0})
        copy = streams["cudaMemcpy"]  # the one on the device
        self.assertEqual(copy["launches"], 1)
        self.assertEqual(copy["bytes"], {"read": 16384, "write": 16384, "atomic": 0})

    def test_a_row_for_each_line(self):
        sites = {
            (s["where"], s["what"]): (s["requests"], s["transfers"], s["ideal"])
            for s in JOBS.json("transposes analysed")["sites"]
        }
        spread, tiled = (
            f"transposes.cu:{line_in('transposes.cu', code)}"
            for code in ("out[x * N + y] =", "= tile[threadIdx.x]")
        )
        self.assertEqual(sites[spread, "m.out[i] store32"][0], 128)
        self.assertEqual(sites[spread, "m.out[i] store32"][1:], (128 * 32, 128 * 4))
        self.assertEqual(sites[tiled, "shared load32"], (384, 128 * 32 + 256, 384))
        self.assertEqual(sites[tiled, "m.out[i] store32"], (384, 384 * 4, 384 * 4))
        self.assertRegex(
            JOBS["transposes analysed"].stderr, rf"{spread} +m.out\[i\] store32 +128 +8.00\n"
        )
        self.assertEqual(JOBS.json("transposes")["sites"], [])

    def test_the_estimate_is_there(self):
        report = JOBS.json("transposes")
        self.assertEqual((report["schema"], report["gpu"]), (2, "H200"))
        for k in report["kernels"]:
            self.assertGreater(k["estimated_ms"], 1e-3 * k["launches"])
            self.assertEqual(max(k["parts"], key=k["parts"].get), "start")  # so small they are
            share = rf"\n  estimated [^:]*: start {100 * k['parts']['start']:.0f}%"
            self.assertRegex(JOBS["transposes"].stderr, share)
        self.assertIn("\n  HBM (L2 model): 16.4 kB read, 0 B written\n", JOBS["transposes"].stderr)
        each = re.findall(r"\n  estimated ([0-9.]+) us", JOBS["transposes"].stderr)
        for k, us in zip(report["kernels"], each, strict=True):  # of a launch
            self.assertAlmostEqual(1e3 * k["estimated_ms"] / k["launches"], float(us), delta=0.01)

    def test_names_and_shapes(self):
        for name, words in (
            ("copies", f"\n  name_of_23_characters_x write  {4:>16}\n"),
            ("copies", f"\n  name_of_24_character... write  {8:>16}\n"),
            ("warps analysed", "\nranks, 1 launch of (2,3,2) x (4,3,2)\n"),
            ("half analysed", "\nnarrow<F>, 2 launches, the first of 496 x 256\n"),
            ("blas", "\nremark: what cuBLAS computes is not counted\n"),
            ("blas", "\n3 findings, reported above\nraces were not"),
        ):
            self.assertIn(words, JOBS[name].stderr)
        self.assertRegex(JOBS["copies"].stderr, r"\ncudaMemset, \d+ launches\n")

    def test_the_report_says_how_it_was_made(self):
        for name, analysed in (("transposes", False), ("transposes analysed", True)):
            report = JOBS.json(name)
            self.assertEqual(report["program"], "transposes.cu")
            self.assertEqual((report["analysed"], report["complete"]), (analysed, True))
            self.assertEqual((report["more_findings"], report["remarks"]), (0, []))
            for k in report["kernels"]:
                self.assertEqual((k["arithmetic"], k["stopped"]), (False, False))
                self.assertEqual(k["bytes"]["read"], 16384 * k["launches"])
                sums = {
                    key: {"load": 0, "store": 0, "atomic": 0} for key in ("requests", "sectors")
                }
                for buffer in k["buffers"].values():
                    for key, of in sums.items():
                        for kind in of:
                            of[kind] += buffer[key][kind]
                self.assertEqual({key: k[key] for key in sums}, sums)
        self.assertEqual(JOBS.json("blas")["remarks"], ["what cuBLAS computes is not counted"])
        names = [k["name"] for k in JOBS.json("streams")["kernels"]]
        self.assertEqual(names, ["times", "cudaMemcpy", "plus"])  # by first use
        program = JOBS.json("several_files")["program"]
        self.assertEqual(program, " ".join(FILES["several_files"]))

    def test_findings_are_in_the_file(self):
        report = JOBS.json("errors")
        self.assertEqual(len(report["findings"]), len(REFUSED["errors"]))
        for finding, (code, _) in zip(report["findings"], REFUSED["errors"]):
            where = {"file": os.path.join(FOLDER, "errors.cu"), "line": line_in("errors.cu", code)}
            self.assertEqual((finding["rule"], finding["places"]), ("invalid-use", [where]))
        self.assertEqual(JOBS.json("transposes")["findings"], [])


class Sarif(Folder):
    FINDINGS = [
        ("race", "of two lines", [("kernels/a b.cu", 4), ("/elsewhere/x.cuh", 7)]),
        ("race", "x; each stores the same value", [("kernels/a b.cu", 4)]),
        ("deadlock", "nowhere", []),
    ]

    def test_a_service_finds_the_lines(self):
        """In the repository that contains the program; GitHub shows only those."""
        self.write("own/.git/HEAD", "")
        source = self.write("own/kernels/a b.cu", "")
        root = str(source.parents[1]) + os.sep
        findings = [
            {
                "rule": rule,
                "message": message,
                "places": [{"file": os.path.join(root, f), "line": n} for f, n in places],
            }
            for rule, message, places in self.FINDINGS
        ]
        report = {"program": "a b.cu", "complete": False, "findings": findings}
        (run,) = sarif.document(report, str(source), 1)["runs"]
        self.assertEqual(run["invocations"], [{"executionSuccessful": False, "exitCode": 1}])
        number = run["tool"]["driver"]["version"]
        self.assertRegex(number, r"^\d+\.\d+$")
        self.assertEqual(sim("--version").stdout, f"flash-steps sim {number}\n")
        self.assertEqual([r["level"] for r in run["results"]], ["error", "warning", "error"])
        here = {"uri": "kernels/a%20b.cu", "uriBaseId": "%SRCROOT%"}
        other = {"uri": "file:///elsewhere/x.cuh"}
        for result, lines in zip(run["results"], ([here, other], [here], [here])):
            rule = run["tool"]["driver"]["rules"][result["ruleIndex"]]
            self.assertEqual(rule["id"], result["ruleId"])
            related = result.get("relatedLocations", [])
            self.assertEqual([x["id"] for x in related], [*range(1, len(lines))])
            self.assertEqual(len(result["locations"]), 1)
            places = [x["physicalLocation"] for x in [*result["locations"], *related]]
            self.assertEqual([p["artifactLocation"] for p in places], lines)
            starts = [p["region"]["startLine"] for p in places]
            self.assertIn(starts, ([4, 7], [4], [1]))  # 1: of the one without a place


class Errors(Folder):
    def test_each_is_told_in_a_sentence(self):
        JOBS.start(*("error " + name for name in ERRORS))
        for name, (text, pattern, *more) in ERRORS.items():
            with self.subTest(name):
                done = JOBS["error " + name]
                self.assertEqual(done.returncode, more[0] if more else 2, done.stderr)
                line = str(line_of(unindented(text)))
                self.assertRegex(done.stderr, pattern.replace("@", line))
                self.assertNotIn("Traceback", done.stderr)
                self.assertLessEqual(len(re.findall("^sim: ", done.stderr, re.MULTILINE)), 2)

    def test_each_feature_that_is_not_supported_is_named(self):
        """At its line; "textures" and "library" show that the compiler's refusal leads there."""
        features = {
            "cudaTextureObject_t t;": "textures",
            "surf2Dread(&x, s, 0, 0);": "surfaces",
            "cudaMallocArray(&a, &d, 1, 1);": "CUDA arrays",
            "cudaIpcGetMemHandle(&h, p);": "memory of other processes",
            "cudaMallocFromPoolAsync(&p, 1, pool, 0);": "memory pools",
            "cudaImportExternalMemory(&m, &d);": "graphics",
            "__nv_fp6_e2m3 x;": "fp6 types",
            "cuda::ptx::mbarrier_init(&bar, 1);": "libcu++ (cuda::)",
            "auto g = cooperative_groups::this_multi_grid();": "this part of cooperative groups",
            "__block_size__((2, 1, 1)) void k();": "launch attributes",
            "CUcontext context; cuInit(0);": "CUcontext of the driver API",
            "cuInit(0), cuModuleLoad(&m, name);": "cuModuleLoad of the driver API",
            "x = __vadd4(x, y);": "SIMD intrinsics",
            'puts("cudaArray_t"); x = 1;  // cudaArray_t': None,
        }
        path = self.write("features.cu", "\n".join(features))
        for line, (text, name) in enumerate(features.items(), 1):
            found = cuda_program.unsupported_in(path, line) or ""
            with self.subTest(text):
                self.assertEqual(found.startswith(f"not supported: {name}"), bool(name), found)
                self.assertEqual(found.endswith(f" (features.cu:{line})"), bool(name), found)

    def test_the_missing_name_is_the_one_that_is_told(self):
        for error, name in (
            ("'block_tile_memory' in namespace 'cg' does not name a template type", None),
            ("'foo' is not a member of 'cuda::device'", None),
            ("'curandCreateGenerator' was not declared in this scope", None),
            ("'__nv_atomic_add' was not declared in this scope", None),
            ("'cuda::ptx' has not been declared", "cuda::ptx"),
            ("'_CUDA_VRANGES' does not name a type", "_CUDA_VRANGES"),
            ("'struct cudaDeviceProp' has no member named 'luid'", "cudaDeviceProp::luid"),
        ):
            name = name or error.split("'")[1]
            told = cuda_program.explain(f"/none.cu:7:3: error: {error}", "/none.cu", "")
            self.assertEqual(told, f"not supported: {name} (none.cu:7)")
        error = "/none.cu:7:3: error: 'mine' was not declared in this scope"
        self.assertEqual(cuda_program.explain(error, "/none.cu", ""), error)

    def test_of_thrust_the_package_is_named(self):
        missing = "fatal error: thrust/a/sort.h: No such file"
        nested = "In file included from /thrust/c.h:4,\n                 from /x.cu:9:\n"
        package = (
            "includes thrust/a/sort.h, which is not here: the package libthrust-dev has Thrust"
        )
        for file, trace, told in (
            ("/x.cu", "", f"x.cu:3 {package}"),
            (f"{cuda_program.STAND_INS}/thrust/b.h", nested, f"x.cu:9 {package}"),
            ("/thrust/b.h", nested, "not supported: this part of Thrust, which x.cu:9 includes"),
        ):
            error = f"{file}:3:10: {missing}"
            self.assertEqual(cuda_program.explain(error, "/x.cu", trace + error), told)

    def test_each_gpu_has_its_macros(self):
        for gpu in read_json(ROOT / "common/data/gpus.json")["gpus"]:
            arch = gpu["arch"].removeprefix("sm_")
            macros = cuda_program.macros_of(gpu["name"])
            self.assertIn(f"-D__CUDA_ARCH__={arch}0", macros)
            newer = int(arch) >= 100
            self.assertEqual(f"-D__CUDA_ARCH_FEAT_SM{arch}_ALL=1" in macros, int(arch) >= 90)
            self.assertIn(f"-DCUDART_VERSION={12080 if newer else 12040}", macros)
            self.assertIn(f"-D__CUDACC_VER_MINOR__={8 if newer else 4}", macros)

    def test_what_the_program_is_told(self):
        few, _ = cuda_program.parse(["a/x.cu"], "")
        with mock.patch.object(sys, "argv", ["sim", "two\nlines.cu"]):
            told = cuda_program.wishes(few, few.files, None, [], cuda_program.STACK // 2)
            self.assertEqual(told, "program x.cu\ngpu H200")
        for words, line in (
            ("--workers 3", "workers 3"),
            ("--watchdog 2", "watchdog 2.0"),
            ("--limit 5", "limit 5.0"),
            ("--analyse", "analyse"),
            ("--lines", "lines"),
        ):
            options, _ = cuda_program.parse(["x.cu", *words.split()], "")
            with mock.patch.object(sys, "argv", ["sim", "two\nlines.cu"]):
                told = cuda_program.wishes(options, options.files, None, [], 0)
            self.assertEqual(told, f"program x.cu\ngpu H200\n{line}")
        words = "--gpu L4 --workers 3 --watchdog 2 --limit 5 --analyse --lines a/x.cu y.c -- -o --"
        options, own = cuda_program.parse(words.split(), "")
        self.assertEqual(own, ["-o", "--"])
        with mock.patch.object(sys, "argv", ["sim", "x y.cu"]):
            told = cuda_program.wishes(options, options.files, "/r", ["one", "two"], 32769)
        lines = ["program x.cu y.c", "gpu L4", "workers 3", "watchdog 2.0", "json /r"]
        lines += ["limit 5.0", "looks sim --analyse 'x y.cu'", "analyse", "lines", "remark one"]
        self.assertEqual(told.splitlines(), [*lines, "remark two", "stack 98305"])

    def test_when_the_simulator_is_built_again(self):
        with mock.patch.object(building, "is_newer") as is_newer:
            self.assertTrue(cuda_program.is_built())
        names = {path.name for path in map(Path, is_newer.call_args[0][1])}
        files = {"sim.h", "CMakeLists.txt", "CMakePresets.json", "how_to_build.txt"}
        self.assertLessEqual(files, names)
        for of, name, stand_in in (
            (building, "made_for", lambda tree: tree),
            (building, "is_newer", lambda stamp, files: False),
            (cuda_program, "text_of", lambda path: "compiler g++\n"),
        ):
            with mock.patch.object(of, name, stand_in):
                self.assertFalse(cuda_program.is_built(), name)

    def test_a_program_that_runs_is_replaced(self):
        path, new = self.folder / "kept", self.program("new", "#!/bin/sh\nexit 5\n")
        shutil.copy(shutil.which("sleep"), path)
        with subprocess.Popen([path, "60"]) as process:
            cuda_program.keep(str(new), str(path))
            process.kill()
        self.assertEqual(said([path]).returncode, 5)
        with mock.patch("os.replace", side_effect=OSError(5, "no")):
            with self.assertRaisesRegex(cuda_program.Refused, "-o .*kept cannot be written: no"):
                cuda_program.keep(str(new), str(path))
        self.assertEqual(sorted(os.listdir(self.folder)), ["kept", "new"])

    def test_local_arrays(self):
        said = "a b.cu:3:9:void k(int*)\t99\tstatic\n"
        said += "a.cu:4:1:void ns::m<T>(T*) [with T = int]\t{}\tstatic\n"
        said += "a.cu:9:5:int main()\t9999999\tstatic\n"
        for size, most in ((100, 100), (98, 99)):
            self.assertEqual(cuda_program.local_bytes(said.format(size), {"k", "m"}), most)
        with self.assertRaisesRegex(cuda_program.Refused, "2000000 bytes of local arrays .a.cu:4"):
            cuda_program.local_bytes(said.format(2000000), {"k", "m"})

    def test_host_functions_in_device_code(self):
        device = "__device__ int d() { return 1; } __device__ int e();\nint e() { return 2; }\n"
        host = "int h() { return 1; }\ntemplate <class T> T t(T x) { return x; }\n"
        host += "__attribute__((cold)) decltype(1) a() noexcept(true) { return 1; }\n"
        host += "constexpr int c() { return 1; } struct S { int m() { return 1; } };\n"
        for body, names in (
            ("d() + e() + c() + S().m()", []),
            ("h() + t(1) + a()", ["h", "t", "a"]),
            ("x.h() + ns::h() + cos(1.f)", []),
            ("std::rand() + ::time(0)", ["std::rand", "time"]),
            ("[&] { int h(3); return h; }()", []),
            ("std::sort(x, x), cout << 3", ["std::sort", "cout"]),
        ):
            for word, found in (("__global__", names), ("__host__ __device__", []), ("", [])):
                header = '# 1 "/x.h" 1 3\nint x;\n# 7 "a.cu" 2'
                text = f'# 1 "a.cu"\n{device}{host}{header}\n{word} int k() {{ return {body}; }}\n'
                translator = Translator("/common/")
                translator.translate(text)
                with self.subTest(body=body, word=word):
                    self.assertEqual([name for name, _ in translator.host_calls], found)
                    self.assertLessEqual({line for _, line in translator.host_calls}, {"a.cu:7"})

    def test_a_program_with_its_own_new(self):
        for text, own in (("void* operator new(size_t n) {}", True), ("int renew();", False)):
            translator = Translator("/common/")
            translator.translate(text)
            self.assertEqual(translator.has_own_new, own)

    def test_casts_and_shifts_of_device_code(self):
        to, shift = "::sim::any::to", " ::sim::any::shift "
        unchanged = "sizeof(int) * x", "-(int)x", "(T)x", "(int*)p", "int()", "(int)", "a < b"
        unchanged += "f<int>(x)", "static_cast<T>(x)", "A<int(int)>::f", "[](int) { y; }"
        unchanged += "a <<= b", "a >> 3", "A<B<c>> d", "A<f<b>(), B<c>> d", "i < a >> b"
        unchanged += "[](int) mutable { y; }", "{ int (*f)(int); }"
        for text, made in (
            ("(int)x", "::sim::any::To<int>() ->*x"),
            ("a && (unsigned char) x", "a && ::sim::any::To<unsigned char>() ->* x"),
            ("(float)(int)x", "::sim::any::To<float>() ->*::sim::any::To<int>() ->*x"),
            ("a - (int)x", "a - ::sim::any::To<int>() ->*x"),
            ("static_cast<int>(x)", f"{to}<int>(x)"),
            *((f"{x} int(x)", f"{x} {to}<int>(x)") for x in ("return", "y ?", "a &", "a |")),
            *((f"{x} int(x)", f"{x} {to}<int>(x)") for x in "*=+-/%,:^!~>"),
            ("i < a << b", f"i < a <<{shift}<< b"),
            ("b << int(x)", f"b <<{shift}<< {to}<int>(x)"),
            ("f<T>(a) >> b", f"f<T>(a) >>{shift}>> b"),
            ("A<B<T>>(a) >> b", f"A<B<T>>(a) >>{shift}>> b"),
            ("static_cast<int>(x) >> b", f"{to}<int>(x) >>{shift}>> b"),
            ("T{int(x)}", f"T{{{to}<int>(x)}}"),
            ("f(int(x))[int(y)]", f"f({to}<int>(x))[{to}<int>(y)]"),
            ("(int)::x", "::sim::any::To<int>() ->*::x"),
            ("a << b", f"a <<{shift}<< b"),
            ("A<b> c; d >> e", f"A<b> c; d >>{shift}>> e"),
            ("f(a)[1] >> b", f"f(a)[1] >>{shift}>> b"),
            *((same, same) for same in unchanged),
        ):
            for word in ("__device__", "__host__"):
                begin, end = "void k() { y; ", "; }\n"
                given = f"{word} {begin}{text}{end}"
                translated = Translator("/common/", arithmetic=True).translate(given)
                expected = made if word == "__device__" else text
                self.assertEqual(translated.strip(), f"{begin}{expected}{end}".strip())

    def test_what_cannot_be_translated_is_refused(self):
        for text, words in (
            ("k<<<1, 1; }", "a launch without >>>( after its <<<"),
            ("k<<<1, 1; a >>>(x); }", "a launch without >>>( after its <<<"),
            ("3<<<1, 1>>>(x); }", "a launch of something that has no name"),
            ("k<<<1, 1>>>(x; }", "'(' is never closed"),
            ("x)<<<1, 1>>>(x); }", "')' was never opened"),
            ('asm("mov.u32 %0, 1;" : "=r" x);', "a bracket is missing"),
            ('asm("mov.u32 %0, 1;" : x);', "an operand without a constraint"),
            ('asm("\\x");', "a text with an escape that C++ does not have"),
            ("asm([);]", "brackets that cross"),
        ):
            with self.assertRaises(TranslationError) as caught:
                Translator("/common/").translate(f'# 7 "a.cu"\n{text}\n')
            self.assertEqual(str(caught.exception), f"{words} (a.cu:7)")

    def test_orders_and_scopes_of_ptx(self):
        """A release is preceded by a fence in device memory; unknown instructions are refused."""
        fence, ptx, here = "::sim::fence();", "::sim::ptx", "::sim::Where::here()"
        proxy = "::sim::proxy_fence(::sim::ProxyFence::"
        threads = "blockDim.x * blockDim.y * blockDim.z"
        scopes = {"cta": ";", "cluster": ";", "gpu": fence, "sys": fence}
        for ptx_text, made in (
            *((f"fence.{f}.{s}", made) for f in ("sc", "acq_rel") for s, made in scopes.items()),
            *((f"membar.{s}", made) for s, made in (("gl", fence), ("sys", fence), ("cta", ";"))),
            ("fence.proxy.async", f"{proxy}shared); {proxy}device);"),
            ("fence.proxy.async.global", f"{proxy}device);"),
            ("fence.proxy.async.shared::cluster", f"{proxy}shared);"),
            ("bar.sync 0", f"::sim::sync_block({here});"),
            ("bar.arrive 1, 64", f"::sim::sync_named(1, 64, false, {here});"),
            ("barrier.cta.sync.aligned 0, 96", f"::sim::sync_named(0, 96, true, {here});"),
            ("bar.sync 3", f"::sim::sync_named(3, {threads}, true, {here});"),
            ("cp.async.wait_group 2", "::sim::cp_async_wait(2);"),
            ("cp.async.bulk.wait_group 1", "::sim::bulk_wait(1, false);"),
            ("cp.async.bulk.wait_group.read 1", "::sim::bulk_wait(1, true);"),
            ("tcgen05.wait::st.sync.aligned", f"::sim::tcgen05_wait(false, {here});"),
            ("tcgen05.fence::before_thread_sync", "::sim::tcgen05_fence(true);"),
            *(("nanosleep.u32 5", ";"), ("griddepcontrol.launch_dependents", ";")),
            ("griddepcontrol.wait", "::sim::griddep_wait();"),
        ):
            found = inline_ptx.translate(ptx_text + ";", [], [])
            self.assertEqual(found, f"do {{ {{ {made} }} }} while (0)")
        x, p = ("=r", "x"), ("l", "p")
        none = "ld.acquire.gpu ld.relaxed.sys st.relaxed.gpu atom.relaxed.gpu.add "
        none += "atom.acquire.gpu.add atom.add red.add"
        release = "st.release.gpu st.release.cta.shared atom.release.gpu.add "
        release += "atom.acq_rel.sys.global.add red.release.cta.shared.add"
        for how in (none + " " + release).split():
            words = {"l": "%0, [%1]", "s": "[%1], %0", "a": "%0, [%1], 1", "r": "[%1], 1"}[how[0]]
            code = inline_ptx.translate(f"{how}.u32 {words};", [x], [p])
            self.assertEqual(code.count(fence), how in release.split(), how)
            self.assertIn("::sim::AtomicOp::", code)
            space = "shared" if "shared" in how else "global"
            self.assertIn(f"{ptx}::{space}_pointer<uint32_t>(p)", code)
        two, four = "{%0, %0}", "{%0, %0, %0, %0}"
        mma, wgmma = "mma.sync.aligned.m", "wgmma.mma_async.sync.aligned.m64n8k16.f32."
        tma = "cp.async.bulk.tensor.2d.shared::cta.global.mbarrier::complete_tx::bytes"
        copy = "cp.async.cg.shared.global.L2::cache_hint"
        for ptx_text, words in (
            ("mov.u32 %0, %clusterid.y;", "(x, blockIdx.y / ::sim::cluster_nctaid().y);"),
            ("mov.u32 %0, %nclusterid.z;", "(x, gridDim.z / ::sim::cluster_nctaid().z);"),
            ("mov.u32 %0, %cluster_ctaid.x;", "(x, ::sim::cluster_ctaid().x);"),
            ("mov.u32 %0, %cluster_nctarank;", "(x, ::sim::cluster_size());"),
            ("mbarrier.try_wait.shared.b64 %0, [%1], %0;", "(p), (int)((uint64_t)(x) >> 63), "),
            ("mbarrier.try_wait.parity.shared.b64 %0, [%1], %0;", "(p), x, ::sim::Where"),
            (f"{mma}8n8k16.row.col.s32.u8.u8.s32 {two}, %0, %0, {two};", "fa_d, false}"),
            (f"{mma}8n8k16.row.col.satfinite.s32.u8.u8.s32 {two}, %0, %0, {two};", "fa_d, true}"),
            (f"{mma}8n8k4.row.col.f64.f64.f64.f64 {two}, %0, %0, {two};", "double fa_d[2];"),
            (f"{wgmma}f16.f16 {four}, {four}, %1, 1, 1, 1;", "(p, ::sim::Where::here()), .acc"),
            (f"{wgmma}f16.f16 {four}, {four}, %1, 1, 1, 1, 0;", ".b_mn_major = (bool)(0), .acc"),
            (f"{tma}.L2::cache_hint [%0], [%1, {two}], [%0], %1;", "::sim::tma_load("),
            (f"{copy} [%0], [%1], 16, %1;", "(p), 16, 16, "),
            (f"{copy}.L2::256B [%0], [%1], 16, %0, %1;", "(p), 16, x, "),
        ):
            self.assertIn(words, inline_ptx.translate(ptx_text, [x], [p]))
        eights, mxf = "row.col.s32.u8.u8.s32", "row.col.f64.f64.f64.f64"
        st_async = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32"
        for ptx_text, what in (
            (f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {two}, [%1];", "'ldmatrix"),
            (f"{mma}8n8k4.{mxf} {two}, %0, %0, {four};", f"'{mma}8n8k4"),
            (f"{mma}8n8k16.{eights} {two}, %0, {two}, {two};", f"'{mma}8n8k16"),
            (f"{mma}8n16k8.{eights} {four}, %0, %0, {four};", f"'{mma}8n16k8"),
            (f"{wgmma}f16.f16 {two}, {four}, %1, 1, 1, 1;", "'wgmma"),
            (f"{wgmma}e4m3.e4m3 {four}, {four}, %1, 1, 1, 1;", "'wgmma"),
            (f"{tma} [%0], [%1, {{%0}}], [%0];", "'cp.async"),
            (f"{tma} [%0], [%1, {two}], [%0], %1;", "'cp.async"),
            (f"{tma}.L2::cache_hint [%0], [%1, {two}], [%0];", "'cp.async"),
            *(
                (f"tcgen05.{x};", f"'tcgen05.{x.split('.')[0]}")
                for x in (
                    *(
                        f"ld.sync.aligned.{shape}.b32 {two}, [%0]"
                        for shape in ("32x32b.x4", "16x256b.x1")
                    ),
                    f"ld.sync.aligned.16x32bx2.x2.b32 {two}, [%0]",
                    "ld.red.sync.aligned.32x32b.x1.max.f32 {%0}, %0, [%0]",
                    "cp.cta_group::1.64x128b [%0], %1",
                    "mma.cta_group::1.kind::mxf4.block_scale [%0], %1, %1, %0, 1",
                    "mma.cta_group::1.kind::i8 [%0], %1, %1, %0, 1, 3",
                )
            ),
            (f"{st_async} [%0], %0, [%0];", "'st.async"),
            (f"tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %1, %0, {two}, 1;", "'tcgen05.mma"),
            ("fma.rn.f32 %0, %0, %0, %0;", "'fma.rn.f32 %0, %0, %0, %0' with an operand that is"),
            *(("mov.u32 %0, %2;", "operand '%2'"), ("mov.u32 %0, %[y];", "operand '%[y]'")),
            *((f"{x};", f"'{x}'") for x in ("ld.v2.u32 {%0}, [%1]", "st.v4.u32 [%1], {%0, %0}")),
            *(
                (f"{name} {operands};", f"instruction {name}")
                for name, operands in (
                    (f"{mma}8n8k16.row.col.s32.u8.u8.f32", f"{two}, %0, %0, {two}"),
                    (f"{mma}8n8k32.row.col.s32.u4.u4.s32", f"{two}, %0, %0, {two}"),
                    (f"{wgmma}f16.bf16", f"{four}, {four}, %1, 1, 1, 1"),
                    *(
                        ("exit", ""),
                        ("add.u32", "%0, %0"),
                        ("ldmatrix.sync.aligned.m8n8.x1.shared.b8", "{%0}, [%0]"),
                    ),
                    ("tensormap.replace.tile.fill_mode.b1024.b32", "[%0], 1"),
                    *(("add.rz.f32x2", "%1, %1, %1"), ("mul24.hi.u32", "%0, %0, 1")),
                    *(("min.NaN.f32", "%0, %0, %0"), ("dp4a.u32.s32", "%0, %0, %0, 0")),
                    *(("cvt.rz.bf16x2.f32", "%0, %0, %0"), ("cvt.rz.f16.f32", "%0, %0")),
                    *(("bar.red.popc.u32", "%0, 1, %0"), ("rsqrt.approx.u32", "%0, %0")),
                )
            ),
        ):
            with self.assertRaises(inline_ptx.PtxError) as caught:
                inline_ptx.translate(ptx_text, [x], [p])
            self.assertTrue(str(caught.exception).startswith(f"the PTX {what}"), caught.exception)

    def test_spellings(self):
        for row in SPELLINGS.strip("\n").replace("\n    ", " ").split("\n"):
            text, made = (side.replace("¶", "\n") for side in row.split(" => "))
            for part, words in PARTS.items():
                made = made.replace(f"{{{part}}}", words)
            with self.subTest(text):
                found = Translator("/common/").translate(text + "\n").strip()
                self.assertEqual(found, text if made == "same" else made)
        with self.assertRaisesRegex(TranslationError, r"\(a.cu:4\)$"):  # lines after a header
            Translator("/common/").translate('# 1 "/x.h" 1 3\nint a;\n# 3 "a.cu" 2\n\n3<<<1;\n')

    def test_odd_texts(self):
        deep = "([" * 2000 + "])" * 2000
        for text, words in (
            ('asm(R"(mov.u32 %0, 1;)" : "=r"(x));', "::sim::any::move(x, 1);"),
            ('asm(u8"mov.u32 %0, 1\\x3b" : "=r"(x));', "::sim::any::move(x, 1);"),
            (f'asm("mov.u32 %{"9" * 5000}, 1;");', "::sim::any::unsupported("),
            ("extern __shared__ [];", "thread_local"),  # g++ reports the error
            ("if (x) a(); else ::k<<<1, 1>>>(x);", 'else  ::sim::any::launch("::k",'),
            ("do ::k<<<1, 1>>>(x); while (0);", 'do  ::sim::any::launch("::k",'),
            ("return ::ns::k<<<1, 1>>>(x);", 'return  ::sim::any::launch("::ns::k",'),
            ("a::template k<T><<<1, 1>>>(x);", '\n ::sim::any::launch("a::k<T>",'),
            ("return cudaMalloc(&x, n);", 'return ::sim::any::Naming("x").cudaMalloc(&x, n);'),
            ("else ::cudaMalloc(&x, n);", 'else ::sim::any::Naming("x").cudaMalloc(&x, n);'),
            ("cudaError_t cudaMalloc(void** x, size_t n);", "cudaError_t cudaMalloc(void** x,"),
            ("api.cudaMalloc(&x, n);", "api.cudaMalloc(&x, n);"),
            ("auto f = &cudaLaunchKernelExC;", "auto f = &cudaLaunchKernelExC;"),
            ("cudaLaunchKernelExC(&c, k, 0);", "Launching().cudaLaunchKernelExC(&c, k, 0);"),
            ("table[i]<<<1, 1>>>(x);", "[fa_kernel = table[i]]("),
            ("pick(3)<<<1, 1>>>(x);", "[fa_kernel = pick(3)]("),
            ('ns::\n# 7 "a.cu"\nk\n# 9 "a.cu"\n<<<1, 1>>>\n# 9 "a.cu"\n(x);', 'launch("ns::k",'),
            ("pick<float>(3)<<<1, 1>>>(x);", "\n ::sim::any::launch("),
            ("pick<float>(3)<<<1, 1>>>(x);", "[fa_kernel = pick<float>(3)]("),
            ("table[1](2)<<<1, 1>>>(x);", "[fa_kernel = table[1](2)]("),
            ("else (*p)<<<1, 1>>>(x);", "else  ::sim::any::launch("),
            ("if (x) (*p)<<<1, 1>>>(x);", "if (x)  ::sim::any::launch("),
            ("return (p)<<<1, 1>>>(x);", "[fa_kernel = (p)]("),
            ("a<int>::k<<<1, 1>>>(x);", '\n ::sim::any::launch("a<int>::k",'),
            ("auto f = &cudaLaunchKernel;", "auto f = &cudaLaunchKernel;"),
            ("cudaLaunchKernelEx(c);", "cudaLaunchKernelEx(c);"),
            ("work->kernel<<<1, 1>>>(x);", "[fa_kernel = work->kernel]("),
            ("work.kernel<<<1, 1>>>(x);", "[fa_kernel = work.kernel]("),
            (
                'asm("tcgen05.mma.sp.cta_group::1.kind::f16 [%0], %1, %1, [%0], %0, 1;" '
                ':: "r"(d), "l"(a));',
                'unsupported("the PTX instruction tcgen05.mma.sp.cta_group::1.kind::f16")',
            ),
            (
                'asm("tcgen05.mma.cta_group::2.kind::tf32 [%0], [%0], %1, %0, '
                '{%2, 0, 0, 0, 0, 0, 0, 0}, 1;" :: "r"(d), "l"(b), "r"(mask));',
                ".disabled = {(uint32_t)(mask), (uint32_t)(0), (uint32_t)(0), (uint32_t)(0), ",
            ),
            (  # CUTLASS's order; PTX has the group after the barrier's signal
                'asm("cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global'
                ".mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
                '[%0], [%1, {%2, %2}], [%0], %3, %4;" '
                ':: "r"(to), "l"(&map), "r"(x), "h"(mask), "l"(hint));',
                "::sim::any::tma_load(2, ",
            ),
            ('asm("brkpt;");', "::sim::any::trap("),
            *(  # as ptxas does
                (f'asm("tcgen05.{form};" : "+r"(d) : "l"(a));', "unsupported(")
                for form in (
                    "mma.ws.cta_group::2.kind::f16 [%0], %1, %1, %0, 1",
                    "mma.ws.cta_group::1.kind::f16.collector::a::use [%0], %1, %1, %0, 1",
                    "mma.cta_group::1.kind::f16.collector::b0::use [%0], %1, %1, %0, 1",
                    "mma.cta_group::1.kind::f16 [%0], %1, %1, %0, 1, 16",
                    "mma.cta_group::1.kind::f16.block_scale [%0], %1, %1, %0, [%0], [%0], 1",
                    "mma.cta_group::1.kind::mxf4 [%0], %1, %1, %0, [%0], [%0], 1",
                    "mma.cta_group::1.kind::mxf4nvf4.block_scale [%0], %1, %1, %0, [%0], [%0], 1",
                    "cp.cta_group::1.4x256b.b8x16 [%0], %1",
                    "commit.cta_group::1.mbarrier::arrive::one.shared::cta.b64 [%0]",
                    "ld.sync.aligned.32x32b.x1.unpack::16b.b32 {%0}, [%0]",
                    "ld.red.sync.aligned.32x32b.x2.min.abs.s32 {%0, %0}, %0, [%0]",
                )
            ),
            ("template <typename T> int f() { return T::g<3>(1); }", "T::template g<3>(1)"),
            ("template <class T> int f() { return a::T<3>(1) + U::g<3>(); }", "T<3>(1) + U::g<3>"),
            ("__managed__ __device__ int n;", ")))  int n;"),
            ("__device__ __managed__ int n;", ")))  int n;"),
            ("void f() { __shared__ extern int s[4][2]; }", "int (&s)[4][2] = reinterpret_cast<"),
            ("void f() { extern __shared__ alignas(16) int s[]; }", "int (&s)[] = reinterpret"),
            ('asm __volatile__("mov.u32 %0, 1;" : "=r"(x));', "::sim::any::move(x, 1);"),
            (
                "__global__ void k(void (*f)(int&), int& y);k<<<1, 1>>>(a, b);",
                ",a, ::sim::any::ref",
            ),
            (
                "__global__ void k(A<int, B<int, int>> x, int (&y)[8]);k<<<1, 1>>>(a, b);",
                ",a, ::sim::any::ref",
            ),
            ("__global__ void k();reinterpret_cast<void*>(&k);", "(::sim::any::kernel_a"),
            ("__global__ void k();p = &k;(void*)p;", "(void*)::sim::any::kernel_address(p);"),
            ("__global__ void k();(void*)a::k;", "(void*)::sim::any::kernel_address(a::k);"),
            (f"k<{deep}><<<1, 1>>>();", "::sim::any::launch("),
            ("__shared__ " * 5000, "thread_local"),
        ):
            self.assertIn(words, "\n" + Translator("/common/").translate(f"{text}\n"))

    def test_files_that_cannot_be_taken(self):
        folder, path = str(self.folder), str(self.write("notes.txt", "int main() {}\n"))
        for file, sentence in (
            (folder + "/none.cu", f"there is no file {folder}/none.cu"),
            (folder, f"{folder} is a folder: give it with -I, or give a file of it"),
            (folder + "/1", f"there is no file {folder}/1; its own arguments come after --"),
            (path, f"{path}: its name must end with .cu, .cpp or .c"),
        ):
            done = sim(file)
            self.assertEqual((done.returncode, done.stderr), (2, f"sim: {sentence}\n"))
        self.assertEqual(sim().returncode, 2)
        self.assertEqual(sim("--help").returncode, 0)

    def test_files_that_cannot_be_written(self):
        done = JOBS["full"]
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("sim: --json /dev/full: cannot be written: No space left", done.stderr)
        done = JOBS["sarif full"]
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertIn("sim: --sarif /dev/full cannot be written: No space left", done.stderr)
        self.assertEqual(read_json(JOBS.path("both.json"))["findings"], [])  # that one can
        source, folder = JOBS.path("no_kernel.cu"), JOBS.temporary.name
        other = JOBS.path("other")
        for words, told in (
            (("--json", folder), f"--json {folder} cannot be written: Is a directory"),
            (("--json", folder + "/no/r.json"), "cannot be written: its folder does not exist"),
            (("--json", source), f"--json {source} is {source}, which this call needs"),
            (("-o", source), f"-o {source} is {source}, which this call needs"),
            (("--sarif", folder + "/no/r"), "cannot be written: its folder does not exist"),
            (("--sarif", other, "--json", other), f"{other}, which this call needs"),
            (("--json", other, "-o", other), f"--json {other} is {other}, which this call needs"),
            (("-o", folder), f"-o {folder} cannot be written: Is a directory"),
            (("-o", "/dev/full"), "-o /dev/full cannot be written: No space left on device"),
            ((source,), "several of the files define main"),
            (("--limit", "0"), "--limit 0: must be above 0"),
            (("--json", ""), "--json: its value is empty"),
            (("-o", ""), "-o: its value is empty"),
            (("--gpu=",), "--gpu: its value is empty"),
        ):
            done = self.ended(sim(*words, source), 2)
            self.assertRegex(done.stderr, rf"^sim: .*{re.escape(told)}.*\n$")
        self.assertFalse(os.path.isfile("/dev/full"))
        left = [name for name in os.listdir(os.path.dirname(folder)) if name.endswith(".part")]
        self.assertEqual(left, [])
        with open(source, encoding="utf-8") as file:
            self.assertIn("main", file.read())

    def test_a_toolkit_that_is_installed(self):
        """Ours replace the runtime's; libraries' are refused; host libraries' may use CUDA's."""
        texts = {
            "cuda_runtime_api.h": "// NVIDIA\nstruct char1;\n",
            "cuda_runtime.h": "// NVIDIA\n#error the real one\n",
            "cusparse.h": '// NVIDIA\n#include "cuda_runtime.h"\n',
            "host_library.h": "#ifdef __CUDACC__\n#define BOTH __host__ __device__\n#endif\n"
            "BOTH inline int one() { return 1; }\n",
            "one.cu": "#include <cuda_runtime.h>\n#include <host_library.h>\n"
            "int main() { return one(); }\n",
            "two.cu": "#include <stdio.h>\n\n#include <cusparse.h>\nint main() {}\n",
            "curious.h": "// NVIDIA\n",
            "three.cu": "#include <curious.h>\nint main() {}\n",
            "thrust/none.h": '// NVIDIA\n#include "../cuda/none.h"\n',
            "cuda/none.h": "// NVIDIA\ninline int none() { return 0; }\n",
            "four.cu": "#include <thrust/none.h>\nint main() { return none(); }\n",
            "five.cu": "#include <cuda/none.h>\nint main() {}\n",
        }
        toolkit = str(self.folder / "include")
        for name, text in texts.items():
            self.write(name if name.endswith(".cu") else f"include/{name}", text)
        for variable in (None, "CPATH"):
            words = [] if variable else ["-I", toolkit]
            env = {**os.environ, variable or "CPATH": toolkit if variable else ""}
            with self.subTest(variable):
                for name, status in ("one.cu", 1), ("four.cu", 0):  # Thrust's may use libcu++
                    done = sim(*words, str(self.folder / name), env=env)
                    self.assertEqual((done.returncode, done.stdout, done.stderr), (status, "", ""))
                for name, told in (
                    ("two.cu", "cuSPARSE, which two.cu:3"),
                    ("three.cu", "NVIDIA's curious.h, which three.cu:1"),
                    ("five.cu", "libcu++, which five.cu:1"),
                ):
                    done = sim(*words, str(self.folder / name), env=env)
                    told = f"sim: not supported: {told} includes\n"
                    self.assertEqual((done.returncode, done.stderr), (2, told))

    def test_too_little_memory(self):
        made = str(self.folder / "program")
        kept = sim(os.path.join(FOLDER, "transposes.cu"), "-o", made)
        self.assertEqual((kept.returncode, kept.stderr), (0, ""))
        few = (4 << 30, 4 << 30)
        done = said([made], preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, few))
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertRegex(done.stderr, "^sim: cannot reserve address space .*ulimit -v")
        self.assertEqual(done.stderr.splitlines()[1:], ["", "no kernel ran"])

    def test_control_c_leaves_nothing_behind(self):
        endless = program(
            "while (*p == 0) {\n}",
            'puts("begins"), fflush(stdout), k<<<1, 1>>>(p)',
            "#include <stdio.h>",
            "volatile int* p",
        )
        path, scratch = str(self.write("endless.cu", endless)), self.folder / "tmp"
        scratch.mkdir()
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        env = {**os.environ, "TMPDIR": str(scratch)}
        for when in ("compiles", "runs"):
            with self.subTest(when):
                command = [sys.executable, SIM, "--watchdog", "1000", path]
                process = subprocess.Popen(command, start_new_session=True, env=env, **pipes)
                if when == "runs":
                    self.assertEqual(process.stdout.readline(), "begins\n")
                else:
                    while not os.listdir(scratch) and process.poll() is None:
                        time.sleep(0.01)
                    time.sleep(0.3)
                os.killpg(process.pid, signal.SIGINT)
                _, told = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 128 + signal.SIGINT, told)
                self.assertNotIn("Traceback", told)
                self.assertEqual(os.listdir(scratch), [])
                deadline = time.monotonic() + 10
                with self.assertRaises(ProcessLookupError, msg="a process is left"):
                    while time.monotonic() < deadline:
                        os.killpg(process.pid, 0)
                        time.sleep(0.05)


if __name__ == "__main__":
    main()
